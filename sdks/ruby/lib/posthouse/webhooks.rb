# frozen_string_literal: true

require "openssl"

# Webhooks: verifies that a request is the service's own, and parses it.
module Posthouse
  SIGNATURE_HEADER = "Service-Signature"
  TOLERANCE_SECONDS = 300

  # Which recipient of which message an event is about. +extra+ has the fields that this version has no name for.
  EventData = Struct.new(
    :email_id, :recipient_id, :to, :from, :subject, :smtp_code, :smtp_response, :test, :extra, keyword_init: true
  ) do
    # Whether it only shows that webhooks arrive.
    alias_method :test?, :test

    def self.from_json(given) # :nodoc:
      new(
        email_id: Answers.text(given, "email_id"),
        recipient_id: Answers.text(given, "recipient_id"),
        to: Answers.text(given, "to"),
        from: Answers.text(given, "from"),
        subject: Answers.text(given, "subject"),
        smtp_code: Answers.number(given, "smtp_code"),
        smtp_response: Answers.text(given, "smtp_response"),
        test: given["test"] == true,
        extra: given.except(*members.map(&:to_s).reject { |name| name == "extra" }).freeze
      ).freeze
    end
  end

  # +email.delivered+, +email.bounced+, +email.failed+ or +webhook.test+. The same +id+ may come more than once.
  Event = Struct.new(:id, :type, :created_at, :data, keyword_init: true)

  # The event, if the request is the service's own; WebhookVerificationError otherwise.
  #
  # +raw_body+ is the request's body as it came, before anything parsed it; +header+ the value of Service-Signature;
  # +secret+ the webhook's, with its +whsec_+. A request is believed for +tolerance+ seconds before and after the time
  # it was signed, to prevent replays. +now+ is in Unix seconds, or a Time.
  def self.verify_webhook(raw_body, header, secret, tolerance: TOLERANCE_SECONDS, now: Time.now)
    Webhook.new(raw_body, header).verified(secret, tolerance, now)
  end

  class Webhook # :nodoc:
    TIME = /\A[0-9]{1,12}\z/
    SIGNATURE = /\A[0-9a-f]{64}\z/
    FIELD = /\A([^=,\s]+)=([^,\s]*)\z/

    def initialize(raw_body, header)
      @raw_body = raw_body.to_s.b
      @header = header.to_s.b
    end

    def verified(secret, tolerance, now)
      key = Checks.text(secret, "the webhook's secret")
      raise InvalidArgumentError, "the webhook's secret is empty; anybody could sign with it" if key.empty?

      seconds = Checks.seconds(tolerance, "the tolerance")
      signed_at, signatures = parsed
      expected = OpenSSL::HMAC.hexdigest("SHA256", key, "#{signed_at}.".b + @raw_body)
      unless signatures.any? { |one| OpenSSL.fixed_length_secure_compare(expected, one) }
        refuse(:wrong_signature, "the signature is not that of this body and secret")
      end
      if (now.to_f - signed_at.to_i).abs > seconds
        refuse(:outside_tolerance, "it was signed more than #{tolerance} s before or after now")
      end
      event
    end

    private

    # The time and the signatures of the header, as they stand in it.
    def parsed
      fields = @header.split(",", -1).map { |one| FIELD.match(one) }
      refuse(:malformed_header, "the header #{SIGNATURE_HEADER} is not of the form t=…,v1=…") unless fields.all?

      times, signatures = %w[t v1].map { |name| fields.filter_map { |one| one[2] if one[1] == name } }
      is_right = times.one? && TIME.match?(times.first) && signatures.any? && signatures.all?(SIGNATURE)
      refuse(:malformed_header, "the header #{SIGNATURE_HEADER} has not one time and signatures") unless is_right
      [times.first, signatures]
    end

    def event
      fields = Answers.object(@raw_body) || refuse(:malformed_body, "the body is no JSON object")
      id, type = %w[id type].map { |name| Answers.text(fields, name) }
      created_at = Answers.moment(fields["created_at"])
      data = fields["data"]
      refuse(:malformed_body, "the body is no event") unless id && type && created_at && data.is_a?(Hash)

      Event.new(id: id, type: type, created_at: created_at, data: EventData.from_json(data)).freeze
    end

    def refuse(reason, text)
      raise WebhookVerificationError.new("not a genuine webhook: #{text}", reason)
    end
  end
  private_constant :Webhook
end
