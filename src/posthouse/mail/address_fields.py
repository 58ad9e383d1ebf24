"""Address fields as mail programs write them: the addresses named there, and the field rewritten within the limits.

`address` parses customer input and is strict. A message's field may contain comments, folded white space, groups
and encoded words around its addresses (RFC 5322), so it is split into tokens first; the addresses themselves must still
pass the strict parser. A field in which two parsers could see different senders is refused.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from posthouse.mail import encoded_words, header_writer
from posthouse.mail.address import NAME_CHARACTERS_MAX, AddressError, Mailbox, parse_mailbox, unescape

# The longest name and address, encoded and with comments, fit easily.
_MAILBOX_CHARACTERS_MAX: Final = 2_048
_FIRST_WORD_TOKENS_MAX: Final = 50

_SPACE: Final = "space"
_QUOTED: Final = "quoted"
_LITERAL: Final = "literal"
_ATOM: Final = "atom"
_COMMENT: Final = "comment"
# By the number of the pattern's group; the last is a special character, which is its own kind.
_KINDS: Final = ("", _SPACE, _QUOTED, _LITERAL, _ATOM, _COMMENT, "")

_next_token: Final = re.compile(
    r'([ \t]++)|("(?:[^"\\]++|\\.)*")|(\[[^\[\]\\]*+\])'
    r'|([^ \t()<>\[\]:;@\\,."]++)|(\((?:[^()\\]++|\\.)*\))|([()<>\[\]:;@\\,."])'
).match
_next_parenthesis: Final = re.compile(r"\\.|[()]").search
_has_special: Final = re.compile(r'[()<>\[\]:;@\\,"]').search
_looks_like_address: Final = re.compile(r"[!-?A-~]++@[!-?A-~]++\Z").match
_is_involved: Final = re.compile(r'["(:;\[\\]').search


class _Token(NamedTuple):
    """`kind` of a special character is the character itself."""

    kind: str
    text: str


def only_mailbox(value: str) -> Mailbox:
    """The only mailbox that an unfolded field names; its display name is decoded and printable."""
    if len(value) > _MAILBOX_CHARACTERS_MAX:
        raise AddressError(f"is longer than {_MAILBOX_CHARACTERS_MAX} characters; shorten its name and comments")
    value = value.replace("\t", " ").strip(" ")
    if value.isascii() or value.rpartition("<")[2].isascii():
        try:
            box = parse_mailbox(value)
        except AddressError:
            box = _tokenised_mailbox(value)
    else:
        box = _tokenised_mailbox(value)
    name, local, domain = box
    if "=?" in local:
        # Syntactically an atom, but some mail programs decode it and may find another address inside.
        raise AddressError("has an encoded word in its address; write the address as it is")
    return Mailbox(printable(encoded_words.decode(name), NAME_CHARACTERS_MAX), local, domain) if name else box


def named_addresses(value: str) -> set[str]:
    """The keys of the addresses in an unfolded field; unparsable addresses are skipped."""
    value = value.strip(" \t")
    if "," not in value or value.startswith('"'):
        # Most mail has a single recipient in a form that the strict parser accepts.
        try:
            return {parse_mailbox(value).key}
        except AddressError:
            pass
    keys: set[str] = set()
    for piece in _pieces(value):
        address = piece.rpartition("<")[2].partition(">")[0].strip(" \t")
        if _looks_like_address(address):
            # The same key as the strict parser's; an invalid address matches no recipient.
            keys.add(address.lower())
    return keys


def first_word(value: str) -> str:
    """The text before the first white space or semicolon, without leading comments and white space."""
    pieces: list[str] = []
    for count, (kind, text) in enumerate(_tokens(value)):
        if count == _FIRST_WORD_TOKENS_MAX:
            raise AddressError("has too many comments; remove them")
        if kind == ";" or (kind == _SPACE and pieces):
            return "".join(pieces)
        if kind not in (_SPACE, _COMMENT):
            pieces.append(text)
    return "".join(pieces)


def display_text(box: Mailbox) -> str:
    """The mailbox for display; a name that looks like an address is quoted."""
    if not box.name:
        return box.address
    if _has_special(box.name):
        name = box.name.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{name}" <{box.address}>'
    return f"{box.name} <{box.address}>"


def printable(text: str, characters_max: int) -> str:
    """On a single line, without characters that can't be shown or stored."""
    if not text.isprintable():
        text = "".join([character if character.isprintable() else " " for character in text])
    return " ".join(text[: 4 * characters_max].split())[:characters_max].rstrip()


def rewritten_addresses(value: str) -> str:
    """The unfolded field in ASCII, with a space after every comma: only display names and comments change."""
    pieces: list[str] = []
    held: list[_Token] = []
    is_inside = False
    for token in _tokens(value.replace("\t", " ")):
        if is_inside or token.kind in ("<", ",", ":", ";"):
            # Text before an angle bracket or a colon is a name; anything else is an address.
            if held:
                pieces += _in_ascii(held, is_phrase=token.kind in ("<", ":"))
                held.clear()
            if not token.text.isascii():
                raise AddressError("has an address outside ASCII, which is not supported; use its ASCII form")
            pieces.append(f"{token.text} " if token.kind == "," else token.text)
            is_inside = token.kind == "<" or (is_inside and token.kind != ">")
        else:
            held.append(token)
    pieces += _in_ascii(held, is_phrase=False)
    return "".join(pieces).strip(" ")


def _in_ascii(tokens: Sequence[_Token], *, is_phrase: bool) -> Iterator[str]:
    run: list[_Token] = []
    for token in tokens:
        if token.kind != _COMMENT:
            run.append(token)
            continue
        yield from _run_in_ascii(run, is_phrase=is_phrase)
        run.clear()
        yield token.text if token.text.isascii() else f"({_words_of(_unquoted(token.text))})"
    yield from _run_in_ascii(run, is_phrase=is_phrase)


def _run_in_ascii(run: Sequence[_Token], *, is_phrase: bool) -> Iterator[str]:
    written = "".join([token.text for token in run])
    if written.isascii():
        yield written
        return
    if not is_phrase or any(token.kind not in (_SPACE, _QUOTED, _ATOM, ".") for token in run):
        raise AddressError("has an address outside ASCII, which is not supported; use its ASCII form")
    yield f" {_words_of(_phrase_text(run))} "


def _words_of(text: str) -> str:
    """Encoded words separated by single spaces; non-ASCII text is always encoded."""
    return header_writer.unstructured("X", encoded_words.decode(text))[3:-2].decode().replace("\r\n ", " ")


def _phrase_text(tokens: Sequence[_Token]) -> str:
    return "".join([_unquoted(text) if kind == _QUOTED else text for kind, text in tokens]).strip(" ")


def _unquoted(text: str) -> str:
    """The text between the quotes or parentheses, escapes resolved."""
    return unescape(r"\1", text[1:-1])


def _tokenised_mailbox(value: str) -> Mailbox:
    tokens = [*_tokens(value)]
    kinds = [token.kind for token in tokens]
    if ":" in kinds or ";" in kinds:
        raise AddressError("is a group; name one mailbox")
    if "," in kinds:
        raise AddressError("names more than one mailbox, or has a comma outside quotes; name exactly one")
    if "<" not in kinds:
        comments = [token.text for token in tokens if token.kind == _COMMENT]
        return parse_mailbox(_address_text(tokens))._replace(name=_unquoted(comments[-1]) if comments else "")
    opening = kinds.index("<")
    if ">" not in kinds[opening:]:
        raise AddressError("has a < without a > after it; close the bracket after the address")
    closing = kinds.index(">", opening)
    if kinds.count("<") > 1 or any(kind not in (_SPACE, _COMMENT) for kind in kinds[closing + 1 :]):
        raise AddressError("has more than one address, or text after it; name exactly one mailbox")
    box = parse_mailbox(_address_text(tokens[opening + 1 : closing]))
    phrase = [token for token in tokens[:opening] if token.kind != _COMMENT]
    name = _phrase_text(phrase)
    if any(token.kind not in (_SPACE, _QUOTED, _ATOM, ".") for token in phrase):
        if name.lower() != box.key:
            raise AddressError("has a name that must be in double quotes, or more than one address")
        name = ""
    return box._replace(name=name)


def _address_text(tokens: Sequence[_Token]) -> str:
    """The text without white space and comments at either end; the strict parser refuses them inside."""
    start, end = 0, len(tokens)
    while start < end and tokens[start].kind in (_SPACE, _COMMENT):
        start += 1
    while start < end and tokens[end - 1].kind in (_SPACE, _COMMENT):
        end -= 1
    address = "".join([token.text for token in tokens[start:end]])
    if not address.isascii():
        raise AddressError("has an address outside ASCII, which is not supported; use its ASCII form")
    if "<" in address or ">" in address:
        raise AddressError("has misplaced angle brackets; name exactly one mailbox")
    return address


def _pieces(value: str) -> Iterator[str]:
    """The entries of a list without quoted names and comments."""
    if not _is_involved(value):
        yield from value.split(",")
        return
    pieces: list[str] = []
    try:
        for kind, text in _tokens(value):
            if kind in (",", ":", ";"):
                if kind != ":":
                    yield "".join(pieces)
                pieces.clear()
            elif kind not in (_QUOTED, _COMMENT):
                pieces.append(text)
    except AddressError:
        return
    yield "".join(pieces)


def _tokens(value: str) -> Iterator[_Token]:
    position = 0
    while position < len(value):
        token = _next_token(value, position)
        if token is None:
            raise AddressError("holds a line break or another control character; remove it")
        text = token[0]
        kind = _KINDS[token.lastindex or 0]
        if not kind:
            kind = text
            if text == "(":
                # A comment with nested comments.
                kind, text = _COMMENT, value[position : _comment_end(value, position)]
            elif text in ')[]\\"':
                raise AddressError("has an unmatched quote, bracket or backslash; put names in double quotes")
        yield _Token(kind, text)
        position += len(text)


def _comment_end(value: str, start: int) -> int:
    depth = 0
    position = start
    while (found := _next_parenthesis(value, position)) is not None:
        position = found.end()
        if found[0] == "(":
            depth += 1
        elif found[0] == ")":
            depth -= 1
            if depth == 0:
                return position
    raise AddressError("has a comment that does not end; close its parenthesis")
