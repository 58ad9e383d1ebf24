# frozen_string_literal: true

module Posthouse
  # An API key (+ph_live_…+, +ph_test_…+; with the read scope if it is to read), or a token from a login.
  class Bearer
    def initialize(token)
      known = Checks.bearer_token(token).dup.freeze
      # In a closure, where neither inspect nor pp nor a serializer finds it.
      @authorization = -> { "Bearer #{known}" }
      freeze
    end

    def authorization
      @authorization.call
    end

    def inspect
      "#<#{self.class}>"
    end
  end

  # The user name and password of an SMTP credential.
  class Basic
    attr_reader :username

    def initialize(username, password)
      @username = Checks.user_name(username).dup.freeze
      known = Checks.password(password).dup.freeze
      @authorization = -> { "Basic #{["#{@username}:#{known}"].pack("m0")}" }
      freeze
    end

    def authorization
      @authorization.call
    end

    def inspect
      "#<#{self.class} username=#{username.inspect}>"
    end
  end
end
