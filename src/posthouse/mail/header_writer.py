"""Writes header fields: a name and a value become the bytes of a field, folded and encoded by RFC 5322.

An email client reads back exactly the given value. Where plain folded ASCII can't guarantee that, the whole value is
written as encoded words (RFC 2047): for non-ASCII characters, white space at either end, text that looks like an
encoded word, and words too long for a line. Control characters are refused here too, although the rules refuse them
first, since a line break would forge a header field.
"""

import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import pybase64

from posthouse.mail.address import Mailbox, find_control

NAME_CHARACTERS_MAX: Final = 76
# RFC 5322, 2.1.1: the length that a line should not, and must not, exceed, without its CRLF.
LINE_CHARACTERS: Final = 78
LINE_CHARACTERS_MAX: Final = 998
# RFC 2047, 2: the length of an encoded word, and of a line that holds one.
_WORD_CHARACTERS_MAX: Final = 75
_ENCODED_LINE_CHARACTERS: Final = 76
_WORD_FRAME_CHARACTERS: Final = len("=?utf-8?q??=")
# Space for a four-byte character in Q: after a very long field name the first line exceeds 76 characters rather than
# being empty, which some programs turn into a space.
_WORD_CHARACTERS_MIN: Final = _WORD_FRAME_CHARACTERS + len("=F0=9F=92=8C")
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Messages of a second share their dates.
_DATES_CACHED_MAX: Final = 16
# A display name longer than this is folded between encoded words instead of quoted on one line.
_QUOTED_CHARACTERS_MAX: Final = 60

# Fields whose grammar does not allow encoded words; a customer's value is sent unchanged.
_STRUCTURED: Final = frozenset(
    {
        "archived-at", "auto-submitted", "autocrypt", "conversation-id", "deferred-delivery",
        "disposition-notification-options", "disposition-notification-to", "expires", "expiry-date",
        "feedback-id", "followup-to", "importance", "in-reply-to", "mail-followup-to", "mail-reply-to",
        "newsgroups", "obsoletes", "original-message-id", "original-recipient", "precedence", "priority",
        "references", "reply-by", "require-recipient-valid-since", "return-receipt-to", "sensitivity",
        "supersedes", "x-auto-response-suppress", "x-confirm-reading-to", "x-msmail-priority", "x-priority",
    }
)  # fmt: skip

# Characters that Q keeps inside a phrase (RFC 2047, 5); a space becomes an underscore.
_Q_SAFE: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/ "
_Q: Final = tuple("_" if byte == 0x20 else chr(byte) if byte in _Q_SAFE else f"={byte:02X}" for byte in range(256))
_Q_ASCII: Final = {chr(byte): _Q[byte] for byte in range(128)}

# RFC 5987's attr-char: characters that an extended parameter (RFC 2231) keeps.
_PERCENT: Final = tuple(
    chr(byte) if re.match(r"[A-Za-z0-9!#$&+.^_`|~-]", chr(byte)) else f"%{byte:02X}" for byte in range(256)
)

_is_name: Final = re.compile(r"[!-9;-~]+\Z").match
_is_address: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.@-]+\Z").match
_is_phrase: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]++(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]++)*\Z").match
_encoded_word: Final = re.compile(r"=\?(?:utf-8|us-ascii)\?([bq])\?([!->@-~]*+)\?=", re.IGNORECASE)


class HeaderError(ValueError):
    """A field that can't be written; the text says what is wrong with its value or name."""


def is_structured(name: str) -> bool:
    lowered = name.lower()
    return lowered in _STRUCTURED or lowered.startswith("list-")


def unstructured(name: str, value: str) -> bytes:
    """The whole field, line ends included, for any text without control characters."""
    line = f"{name}: {value}"
    # Most fields end here: printable ASCII that fits and doesn't look like an encoded word.
    plain = line.isascii() and line.isprintable() and "=?" not in value and value.strip(" ") == value
    if plain and len(line) <= LINE_CHARACTERS and name and " " not in name and ":" not in name:
        return f"{line}\r\n".encode()
    _check(name, value)
    if plain and (folded := _folded(name, value)) is not None:
        return folded
    return _filled(name, _encoded_words(value, _ENCODED_LINE_CHARACTERS - len(name) - 2))


def structured(name: str, value: str) -> bytes:
    """The whole field for a structured value: folded at spaces, never encoded."""
    _check(name, value)
    if not value.isascii():
        raise HeaderError("takes ASCII only")
    if "=?" in value:
        _check_encoded_words(value)
    value = value.strip(" ")
    if len(name) + len(value) <= LINE_CHARACTERS - 2:
        return f"{name}: {value}\r\n".encode()
    # Leading white space of a structured value has no meaning, so the first line may contain only the name.
    folded = _folded(name, value) or _folded(name, f"\r\n {value}")
    if folded is None:
        raise HeaderError(
            f"has no space to fold at within {LINE_CHARACTERS_MAX} characters; put spaces between its parts"
        )
    return folded


def mailboxes(name: str, boxes: Sequence[Mailbox]) -> bytes:
    """The whole field for a list of mailboxes, folded between them and inside long display names."""
    if len(boxes) == 1 and not boxes[0].name:
        address = boxes[0].address
        if len(name) + len(address) <= LINE_CHARACTERS - 2:
            _check_address(address)
            _check_name(name)
            return f"{name}: {address}\r\n".encode()
    _check_name(name)
    tokens: list[str] = []
    capacity = _ENCODED_LINE_CHARACTERS - len(name) - 2
    for box in boxes:
        address = box.address
        _check_address(address)
        if box.name:
            tokens += _phrase(box.name, capacity)
            tokens.append(f"<{address}>,")
        else:
            tokens.append(f"{address},")
        capacity = _WORD_CHARACTERS_MAX
    if not tokens:
        raise HeaderError("has no mailbox")
    tokens[-1] = tokens[-1][:-1]
    return _filled(name, tokens)


@lru_cache(_DATES_CACHED_MAX)
def date_text(second: datetime) -> str:
    """RFC 5322's format, in UTC; the standard library would take a sixth of the time of a whole message."""
    utc = second.astimezone(UTC)
    return (
        f"{_DAYS[utc.weekday()]}, {utc.day} {_MONTHS[utc.month - 1]} {utc.year:04} "
        f"{utc.hour:02}:{utc.minute:02}:{utc.second:02} +0000"
    )


def percent_encoded(character: str) -> str:
    """The character as an extended parameter writes it."""
    return "".join([_PERCENT[byte] for byte in character.encode()])


def refuse_control(value: str) -> None:
    if find_control(value):
        raise HeaderError("holds a line break or another control character; remove it")


def _check(name: str, value: str) -> None:
    _check_name(name)
    refuse_control(value)


def _check_name(name: str) -> None:
    if len(name) > NAME_CHARACTERS_MAX or not _is_name(name):
        raise HeaderError("has a name that is not 1 to 76 printable ASCII characters without space or colon")


def _check_address(address: str) -> None:
    """A mailbox that is not from `parse_mailbox` may contain anything."""
    if not _is_address(address):
        raise HeaderError("has an address that was not checked")


def _check_encoded_words(value: str) -> None:
    """A structured value may contain encoded words, but none may hide a line break.

    Only words that every program decodes alike are accepted: other charsets encode control characters differently,
    and lenient programs decode malformed words.
    """
    if "?=" in _encoded_word.sub(" ", value).partition("=?")[2]:
        raise HeaderError("has an encoded word that is not UTF-8 in B or Q")
    for word in _encoded_word.finditer(value):
        encoding, payload = word.groups()
        try:
            raw = (
                pybase64.b64decode(payload, validate=True)
                if encoding in "bB"
                else binascii.a2b_qp(payload, header=True)
            )
            refuse_control(raw.decode())
        except (binascii.Error, UnicodeDecodeError) as error:
            raise HeaderError("has an encoded word that does not decode") from error


def _folded(name: str, value: str) -> bytes | None:
    """The field with its value folded at single spaces, or None if a line would still be too long.

    Runs of spaces stay inside a line: relays may trim the end of a line.
    """
    lines = []
    first, *words = value.split(" ")
    line = f"{name}: {first}" if first != "\r\n" else f"{name}:\r\n"
    for word in words:
        if word and line[-1] not in " \n" and len(line) + 1 + len(word) > LINE_CHARACTERS:
            lines.append(line)
            line = f" {word}"
        else:
            line = f"{line} {word}"
    lines.append(line)
    text = "\r\n".join(lines)
    if max(map(len, text.split("\r\n"))) > LINE_CHARACTERS_MAX:
        return None
    return f"{text}\r\n".encode()


def _filled(name: str, tokens: Iterable[str]) -> bytes:
    """The field with its tokens separated by single spaces, as many per line as fit."""
    lines = []
    line = f"{name}:"
    fresh = True
    for token in tokens:
        if not fresh and len(line) + 1 + len(token) > _ENCODED_LINE_CHARACTERS:
            lines.append(line)
            line = f" {token}"
        else:
            line = f"{line} {token}"
        fresh = False
    lines.append(f"{line}\r\n")
    return "\r\n".join(lines).encode()


def _phrase(name: str, capacity: int) -> Iterable[str]:
    """A display name as tokens: atoms or a quoted string where possible, else encoded words."""
    refuse_control(name)
    if name.isascii() and "=?" not in name and len(name) <= min(capacity, _QUOTED_CHARACTERS_MAX) - 2:
        if _is_phrase(name):
            return (name,)
        # Mail programs collapse white space inside quotes; encoded words keep it.
        if "  " not in name and name[0] != " " and name[-1] != " ":
            escaped = name.replace("\\", "\\\\").replace('"', '\\"')
            return (f'"{escaped}"',)
    return _encoded_words(name, capacity)


def _encoded_words(value: str, first_capacity: int) -> Iterator[str]:
    """The value as encoded words, the first within `first_capacity` characters, in B or Q, whichever is shorter."""
    raw = value.encode()
    q_characters = len(raw) + 2 * len(raw.translate(None, _Q_SAFE))
    capacity = max(min(first_capacity, _WORD_CHARACTERS_MAX), _WORD_CHARACTERS_MIN) - _WORD_FRAME_CHARACTERS
    if q_characters <= (len(raw) + 2) // 3 * 4:
        return _q_words(value, q_characters, capacity)
    return _b_words(raw, capacity)


def _q_words(value: str, q_characters: int, capacity: int) -> Iterator[str]:
    if q_characters <= capacity:
        yield f"=?utf-8?q?{''.join([_Q[byte] for byte in value.encode()])}?="
        return
    payload: list[str] = []
    for character in value:
        encoded = _Q_ASCII.get(character) or "".join([_Q[byte] for byte in character.encode()])
        if len(encoded) > capacity:
            yield f"=?utf-8?q?{''.join(payload)}?="
            payload.clear()
            capacity = _WORD_CHARACTERS_MAX - _WORD_FRAME_CHARACTERS
        payload.append(encoded)
        capacity -= len(encoded)
    yield f"=?utf-8?q?{''.join(payload)}?="


def _b_words(raw: bytes, capacity: int) -> Iterator[str]:
    start = 0
    while start < len(raw):
        end = start + capacity // 4 * 3
        # A byte of the form 10xxxxxx continues a character; characters are never split.
        while end < len(raw) and raw[end] & 0xC0 == 0x80:
            end -= 1
        yield f"=?utf-8?b?{pybase64.b64encode(raw[start:end]).decode()}?="
        start = end
        capacity = _WORD_CHARACTERS_MAX - _WORD_FRAME_CHARACTERS


def has_long_line(data: bytes, line_bytes_max: int, end_bytes: int) -> bool:
    """Each stretch of a longest line and its end must contain a line feed: few enough steps for Python to be fast."""
    position = 0
    length = len(data)
    while length - position > line_bytes_max:
        found = data.rfind(b"\n", position, position + line_bytes_max + end_bytes)
        if found < 0:
            return True
        position = found + 1
    return False
