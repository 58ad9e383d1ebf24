# frozen_string_literal: true

module Posthouse
  VERSION = "1.0.0-rc.1"
end
