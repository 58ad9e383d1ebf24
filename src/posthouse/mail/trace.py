"""Trace fields: header fields that outgoing mail gets in addition to its signatures.

No input can end a line. Values that we configure or generate are refused if invalid; values from a customer's message
are sanitised instead, since one that can't be written would be retried until it expires.
"""

import re
from datetime import datetime
from typing import Final

from posthouse.mail.header_writer import HeaderError, date_text

FEEDBACK_ID: Final = b"Feedback-ID"
UNSUBSCRIBE_POST: Final = b"List-Unsubscribe-Post"
COMPLAINTS: Final = b"CFBL-Address"
# Gmail's SenderId, the same in all mail of a sender: Gmail reports spam rates only for mail with a SenderId.
SENDER_ID: Final = "posthouse"
_PART_CHARACTERS_MAX: Final = 200

_is_hostname: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}\Z").match
_is_word: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z").match
# A single line, however long: some programs can't read a folded URL.
_is_link: Final = re.compile(r"https?://[!-;=?-~]{1,900}\Z").match
_is_address: Final = re.compile(r"[!-:=?-~]{1,254}\Z").match
_replace_odd: Final = re.compile(r"[^A-Za-z0-9._-]").sub


def received(*, hostname: str, protocol: str, id_text: str, at: datetime) -> bytes:
    """`Received: by <hostname> (Posthouse) with <protocol> id <id>; <date>`, on three lines (RFC 5321, 4.4).

    There is no `from`: the HTTP client's address is the customer's private data.
    """
    if not _is_hostname(hostname):
        raise HeaderError("has a host name that is no domain and no address")
    if not _is_word(protocol) or not _is_word(id_text):
        raise HeaderError("has a protocol or an id that is not 1 to 64 letters, digits, hyphens or underscores")
    date = date_text(at.replace(microsecond=0))
    return f"Received: by {hostname}\r\n (Posthouse) with {protocol} id {id_text};\r\n {date}\r\n".encode("ascii")


def feedback_id(*, domain: str, account: str, source: str) -> bytes:
    """Gmail's Feedback-ID: `<domain>:<account>:<source>:posthouse`, four parts at most, the sender's id last.

    Gmail then reports spam rates by the sender's domain, by account and by source.
    """
    domain = _replace_odd("_", domain[:_PART_CHARACTERS_MAX])
    return f"Feedback-ID: {domain}:{account}:{source}:{SENDER_ID}\r\n".encode("ascii")


def unsubscribe(link: str) -> bytes:
    """`List-Unsubscribe` with a recipient's link (RFC 2369)."""
    if not _is_link(link):
        raise HeaderError("has a link to unsubscribe that is no URL of printable ASCII")
    return f"List-Unsubscribe: <{link}>\r\n".encode("ascii")


def unsubscribe_post() -> bytes:
    """Declares that a POST to the link unsubscribes (RFC 8058)."""
    return b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"


def complaints(*, address: str, token: str) -> bytes:
    """The address for complaints about this mail, and the token that they must name (RFC 9477)."""
    if not _is_address(address) or not _is_word(token):
        raise HeaderError("has an address for complaints, or a token for them, that can't be written")
    return f"CFBL-Address: {address}; report=arf\r\nCFBL-Feedback-ID: {token}\r\n".encode("ascii")


def has_field(message: bytes, name: bytes) -> bool:
    """Whether the message's header has a field with this name; the body is ignored."""
    if not name or message.startswith(b"\r\n"):
        return False
    end = message.find(b"\r\n\r\n")
    # A line end on either side, so that every line is between two.
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
