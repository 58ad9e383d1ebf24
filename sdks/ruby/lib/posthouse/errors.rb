# frozen_string_literal: true

module Posthouse
  # The base of all errors of this library.
  #
  # +status+, +code+ and +request_id+ are the service's, where it answered; quote +request_id+ when you ask for help.
  # +retry_after+ is what it asked to wait, in seconds. +message+ is all of it as text, +description+ without the rest.
  class Error < StandardError
    RETRYABLE_STATUSES = [429, 503].freeze

    attr_reader :description, :status, :code, :request_id, :retry_after

    def initialize(description = nil, status: nil, code: nil, request_id: nil, retry_after: nil)
      @description = description || self.class.name
      @status = status
      @code = code
      @request_id = request_id
      @retry_after = retry_after
      details = [status, code, request_id].compact
      super(details.empty? ? @description : "#{@description} (#{details.join(", ")})")
    end

    # Whether the same call may succeed later. The client has retried it already, as its policy says.
    def retryable?
      RETRYABLE_STATUSES.include?(status) || code == "idempotency_in_progress"
    end

    def insufficient_credits?
      code == "insufficient_credits"
    end

    # Whether the Idempotency-Key was used before, for another email.
    def idempotency_conflict?
      code == "idempotency_conflict"
    end
  end

  # The service answered, but not with what was asked for.
  class ApiError < Error; end

  # The service could not be reached, or the connection ended before its answer was whole; +cause+ says more.
  class ConnectionFailedError < Error
    def retryable?
      true
    end
  end

  # The service did not answer in time.
  class AttemptTimeoutError < Error
    def retryable?
      true
    end
  end

  # The message was still queued when the time was up; +last+ is how it was last seen.
  class WaitTimeoutError < Error
    attr_reader :last

    def initialize(description, last)
      super(description)
      @last = last
    end
  end

  # A request that is not to be believed; answer it with 400 and do nothing else. +reason+ is +:malformed_header+,
  # +:wrong_signature+, +:outside_tolerance+ or +:malformed_body+.
  class WebhookVerificationError < Error
    attr_reader :reason

    def initialize(description, reason)
      super(description)
      @reason = reason
    end
  end

  # An argument or option that can't be used; nothing was sent.
  class InvalidArgumentError < Error; end
end
