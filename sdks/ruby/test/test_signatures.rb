# frozen_string_literal: true

require "minitest/autorun"
require "posthouse"

begin
  require "rbs"
rescue LoadError
  # It comes with Ruby, but some distributions have it in a package of its own.
end

# That sig/posthouse.rbs says what is there: every class of it with every method, and no other.
class SignaturesTest < Minitest::Test
  SIGNATURES = File.expand_path("../sig/posthouse.rbs", __dir__)

  def declarations
    skip "the gem rbs is not installed" unless defined?(RBS::Parser)

    parsed = RBS::Parser.parse_signature(RBS::Buffer.new(name: SIGNATURES, content: File.read(SIGNATURES)))
    parsed = parsed.last unless parsed.first.is_a?(RBS::AST::Declarations::Module)
    parsed.first.members.grep(RBS::AST::Declarations::Class)
  end

  def test_every_public_class_has_its_signature
    classes = Posthouse.constants.select { |name| Posthouse.const_get(name).is_a?(Class) }
    assert_equal classes.sort, declarations.map { |one| one.name.name }.sort
  end

  def test_every_method_of_a_signature_is_there
    declarations.each do |declared|
      described = Posthouse.const_get(declared.name.name)
      declared.members.each do |member|
        next unless member.respond_to?(:kind)

        is_there = member.kind == :singleton ? described.respond_to?(member.name) : instance?(described, member.name)
        assert is_there, "#{described} has no #{member.name}"
      end
    end
  end

  private

  def instance?(described, name)
    described.method_defined?(name) || described.private_method_defined?(name)
  end
end
