"""Encoded words (RFC 2047): decoded for display, and searched for hidden line breaks.

The standard library's decoder raises on some words and turns others into line breaks. This decoder is as lenient as
the most lenient mail program (a word may be inside quotes, contain spaces, or lack padding), never raises, and is
linear.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import pybase64

# Charset, encoding and payload. Only for text that ends with the end of a word, so that every payload is terminated.
_find_words: Final = re.compile(r"=\?([^?]{0,40}+)\?([BbQq])\?(.*?)\?=", re.DOTALL).finditer
# Character sets only: Python also has codecs of other kinds, which untrusted mail could name.
_is_known_charset: Final = re.compile(
    r"utf-?(?:7|8|16(?:[bl]e)?|32(?:[bl]e)?)|(?:us-)?ascii|iso[-_]?8859-\d{1,2}|latin-?1|(?:windows-|cp)125\d|cp(?:437|850|866|932|936|949)"
    r"|koi8-[rut]|gb2312|gbk|gb18030|big5(?:-?hkscs)?|iso-2022-(?:jp(?:-[123])?|kr)|shift[-_]jis|euc-(?:jp|kr)"
    r"|tis-620|macintosh|mac-?roman|ks_c_5601-1987",
    re.IGNORECASE,
).fullmatch
_is_space: Final = re.compile(r"[ \t\r\n]*+\Z").match
_find_hidden: Final = re.compile("[\0\r\n\v\f]").search


class _Word(NamedTuple):
    start: int
    end: int
    charset: str
    raw: bytes


def decode(text: str) -> str:
    """The decoded text. White space between two words is dropped."""
    if "=?" not in text:
        return text
    pieces: list[str] = []
    held: list[bytes] = []
    held_charset = ""
    end = 0
    for word in _words(text):
        between = text[end : word.start]
        if held and _is_space(between):
            between = ""
        # Some programs split a character over two words.
        if between or word.charset != held_charset:
            pieces += (_decoded(b"".join(held), held_charset), between)
            held.clear()
        held.append(word.raw)
        held_charset = word.charset
        end = word.end
    pieces += (_decoded(b"".join(held), held_charset), text[end:])
    return "".join(pieces)


def hides_line_break(text: str) -> bool:
    """Whether a word contains a line break or NUL, which would break programs that decode before parsing."""
    return any(_find_hidden(_decoded(word.raw, word.charset)) for word in _words(text))


def _words(text: str) -> Iterator[_Word]:
    for found in _find_words(text, 0, text.rfind("?=") + 2):
        charset, encoding, payload = found.groups()
        # RFC 2231, 5: a language may follow the charset.
        charset = charset.partition("*")[0].strip().lower()
        yield _Word(found.start(), found.end(), charset, _bytes_of(encoding, payload.encode("utf-8", "replace")))


def _bytes_of(encoding: str, payload: bytes) -> bytes:
    if encoding in "qQ":
        return binascii.a2b_qp(payload, header=True)
    try:
        # Not strict: mail programs skip characters outside the alphabet.
        return pybase64.b64decode(payload.rstrip(b"=") + b"===", validate=False)
    except binascii.Error:
        return payload


def _decoded(raw: bytes, charset: str) -> str:
    if charset != "utf-8" and not _is_known_charset(charset):
        return raw.decode("latin-1")
    try:
        return raw.decode(charset, "replace")
    except (LookupError, UnicodeError):
        return raw.decode("latin-1")
