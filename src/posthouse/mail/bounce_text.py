"""The text of a bounce, written for people: which addresses it says were not reached, and what it says about each.

Servers that don't write RFC 3464 write nothing else. flufl.bounce knows most of their forms; otherwise the text is
searched for sentences that quote a server's refusal. Both would find addresses in ordinary mail too: `report` decides
whether the mail is a notice of failed delivery.
"""

import re
from email.message import Message
from itertools import islice, pairwise
from string import ascii_lowercase, ascii_uppercase
from typing import Final, NamedTuple

from flufl.bounce import all_failures

from posthouse.mail.address import AddressError, parse_mailbox
from posthouse.mail.envelope import LOCAL_PREFIX
from posthouse.mail.parts import MimePart

# A plain-text notice about more recipients than this does not occur.
FINDINGS_MAX: Final = 16
# Bounds on flufl.bounce's input. It tries some fifty patterns on every line, and some take cubic time on malicious
# lines; a notice's lines are short, and its beginning has all the information.
_LINES_MAX: Final = 200
_LINE_CHARACTERS_MAX: Final = 200
_WORD_CHARACTERS_MAX: Final = 100
_SIGNS_MAX: Final = 4
_WORDS_CHARACTERS_MAX: Final = 8 * 1024
_HEADING_CHARACTERS_MAX: Final = 40
_MENTIONS_MAX: Final = 3
_SHARE_CHARACTERS_MAX: Final = 600
_PRECISION_MAX: Final = 3

# RFC 5321 and its extensions; any other number is a port, a size or a year.
_CODE: Final = r"4(?:21|3[0-9]|4[0-9]|5[0-9]|7[0-9])|5(?:0[0-9]|1[0-9]|2[0-9]|3[0-9]|4[0-9]|5[0-9]|7[0-9])"
_STATUS: Final = r"[45]\.(?:0|[1-9][0-9]{0,2})\.(?:0|[1-9][0-9]{0,2})(?!\.?[0-9])"
_find_pairs: Final = re.compile(rf"(?<![0-9.])({_CODE})[ :'\"\[(,#<-]{{1,6}}({_STATUS})").findall
_find_code: Final = re.compile(
    rf"(?:^|[:#(<'\"\[;]|\b(?:said|error|code|reply|status|returned|response|with)\b:?) ?({_CODE})(?=[ :;,.)'\"-]|$)",
    re.IGNORECASE | re.MULTILINE,
).search
_find_statuses: Final = re.compile(rf"(?<![0-9.])({_STATUS})").findall

# Where the notice ends and the original message begins, if that is not a separate MIME part.
_find_original: Final = re.compile(
    r"^(?:return-path:|received: |[-=_*#> ]{2,40}(?:this|below|here|original|returned|copy|the (?:body|header|start)"
    r"|included|message|start of|begin)\b|original message (?:follows|headers)|message headers follow|old message:)",
    re.IGNORECASE | re.MULTILINE,
).search
_address: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9-]{1,63}\.[A-Za-z0-9.-]{1,253}")
_shorten_words: Final = re.compile(rf"[^\s@]{{{_WORD_CHARACTERS_MAX},}}").sub


class Diagnosis(NamedTuple):
    code: int | None
    status: str | None


class Paragraph(NamedTuple):
    text: str
    lowered: str
    addresses: frozenset[str]
    diagnosis: Diagnosis


class Notice(NamedTuple):
    text: str
    paragraphs: tuple[Paragraph, ...]


# ASCII only, so that every character keeps its position.
_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
_NO_DIAGNOSIS: Final = Diagnosis(None, None)
_END: Final = Paragraph("", "", frozenset(), _NO_DIAGNOSIS)


def diagnose(text: str) -> Diagnosis:
    """The SMTP code and the enhanced status (RFC 3463) in a server's text; of several, the most precise.

    The server's own reply follows a gateway's summary: "5.1.0 address error 550-5.1.1 no such user".
    """
    # `max` returns the first of equals.
    code, status = max(_find_pairs(text), key=lambda pair: precision(pair[1]), default=("", None))
    if not code and (found := _find_code(text)):
        code = found[1]
    if precision(status) < _PRECISION_MAX:
        # A status without a code next to it may be a version number; it has to fit the code.
        others = [other for other in _find_statuses(text) if other[0] == code[:1] or not code]
        status = max([status, *others], key=precision)
    return Diagnosis(int(code) if code else None, status)


def precision(status: str | None) -> int:
    """How precise a status is: none, class only, class and subject, or complete."""
    if status is None:
        return 0
    _, subject, detail = status.split(".")
    return 1 if subject == "0" else 2 if detail == "0" else _PRECISION_MAX


def address_of(given: str) -> str | None:
    """The bare address, as stored, or None if it is no address that we could send to."""
    given = given.strip(" \t<>\"'.,;:()[]").removeprefix("mailto:")
    try:
        address = parse_mailbox(given).key
    except AddressError:
        return None
    # Our return path is the sender, never the recipient.
    return None if address.startswith(LOCAL_PREFIX) else address


def notice_in(text: str) -> Notice:
    """The notice without the original message, if that follows in the same text."""
    text = "\n".join([line.strip() for line in text[:_WORDS_CHARACTERS_MAX].split("\n")])
    original = _find_original(text)
    text = text[: original.start()] if original else text
    paragraphs = [paragraph.strip() for paragraph in text.split("\n\n", _LINES_MAX)[:_LINES_MAX]]
    return Notice(text, tuple([_paragraph(text) for text in paragraphs if text]))


def _paragraph(text: str) -> Paragraph:
    lowered = text.translate(_LOWER)
    addresses = frozenset([match[0].rstrip(".-") for match in _address.finditer(lowered)])
    return Paragraph(text, lowered, addresses, diagnose(text))


def known_forms(outer: MimePart, notice: Notice) -> list[str | None]:
    """The addresses that flufl.bounce finds in the notice; `outer` is the mail with its header."""
    lines = []
    for line in notice.text.split("\n", _LINES_MAX)[:_LINES_MAX]:
        # Without commas: a pattern of flufl.bounce treats any address between two commas as bounced.
        line = _shorten_words("", line[:_LINE_CHARACTERS_MAX]).replace(",", " ")
        if all(line.count(sign) <= _SIGNS_MAX for sign in "@<["):
            lines.append(line)
    text = Message()
    text["Content-Type"] = "text/plain"
    text["Content-Description"] = "notification"
    text.set_payload("\n".join(lines).encode("ascii", "replace").decode("ascii"))
    message = text
    if outer.type.startswith("multipart/"):
        # Some of its forms are distinguished by the type of the whole message.
        message = Message()
        message["Content-Type"] = "multipart/mixed"
        message.set_payload([text, Message()])
    # It reads only these header fields, and fails on a sender that is no address.
    sender = _address.search(outer.get("from")[:_LINE_CHARACTERS_MAX])
    message["From"] = sender[0] if sender else "mailer-daemon@example.invalid"
    message["X-Mailer"] = outer.get("x-mailer")[:_LINE_CHARACTERS_MAX].encode("ascii", "replace").decode("ascii")
    try:
        _, permanent = all_failures(message)
    except Exception:
        # It was not written for malicious input, and does not document its exceptions.
        return []
    return [address_of(address.decode("ascii", "replace")) for address in sorted(permanent)[:FINDINGS_MAX]]


def quoted_refusals(notice: Notice, *, is_certain: bool) -> dict[str | None, str]:
    """The paragraphs with a server's refusal, by the address named last.

    If there is none but the notice certainly is one of failed delivery, the last address counts.
    """
    found: dict[str | None, str] = {}
    above: str | None = None
    for text, _, _, diagnosis in notice.paragraphs:
        given = (match[0] for match in islice(_address.finditer(text), _SIGNS_MAX))
        above = next(filter(None, map(address_of, given)), above)
        if diagnosis != _NO_DIAGNOSIS and len(found) < FINDINGS_MAX:
            found.setdefault(above, text)
    if not found and above is not None and is_certain:
        found[above] = text_about(above, notice)
    return found


def text_about(address: str, notice: Notice) -> str:
    """The paragraph about the address: the first with a code, else the last.

    The first paragraphs often repeat the message's header, or list addresses whose reasons follow.
    """
    last = ""
    naming = (pair for pair in pairwise((*notice.paragraphs, _END)) if address in pair[0].lowered)
    for paragraph, below in islice(naming, _MENTIONS_MAX):
        text, diagnosis = _share_of(address, paragraph)
        # If the address is a heading, its reason follows below, unless that paragraph names another address.
        is_heading = len(text) < len(address) + _HEADING_CHARACTERS_MAX and not below.addresses
        if diagnosis == _NO_DIAGNOSIS and is_heading:
            text, diagnosis = f"{text}\n{below.text}", below.diagnosis
        if diagnosis != _NO_DIAGNOSIS:
            return text
        last = text
    return last


def _share_of(address: str, paragraph: Paragraph) -> tuple[str, Diagnosis]:
    """The part of the paragraph about this address: all of it, or the lines up to the next address."""
    if paragraph.addresses <= {address}:
        return paragraph.text, paragraph.diagnosis
    found = paragraph.lowered.index(address)
    begin = paragraph.lowered.rfind("\n", 0, found) + 1
    first, *others = paragraph.text[begin : begin + _SHARE_CHARACTERS_MAX].split("\n")
    lines = [first]
    for line in others:
        other = _address.match(line.lstrip("<>* "))
        if other and address not in other[0].lower():
            break
        lines.append(line)
    text = "\n".join(lines)
    return text, diagnose(text)
