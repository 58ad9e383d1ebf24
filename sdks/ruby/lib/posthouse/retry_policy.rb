# frozen_string_literal: true

require "time"

module Posthouse
  # How often a call is tried, and how it backs off. RetryPolicy.none never tries again.
  #
  # A call never takes longer than +total_seconds_max+, all its attempts and waits together: if the next wait doesn't
  # fit into what is left, the error is raised at once.
  class RetryPolicy
    attr_reader :attempts_max, :base_seconds, :factor, :cap_seconds, :total_seconds_max

    def self.none
      new(attempts_max: 1, total_seconds_max: Float::INFINITY)
    end

    def initialize(attempts_max: 4, base_seconds: 0.5, factor: 2.0, cap_seconds: 8.0, total_seconds_max: 30.0)
      unless attempts_max.is_a?(Integer) && attempts_max >= 1
        raise InvalidArgumentError, "attempts_max counts the first attempt, too, and must be at least 1"
      end

      @attempts_max = attempts_max
      @base_seconds = Checks.seconds(base_seconds, "base_seconds")
      @factor = Checks.seconds(factor, "factor")
      @cap_seconds = Checks.seconds(cap_seconds, "cap_seconds")
      is_endless = total_seconds_max == Float::INFINITY
      @total_seconds_max = is_endless ? total_seconds_max : Checks.seconds(total_seconds_max, "total_seconds_max")
      freeze
    end

    # The wait after the attempt of that number, from 1; +random+ is in [0, 1).
    def wait_seconds(attempt, random, retry_after)
      [Backoff.seconds(base_seconds, factor, cap_seconds, attempt, random), retry_after.to_f].max
    end
  end

  # How waits grow, and what the service asks to wait.
  module Backoff # :nodoc:
    POLL_BASE_SECONDS = 0.5
    POLL_FACTOR = 1.5
    POLL_CAP_SECONDS = 5.0
    # Ruby warns of numbers that are longer than a float can say.
    DIGITS_MAX = 300
    IMF_FIXDATE = /\A[A-Z][a-z]{2}, (\d\d) [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\z/

    module_function

    # The wait after the poll of that number, from 1.
    def poll_seconds(poll, random)
      seconds(POLL_BASE_SECONDS, POLL_FACTOR, POLL_CAP_SECONDS, poll, random)
    end

    def seconds(base, factor, cap, number, random)
      grown = base.zero? ? 0.0 : base * factor**(number - 1)
      [cap, grown].min * (0.5 + random / 2.0)
    end

    # The header Retry-After, in seconds from +now+; nil if it is absent or can't be read.
    def retry_after_seconds(value, now)
      text = value.to_s.strip
      return text.length > DIGITS_MAX ? Float::INFINITY : text.to_f if text.match?(/\A[0-9]+\z/)

      matched = IMF_FIXDATE.match(text)
      return unless matched

      time = Time.httpdate(text)
      [0.0, time.to_f - now].max if time.day == matched[1].to_i
    rescue ArgumentError
      nil
    end
  end
  private_constant :Backoff
end
