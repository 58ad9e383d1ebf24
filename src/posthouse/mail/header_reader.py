"""Submitted header fields: split a header into fields, and rewrite a field so that every server can carry it.

A field within the limits (7-bit, lines of at most 998) is never changed. Other fields keep their meaning: text is
written as encoded words, file names by RFC 2231, display names as encoded words next to unchanged addresses, and long
lines are folded at white space. A field that can't be kept is refused.
"""

import re
from typing import Final, NamedTuple

from posthouse.mail import address_fields, encoded_words, header_writer
from posthouse.mail.address import AddressError, unescape
from posthouse.mail.header_writer import LINE_CHARACTERS, LINE_CHARACTERS_MAX, HeaderError

HEADER_BYTES_MAX: Final = 256 * 1024
FIELDS_MAX: Final = 1_000
_NAME_CHARACTERS_SHOWN: Final = 60
_PARAMETER_CHARACTERS_MAX: Final = 60
_PARAMETERS_MAX: Final = 100

_WITH_ADDRESSES: Final = frozenset(
    {
        b"from", b"sender", b"reply-to", b"to", b"cc", b"resent-from", b"resent-sender", b"resent-reply-to",
        b"resent-to", b"resent-cc", b"disposition-notification-to", b"return-receipt-to", b"errors-to",
        b"mail-followup-to", b"mail-reply-to", b"x-confirm-reading-to", b"delivered-to", b"x-original-to", b"list-id",
    }
)  # fmt: skip
_WITH_PARAMETERS: Final = frozenset({b"content-type", b"content-disposition"})
# In addition to those of `header_writer`: a customer can't set them over HTTP, but submitted mail may contain them.
_STRUCTURED: Final = frozenset(
    {
        b"authentication-results", b"content-id", b"content-location", b"content-transfer-encoding", b"date",
        b"delivery-date", b"dkim-signature", b"domainkey-signature", b"message-id", b"mime-version", b"received",
        b"received-spf", b"resent-date", b"resent-message-id",
    }
)  # fmt: skip

# A line always matches, so that the search never restarts inside a line; a field ends where no line continues it.
_scan: Final = re.compile(rb"([!-9;-~]*+)([ \t]*+)(:?)([^\r\n]*+(?:\r\n[ \t][^\r\n]*+)*\r\n(?![ \t]))").findall
_words: Final = re.compile(rb"[ \t]*+[^ \t]++").findall
_next_parameter: Final = re.compile(
    r';[ \t;]*+([^=;"\s]++)[ \t]*+=[ \t]*+("(?:[^"\\]++|\\.)*"|[^;"]*+)[ \t]*+|;[ \t;]*+\Z'
).match


class SubmittedMailError(ValueError):
    """Submitted mail that is refused: the status of the reply, and a sentence that says what to do."""

    def __init__(self, text: str, status: str = "550 5.6.0") -> None:
        super().__init__(text)
        self.status = status


class RawField(NamedTuple):
    """`name` is in lower case; `written` is the whole field as submitted, line end included."""

    name: bytes
    written: bytes

    @property
    def value(self) -> bytes:
        """Unfolded."""
        return self.written.partition(b":")[2].replace(b"\r\n", b"").strip(b" \t")


def scan_fields(head: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """The header's lines, folded lines joined: name, white space, colon, and the rest with its line end.

    A line that is no field has no name or no colon. The header must end with CRLF, and contain no bare CR or LF.
    """
    return _scan(head)


def split_fields(head: bytes) -> list[RawField] | None:
    """The header's fields, or None if a line is no field."""
    fields = []
    for name, space, colon, rest in _scan(head):
        if not name or not colon:
            return None
        fields.append(RawField(name.lower(), name + space + colon + rest))
    return fields


def is_within_limits(data: bytes) -> bool:
    return data.isascii() and b"\0" not in data and not header_writer.has_long_line(data, LINE_CHARACTERS_MAX, 2)


def rewritten_field(field: RawField) -> bytes:
    """The field rewritten within the limits of every server."""
    name = field.written.partition(b":")[0].rstrip(b" \t").decode("ascii")
    shown = name[:_NAME_CHARACTERS_SHOWN]
    try:
        text = field.value.decode()
    except UnicodeDecodeError as error:
        raise SubmittedMailError(
            f"The header field {shown} has bytes that are not UTF-8; write it as encoded words (RFC 2047)"
        ) from error
    try:
        return _written(field, name, text)
    except (AddressError, HeaderError) as error:
        raise SubmittedMailError(f"The header field {shown} {error}") from error


def _written(field: RawField, name: str, text: str) -> bytes:
    header_writer.refuse_control(text.replace("\t", " "))
    if field.name in _WITH_ADDRESSES:
        return _folded(f"{name}: {address_fields.rewritten_addresses(text)}\r\n".encode())
    if text.isascii():
        return _folded(field.written)
    if field.name in _WITH_PARAMETERS:
        return _folded(f"{name}: {_parameters_in_ascii(text)}\r\n".encode())
    if field.name in _STRUCTURED or header_writer.is_structured(name) or field.name.startswith(b"arc-"):
        raise HeaderError("takes ASCII only; remove the other characters or encode them")
    # Mail programs decode encoded words anywhere, so existing words are decoded first.
    return header_writer.unstructured(name, encoded_words.decode(text).replace("\t", " ").strip(" "))


def _folded(written: bytes) -> bytes:
    """The field with lines of more than 998 characters folded at white space."""
    return b"\r\n".join([_folded_line(line) for line in written.split(b"\r\n")])


def _folded_line(line: bytes) -> bytes:
    if len(line) <= LINE_CHARACTERS_MAX and (b"?=" not in line or len(line) <= LINE_CHARACTERS):
        return line
    lines: list[bytes] = []
    filled = b""
    # Trailing white space has no meaning, and the word search would try each of its positions.
    for word in _words(line.rstrip(b" \t")):
        # The name and the first word stay together: some programs read an empty first line as the whole field.
        if filled and filled[-1:] != b":" and len(filled) + len(word) > LINE_CHARACTERS:
            lines.append(filled)
            filled = word
        else:
            filled += word
    lines.append(filled)
    if max(map(len, lines)) > LINE_CHARACTERS_MAX:
        raise HeaderError(f"has no white space to fold at within {LINE_CHARACTERS_MAX} characters; shorten it")
    return b"\r\n".join(lines)


def parameters(text: str) -> tuple[str, list[tuple[str, str]]] | None:
    """The value before the first semicolon, and the parameters as written; None if they can't be parsed."""
    end = text.find(";")
    if end < 0:
        return text.strip(" \t"), []
    found: list[tuple[str, str]] = []
    main = text[:end].strip(" \t")
    while end < len(text):
        parameter = _next_parameter(text, end)
        if parameter is None or len(found) == _PARAMETERS_MAX:
            return None
        if parameter[1] is not None:
            found.append((parameter[1], parameter[2].strip(" \t")))
        end = parameter.end()
    return main, found


def unquoted(value: str) -> str:
    return unescape(r"\1", value[1:-1]) if value.startswith('"') else value


def _parameters_in_ascii(text: str) -> str:
    """Each non-ASCII parameter is encoded by RFC 2231; the others stay."""
    read = parameters(text)
    if read is None or not read[0].isascii():
        raise HeaderError("has characters outside ASCII where they can't be encoded; remove them")
    main, found = read
    pieces = [main]
    for name, value in found:
        if value.isascii():
            pieces.append(f"{name}={value}")
        elif not name.isascii() or "*" in name or name.lower() == "boundary":
            raise HeaderError("has a parameter that takes ASCII only; encode it by RFC 2231")
        else:
            pieces += _sections(name, encoded_words.decode(unquoted(value)))
    return "; ".join(pieces)


def _sections(name: str, value: str) -> list[str]:
    header_writer.refuse_control(value)
    sections = ["utf-8''"]
    for character in value:
        encoded = header_writer.percent_encoded(character)
        if len(sections[-1]) + len(encoded) > _PARAMETER_CHARACTERS_MAX:
            sections.append("")
        sections[-1] += encoded
    if len(sections) == 1:
        return [f"{name}*={sections[0]}"]
    return [f"{name}*{number}*={section}" for number, section in enumerate(sections)]
