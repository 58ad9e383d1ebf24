# frozen_string_literal: true

# The official client library of Posthouse: sends email, reports its status, verifies webhooks.
module Posthouse
end

require_relative "posthouse/version"
require_relative "posthouse/errors"
require_relative "posthouse/checks"
require_relative "posthouse/media_types"
require_relative "posthouse/answers"
require_relative "posthouse/email"
require_relative "posthouse/message"
require_relative "posthouse/retry_policy"
require_relative "posthouse/credentials"
require_relative "posthouse/transport"
require_relative "posthouse/exchange"
require_relative "posthouse/client"
require_relative "posthouse/webhooks"
