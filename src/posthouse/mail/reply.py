"""Replies of an SMTP server (RFC 5321, 4.2): bytes in chunks become bounded, printable values.

The server is untrusted. Line length, lines and bytes are limited, and the text is made printable before it is
stored, logged or shown. How the bytes are divided into chunks never changes the result.
"""

import re
from dataclasses import dataclass
from typing import Final

# RFC 5321 allows 512; real servers write longer lines when they quote addresses and links.
LINE_BYTES_MAX: Final = 2_048
LINES_MAX: Final = 100
REPLY_BYTES_MAX: Final = 64 * 1024
TEXT_CHARACTERS_MAX: Final = 2_000

# The code, then nothing, or a hyphen (more lines follow) or a space (the last), then the text.
_line: Final = re.compile(rb"([2-5][0-9][0-9])(?:([ -])(.*))?\Z", re.DOTALL).match
# RFC 3463, at the start of the first line that has one. What follows must not make it a longer number
# or an IP address.
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,2})"
_find_enhanced: Final = re.compile(rf"^[245]\.{_NUMBER}\.{_NUMBER}(?![0-9.])", re.MULTILINE).search


class ReplyError(Exception):
    """The server violated the protocol. `replies` were complete before."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.replies: tuple[Reply, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """`enhanced` is a status code of RFC 3463, such as "5.1.1"; the lines of `text` are joined by "\\n"."""

    code: int
    enhanced: str | None
    text: str

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.text.split("\n"))


class ReplyParser:
    """Turns bytes into complete replies. After a ReplyError, close the connection.

    It bounds the size of a reply, not the number of replies: the dialogue checks that.
    """

    __slots__ = ("_fault", "_lines", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []
        self._size = 0
        self._fault: str | None = None

    @property
    def is_between_replies(self) -> bool:
        """Whether no partial reply is buffered. Must hold before TLS starts, or cleartext is read after it."""
        return not self._rest and not self._lines

    def feed(self, data: bytes) -> list[Reply]:
        if self._fault is not None:
            raise ReplyError(self._fault)
        replies: list[Reply] = []
        try:
            self._read(self._rest + data, replies)
        except ReplyError as error:
            self._fault = str(error)
            error.replies = tuple(replies)
            raise
        return replies

    def _read(self, data: bytes, replies: list[Reply]) -> None:
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            self._bound(line)
            reply = self._take(line.removesuffix(b"\r"))
            if reply is not None:
                replies.append(reply)
        if self._rest:
            self._bound(self._rest)

    def _bound(self, line: bytes) -> None:
        if len(line) > LINE_BYTES_MAX:
            raise ReplyError(f"the server sent a line of more than {LINE_BYTES_MAX:,} bytes")
        if self._size + len(line) > REPLY_BYTES_MAX:
            raise ReplyError(f"the server sent a reply of more than {REPLY_BYTES_MAX:,} bytes")

    def _take(self, line: bytes) -> Reply | None:
        match = _line(line)
        if match is None:
            raise ReplyError(f"the server sent a line that is no reply: {printable(line[:80])}")
        code, separator, text = match.groups(b"")
        self._lines.append(text)
        self._size += len(line)
        if separator == b"-":
            if len(self._lines) == LINES_MAX:
                raise ReplyError(f"the server sent a reply of more than {LINES_MAX} lines")
            return None
        # RFC 5321, 4.2.1: the code of the last line counts.
        reply = reply_of(int(code), self._lines)
        self._lines = []
        self._size = 0
        return reply


def reply_of(code: int, lines: list[bytes]) -> Reply:
    """The reply with these lines of text."""
    text = "\n".join(map(printable, lines)) if len(lines) > 1 else printable(lines[0])
    if len(text) > TEXT_CHARACTERS_MAX:
        # Drops whole lines, so that no EHLO keyword is cut into another keyword.
        whole, newline, _ = text[: TEXT_CHARACTERS_MAX + 1].rpartition("\n")
        text = whole if newline else text[:TEXT_CHARACTERS_MAX]
    return Reply(code, enhanced_of(code, text), text)


def printable(given: bytes | str) -> str:
    """Untrusted text, or bytes in any encoding, as a single line without control characters."""
    raw = given.encode("utf-8", "replace") if isinstance(given, str) else given
    text = raw.decode("utf-8", "replace")
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text])


def enhanced_of(code: int, text: str) -> str | None:
    """The enhanced status code at the beginning of a reply's text."""
    match = _find_enhanced(text)
    # RFC 2034, 4: the class is the first digit of the code. Where it is not, only the code counts.
    return match[0] if match is not None and match[0][0] == str(code)[0] else None
