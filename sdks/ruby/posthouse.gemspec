# frozen_string_literal: true

require_relative "lib/posthouse/version"

Gem::Specification.new do |spec|
  spec.name = "posthouse"
  spec.version = Posthouse::VERSION
  spec.summary = "The official client library of Posthouse: sends email, reports its status, verifies webhooks."
  spec.description = "Typed, safe for threads, with retries that never send twice; nothing but the standard library."
  spec.authors = ["The Posthouse authors"]
  spec.homepage = "https://posthouse.example"
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.0"
  spec.metadata = { "rubygems_mfa_required" => "true" }
  spec.files = Dir["lib/**/*.rb", "sig/**/*.rbs", "README.md", "LICENSE"]
  spec.require_paths = ["lib"]
end
