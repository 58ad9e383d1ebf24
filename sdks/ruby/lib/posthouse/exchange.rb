# frozen_string_literal: true

require "timeout"

module Posthouse
  # One attempt. +status+ is nil if there was no answer, +wait+ is nil if no attempt follows; times are in seconds.
  DebugEvent = Struct.new(:http_method, :url, :status, :attempt, :duration, :wait, keyword_init: true)

  # What all calls of a client share.
  Setup = Struct.new(
    :authorization, :user_agent, :timeout, :retry_policy, :transport, :debug, :clock, :sleep, :random,
    keyword_init: true
  )
  private_constant :Setup

  # One request, tried as often as the policy has it.
  class Exchange # :nodoc:
    # Less than this is no time at all.
    SECONDS_MIN = 0.001

    def initialize(setup, http_method, url, headers: {}, body: nil, success:)
      common = {
        "Authorization" => setup.authorization.call, "Accept" => "application/json", "User-Agent" => setup.user_agent
      }
      @setup = setup
      @request = Request.new(http_method, url, common.merge(headers), body)
      @success = success
    end

    def inspect
      "#<#{self.class} #{@request.inspect}>"
    end

    # The first answer that is a success and the object in it.
    def call
      ends_at = @setup.clock.monotonic + @setup.retry_policy.total_seconds_max
      attempt = 0
      loop do
        attempt += 1
        began_at = @setup.clock.monotonic
        answer, fields, error = attempted([SECONDS_MIN, [@setup.timeout, ends_at - began_at].min].max)
        ended_at = @setup.clock.monotonic
        wait = wait_seconds(error, attempt, ends_at - ended_at) if error
        report_attempt(answer, attempt, ended_at - began_at, wait)
        return [answer, fields] unless error
        raise error unless wait

        @setup.sleep.call(wait)
      end
    end

    private

    # The answer, if there was one, the object in it, and the error if it is no success.
    def attempted(timeout_seconds)
      answer = @setup.transport.exchange(@request, timeout_seconds)
      fields = Answers.object(answer.body) if answer.body.bytesize <= ANSWER_BYTES_MAX
      [answer, fields, refusal(answer, fields)]
    rescue Timeout::Error, Errno::ETIMEDOUT
      [nil, nil, caused { AttemptTimeoutError.new("there was no whole answer within #{timeout_seconds.round(3)} s") }]
    rescue SystemCallError, IOError, SocketError, OpenSSL::SSL::SSLError => e
      [nil, nil, caused { ConnectionFailedError.new("the service could not be reached: #{e.message}") }]
    end

    # The error with what is being rescued as its cause, which Ruby sets when an error is raised.
    def caused
      raise yield
    rescue Error => e
      e
    end

    def wait_seconds(error, attempt, left)
      policy = @setup.retry_policy
      return if !error.retryable? || attempt >= policy.attempts_max

      wait = policy.wait_seconds(attempt, @setup.random.call, error.retry_after)
      wait if wait < left
    end

    def report_attempt(answer, attempt, duration, wait)
      @setup.debug&.call(
        DebugEvent.new(http_method: @request.http_method, url: @request.url, status: answer&.status,
                       attempt: attempt, duration: duration, wait: wait).freeze
      )
    end

    # Nil if the answer is the success that was asked for.
    def refusal(answer, fields)
      is_success = answer.status == @success && fields && Answers.text(fields, "id") && Answers.text(fields, "status")
      return if is_success

      details = answer.status >= 400 && fields ? fields : {}
      ApiError.new(
        Answers.text(details, "error") || what_came(answer),
        status: answer.status,
        code: Answers.text(details, "code"),
        request_id: Answers.text(details, "request_id") || Answers.text(answer.headers, "x-request-id"),
        retry_after: Backoff.retry_after_seconds(answer.headers["retry-after"], @setup.clock.now)
      )
    end

    def what_came(answer)
      if answer.body.bytesize > ANSWER_BYTES_MAX
        "the answer is longer than #{ANSWER_BYTES_MAX} bytes"
      elsif answer.status.between?(300, 399)
        "the service answered with a redirect, which is not followed: check the base URL"
      elsif answer.status == @success
        "the answer is not the JSON that was expected: check the base URL"
      else
        "the service answered with status #{answer.status}"
      end
    end
  end
  private_constant :Exchange
end
