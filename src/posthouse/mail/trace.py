"""Trace fields: what a message gets in front of it on its way out, beside its signatures.

Nothing that is given here can end a line. What we ourselves configure or generate is checked and refused;
what comes from a customer's mail is made harmless instead, since a mail that can't be written would be
tried for ever.
"""

import re
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Final

from posthouse.mail.header_writer import LINE_CHARACTERS, HeaderError

FEEDBACK_ID: Final = b"Feedback-ID"
UNSUBSCRIBE_POST: Final = b"List-Unsubscribe-Post"
COMPLAINTS: Final = b"CFBL-Address"
# Gmail's SenderId, the same in all mail of a sender: it shows spam rates only for mail that has one.
SENDER_ID: Final = "posthouse"
_PART_CHARACTERS_MAX: Final = 200

_is_hostname: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}\Z").match
_is_word: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z").match
# One line, however long it is: folded inside, it would not be a URL to everyone.
_is_link: Final = re.compile(r"https?://[!-;=?-~]{1,900}\Z").match
_is_address: Final = re.compile(r"[!-:=?-~]{1,254}\Z").match
_replace_odd: Final = re.compile(r"[^A-Za-z0-9._-]").sub


def received(*, hostname: str, protocol: str, id_text: str, at: datetime) -> bytes:
    """`Received: by <hostname> (Posthouse) with <protocol> id <id>; <date>`, folded (RFC 5321, 4.4).

    There is no `from`: who handed the mail in over HTTP is the customer's own affair.
    """
    if not _is_hostname(hostname):
        raise HeaderError("has a host name that is no domain and no address")
    if not _is_word(protocol) or not _is_word(id_text):
        raise HeaderError("has a protocol or an id that is not 1 to 64 letters, digits, hyphens or underscores")
    line = f"Received: by {hostname}"
    lines = []
    for clause in ("(Posthouse)", f"with {protocol}", f"id {id_text};", format_datetime(at.astimezone(UTC))):
        if len(line) + 1 + len(clause) > LINE_CHARACTERS:
            lines.append(line)
            line = ""
        line = f"{line} {clause}"
    return "\r\n".join([*lines, line, ""]).encode("ascii")


def feedback_id(*, domain: str, account: str, source: str) -> bytes:
    """Gmail's Feedback-ID: `<domain>:<account>:<source>:posthouse`, four parts at most, the sender's id last.

    Spam rates are then told apart by sender's domain, by account and by the way that the mail came in.
    """
    parts = [_replace_odd("_", part[:_PART_CHARACTERS_MAX]) for part in (domain, account, source)]
    return f"Feedback-ID: {':'.join(parts)}:{SENDER_ID}\r\n".encode("ascii")


def unsubscribe(link: str) -> bytes:
    """`List-Unsubscribe` with the link of one recipient (RFC 2369)."""
    if not _is_link(link):
        raise HeaderError("has a link to unsubscribe that is no URL of printable ASCII")
    return f"List-Unsubscribe: <{link}>\r\n".encode("ascii")


def unsubscribe_post() -> bytes:
    """That a POST to the link is all it takes (RFC 8058)."""
    return b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"


def complaints(*, address: str, token: str) -> bytes:
    """Where complaints about this mail are to be reported, and what they are to name (RFC 9477)."""
    if not _is_address(address) or not _is_word(token):
        raise HeaderError("has an address for complaints, or a token for them, that can't be written")
    return f"CFBL-Address: {address}; report=arf\r\nCFBL-Feedback-ID: {token}\r\n".encode("ascii")


def has_field(message: bytes, name: bytes) -> bool:
    """Whether the message's header has a field of that name; the body may contain whatever it likes."""
    if not name or message.startswith(b"\r\n"):
        return False
    end = message.find(b"\r\n\r\n")
    # A line end on either side, so that every line, the first and the last too, stands between two.
    head = b"\r\n" + (message if end < 0 else message[:end]).lower() + b"\r\n"
    start = b"\r\n" + name.lower()
    at = head.find(start)
    while at >= 0:
        line_end = head.find(b"\r\n", at + len(start))
        # RFC 5322, 4.5.3: older mail may have white space before the colon.
        if head[at + len(start) : line_end].lstrip(b" \t").startswith(b":"):
            return True
        at = head.find(start, line_end)
    return False
