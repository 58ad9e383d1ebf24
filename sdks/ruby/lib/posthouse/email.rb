# frozen_string_literal: true

require "time"

module Posthouse
  # A file of an email; with a +content_id+ it is an inline image, which the HTML shows as +cid:<content_id>+.
  #
  # Without a +content_type+ it is guessed from the file name's extension, here or by the service.
  class Attachment
    attr_reader :filename, :content, :content_type, :content_id

    # +content+ is a string of bytes.
    def initialize(filename, content, content_type: nil, content_id: nil)
      raise InvalidArgumentError, "an attachment's content must be a string of bytes" unless content.is_a?(String)

      @filename = Checks.filename(filename)
      @content = content.b.freeze
      @content_type = content_type
      @content_id = content_id
      freeze
    end

    # The file is read now; its own name is used unless another is given.
    def self.from_file(path, filename: nil, content_type: nil, content_id: nil)
      name = filename.nil? ? File.basename(path) : filename
      new(name, File.binread(path), content_type: content_type, content_id: content_id)
    end

    # The stream is read to its end now, and left open.
    def self.from_stream(stream, filename, content_type: nil, content_id: nil)
      new(filename, stream.read.to_s, content_type: content_type, content_id: content_id)
    end

    def to_h
      fields = {
        "filename" => filename,
        # It stays even if it is empty: an empty file is a file.
        "content" => [content].pack("m0"),
        "content_type" => content_type.to_s.empty? ? MediaTypes.of(filename) : content_type,
        "content_id" => content_id
      }
      fields.reject { |name, value| name != "content" && value.to_s.empty? }
    end

    def inspect
      "#<#{self.class} filename=#{filename.inspect} bytes=#{content.bytesize}>"
    end
  end

  # An email to send. Addresses are bare (<tt>ada@example.com</tt>) or with a name (<tt>Ada <ada@example.com></tt>).
  #
  # One of +text+, +html+, +template+ and +attachments+ must be given, and a subject unless the template has one.
  class Email
    FIELDS = %i[
      from to cc bcc reply_to subject text html template variables headers tags attachments send_at metadata content
    ].freeze
    private_constant :FIELDS

    attr_reader(*FIELDS)

    # +to+, +cc+, +bcc+ and +tags+ are a string or an array of them. With +send_at+, a Time, it is sent then and not
    # before; +metadata+ is for your own programs, and never in the mail. With +content+ "forget", no one can read it
    # once it is accepted, and it is deleted after its result.
    def initialize(from:, to:, cc: [], bcc: [], reply_to: nil, subject: nil, text: nil, html: nil, template: nil,
                   variables: {}, headers: {}, tags: [], attachments: [], send_at: nil, metadata: {}, content: nil)
      @from = from
      @to = to
      @cc = cc
      @bcc = bcc
      @reply_to = reply_to
      @subject = subject
      @text = text
      @html = html
      @template = template
      @variables = variables
      @headers = headers
      @tags = tags
      @attachments = attachments
      @send_at = send_at
      @metadata = metadata
      @content = content
      freeze
    end

    # The body of the request, without what is empty.
    def to_h
      fields = FIELDS.to_h { |name| [name.to_s, public_send(name)] }
      fields["attachments"] = Array(attachments).map(&:to_h)
      fields["send_at"] = send_at&.getutc&.iso8601(3)
      fields.reject { |_, value| value.nil? || (value.respond_to?(:empty?) && value.empty?) }
    end

    # The content is private.
    def inspect
      "#<#{self.class} from=#{from.inspect} to=#{to.inspect} subject=#{subject.inspect}>"
    end
  end
end
