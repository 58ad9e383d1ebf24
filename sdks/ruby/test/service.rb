# frozen_string_literal: true

require "openssl"
require "socket"

# Accepts whatever comes, and as a proxy connects to whatever is asked for. With a certificate and its key it does so
# over TLS.
class Service
  ACCEPTED = '{"id":"em_1","status":"queued"}'

  attr_reader :lines, :keys, :proxy_authorizations, :port

  def self.running(certificate: nil, key: nil)
    service = new(certificate, key)
    yield service
  ensure
    service&.stop
  end

  def initialize(certificate, key)
    @lines, @keys, @proxy_authorizations = Array.new(3) { Queue.new }
    @listening = TCPServer.new("127.0.0.1", 0)
    @port = @listening.addr[1]
    @server = certificate ? secured(certificate, key) : @listening
    @thread = Thread.new { accept }
  end

  def stop
    @thread.kill.join
    @listening.close
  end

  def all(queue)
    Array.new(queue.size) { queue.pop }
  end

  private

  def secured(certificate, key)
    context = OpenSSL::SSL::SSLContext.new
    context.add_certificate(certificate, key)
    OpenSSL::SSL::SSLServer.new(@listening, context)
  end

  def accept
    loop do
      client = @server.accept
      Thread.new { serve(client) }.report_on_exception = false
    rescue OpenSSL::SSL::SSLError
      next
    end
  end

  def serve(client)
    line = client.gets.chomp
    headers = {}
    while (header = client.gets.chomp) != ""
      name, value = header.split(": ", 2)
      headers[name.downcase] = value
    end
    @lines << line
    @proxy_authorizations << headers["proxy-authorization"]
    line.start_with?("CONNECT ") ? tunnel(client, line.split[1]) : answer(client, headers)
  ensure
    client.close
  end

  def answer(client, headers)
    client.read(headers["content-length"].to_i)
    @keys << headers["idempotency-key"]
    client.write("HTTP/1.1 202 Accepted\r\nContent-Length: #{ACCEPTED.bytesize}\r\n\r\n#{ACCEPTED}")
  end

  def tunnel(client, authority)
    onwards = TCPSocket.new(*authority.split(":"))
    client.write("HTTP/1.1 200 Connected\r\n\r\n")
    back = Thread.new { IO.copy_stream(onwards, client) }
    back.report_on_exception = false
    IO.copy_stream(client, onwards)
    onwards.close_write
    back.join
  ensure
    onwards&.close
  end
end
