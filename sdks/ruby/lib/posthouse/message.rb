# frozen_string_literal: true

module Posthouse
  # What the service says of an attachment it took; +size+ is in bytes.
  SentAttachment = Struct.new(:filename, :content_type, :size, :content_id, keyword_init: true) do
    def self.from_json(given) # :nodoc:
      new(
        filename: Answers.text(given, "filename").to_s,
        content_type: Answers.text(given, "content_type").to_s,
        size: Answers.number(given, "size").to_i,
        content_id: Answers.text(given, "content_id")
      ).freeze
    end
  end

  # An accepted email: queued, not yet delivered.
  Sent = Struct.new(
    :id, :status, :source, :request_id, :from, :to, :cc, :bcc, :reply_to, :subject, :billing_status, :recipient_count,
    :credits_reserved, :headers, :tags, :attachments, :replayed, keyword_init: true
  ) do
    # Whether its key was used before, and this is that email.
    alias_method :replayed?, :replayed

    def self.from_json(given, replayed: false) # :nodoc:
      headers = given["headers"]
      new(
        id: Answers.text(given, "id").to_s,
        status: Answers.text(given, "status").to_s,
        source: Answers.text(given, "source").to_s,
        request_id: Answers.text(given, "request_id").to_s,
        from: Answers.text(given, "from").to_s,
        to: Answers.texts(given, "to"),
        cc: Answers.texts(given, "cc"),
        bcc: Answers.texts(given, "bcc"),
        reply_to: Answers.text(given, "reply_to"),
        subject: Answers.text(given, "subject").to_s,
        billing_status: Answers.text(given, "billing_status").to_s,
        recipient_count: Answers.number(given, "recipient_count").to_i,
        credits_reserved: Answers.number(given, "credits_reserved").to_i,
        headers: (headers.is_a?(Hash) ? headers : {}).freeze,
        tags: Answers.texts(given, "tags"),
        attachments: Answers.objects(given, "attachments").map { |one| SentAttachment.from_json(one) }.freeze,
        replayed: replayed
      ).freeze
    end
  end

  # An address of a message and its status: +queued+, +deferred+, +delivered+, +bounced+ or +failed+.
  Recipient = Struct.new(
    :id, :email, :status, :billing_status, :attempt_count, :last_smtp_code, :last_smtp_response, :delivered_at,
    :bounced_at, keyword_init: true
  ) do
    def self.from_json(given) # :nodoc:
      new(
        id: Answers.text(given, "id").to_s,
        email: Answers.text(given, "email").to_s,
        status: Answers.text(given, "status").to_s,
        billing_status: Answers.text(given, "billing_status").to_s,
        attempt_count: Answers.number(given, "attempt_count").to_i,
        last_smtp_code: Answers.number(given, "last_smtp_code"),
        last_smtp_response: Answers.text(given, "last_smtp_response"),
        delivered_at: Answers.moment(given["delivered_at"]),
        bounced_at: Answers.moment(given["bounced_at"])
      ).freeze
    end
  end

  # A message and its status: +queued+, +delivered+, +partial+ or +failed+.
  Message = Struct.new(
    :id, :status, :source, :from, :subject, :billing_status, :recipient_count, :credits_reserved, :created_at,
    :recipients, :request_id, keyword_init: true
  ) do
    def final?
      status != "queued"
    end

    def self.from_json(given) # :nodoc:
      new(
        id: Answers.text(given, "id").to_s,
        status: Answers.text(given, "status").to_s,
        source: Answers.text(given, "source").to_s,
        from: Answers.text(given, "from").to_s,
        subject: Answers.text(given, "subject").to_s,
        billing_status: Answers.text(given, "billing_status").to_s,
        recipient_count: Answers.number(given, "recipient_count").to_i,
        credits_reserved: Answers.number(given, "credits_reserved").to_i,
        created_at: Answers.moment(given["created_at"]),
        recipients: Answers.objects(given, "recipients").map { |one| Recipient.from_json(one) }.freeze,
        request_id: Answers.text(given, "request_id").to_s
      ).freeze
    end
  end
end
