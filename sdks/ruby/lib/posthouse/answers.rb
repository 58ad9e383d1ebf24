# frozen_string_literal: true

require "date"
require "json"
require "time"

module Posthouse
  # Reads the answers of the service. A later version may return more: a value of an unexpected type counts
  # as absent.
  module Answers # :nodoc:
    RFC3339 = /\A\d{4}-\d\d-(\d\d)[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)\z/

    module_function

    # The object that the bytes are the JSON of, or nil.
    def object(bytes)
      text = bytes.dup.force_encoding(Encoding::UTF_8)
      value = JSON.parse(text) if text.valid_encoding?
      value if value.is_a?(Hash)
    rescue JSON::ParserError
      nil
    end

    def text(fields, name)
      value = fields[name]
      value if value.is_a?(String) && !value.empty?
    end

    def texts(fields, name)
      list(fields, name).grep(String).freeze
    end

    def number(fields, name)
      value = fields[name]
      value if value.is_a?(Integer)
    end

    def objects(fields, name)
      list(fields, name).grep(Hash)
    end

    def list(fields, name)
      value = fields[name]
      value.is_a?(Array) ? value : []
    end

    # A time of RFC 3339, or nil if it is absent or something else.
    def moment(value)
      matched = RFC3339.match(value) if value.is_a?(String)
      return unless matched

      time = Time.iso8601(value)
      # Ruby takes the 31st of November for the 1st of December.
      time if time.day == matched[1].to_i
    rescue ArgumentError
      nil
    end
  end
  private_constant :Answers
end
