"""Mail submitted over SMTP: read, checked, stripped of Bcc, and brought within the limits of every server.

This happens once, when the message is accepted. Valid mail passes unchanged: it is not parsed and written again, since
every parser and writer loses something, and the signatures of the customer's systems must survive. So the header is
only scanned, and only the fields named here are removed, added or rewritten; a body is changed only if some server
could not carry it (`reencode`).

A header that two parsers could read differently is refused, not repaired. The exceptions are white space before a
colon and blank lines of white space, which old programs write: they are removed, and the rest is unambiguous.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.mail import address_fields, encoded_words
from posthouse.mail.address import AddressError, Mailbox
from posthouse.mail.header_reader import FIELDS_MAX, HEADER_BYTES_MAX, SubmittedMailError, is_within_limits, scan_fields
from posthouse.mail.header_writer import date_text
from posthouse.mail.reencode import reencoded

__all__ = ["SubmittedMail", "SubmittedMailError", "is_slow_to_read", "prepare"]

RECEIVED_MAX: Final = 50
TEXT_CHARACTERS_MAX: Final = 998
TAGS_MAX: Final = 100
TAG_CHARACTERS_MAX: Final = 128
# One more than may be stored, so that a longer value is noticed.
_METADATA_CHARACTERS_READ: Final = 501
_NAME_CHARACTERS_SHOWN: Final = 60
# The largest header, or message to re-encode, that the event loop can process itself.
_LIGHT_BYTES_MAX: Final = 8 * 1024
# Of all To fields together, and of all Cc fields: far more than a message's recipients need. The rest is sent but not
# parsed.
_NAMED_CHARACTERS_MAX: Final = 16 * 1024
# An encoded word takes fewer characters for a character of text, its frame included.
_ENCODED_CHARACTERS_MAX: Final = 16

# Hidden recipients, a field that only the last server may write, and fields for us only.
_REMOVED: Final = frozenset({b"bcc", b"resent-bcc", b"return-path", b"x-service-unsubscribe", b"x-service-content"})
_READ: Final = frozenset(
    {
        b"from", b"sender", b"subject", b"to", b"cc", b"date", b"message-id", b"mime-version", b"received",
        b"list-unsubscribe", b"list-unsubscribe-post", b"x-service-tag", b"authentication-results", *_REMOVED,
    }
)  # fmt: skip
# What follows is a name of metadata; such fields are removed.
_METADATA: Final = b"x-service-metadata-"
# All but TAB, CR and LF: some programs end a line or a string at these.
_CONTROLS: Final = bytes([*range(9), 11, 12, *range(14, 32), 127])

_drop_blank_lines: Final = re.compile(rb"\r\n[ \t]++(?=\r\n)").sub
_first_token: Final = re.compile(r'[ \t]*+"?([^\s;"/]*+)').match


class SubmittedMail(NamedTuple):
    """`content` is stored; the rest was read from it. Texts are printable and on a single line.

    `to` and `cc` hold the keys of the addresses in these fields, as far as they can be parsed.
    """

    sender: Mailbox
    sender_field: Mailbox | None
    sender_text: str
    subject: str
    tags: tuple[str, ...]
    metadata: Mapping[str, str]
    to: frozenset[str]
    cc: frozenset[str]
    unsubscribe: str | None
    has_own_unsubscribe: bool
    forgets_content: bool
    content: bytes


def is_slow_to_read(raw: bytes) -> bool:
    """Whether reading may take some hundred milliseconds, because of its header or re-encoding."""
    if len(raw) <= _LIGHT_BYTES_MAX:
        return False
    return raw.find(b"\r\n\r\n", 0, _LIGHT_BYTES_MAX) < 0 or not is_within_limits(raw)


def prepare(raw: bytes, *, date: datetime, message_id: str, hostname: str) -> SubmittedMail:
    """The message, ready to be stored. `date` and `message_id` (without brackets) are added if it has none.

    The server has refused bare CR and LF; `raw` may contain any other byte.
    """
    head, rest = _parted(raw)
    if len(head.translate(None, _CONTROLS)) != len(head):
        raise SubmittedMailError("The header holds a NUL or another control character; remove it")
    values, amended = _amended(head, hostname)
    added = _missing(values, date, message_id)
    if len(values.get(b"received", ())) > RECEIVED_MAX:
        raise SubmittedMailError(
            f"The mail has more than {RECEIVED_MAX} Received fields: it runs in a loop", "554 5.4.6"
        )
    sender = _mailbox("From", values.get(b"from", ()))
    sender_field = _mailbox("Sender", values[b"sender"]) if b"sender" in values else None
    is_same = amended is head and not added and len(head) + len(rest) == len(raw)
    content = raw if is_same else b"".join((amended, added, rest))
    if not is_within_limits(content):
        content = reencoded(content)
    unsubscribe = values.get(b"x-service-unsubscribe")
    return SubmittedMail(
        sender=sender,
        sender_field=sender_field,
        sender_text=address_fields.display_text(sender)[:TEXT_CHARACTERS_MAX],
        subject=_text(values[b"subject"][0], TEXT_CHARACTERS_MAX) if b"subject" in values else "",
        tags=_tags(values.get(b"x-service-tag", ())),
        metadata=_metadata(values[_METADATA]) if _METADATA in values else {},
        to=_named(values.get(b"to", ())),
        cc=_named(values.get(b"cc", ())),
        unsubscribe=_text(unsubscribe[0], TEXT_CHARACTERS_MAX) if unsubscribe else None,
        has_own_unsubscribe=b"list-unsubscribe" in values,
        forgets_content=_forgets(values.get(b"x-service-content", ())),
        content=content,
    )


def _parted(raw: bytes) -> tuple[bytes, bytes]:
    """The header, and the rest from the empty line on; both end with a line end."""
    if not raw.endswith(b"\r\n"):
        raw += b"\r\n"
    end = raw.find(b"\r\n\r\n", 0, HEADER_BYTES_MAX + 4)
    if raw.startswith(b"\r\n"):
        raise SubmittedMailError("The mail begins with an empty line, so it has no header; begin with its From field")
    if end >= 0:
        return raw[: end + 2], raw[end + 2 :]
    if len(raw) > HEADER_BYTES_MAX:
        raise SubmittedMailError(f"The header is larger than {HEADER_BYTES_MAX // 1024} KB; end it with an empty line")
    # A message without a body is valid.
    return raw, b"\r\n"


def _amended(head: bytes, hostname: str) -> tuple[dict[bytes, list[bytes]], bytes]:
    """The values of the relevant fields, and the header without the removed fields."""
    values: dict[bytes, list[bytes]] = {}
    kept = _drop_blank_lines(b"", head)
    fields = scan_fields(kept)
    if len(fields) > FIELDS_MAX:
        raise SubmittedMailError(f"The header has more than {FIELDS_MAX} fields")
    has_words = b"=?" in kept
    is_amended = len(kept) != len(head)
    gone: set[int] = set()
    for index, (name, space, colon, rest) in enumerate(fields):
        if not name or not colon:
            raise SubmittedMailError(
                f"The header's field {index + 1} is none: write a name of printable ASCII, a colon and a value, "
                "and an empty line before the body"
            )
        if space:
            is_amended = True
        if has_words and b"=?" in rest:
            _refuse_hidden_break(name, rest)
        lowered = name.lower()
        if lowered in _READ:
            values.setdefault(lowered, []).append(rest)
            if lowered in _REMOVED or (lowered == b"authentication-results" and _is_ours(rest, hostname)):
                gone.add(index)
        elif lowered.startswith(_METADATA):
            # Names are in the case that they are written in.
            values.setdefault(_METADATA, []).append(b"%b:%b" % (name[len(_METADATA) :], rest))
            gone.add(index)
        elif lowered.startswith(b"cfbl-"):
            # RFC 9477: we set the complaint address, since we process the complaints.
            gone.add(index)
    if b"list-unsubscribe-post" in values and b"list-unsubscribe" not in values:
        # RFC 8058: without List-Unsubscribe it has no meaning, and it would apply to ours.
        gone.update(index for index, field in enumerate(fields) if field[0].lower() == b"list-unsubscribe-post")
    if not is_amended and not gone:
        return values, head
    return values, b"".join(
        [b"%b:%b" % (name, rest) for index, (name, _, _, rest) in enumerate(fields) if index not in gone]
    )


def _is_ours(rest: bytes, hostname: str) -> bool:
    """RFC 8601, 5: receivers trust our authentication results, so forged ones are removed.

    A field that can't be parsed counts as forged: some program may find our name in it.
    """
    try:
        token = _first_token(address_fields.first_word(_unfolded(rest)))
    except AddressError:
        return True
    return token is None or token[1].rstrip(".").lower() in ("", hostname.rstrip(".").lower())


def _missing(values: dict[bytes, list[bytes]], date: datetime, message_id: str) -> bytes:
    added = b""
    if b"date" not in values:
        added = f"Date: {date_text(date.replace(microsecond=0))}\r\n".encode("ascii")
    if b"message-id" not in values:
        added += f"Message-ID: <{message_id}>\r\n".encode("ascii")
    if b"mime-version" not in values:
        added += b"MIME-Version: 1.0\r\n"
    return added


def _mailbox(name: str, fields: Sequence[bytes]) -> Mailbox:
    if len(fields) != 1:
        raise SubmittedMailError(f"The mail has {len(fields)} {name} fields; write exactly one, with one mailbox")
    try:
        return address_fields.only_mailbox(fields[0].decode().replace("\r\n", ""))
    except UnicodeDecodeError as error:
        raise SubmittedMailError(
            f"The {name} field has bytes that are not UTF-8; write its name as encoded words"
        ) from error
    except AddressError as error:
        raise SubmittedMailError(f"The {name} field {error}") from error


def _refuse_hidden_break(name: bytes, rest: bytes) -> None:
    """Some programs decode before they parse: a hidden line break would forge a field."""
    if encoded_words.hides_line_break(_unfolded(rest)):
        shown = name[:_NAME_CHARACTERS_SHOWN].decode("ascii")
        raise SubmittedMailError(f"The header field {shown} has an encoded word with a line break or NUL; remove it")


def _unfolded(rest: bytes) -> str:
    return rest.decode("utf-8", "replace").replace("\r\n", "")


def _text(rest: bytes, characters_max: int) -> str:
    given = _unfolded(rest)[: _ENCODED_CHARACTERS_MAX * characters_max]
    return address_fields.printable(encoded_words.decode(given), characters_max)


def _tags(fields: Sequence[bytes]) -> tuple[str, ...]:
    if not fields:
        return ()
    return tuple(filter(None, [_text(rest, TAG_CHARACTERS_MAX) for rest in fields[:TAGS_MAX]]))


def _metadata(fields: Sequence[bytes]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for field in fields:
        name, _, rest = field.partition(b":")
        text = name.decode("ascii")
        if text in pairs:
            raise SubmittedMailError(f"The mail has two fields X-Service-Metadata-{text[:100]}; write it once")
        pairs[text] = _text(rest, _METADATA_CHARACTERS_READ)
    return pairs


def _forgets(fields: Sequence[bytes]) -> bool:
    if any(_unfolded(rest).strip().lower() != "forget" for rest in fields):
        raise SubmittedMailError("The field X-Service-Content is not forget; write that, or no such field")
    return bool(fields)


def _named(fields: Sequence[bytes]) -> frozenset[str]:
    keys: set[str] = set()
    characters_left = _NAMED_CHARACTERS_MAX
    for rest in fields:
        value = _unfolded(rest)[:characters_left]
        keys |= address_fields.named_addresses(value)
        characters_left -= len(value)
    return frozenset(keys)
