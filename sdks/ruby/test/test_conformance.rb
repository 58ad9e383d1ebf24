# frozen_string_literal: true

require "json"
require "minitest/autorun"
require "net/http"
require "posthouse"
require "pp"
require "stringio"
require "time"
require "yaml"

# Every case of sdks/conformance: `python3 ../conformance/stub.py -- sh run_tests.sh`.
class ConformanceTest < Minitest::Test
  STUB = ENV.fetch("POSTHOUSE_STUB", nil)
  TYPES = {
    Posthouse::ApiError => "api",
    Posthouse::ConnectionFailedError => "connection",
    Posthouse::AttemptTimeoutError => "timeout",
    Posthouse::WaitTimeoutError => "wait_timeout",
    Posthouse::WebhookVerificationError => "webhook",
    Posthouse::InvalidArgumentError => "invalid"
  }.freeze

  # Time that stands still but for sleeps.
  class FakeTime
    attr_reader :now, :sleeps

    alias monotonic now

    def initialize(now)
      @now = now
      @sleeps = []
    end

    def sleep(seconds)
      @sleeps << seconds
      @now += seconds
    end
  end

  def self.ask(path, body = nil)
    uri = URI(STUB + path)
    sent = JSON.generate(body) if body
    type = { "Content-Type" => "application/json" }
    answer = sent ? Net::HTTP.post(uri, sent, type) : Net::HTTP.get_response(uri)
    JSON.parse(answer.body.force_encoding(Encoding::UTF_8))
  end

  (STUB ? ask("/_/cases")["cases"] : []).each do |name|
    define_method("test_case: #{name}") do
      given = self.class.ask("/_/runs", { case: name })
      verdict = self.class.ask("/_/reports", { run: given["run"], **run_case(given) })
      assert verdict["passed"], verdict["problems"].join("\n")
    end
  end

  def test_the_cases_are_served
    skip "run it as `python3 ../conformance/stub.py -- sh run_tests.sh`" unless STUB
  end

  private

  def run_case(given)
    time = FakeTime.new(given["now"])
    report = { sleeps: time.sleeps, debug: [], result: nil, error: nil }
    begin
      report[:result] = neutral(given["kind"] == "webhook" ? verified(given) : called(given, time, report))
    rescue Posthouse::Error => e
      report[:error] = describe(e)
    end
    report
  end

  def called(given, time, report)
    client = Posthouse::Client.new(credential(given["client"]["credential"]), **options(given, time, report))
    report[:inspected] = [client.inspect, client.to_s, client.pretty_inspect, YAML.dump(client)].join(" ")
    call = given["call"]
    case given["kind"]
    when "send" then client.send_email(email(call["email"]), **some(call, "idempotency_key"))
    when "get" then client.get(call["id"])
    when "wait" then client.wait(call["id"], **some(call, "timeout"))
    end
  end

  def verified(given)
    call = given["call"]
    body = call["body_base64"].unpack1("m")
    Posthouse.verify_webhook(body, call["header"], call["secret"], now: given["now"], **some(call, "tolerance"))
  end

  def credential(known)
    return Posthouse::Basic.new(known["username"], known["password"]) if known.key?("username")

    known["api_key"] || Posthouse::Bearer.new(known["jwt"])
  end

  def options(given, time, report)
    client = given["client"]
    random = given["random"].dup
    options = {
      base_url: client["base_url"],
      debug: ->(event) { report[:debug] << event.to_h.transform_keys(http_method: :method) },
      random: -> { random.shift || 0 },
      **some(client, "timeout"), **some(client, "user_agent_suffix")
    }
    options.update(clock: time, sleep: time.method(:sleep)) if given["clock"] == "fake"
    options[:retry_policy] = policy(client["retry"]) if client.key?("retry")
    options
  end

  def policy(given)
    given == "none" ? Posthouse::RetryPolicy.none : Posthouse::RetryPolicy.new(**given.transform_keys(&:to_sym))
  end

  def email(fields)
    given = fields.transform_keys(&:to_sym)
    given[:attachments] = given[:attachments].map { |one| attachment(one) } if given[:attachments]
    Posthouse::Email.new(**given)
  end

  def attachment(fields)
    named = { **some(fields, "content_type"), **some(fields, "content_id") }
    if fields.key?("file")
      Posthouse::Attachment.from_file(fields["file"], **some(fields, "filename"), **named)
    elsif fields.key?("stream")
      Posthouse::Attachment.from_stream(StringIO.new(fields["stream"].unpack1("m")), fields["filename"], **named)
    else
      Posthouse::Attachment.new(fields["filename"], fields["bytes"].unpack1("m"), **named)
    end
  end

  # A model under the names of the HTTP interface.
  def neutral(value)
    case value
    when Struct, Hash then value.to_h.transform_values { |one| neutral(one) }
    when Array then value.map { |one| neutral(one) }
    when Time then value.getutc.iso8601(6)
    else value
    end
  end

  def describe(error)
    retry_after = error.retry_after
    {
      type: TYPES.fetch(error.class), message: error.message, status: error.status, code: error.code,
      request_id: error.request_id, retry_after: (retry_after if retry_after&.finite?),
      is_retryable: error.retryable?, is_insufficient_credits: error.insufficient_credits?,
      is_idempotency_conflict: error.idempotency_conflict?,
      last: (neutral(error.last) if error.is_a?(Posthouse::WaitTimeoutError)),
      reason: (error.reason if error.is_a?(Posthouse::WebhookVerificationError))
    }
  end

  def some(fields, name)
    fields.key?(name) ? { name.to_sym => fields[name] } : {}
  end
end
