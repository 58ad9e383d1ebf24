"""A lenient parser for untrusted mail: header fields and MIME parts, whatever the bytes are.

No mail is refused: malformed parts are read as well as possible. So everything is bounded (bytes, depth, parts,
fields, characters), attached messages are not parsed, every step is linear, and nothing raises. The standard library's
parser recurses for every level and checks every line at every level.
"""

import re
from base64 import b64decode
from binascii import a2b_qp
from collections.abc import Iterator
from html import unescape
from itertools import islice
from string import ascii_letters, digits
from typing import Final, NamedTuple

from posthouse.mail import encoded_words

# A report comes before the original message: further bytes are that message's attachments.
READ_BYTES_MAX: Final = 1024 * 1024
HEAD_BYTES_MAX: Final = 64 * 1024
FIELDS_MAX: Final = 500
VALUE_CHARACTERS_MAX: Final = 4_000
PARTS_MAX: Final = 50
DEPTH_MAX: Final = 6
# Lines that begin like the boundary but are not delimiters.
_MARKS_MAX: Final = 1_000
TEXT_BYTES_MAX: Final = 32 * 1024
_WORDS_CHARACTERS_MAX: Final = 2_000

# An allow-list: some of Python's codecs are no character sets, some raise despite `errors`, and some take quadratic
# time.
_CHARSETS: Final = frozenset(
    [
        *("us-ascii", "utf-8", "utf8", "koi8-r", "koi8-u", "gb2312", "gbk", "gb18030", "big5", "shift_jis"),
        *("iso-2022-jp", "euc-jp", "euc-kr", "ks_c_5601-1987"),
        *(f"iso-8859-{number}" for number in (*range(1, 12), *range(13, 17))),
        *(f"windows-125{number}" for number in range(9)),
    ]
)

_is_name: Final = re.compile(rb"[!-9;-~]{1,100}\Z").match
_find_parameters: Final = re.compile(r';\s*+([A-Za-z0-9*_-]++)\s*+=\s*+(?:"([^"]*+)"|([^;\s]*+))').finditer
_UNENCODED: Final = bytes(set(range(256)) - set(f"{ascii_letters}{digits}+/".encode()))
_end_lines: Final = re.compile(r"<(?:br|/p|/div|/tr|/li|/h[1-6]|/table|/pre)\b[^<>]*+>", re.IGNORECASE).sub
_drop_styles: Final = re.compile(r"<(style|script)\b[^<>]*+>[^<]*+", re.IGNORECASE).sub
_drop_tags: Final = re.compile(r"<[^<>]*+>").sub


class MimePart(NamedTuple):
    """A header with names in lower case, and a body with "\\n" line ends."""

    fields: tuple[tuple[str, str], ...]
    type: str
    parameters: dict[str, str]
    content: bytes

    def get(self, name: str) -> str:
        """The first field with this name, or an empty string."""
        return next((value for given, value in self.fields if given == name), "")

    @property
    def is_blank(self) -> bool:
        return not self.content or self.content.isspace()

    @property
    def is_encoded(self) -> bool:
        return self.get("content-transfer-encoding").lower() in ("base64", "quoted-printable")

    def decoded(self) -> bytes:
        match self.get("content-transfer-encoding").lower():
            case "base64":
                # Decodes truncated text as far as possible; six bits are no byte.
                encoded = self.content.translate(None, _UNENCODED)
                if len(encoded) % 4 == 1:
                    encoded = encoded[:-1]
                return b64decode(encoded + b"=" * (-len(encoded) % 4))
            case "quoted-printable":
                return a2b_qp(self.content)
            case _:
                return self.content

    def text(self) -> str:
        """The text with its lines; HTML without tags."""
        raw = self.decoded()[:TEXT_BYTES_MAX].replace(b"\r\n", b"\n")
        text = decode(raw, self.parameters.get("charset", ""))
        return _without_tags(text) if self.type == "text/html" else text


class ParsedMail(NamedTuple):
    """`leaves` are the parts that hold no others; an attached message is a leaf."""

    outer: MimePart
    leaves: tuple[MimePart, ...]

    def leaf(self, *types: str) -> MimePart | None:
        return next((leaf for leaf in self.leaves if leaf.type in types), None)

    def text(self) -> str:
        """The message's first text that is not empty; plain text rather than HTML."""
        texts = [leaf for leaf in self.leaves if leaf.type in ("text/plain", "text/html") and not leaf.is_blank]
        texts.sort(key=lambda leaf: leaf.type == "text/html")
        return texts[0].text() if texts else ""


def parse_mail(raw: bytes, *, bytes_max: int = READ_BYTES_MAX, parts_max: int = PARTS_MAX) -> ParsedMail:
    outer = _part(raw[:bytes_max].replace(b"\r", b""), "text/plain")
    return ParsedMail(outer, tuple(islice(_leaves(outer, DEPTH_MAX, parts_max), parts_max)))


def fields_of(lines: list[bytes]) -> tuple[tuple[str, str], ...]:
    """The header fields in these lines, unfolded; other lines are skipped."""
    found: list[tuple[str, list[bytes]]] = []
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            if found:
                found[-1][1].append(line.strip())
            continue
        name, colon, value = line.partition(b":")
        if not colon or not _is_name(name := name.rstrip()):
            continue
        if len(found) == FIELDS_MAX:
            break
        found.append((name.decode("ascii").lower(), [value.strip()]))
    return tuple(
        (name, b" ".join(pieces)[: 4 * VALUE_CHARACTERS_MAX].decode("utf-8", "replace")[:VALUE_CHARACTERS_MAX].strip())
        for name, pieces in found
    )


def parameters_of(value: str) -> dict[str, str]:
    """The parameters of a field; of two with the same name, the last."""
    found = islice(_find_parameters(value), FIELDS_MAX)
    return {match[1].lower(): match[3] if match[2] is None else match[2] for match in found}


def decode(raw: bytes, charset: str) -> str:
    charset = charset.lower()
    return raw.decode(charset if charset in _CHARSETS else "utf-8", "replace")


def decode_words(value: str) -> str:
    """The value with its encoded words (RFC 2047) decoded."""
    return encoded_words.decode(value[:_WORDS_CHARACTERS_MAX]) if "=?" in value else value


def _part(raw: bytes, default_type: str) -> MimePart:
    if raw.startswith(b"\n"):
        head, content = b"", raw[1:]
    else:
        head, _, content = raw.partition(b"\n\n")
    fields = fields_of(head[:HEAD_BYTES_MAX].split(b"\n"))
    value = next((value for name, value in fields if name == "content-type"), "")
    named = value.partition(";")[0].strip().lower()
    return MimePart(fields, named if "/" in named else default_type, parameters_of(value), content)


def _leaves(part: MimePart, depth: int, parts_max: int) -> Iterator[MimePart]:
    if not part.type.startswith("multipart/") or depth == 0:
        yield part
        return
    default_type = "message/rfc822" if part.type == "multipart/digest" else "text/plain"
    pieces = _pieces(part.content, part.parameters.get("boundary", ""), parts_max)
    if not pieces:
        # The boundary does not occur: read everything as text.
        yield part._replace(type="text/plain")
    for piece in pieces:
        yield from _leaves(_part(piece, default_type), depth - 1, parts_max)


def _pieces(content: bytes, boundary: str, parts_max: int) -> list[bytes]:
    """The parts between the delimiter lines; a missing last delimiter is at the end."""
    content = b"\n" + content
    mark = b"\n--" + boundary.rstrip().encode("utf-8", "replace")
    if not boundary or mark not in content:
        # Gateways change the boundary in the header only: use the first line that looks like a delimiter.
        start = content.find(b"\n--")
        mark = content[start:].split(b"\n", 2)[1].rstrip() if start >= 0 else b""
        if len(mark) < 5 or b" " in mark:
            return []
        mark = b"\n" + mark
    pieces: list[bytes] = []
    begin = -1
    position = content.find(mark)
    for _ in range(_MARKS_MAX):
        if position < 0 or len(pieces) == parts_max:
            break
        line_end = content.find(b"\n", position + 1)
        line_end = len(content) if line_end < 0 else line_end
        rest = content[position + len(mark) : min(line_end, position + len(mark) + 100)].strip()
        if rest in (b"", b"--"):
            if begin >= 0:
                pieces.append(content[begin:position])
            begin = -1 if rest else line_end + 1
            if rest:
                break
        position = content.find(mark, line_end)
    if begin >= 0 and len(pieces) < parts_max:
        pieces.append(content[begin:])
    return pieces


def _without_tags(text: str) -> str:
    # Line breaks in HTML source have no meaning; tags end lines.
    text = " ".join(_drop_styles("", text).split())
    text = _drop_tags("", _end_lines("\n", text))
    try:
        return unescape(text)
    except ValueError:
        # A character reference of thousands of digits, which Python refuses to convert.
        return text
