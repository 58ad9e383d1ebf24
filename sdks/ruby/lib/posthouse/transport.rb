# frozen_string_literal: true

require "net/http"
require "openssl"
require "timeout"
require "uri"

module Posthouse
  # An answer that is longer is not read to its end: no real one comes near.
  ANSWER_BYTES_MAX = 1_048_576

  # What a transport is asked to send. +headers+ have the credential in them.
  class Request
    attr_reader :http_method, :url, :headers, :body

    def initialize(http_method, url, headers, body = nil)
      @http_method = http_method
      @url = url
      @headers = headers.freeze
      @body = body
      freeze
    end

    def inspect
      "#<#{self.class} #{http_method} #{url}>"
    end
  end

  # +headers+ have their names in lower case; +body+ ends after ANSWER_BYTES_MAX + 1 bytes.
  Answer = Struct.new(:status, :headers, :body)

  # The usual transport, with net/http and a connection for each exchange.
  #
  # A transport of one's own has its one method, +exchange+, which returns the answer, whatever its status, and follows
  # no redirect. It raises Timeout::Error when the whole takes longer than +timeout_seconds+, and SystemCallError,
  # IOError, SocketError or OpenSSL::SSL::SSLError when there is no whole answer. Several threads call it at once.
  class HttpTransport
    # +proxy+ is <tt>http://host:port</tt>, with a user name and password or without; +cert_store+, an
    # OpenSSL::X509::Store, says whom to trust, by default whom the system trusts.
    def initialize(proxy: nil, cert_store: nil)
      @proxy = proxied(proxy)
      @cert_store = cert_store
      freeze
    end

    def exchange(request, timeout_seconds)
      uri = URI.parse(request.url)
      http = connection(uri, timeout_seconds)
      # net/http's own time-outs are for single reads; this one is for the whole. It can't hit anything that is shared:
      # the connection is this attempt's alone.
      Timeout.timeout(timeout_seconds) { http.start { answer(http, prepared(request, uri)) } }
    rescue Net::ProtocolError, Net::HTTPBadResponse, Net::HTTPHeaderSyntaxError, ArgumentError => e
      raise IOError, "the answer was not whole, or not HTTP (#{e.class})"
    end

    def inspect
      "#<#{self.class}>"
    end

    private

    # The arguments of Net::HTTP.new for a proxy, in a closure because of the password; nil for none, which keeps
    # net/http from looking for one in the environment.
    def proxied(url)
      return -> { [nil] } if url.nil?

      scheme, _, rest = Checks.text(url, "the proxy").rpartition("//")
      pair, at, authority = rest.rpartition("@")
      parts = URI.parse(Checks.base_url("#{scheme}//#{authority}"))
      # What is said to the proxy itself is not encrypted, so that another scheme would promise too much.
      raise InvalidArgumentError, "the proxy must be http://host:port" unless parts.scheme == "http"

      names = at.empty? ? [] : pair.split(":", 2).map { |one| URI.decode_www_form_component(one.gsub("+", "%2B")) }
      -> { [parts.hostname, parts.port, *names] }
    rescue ArgumentError
      raise InvalidArgumentError, "the proxy's user name or password is not percent-encoded rightly"
    end

    def connection(uri, timeout_seconds)
      http = Net::HTTP.new(uri.hostname, uri.port, *@proxy.call)
      http.use_ssl = uri.is_a?(URI::HTTPS)
      http.cert_store = @cert_store if @cert_store
      # Attempts are the client's to count.
      http.max_retries = 0
      http.open_timeout = http.read_timeout = http.write_timeout = timeout_seconds
      http
    end

    def prepared(request, uri)
      # Without a say about the encoding net/http would ask for gzip, and unpack without a bound.
      headers = request.headers.merge("Accept-Encoding" => "identity", "Connection" => "close")
      has_body = !request.body.nil?
      prepared = Net::HTTPGenericRequest.new(request.http_method, has_body, true, uri.request_uri, headers)
      prepared.body = request.body if has_body
      prepared
    end

    def answer(http, prepared)
      http.request(prepared) do |response|
        # Leaving the block ends the reading; net/http would read on to the end otherwise.
        return Answer.new(response.code.to_i, response.each_header.to_h, body(response))
      end
    end

    def body(response)
      bytes = +"".b
      response.read_body do |piece|
        bytes << piece
        return bytes.byteslice(0, ANSWER_BYTES_MAX + 1) if bytes.bytesize > ANSWER_BYTES_MAX
      end
      # To net/http an answer that is shorter than its length is as good as any.
      is_short = !response.chunked? && response.content_length && bytes.bytesize < response.content_length
      raise EOFError, "the connection ended in the middle of the answer" if is_short && response.class.body_permitted?

      bytes
    end
  end
end
