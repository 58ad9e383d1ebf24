"""Encoded words (RFC 2047) as readers find them: decoded for people, and searched for what they may hide.

The standard library's decoder raises on some words and turns others into line breaks. This one is as
lenient as the most lenient reader (a word may stand inside quotes, hold spaces, or lack padding), never
raises, and is linear: every look ahead either moves on or ends the search.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import pybase64

_CHARSET_CHARACTERS_MAX: Final = 40
# Only character sets: Python has codecs of other kinds under names that a stranger could give.
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
    """The text as a person reads it. White space between two words is no part of either."""
    if "=?" not in text:
        return text
    pieces: list[str] = []
    held: _Word | None = None
    end = 0
    for word in _words(text):
        between = text[end : word.start]
        if held is not None and _is_space(between):
            if word.charset == held.charset:
                # Careless writers split a character over two words.
                held = _Word(word.start, word.end, word.charset, held.raw + word.raw)
                end = word.end
                continue
            between = ""
        if held is not None:
            pieces.append(_decoded(held))
        pieces.append(between)
        held = word
        end = word.end
    if held is not None:
        pieces.append(_decoded(held))
    pieces.append(text[end:])
    return "".join(pieces)


def hides_line_break(text: str) -> bool:
    """Whether a word holds what would end a line, or a string, in a reader that decodes before it parses."""
    return any(_find_hidden(_decoded(word)) for word in _words(text))


def _words(text: str) -> Iterator[_Word]:
    start = text.find("=?")
    while start >= 0:
        mark = text.find("?", start + 2)
        encoding = text[mark + 1 : mark + 3]
        if mark < 0 or len(encoding) < 2:
            return
        if mark - start - 2 > _CHARSET_CHARACTERS_MAX or encoding not in ("b?", "B?", "q?", "Q?"):
            start = text.find("=?", start + 2)
            continue
        end = text.find("?=", mark + 3)
        if end < 0:
            return
        # RFC 2231, 5: a language may follow the charset.
        charset = text[start + 2 : mark].partition("*")[0].strip().lower()
        payload = text[mark + 3 : end].encode("utf-8", "replace")
        yield _Word(start, end + 2, charset, _bytes_of(encoding[0], payload))
        start = text.find("=?", end + 2)


def _bytes_of(encoding: str, payload: bytes) -> bytes:
    if encoding in "qQ":
        return binascii.a2b_qp(payload, header=True)
    try:
        # Not strict: readers skip what is not of the alphabet, and so what it surrounds is read here too.
        return pybase64.b64decode(payload.rstrip(b"=") + b"===", validate=False)
    except binascii.Error:
        return payload


def _decoded(word: _Word) -> str:
    charset = word.charset
    if not _is_known_charset(charset):
        return word.raw.decode("latin-1")
    try:
        return word.raw.decode(charset, "replace")
    except (LookupError, UnicodeError):
        return word.raw.decode("latin-1")
