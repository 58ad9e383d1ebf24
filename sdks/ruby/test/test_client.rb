# frozen_string_literal: true

require "minitest/autorun"
require "posthouse"
require "pp"
require "service"
require "yaml"

# What the cases of sdks/conformance can't show of a library in every language: threads, proxies, TLS, inspection.
class ClientTest < Minitest::Test
  KEY = "ph_test_0123456789"
  URL = "https://mail.acme.example"
  EMAIL = Posthouse::Email.new(from: "hello@acme.example", to: "ada@example.net", subject: "Hello", text: "Hi.")

  # A transport of one's own.
  class Recorded
    attr_reader :requests

    def initialize(&outcome)
      @outcome = outcome
      @requests = []
    end

    def exchange(request, _timeout_seconds)
      @requests << request
      @outcome.call
    end
  end

  def accepting
    Recorded.new { Posthouse::Answer.new(202, { "idempotent-replayed" => "true" }, Service::ACCEPTED) }
  end

  def failing(error)
    Posthouse::Client.new(KEY, base_url: URL, transport: Recorded.new { raise error },
                               retry_policy: Posthouse::RetryPolicy.none)
  end

  def test_an_email_says_its_time_its_metadata_and_that_it_is_forgotten
    email = Posthouse::Email.new(from: "hello@acme.example", to: "ada@example.net", text: "Hi.",
                                 send_at: Time.new(2030, 6, 1, 11, 0, 0, "+02:00"), metadata: { order: "1001" },
                                 content: "forget")
    assert_equal ["2030-06-01T09:00:00.000Z", { order: "1001" }, "forget"],
                 email.to_h.values_at("send_at", "metadata", "content")
    assert_equal %w[from to subject text], EMAIL.to_h.keys
  end

  def test_threads_share_a_client
    Service.running do |service|
      client = Posthouse::Client.new(KEY, base_url: "http://127.0.0.1:#{service.port}")
      threads = Array.new(8) { Thread.new { Array.new(5) { client.send_email(EMAIL).id } } }
      assert_equal ["em_1"] * 40, threads.flat_map(&:value)
      assert_equal 40, service.all(service.keys).uniq.size
    end
  end

  def test_a_transport_of_ones_own_takes_the_place_of_http
    transport = accepting
    sent = Posthouse::Client.new(KEY, base_url: URL, transport: transport).send_email(EMAIL)
    assert_predicate sent, :replayed?
    assert_equal "#{URL}/emails", transport.requests.first.url
    assert_equal "Bearer #{KEY}", transport.requests.first.headers["Authorization"]
  end

  def test_its_errors_become_ours_and_stay_as_the_cause
    {
      Timeout::Error.new("late") => Posthouse::AttemptTimeoutError,
      Net::ReadTimeout.new => Posthouse::AttemptTimeoutError,
      Errno::ECONNRESET.new => Posthouse::ConnectionFailedError,
      SocketError.new("unknown host") => Posthouse::ConnectionFailedError,
      OpenSSL::SSL::SSLError.new("not trusted") => Posthouse::ConnectionFailedError
    }.each do |raised, ours|
      error = assert_raises(ours) { failing(raised).get("em_1") }
      assert_same raised, error.cause
      assert_kind_of Posthouse::Error, error
    end
  end

  def test_an_error_of_the_program_stays_what_it_is
    assert_raises(NoMethodError) { failing(NoMethodError.new("a mistake")).get("em_1") }
  end

  def test_a_time_out_around_a_call_ends_it
    client = Posthouse::Client.new(KEY, base_url: URL, transport: Recorded.new { sleep })
    assert_raises(Timeout::Error) { Timeout.timeout(0.05) { client.get("em_1") } }
  end

  def test_no_secret_is_printed
    transport = accepting
    credential = Posthouse::Basic.new("acme", KEY)
    client = Posthouse::Client.new(credential, base_url: URL, transport: transport)
    client.send_email(EMAIL)
    proxied = Posthouse::HttpTransport.new(proxy: "http://user:#{KEY}@127.0.0.1:3128")
    pair = ["acme:#{KEY}"].pack("m0")
    [client, credential, Posthouse::Bearer.new(KEY), transport.requests.first, proxied].each do |one|
      shown = [one.inspect, one.to_s, one.pretty_inspect].join
      refute_includes shown, KEY
      refute_includes shown, pair
    end
    through_proxy = Posthouse::Client.new(credential, base_url: URL, transport: proxied)
    [through_proxy, credential, Posthouse::Bearer.new(KEY), proxied].each do |one|
      # Whatever it refers to is as silent as it is itself.
      inside = one.instance_variables.map { |name| one.instance_variable_get(name).inspect }.join + YAML.dump(one)
      refute_includes inside, KEY
      refute_includes inside, pair
      assert_raises(TypeError) { Marshal.dump(one) }
    end
    refute_includes assert_raises(NoMethodError) { client.unknown }.full_message, KEY
  end

  def test_what_is_written_in_an_email_is_not_printed
    email = Posthouse::Email.new(from: "a@acme.example", to: "b@example.net", text: "between us",
                                 attachments: [Posthouse::Attachment.new("a.txt", "between us")])
    refute_includes email.inspect + email.pretty_inspect + email.attachments.first.pretty_inspect, "between us"
  end

  def test_models_and_clients_are_frozen
    client = Posthouse::Client.new(KEY, base_url: URL, transport: accepting)
    sent = client.send_email(EMAIL)
    assert_raises(FrozenError) { sent.id = "em_2" }
    [client, EMAIL, Posthouse::RetryPolicy.new, sent.to].each { |one| assert_predicate one, :frozen? }
  end

  def test_what_is_no_email_or_no_json_is_refused
    client = Posthouse::Client.new(KEY, base_url: URL, transport: accepting)
    broken = { text: "\xff" }, { text: "x", variables: { total: Float::NAN } }
    broken.each do |fields|
      email = Posthouse::Email.new(from: "a@acme.example", to: "b@example.net", **fields)
      assert_raises(Posthouse::InvalidArgumentError) { client.send_email(email) }
    end
    assert_raises(Posthouse::InvalidArgumentError) { client.send_email("hello") }
    assert_raises(Posthouse::InvalidArgumentError) { client.get(nil) }
    assert_raises(Posthouse::InvalidArgumentError) { Posthouse::Client.new(nil, base_url: URL) }
    assert_raises(Posthouse::InvalidArgumentError) { Posthouse::Client.new(KEY, base_url: URL, timeout: "10") }
  end

  def test_strings_of_other_encodings_are_sent_as_utf8
    transport = accepting
    email = Posthouse::Email.new(from: "a@acme.example", to: "b@example.net",
                                 subject: "Grüße".encode(Encoding::ISO_8859_1), text: "Grüße".b)
    Posthouse::Client.new(KEY, base_url: URL, transport: transport).send_email(email)
    body = JSON.parse(transport.requests.first.body.dup.force_encoding(Encoding::UTF_8))
    assert_equal %w[Grüße Grüße], body.values_at("subject", "text")
  end

  def test_an_attempt_that_never_connects_times_out
    full = Socket.new(:INET, :STREAM)
    full.bind(Addrinfo.tcp("127.0.0.1", 0))
    full.listen(0)
    # What is not accepted fills the queue of connections, and the next ones hang.
    waiting = Array.new(4) { Socket.new(:INET, :STREAM) }
    waiting.each { |one| one.connect_nonblock(full.local_address, exception: false) }
    client = Posthouse::Client.new(KEY, base_url: "http://127.0.0.1:#{full.local_address.ip_port}", timeout: 0.3,
                                        retry_policy: Posthouse::RetryPolicy.none)
    assert_raises(Posthouse::AttemptTimeoutError) { client.get("em_1") }
  ensure
    [full, *waiting].each(&:close)
  end

  def test_a_head_that_never_ends_times_out
    server = TCPServer.new("127.0.0.1", 0)
    dripping = Thread.new do
      client = server.accept
      client.write("HTTP/1.1 200 OK\r\n")
      loop { client.write("X-More: x\r\n") && sleep(0.02) }
    rescue SystemCallError
      client.close
    end
    client = Posthouse::Client.new(KEY, base_url: "http://127.0.0.1:#{server.addr[1]}", timeout: 0.3,
                                        retry_policy: Posthouse::RetryPolicy.none)
    assert_raises(Posthouse::AttemptTimeoutError) { client.get("em_1") }
    dripping.join
  ensure
    server.close
  end

  def test_a_proxy_is_asked_for_the_whole_address
    Service.running do |proxy|
      transport = Posthouse::HttpTransport.new(proxy: "http://proxy%20user:pass+word%21@127.0.0.1:#{proxy.port}")
      Posthouse::Client.new(KEY, base_url: "http://mail.acme.invalid/api", transport: transport).send_email(EMAIL)
      assert_equal ["POST http://mail.acme.invalid/api/emails HTTP/1.1"], proxy.all(proxy.lines)
      pair = ["proxy user:pass+word!"].pack("m0")
      assert_equal ["Basic #{pair}"], proxy.all(proxy.proxy_authorizations)
    end
  end

  def test_a_proxy_that_is_no_address_is_refused
    ["proxy:3128", "socks5://proxy:1080", "https://proxy:3128", "http://", "http://a%zz:b@proxy:3128"].each do |address|
      assert_raises(Posthouse::InvalidArgumentError, address) { Posthouse::HttpTransport.new(proxy: address) }
    end
  end

  def test_a_proxy_of_the_environment_is_not_used
    before = ENV.to_h.slice("http_proxy", "no_proxy")
    ENV.update("http_proxy" => "http://127.0.0.1:9", "no_proxy" => nil)
    Service.running do |service|
      client = Posthouse::Client.new(KEY, base_url: "http://127.0.0.1:#{service.port}")
      assert_equal "em_1", client.send_email(EMAIL).id
    end
  ensure
    ENV.update({ "http_proxy" => nil, "no_proxy" => nil }.merge(before))
  end
end

class SecureTest < Minitest::Test
  CERTIFICATE_KEY = OpenSSL::PKey::EC.generate("prime256v1")

  def certificate
    @certificate ||= OpenSSL::X509::Certificate.new.tap do |made|
      made.version = 2
      made.serial = 1
      made.subject = made.issuer = OpenSSL::X509::Name.parse("/CN=localhost")
      made.public_key = CERTIFICATE_KEY
      made.not_before = Time.now - 3_600
      made.not_after = Time.now + 3_600
      made.add_extension(OpenSSL::X509::ExtensionFactory.new.create_extension("subjectAltName", "DNS:localhost"))
      made.sign(CERTIFICATE_KEY, "SHA256")
    end
  end

  def test_tls_directly_and_through_a_proxy
    trusted = OpenSSL::X509::Store.new.add_cert(certificate)
    Service.running(certificate: certificate, key: CERTIFICATE_KEY) do |service|
      Service.running do |proxy|
        [nil, "http://user:word@127.0.0.1:#{proxy.port}"].each do |address|
          transport = Posthouse::HttpTransport.new(proxy: address, cert_store: trusted)
          client = Posthouse::Client.new(ClientTest::KEY, base_url: "https://localhost:#{service.port}",
                                                          transport: transport)
          assert_equal "em_1", client.send_email(ClientTest::EMAIL).id
        end
        assert_equal ["CONNECT localhost:#{service.port} HTTP/1.1"], proxy.all(proxy.lines)
      end
      assert_equal ["POST /emails HTTP/1.1"] * 2, service.all(service.lines)
      # The proxy's password is the proxy's alone.
      assert_equal [nil, nil], service.all(service.proxy_authorizations)
    end
  end

  def test_an_unknown_certificate_is_not_trusted
    Service.running(certificate: certificate, key: CERTIFICATE_KEY) do |service|
      client = Posthouse::Client.new(ClientTest::KEY, base_url: "https://localhost:#{service.port}",
                                                      retry_policy: Posthouse::RetryPolicy.none)
      assert_raises(Posthouse::ConnectionFailedError) { client.send_email(ClientTest::EMAIL) }
      assert_empty service.all(service.lines)
    end
  end
end
