"""Re-encodes submitted mail to 7-bit with lines of at most 998, part by part, so that any server can carry it.

A single pass finds the parts and records an edit for each part that exceeds the limits; all other bytes stay. The
pass searches for the delimiters of all levels at once, as RFC 2046 (5.1.2) requires: an outer delimiter ends every
part inside. So the work is linear however the parts are nested.

Signed or encrypted parts can't be changed, so exceeding a limit there is refused. Mail programs don't show the text
around the parts of a multipart; it is dropped if it exceeds the limits.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import pybase64

from posthouse.mail.header_reader import (
    FIELDS_MAX,
    HEADER_BYTES_MAX,
    RawField,
    SubmittedMailError,
    is_within_limits,
    parameters,
    rewritten_field,
    split_fields,
    unquoted,
)
from posthouse.mail.header_writer import LINE_CHARACTERS_MAX

DEPTH_MAX: Final = 50
PARTS_MAX: Final = 1_000
# Of the message and all its parts together: fields, and the bytes of fields that must be rewritten.
PART_FIELDS_MAX: Final = 10_000
FIELD_BYTES_MAX: Final = 64 * 1024
# Each line that begins like a delimiter is checked; no regular mail has this many.
DASHED_LINES_MAX: Final = 100_000

_SEALED: Final = frozenset({"multipart/signed", "multipart/encrypted"})
# RFC 2046, 5.2.2 and 5.2.3: these may never be encoded, and contain no complete message to parse.
_NEVER_ENCODED: Final = frozenset({"message/partial", "message/external-body"})
_IDENTITY: Final = frozenset({"", "7bit", "8bit", "binary"})
_QUOTED_PRINTABLE_SAFE: Final = bytes([0x09, 0x0A, 0x0D, *range(0x20, 0x3D), *range(0x3E, 0x7F)])
_ESCAPES: Final = [chr(byte) if 0 < byte < 0x80 else f"={byte:02X}" for byte in range(256)]
_BASE64_CHARACTERS: Final = 76

_is_type: Final = re.compile(r"[!-.0-:<-~]+/[!-.0-:<-~]+\Z").match
_end_of_token: Final = re.compile(rb"[\s;(]").split
_is_base64: Final = re.compile(rb"[A-Za-z0-9+/= \t]*+\Z").match
# As much as fits on a line, not ending inside an escape; between stray equals signs, anywhere.
_soft_lines: Final = re.compile(rb"[^\r\n]{1,72}(?<!=)(?<!=[^\r\n])|[^\r\n]{1,72}").findall


class _Delimiter(NamedTuple):
    """A delimiter line: the CRLF before it, the end of its text, and the first byte after its own CRLF.

    The end of the message counts as a delimiter of level 0; the outermost multipart is level 1.
    """

    level: int
    is_closing: bool
    at: int
    end: int
    after: int


class _Edit(NamedTuple):
    start: int
    end: int
    replacement: bytes


class _Kind(NamedTuple):
    """The relevant values of a part's header. `boundary` is empty without a usable boundary."""

    media_type: str
    boundary: bytes
    encoding: str
    is_declared: bool


def reencoded(message: bytes) -> bytes:
    """The message within the limits; it must have CRLF line ends only, and end with CRLF."""
    walk = _Walk(message)
    walk.part(2, depth=0, default="text/plain")
    content = b"".join(walk.pieces())
    if not is_within_limits(content):
        raise SubmittedMailError(
            "The mail can't be written with 7-bit lines of 998 characters; encode its parts as base64"
        )
    return content


class _Walk:
    def __init__(self, message: bytes) -> None:
        # A line end in front, so that every line is between two.
        self._data = b"\r\n" + message
        self._levels: dict[bytes, int] = {}
        self._edits: list[_Edit] = []
        self._part_count = 0
        self._field_count = 0
        self._field_bytes = 0
        self._dashed_line_count = 0

    def pieces(self) -> Iterator[bytes]:
        position = 2
        for start, end, replacement in sorted(self._edits):
            yield self._data[position:start]
            yield replacement
            position = end
        yield self._data[position:]

    def part(self, start: int, *, depth: int, default: str) -> _Delimiter:
        """Process the part whose header begins at `start`; returns the delimiter that ends it."""
        self._part_count += 1
        if depth > DEPTH_MAX or self._part_count > PARTS_MAX:
            raise SubmittedMailError(
                f"The mail nests deeper than {DEPTH_MAX} levels or has more than {PARTS_MAX} parts"
            )
        head_end, body_start, delimiter = self._header(start)
        fields = split_fields(self._data[start:head_end])
        if fields is None or len(fields) > FIELDS_MAX:
            # Parsers differ on where such a header ends; within the limits that doesn't matter.
            delimiter = delimiter or self._next_delimiter(body_start)
            self._refuse_beyond_limits(start, delimiter.at, "The header of a part has a line that is no header field")
            return delimiter
        self._field_count += len(fields)
        if self._field_count > PART_FIELDS_MAX:
            raise SubmittedMailError(f"The mail and its parts have more than {PART_FIELDS_MAX} header fields")
        kind = _kind(fields, default)
        edits_before = len(self._edits)
        encoding = added = ""
        if delimiter is not None:
            pass
        elif kind.media_type in _SEALED:
            delimiter = self._next_delimiter(body_start)
            self._refuse_beyond_limits(
                body_start,
                delimiter.at,
                "A signed or encrypted part has bytes above 127 or a line over 998 characters; "
                "encode it as quoted-printable or base64 before it is signed",
                "554 5.6.0",
            )
        elif kind.boundary:
            delimiter = self._multipart(body_start, kind, depth)
        elif kind.media_type == "message/rfc822" and kind.encoding in _IDENTITY:
            delimiter = self.part(body_start, depth=depth + 1, default="text/plain")
        else:
            delimiter = self._next_delimiter(body_start)
            encoding = self._leaf(body_start, max(delimiter.at, body_start), kind)
            if encoding and not kind.is_declared and _is_utf_8(self._data[body_start : delimiter.at]):
                # Without a type it would be read as US-ASCII.
                added = "Content-Type: text/plain; charset=utf-8\r\n"
        if not encoding and len(self._edits) > edits_before and kind.encoding in ("8bit", "binary"):
            encoding = "7bit"
        self._amend_header(start, head_end, fields, encoding, added)
        return delimiter

    def _header(self, start: int) -> tuple[int, int, _Delimiter | None]:
        """The end of the header, the start of the body, and the delimiter if it precedes any body."""
        blank = self._data.find(b"\r\n\r\n", start - 2, start + HEADER_BYTES_MAX)
        if blank < 0 and len(self._data) - start > HEADER_BYTES_MAX:
            blank = len(self._data)
        if self._levels:
            delimiter = self._next_delimiter(start, blank if blank >= 0 else len(self._data))
            if delimiter.level > 0 and (blank < 0 or delimiter.at < blank):
                end = max(start, min(delimiter.at + 2, len(self._data)))
                return end, end, delimiter
        if blank == len(self._data):
            raise SubmittedMailError(f"The header of a part is larger than {HEADER_BYTES_MAX // 1024} KB")
        if blank < 0:
            end = len(self._data)
            return end, end, _Delimiter(0, True, end, end, end)
        return max(start, blank + 2), blank + 4, None

    def _multipart(self, body_start: int, kind: _Kind, depth: int) -> _Delimiter:
        # A boundary of an outer level keeps its meaning.
        level = len(self._levels) + 1
        is_new = self._levels.setdefault(kind.boundary, level) == level
        delimiter = self._next_delimiter(body_start)
        if not is_new or delimiter.level != level:
            if is_new:
                del self._levels[kind.boundary]
            self._refuse_beyond_limits(
                body_start, delimiter.at, "A multipart does not contain its boundary; write it before every part"
            )
            return delimiter
        self._drop_beyond_limits(body_start, delimiter.at)
        default = "message/rfc822" if kind.media_type == "multipart/digest" else "text/plain"
        while delimiter.level == level and not delimiter.is_closing:
            self._trim(delimiter)
            delimiter = self.part(delimiter.after, depth=depth + 1, default=default)
        del self._levels[kind.boundary]
        if delimiter.level == level:
            self._trim(delimiter)
            outer = self._next_delimiter(delimiter.after)
            self._drop_beyond_limits(delimiter.after, outer.at)
            return outer
        return delimiter

    def _next_delimiter(self, start: int, limit: int | None = None) -> _Delimiter:
        """The first delimiter line of any level at or after `start`, which is the beginning of a line."""
        data = self._data
        limit = len(data) if limit is None else limit
        at = data.find(b"\r\n--", start - 2, limit) if self._levels else -1
        while at >= 0:
            line_end = data.find(b"\r\n", at + 4)
            text = data[at + 4 : line_end].rstrip(b" \t")
            level = self._levels.get(text, 0)
            closed = self._levels.get(text[:-2], 0) if text.endswith(b"--") else 0
            if level or closed:
                is_closing = closed > 0 and (level == 0 or closed < level)
                return _Delimiter(
                    closed if is_closing else level, is_closing, at, at + 4 + len(text), min(line_end + 2, len(data))
                )
            self._dashed_line_count += 1
            if self._dashed_line_count > DASHED_LINES_MAX:
                raise SubmittedMailError("The mail has too many lines that begin with --; encode its parts as base64")
            at = data.find(b"\r\n--", line_end, limit)
        return _Delimiter(0, True, len(data), len(data), len(data))

    def _trim(self, delimiter: _Delimiter) -> None:
        """White space after a delimiter has no meaning, but may make its line too long."""
        if delimiter.after - delimiter.at - 4 > LINE_CHARACTERS_MAX:
            self._edits.append(_Edit(delimiter.end, delimiter.after - 2, b""))

    def _refuse_beyond_limits(self, start: int, end: int, text: str, status: str = "550 5.6.0") -> None:
        if not is_within_limits(self._data[start : max(start, end)]):
            raise SubmittedMailError(text, status)

    def _drop_beyond_limits(self, start: int, end: int) -> None:
        if not is_within_limits(self._data[start : max(start, end)]):
            self._edits.append(_Edit(start, end, b""))

    def _leaf(self, start: int, end: int, kind: _Kind) -> str:
        """Rewrite the body if needed; returns its encoding if that has changed."""
        body = self._data[start:end]
        if is_within_limits(body):
            return ""
        if kind.media_type.startswith("multipart/"):
            raise SubmittedMailError("A multipart has no boundary that could be read; name one in its Content-Type")
        if kind.media_type in _NEVER_ENCODED:
            raise SubmittedMailError(f"A {kind.media_type} part has bytes above 127 or a line over 998 characters")
        if kind.encoding == "base64":
            self._edits.append(_Edit(start, end, _wrapped_base64(body)))
            return ""
        if kind.encoding == "quoted-printable":
            encoding, written = self._wrapped_quoted_printable(body)
        elif kind.encoding in _IDENTITY:
            encoding, written = self._encoded(body, kind.media_type)
        else:
            raise SubmittedMailError(
                "A part has bytes above 127 or a line over 998 characters, and an unknown "
                "Content-Transfer-Encoding; use quoted-printable or base64"
            )
        if end < len(self._data):
            # The line end before a delimiter belongs to the delimiter.
            written = written.removesuffix(b"\r\n") if encoding == "base64" else written
        elif not written.endswith(b"\r\n"):
            written += b"\r\n"
        self._edits.append(_Edit(start, end, written))
        return "" if encoding == kind.encoding else encoding

    def _encoded(self, body: bytes, media_type: str) -> tuple[str, bytes]:
        is_text = media_type.startswith(("text/", "message/"))
        if is_text and 6 * len(body.translate(None, _QUOTED_PRINTABLE_SAFE)) <= len(body):
            written = binascii.b2a_qp(body.replace(b"\r\n", b"\n"), istext=True).replace(b"\n", b"\r\n")
            if not self._holds_delimiter(written):
                return "quoted-printable", written
        return "base64", _base64(body)

    def _wrapped_quoted_printable(self, body: bytes) -> tuple[str, bytes]:
        """The decoded content stays the same: unescaped bytes are escaped, and long lines get soft breaks."""
        escaped = body.decode("latin-1").translate(_ESCAPES).encode("ascii")
        lines = [
            line if len(line) <= LINE_CHARACTERS_MAX else b"=\r\n".join(_soft_lines(line))
            for line in escaped.split(b"\r\n")
        ]
        written = b"\r\n".join(lines)
        if self._holds_delimiter(written):
            return "base64", _base64(binascii.a2b_qp(body))
        return "quoted-printable", written

    def _holds_delimiter(self, written: bytes) -> bool:
        """A new line break may create a line that looks like a delimiter."""
        if not self._levels or (b"\r\n--" not in written and not written.startswith(b"--")):
            return False
        lined = b"\r\n" + written
        return any(b"\r\n--" + boundary in lined for boundary in self._levels)

    def _amend_header(self, start: int, end: int, fields: list[RawField], encoding: str, added: str) -> None:
        if not encoding and is_within_limits(self._data[start:end]):
            return
        declaration = f"Content-Transfer-Encoding: {encoding}\r\n".encode() if encoding else b""
        written = []
        for field in fields:
            if not encoding or field.name != b"content-transfer-encoding":
                written.append(self._within_limits(field))
            else:
                written.append(declaration)
                declaration = b""
        written += (added.encode(), declaration)
        self._edits.append(_Edit(start, end, b"".join(written)))

    def _within_limits(self, field: RawField) -> bytes:
        if is_within_limits(field.written):
            return field.written
        self._field_bytes += len(field.written)
        if self._field_bytes > FIELD_BYTES_MAX:
            raise SubmittedMailError(
                f"More than {FIELD_BYTES_MAX // 1024} KB of header fields have bytes above 127 or lines over 998 "
                "characters; write them as encoded words (RFC 2047), and fold them"
            )
        return rewritten_field(field)


def _kind(fields: list[RawField], default: str) -> _Kind:
    types = [field.value for field in fields if field.name == b"content-type"]
    encodings = {
        _end_of_token(field.value, 1)[0].decode("latin-1").lower()
        for field in fields
        if field.name == b"content-transfer-encoding"
    }
    # Programs that disagree on the encoding would also disagree on the rewritten part.
    encoding = next(iter(encodings)) if len(encodings) == 1 else "conflicting" if encodings else ""
    if not types:
        return _Kind(default, b"", encoding, is_declared=False)
    read = parameters(types[0].decode("utf-8", "replace")) if len({*types}) == 1 else None
    # Where the parameters can't be read, the type in front of them still can.
    media_type = types[0].partition(b";")[0].strip(b" \t").decode("latin-1").lower()
    if not _is_type(media_type):
        media_type = "text/plain" if not media_type.startswith(("multipart/", "message/")) else "multipart/unreadable"
    boundary = b""
    if media_type.startswith("multipart/") and read is not None:
        boundaries = {unquoted(value).rstrip(" \t") for name, value in read[1] if name.lower() == "boundary"}
        if len(boundaries) == 1:
            boundary = boundaries.pop().encode()
    return _Kind(media_type, boundary, encoding, is_declared=True)


def _is_utf_8(body: bytes) -> bool:
    try:
        return not body.decode().isascii()
    except UnicodeDecodeError:
        return False


def _wrapped_base64(body: bytes) -> bytes:
    """Only the long lines are broken, and only if they are base64: anything else may mean anything."""
    if not body.isascii() or b"\0" in body:
        raise SubmittedMailError("A part that says it is base64 has bytes above 127; encode it again")
    lines = []
    for line in body.split(b"\r\n"):
        if len(line) <= LINE_CHARACTERS_MAX:
            lines.append(line)
        elif not _is_base64(line):
            raise SubmittedMailError("A part that says it is base64 has a long line that is not; encode it again")
        else:
            lines += [line[at : at + _BASE64_CHARACTERS] for at in range(0, len(line), _BASE64_CHARACTERS)]
    return b"\r\n".join(lines)


def _base64(raw: bytes) -> bytes:
    return pybase64.encodebytes(raw).replace(b"\n", b"\r\n")
