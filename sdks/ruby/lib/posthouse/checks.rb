# frozen_string_literal: true

require "json"
require "uri"

module Posthouse
  # What can't be sent as it was given is refused here: above all whatever could end a header and begin another.
  module Checks # :nodoc:
    KEY_CHARACTERS_MAX = 255
    CONTROL = /[\x00-\x1f\x7f]/
    PRINTABLE = /\A[ -~]*\z/
    VISIBLE = /\A[!-~]+\z/

    module_function

    # The base URL without slashes at its end.
    def base_url(given)
      url = text(given, "the base URL")
      return url.sub(%r{/+\z}, "").freeze if usable?(url)

      # The text doesn't repeat the address, which may have a password in it.
      raise InvalidArgumentError, "the base URL must be http://host or https://host, with a path or not, " \
                                  "and without user name, password, query and fragment"
    end

    def usable?(url)
      return false if !VISIBLE.match?(url) || url.match?(%r{[?#]|//[^/]*@})

      parts = URI.parse(url)
      parts.is_a?(URI::HTTP) && !parts.host.to_s.empty? && parts.port.between?(1, 65_535)
    rescue URI::Error
      false
    end

    def bearer_token(given)
      token = text(given, "an API key or token")
      return token if VISIBLE.match?(token)

      raise InvalidArgumentError, "an API key or token is printable ASCII without spaces, and not empty"
    end

    def user_name(given)
      name = text(given, "a user name")
      return name unless name.empty? || name.include?(":") || CONTROL.match?(name)

      raise InvalidArgumentError, "a user name is not empty and has neither colons nor control characters"
    end

    def password(given)
      word = text(given, "a password")
      return word unless word.empty? || CONTROL.match?(word)

      raise InvalidArgumentError, "a password is not empty and has no control characters"
    end

    def user_agent_suffix(given)
      suffix = text(given, "the user agent's suffix")
      return suffix if PRINTABLE.match?(suffix)

      raise InvalidArgumentError, "the user agent's suffix may have printable ASCII characters alone"
    end

    def idempotency_key(given)
      key = text(given, "an idempotency key")
      return key if key.length.between?(1, KEY_CHARACTERS_MAX) && PRINTABLE.match?(key) && key == key.strip

      raise InvalidArgumentError, "an idempotency key is 1 to #{KEY_CHARACTERS_MAX} printable ASCII characters, " \
                                  "without spaces at its ends"
    end

    # The id as it stands in a path.
    def message_id(given)
      id = text(given, "a message id")
      if ["", ".", ".."].include?(id) || CONTROL.match?(id)
        raise InvalidArgumentError, "this is no message id; use that of a send's result"
      end

      id.b.gsub(/[^A-Za-z0-9\-._~]/n) { |byte| format("%%%02X", byte.ord) }.force_encoding(Encoding::UTF_8)
    end

    def filename(given)
      name = text(given, "a file name")
      return name unless name.empty? || name.match?(%r{[/\\]}) || CONTROL.match?(name)

      raise InvalidArgumentError, "#{name.inspect} is no file name: it must be one without a path"
    end

    def seconds(value, name, may_be_zero: true)
      return value.to_f if value.is_a?(Numeric) && value.real? && value.to_f.finite? &&
                           (value.positive? || (may_be_zero && value.zero?))

      raise InvalidArgumentError, "#{name} must be a number #{may_be_zero ? "of at least" : "above"} 0"
    end

    # A string in UTF-8.
    def text(given, name)
      raise InvalidArgumentError, "#{name} must be a string" unless given.is_a?(String)

      is_binary = given.encoding == Encoding::BINARY
      text = is_binary ? given.dup.force_encoding(Encoding::UTF_8) : given.encode(Encoding::UTF_8)
      raise InvalidArgumentError, "#{name} must be text in UTF-8" unless text.valid_encoding?

      text
    rescue EncodingError
      raise InvalidArgumentError, "#{name} must be text that UTF-8 has characters for"
    end

    def json(fields)
      JSON.generate(fields)
    rescue JSON::GeneratorError, JSON::NestingError, EncodingError
      # The text doesn't repeat the email.
      raise InvalidArgumentError, "the email can't be written as JSON: its text must be UTF-8, its numbers finite"
    end
  end
  private_constant :Checks
end
