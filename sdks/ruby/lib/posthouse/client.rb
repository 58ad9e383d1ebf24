# frozen_string_literal: true

require "securerandom"

module Posthouse
  # The system time.
  class SystemClock
    # Unix seconds.
    def now
      Time.now.to_f
    end

    # Seconds that never run backwards.
    def monotonic
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end

  # Sends email and reports its status. Many threads may share a client.
  #
  # +credential+ is an API key or token, or <tt>Posthouse::Basic.new(username, password)</tt>. +timeout+ is for an
  # attempt as a whole, in seconds; +retry_policy+ says how often and how long a call is tried. +debug+ is called after
  # every attempt with a DebugEvent, which has nothing secret in it. +transport+ replaces the HTTP client;
  # <tt>Posthouse::HttpTransport.new(proxy: …)</tt> goes through a proxy.
  class Client
    ATTEMPT_SECONDS = 10
    WAIT_SECONDS = 60

    attr_reader :base_url

    def initialize(credential, base_url:, timeout: ATTEMPT_SECONDS, retry_policy: RetryPolicy.new,
                   user_agent_suffix: "", transport: HttpTransport.new, debug: nil, clock: SystemClock.new,
                   sleep: Kernel.method(:sleep), random: Random.method(:rand))
      known = credential.is_a?(Bearer) || credential.is_a?(Basic) ? credential : Bearer.new(credential)
      @base_url = Checks.base_url(base_url)
      @setup = Setup.new(
        authorization: known.method(:authorization),
        user_agent: "posthouse-ruby/#{VERSION} #{Checks.user_agent_suffix(user_agent_suffix)}".rstrip.freeze,
        timeout: Checks.seconds(timeout, "the time-out", may_be_zero: false),
        retry_policy: retry_policy, transport: transport, debug: debug, clock: clock, sleep: sleep, random: random
      ).freeze
      freeze
    end

    # The email is accepted and queued. With the same key and email it is never sent twice, for 24 hours.
    #
    # Without a key a new one is made for this call, and used for all of its attempts.
    def send_email(email, idempotency_key: nil)
      raise InvalidArgumentError, "an email to send is a Posthouse::Email" unless email.is_a?(Email)

      key = idempotency_key.nil? ? SecureRandom.uuid : Checks.idempotency_key(idempotency_key)
      headers = { "Content-Type" => "application/json", "Idempotency-Key" => key }
      body = Checks.json(email.to_h)
      exchange = Exchange.new(@setup, "POST", "#{base_url}/emails", headers: headers, body: body, success: 202)
      answer, fields = exchange.call
      Sent.from_json(fields, replayed: answer.headers["idempotent-replayed"].to_s.casecmp?("true"))
    end

    # The message as it is now.
    def get(message_id)
      url = "#{base_url}/emails/#{Checks.message_id(message_id)}"
      _, fields = Exchange.new(@setup, "GET", url, success: 200).call
      Message.from_json(fields)
    end

    # The message when all its recipients have their result; WaitTimeoutError if that takes too long.
    def wait(message_id, timeout: WAIT_SECONDS)
      ends_at = @setup.clock.monotonic + Checks.seconds(timeout, "a wait's time-out")
      (1..).each do |poll|
        message = get(message_id)
        return message if message.final?

        left = ends_at - @setup.clock.monotonic
        if left < Exchange::SECONDS_MIN
          raise WaitTimeoutError.new("the message #{message.id} was still queued after #{timeout} s", message)
        end

        @setup.sleep.call([Backoff.poll_seconds(poll, @setup.random.call), left].min)
      end
    end

    def inspect
      "#<#{self.class} base_url=#{base_url.inspect}>"
    end
  end
end
