# frozen_string_literal: true

module Posthouse
  VERSION = "0.1.0"
end
