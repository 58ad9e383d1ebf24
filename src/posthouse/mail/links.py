"""The links of a message, as a reader finds them: those of the HTML in order, then addresses found only in the text.

The content is untrusted: the search is linear and bounded, and links are only text here, never followed.
"""

import html
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from posthouse.mail.address_fields import printable

LINKS_MAX: Final = 200
URL_CHARACTERS_MAX: Final = 4_096
LABEL_CHARACTERS_MAX: Final = 200
# Of the HTML and of the text; a message with more has its links in the first part, or is not meant to be read.
SEARCHED_CHARACTERS_MAX: Final = 500_000
_ATTRIBUTES_MAX: Final = 50
_LABEL_HTML_CHARACTERS_MAX: Final = 2_000

_find_opening: Final = re.compile(r"<(?:a|area)(?=[\s/])", re.IGNORECASE).search
_attribute: Final = re.compile(
    r"""[\s/]{0,100}([^\s=<>/"']{1,100})(?:\s{0,100}=\s{0,100}(?:"([^"]{0,8192})"|'([^']{0,8192})'|([^\s>"']{0,8192})))?"""
).match
_tag: Final = re.compile(r"<[^<>]{0,2000}>")
_find_addresses: Final = re.compile(r"https?://[^\s<>\"']{1,4096}", re.IGNORECASE).findall
_has_scheme: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}:").match
# They lead nowhere outside of the message, or run in the reader's program.
_OMITTED_SCHEMES: Final = ("javascript:", "data:", "vbscript:", "cid:", "blob:", "about:")
_AFTER_AN_ADDRESS: Final = ".,;:!?'\"»”)]}>*_"


class Link(NamedTuple):
    """`label` is the text between the tags; empty for an address in the plain text."""

    url: str
    label: str


def links_of(html_text: str | None, text: str | None) -> tuple[Link, ...]:
    """Each address once."""
    found = chain(_in_html(html_text or ""), _in_text(text or ""))
    distinct: dict[str, Link] = {}
    for link in islice(found, 5 * LINKS_MAX):
        distinct.setdefault(link.url, link)
    return tuple(islice(distinct.values(), LINKS_MAX))


def _in_html(given: str) -> Iterator[Link]:
    searched = _without_comments(given[:SEARCHED_CHARACTERS_MAX])
    end = 0
    # Continues where the attributes end, so that nothing is read twice.
    while (opening := _find_opening(searched, end)) is not None:
        href, end = _href(searched, opening.end())
        if href and (url := _url(html.unescape(href))):
            yield Link(url, _label(searched, end))


def _href(searched: str, begin: int) -> tuple[str, int]:
    """The value of the tag's first href, and where its attributes end."""
    for _ in range(_ATTRIBUTES_MAX):
        found = _attribute(searched, begin)
        if found is None:
            break
        begin = found.end()
        if found[1].lower() == "href":
            return found[2] or found[3] or found[4] or "", begin
    return "", begin


def _label(searched: str, begin: int) -> str:
    """The text before the next </a, without tags."""
    inside = searched[begin : begin + _LABEL_HTML_CHARACTERS_MAX].partition(">")[2]
    end = inside.lower().find("</a")
    if end < 0:
        return ""
    return printable(" ".join(html.unescape(_tag.sub(" ", inside[:end])).split()), LABEL_CHARACTERS_MAX)


def _url(given: str) -> str:
    """An absolute address, as a browser reads it; empty for any other."""
    url = "".join(given.split()) if "\n" in given or "\t" in given else given.strip()
    if not _has_scheme(url) or url.lower().startswith(_OMITTED_SCHEMES) or len(url) > URL_CHARACTERS_MAX:
        return ""
    return url if url.isprintable() else ""


def _in_text(given: str) -> Iterator[Link]:
    for address in _find_addresses(given[:SEARCHED_CHARACTERS_MAX]):
        url = _url(_trimmed(address))
        if url:
            yield Link(url, "")


def _trimmed(address: str) -> str:
    """Without the punctuation of the sentence around it; a bracket that it opens itself stays."""
    while address and address[-1] in _AFTER_AN_ADDRESS:
        if address[-1] == ")" and address.count("(") >= address.count(")"):
            break
        address = address[:-1]
    return address


def _without_comments(given: str) -> str:
    kept = []
    begin = 0
    while (opened := given.find("<!--", begin)) >= 0:
        kept.append(given[begin:opened])
        closed = given.find("-->", opened + 4)
        if closed < 0:
            return "".join(kept)
        begin = closed + 3
    kept.append(given[begin:])
    return "".join(kept)
