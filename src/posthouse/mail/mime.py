"""The MIME writer: an email's content becomes the bytes of a message, 7-bit, CRLF, no line over 998 characters.

    multipart/mixed                     when there is something attached
    ├── multipart/alternative           when there is more than one way to read it
    │   ├── text/plain
    │   ├── multipart/related           when the HTML shows inline parts
    │   │   ├── text/html
    │   │   └── every part with a Content-ID
    │   └── text/calendar; method=...   an invitation, which clients look for here, last
    └── every other attachment

A multipart with a single part is omitted. The content has no Bcc, so none can be written.
"""

import binascii
import re
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

import pybase64

from posthouse.mail import header_writer
from posthouse.mail.address import Mailbox
from posthouse.mail.header_writer import HeaderError, has_long_line

TAG_HEADER: Final = "X-Service-Tag"

# RFC 5322 allows 998; the rest is space for what relays may add to a line.
_LINE_BYTES_MAX: Final = 900
_PARAMETER_CHARACTERS_MAX: Final = 60
# Messages of a sender share their From.
_SENDERS_CACHED_MAX: Final = 4_096
_NEVER_WRITTEN: Final = frozenset({"bcc", "resent-bcc"})
# Bytes that quoted-printable keeps; only used to estimate which encoding is shorter.
_QUOTED_PRINTABLE_SAFE: Final = bytes([0x09, 0x0A, *range(0x20, 0x3D), *range(0x3E, 0x7F)])

_is_boundary: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}\Z").match
_is_content_type: Final = re.compile(r"[!-.0-:<-~]+/[ -~]+\Z").match
_is_plain_filename: Final = re.compile(r"[A-Za-z0-9._+@!#&(),=~-]++(?: [A-Za-z0-9._+@!#&(),=~-]++)*\Z").match
_is_id: Final = re.compile(r"[!-;=?-~]{1,255}\Z").match


class Attachment(NamedTuple):
    """`content_type` is a full RFC 2045 value; with a `content_id` the part is inline if there is HTML."""

    filename: str
    content_type: str
    content: bytes
    content_id: str | None = None


class MailContent(NamedTuple):
    sender: Mailbox
    to: tuple[Mailbox, ...]
    cc: tuple[Mailbox, ...]
    reply_to: Mailbox | None
    subject: str
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]
    attachments: tuple[Attachment, ...]


def write(content: MailContent, *, date: datetime, message_id: str, boundary: str) -> bytes:
    """The whole message. `message_id` is without brackets; `boundary` is unique to the message."""
    if not _is_boundary(boundary):
        raise HeaderError("has a boundary that is not 1 to 60 letters, digits, dots, hyphens or underscores")
    pieces = _fields(content, date, message_id)
    _write_body(pieces, content, boundary)
    return b"".join(pieces)


def _fields(content: MailContent, date: datetime, message_id: str) -> list[bytes]:
    if not _is_id(message_id):
        raise HeaderError("has a message id that is not 1 to 255 printable ASCII characters without brackets")
    fields = [_from(content.sender), header_writer.mailboxes("To", content.to)]
    if content.cc:
        fields.append(header_writer.mailboxes("Cc", content.cc))
    if content.reply_to is not None:
        fields.append(header_writer.mailboxes("Reply-To", (content.reply_to,)))
    date_text = header_writer.date_text(date.replace(microsecond=0))
    fields += (
        header_writer.unstructured("Subject", content.subject),
        f"Date: {date_text}\r\nMessage-ID: <{message_id}>\r\nMIME-Version: 1.0\r\n".encode(),
    )
    for name, value in content.headers:
        if name.lower() in _NEVER_WRITTEN:
            raise HeaderError("names recipients that must stay hidden")
        if header_writer.is_structured(name):
            fields.append(header_writer.structured(name, value))
        else:
            fields.append(header_writer.unstructured(name, value))
    for tag in content.tags:
        fields.append(header_writer.unstructured(TAG_HEADER, tag))
    return fields


@lru_cache(_SENDERS_CACHED_MAX)
def _from(sender: Mailbox) -> bytes:
    return header_writer.mailboxes("From", (sender,))


# The functions below append a part, from its first Content- field to a line end.


def _write_body(pieces: list[bytes], content: MailContent, boundary: str) -> None:
    invitation, inline, attached = _sorted_attachments(content)
    if not attached:
        _write_alternatives(pieces, content, invitation, inline, boundary)
        return
    opening, between, closing = _multipart("mixed", f"=_m{boundary}")
    pieces.append(opening)
    if content.text is not None or content.html is not None:
        pieces.append(between)
        _write_alternatives(pieces, content, invitation, inline, boundary)
    for attachment in attached:
        pieces.append(between)
        _write_attachment(pieces, attachment, "attachment")
    pieces.append(closing)


def _sorted_attachments(content: MailContent) -> tuple[Attachment | None, list[Attachment], list[Attachment]]:
    """The invitation, the inline parts of the HTML, and the rest."""
    if not content.attachments:
        return None, [], []
    invitation: Attachment | None = None
    inline: list[Attachment] = []
    attached: list[Attachment] = []
    has_body = content.text is not None or content.html is not None
    for attachment in content.attachments:
        if has_body and invitation is None and _is_invitation(attachment.content_type):
            invitation = attachment
        elif attachment.content_id is not None and content.html is not None:
            inline.append(attachment)
        else:
            attached.append(attachment)
    return invitation, inline, attached


def _is_invitation(content_type: str) -> bool:
    kind, *parameters = content_type.lower().split(";")
    return kind.strip() == "text/calendar" and any(parameter.strip().startswith("method=") for parameter in parameters)


def _write_alternatives(
    pieces: list[bytes],
    content: MailContent,
    invitation: Attachment | None,
    inline: list[Attachment],
    boundary: str,
) -> None:
    count = (content.text is not None) + (content.html is not None) + (invitation is not None)
    if count == 0:
        raise HeaderError("has neither text, nor HTML, nor an attachment")
    opening, between, closing = _multipart("alternative", f"=_a{boundary}") if count > 1 else (b"", b"", b"")
    pieces.append(opening)
    if content.text is not None:
        pieces.append(between)
        _write_text(pieces, b"plain", content.text, boundary)
    if content.html is not None:
        pieces.append(between)
        _write_html(pieces, content.html, inline, boundary)
    if invitation is not None:
        pieces.append(between)
        _write_attachment(pieces, invitation, "inline")
    pieces.append(closing)


def _write_html(pieces: list[bytes], html: str, inline: list[Attachment], boundary: str) -> None:
    if not inline:
        _write_text(pieces, b"html", html, boundary)
        return
    opening, between, closing = _multipart("related", f"=_r{boundary}", ' type="text/html";')
    pieces += (opening, between)
    _write_text(pieces, b"html", html, boundary)
    for attachment in inline:
        pieces.append(between)
        _write_attachment(pieces, attachment, "inline")
    pieces.append(closing)


def _multipart(kind: str, boundary: str, parameter: str = "") -> tuple[bytes, bytes, bytes]:
    """The text before the first part, before each part, and after the last.

    Every part ends with its own line end; the line end before a delimiter belongs to the delimiter. No encoded
    text can contain a delimiter: neither quoted-printable nor base64 writes `=_`.
    """
    opening = f'Content-Type: multipart/{kind};{parameter}\r\n boundary="{boundary}"\r\n'.encode()
    delimiter = f"\r\n--{boundary}".encode()
    return opening, delimiter + b"\r\n", delimiter + b"--\r\n"


def _write_text(pieces: list[bytes], kind: bytes, text: str, boundary: str) -> None:
    encoding, body = _encoded_text(text, boundary)
    head = b"Content-Type: text/%b; charset=utf-8\r\nContent-Transfer-Encoding: %b\r\n\r\n" % (kind, encoding)
    pieces += (head, body)


def _encoded_text(text: str, boundary: str) -> tuple[bytes, bytes]:
    """The text with CRLF line ends, also at its end, in the simplest encoding that can carry it."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text[-1:] != "\n":
        text += "\n"
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise HeaderError("has a body with a lone surrogate, which is no character; remove it") from error
    if text.isascii() and "\0" not in text and boundary not in text and not has_long_line(raw, _LINE_BYTES_MAX, 1):
        return b"7bit", raw.replace(b"\n", b"\r\n")
    if 6 * len(raw.translate(None, _QUOTED_PRINTABLE_SAFE)) <= len(raw):
        return b"quoted-printable", binascii.b2a_qp(raw, istext=True).replace(b"\n", b"\r\n")
    return b"base64", _base64(raw.replace(b"\n", b"\r\n"))


def _base64(raw: bytes) -> bytes:
    return pybase64.encodebytes(raw).replace(b"\n", b"\r\n") or b"\r\n"


def _write_attachment(pieces: list[bytes], attachment: Attachment, disposition: str) -> None:
    content_type = attachment.content_type.replace("\t", " ")
    if not _is_content_type(content_type) or len(content_type) > _LINE_BYTES_MAX:
        raise HeaderError("has an attachment whose content type was not checked")
    content_id = ""
    if attachment.content_id is not None:
        if not _is_id(attachment.content_id):
            raise HeaderError("has an attachment whose content id was not checked")
        content_id = f"Content-ID: <{attachment.content_id}>\r\n"
    pieces.append(
        f"Content-Type: {content_type}\r\nContent-Transfer-Encoding: base64\r\n{content_id}"
        f"Content-Disposition: {disposition};{_filename(attachment.filename)}\r\n\r\n".encode()
    )
    pieces.append(_base64(attachment.content))


def _filename(filename: str) -> str:
    """The parameter, on separate lines: quoted if it is plain, else extended by RFC 2231."""
    header_writer.refuse_control(filename)
    if len(filename) <= _PARAMETER_CHARACTERS_MAX and _is_plain_filename(filename):
        return f'\r\n filename="{filename}"'
    sections = [""]
    for character in filename:
        encoded = header_writer.percent_encoded(character)
        if len(sections[-1]) + len(encoded) > _PARAMETER_CHARACTERS_MAX - len("utf-8''"):
            sections.append("")
        sections[-1] += encoded
    if len(sections) == 1:
        return f"\r\n filename*=utf-8''{sections[0]}"
    sections[0] = f"utf-8''{sections[0]}"
    return ";".join([f"\r\n filename*{number}*={section}" for number, section in enumerate(sections)])
