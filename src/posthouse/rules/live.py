"""Live hints, which a stream gives to an open page, and the query for the next message to a recipient.

A hint names what is new; the page then reads it with a GET. So a lost hint makes a page late, never wrong.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules import ids, search
from posthouse.rules.credential import Mode
from posthouse.rules.ids import MessageId
from posthouse.rules.limits import NEXT_MESSAGE_SECONDS_MAX
from posthouse.rules.refusal import Code, Refusal, invalid

# Streams in one process.
STREAMS_MAX: Final = 2_000
STREAMS_PER_ACCOUNT_MAX: Final = 100
STREAMS_PER_USER_MAX: Final = 10
# Proxies close a connection that is silent for longer, mostly for a minute.
HEARTBEAT_SECONDS: Final = 15.0
# If more than this is new at the same time, the page should read the whole list.
NAMED_MAX: Final = 500
QUEUED_BYTES_MAX: Final = 64 * 1024

# How far back to look without `after`: a test asks after it triggered a message, which may have been accepted already.
NEXT_MESSAGE_LOOKBACK: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """`data` is JSON on a single line."""

    name: str
    data: bytes = b"{}"


READY: Final = LiveEvent("ready")
RESYNC: Final = LiveEvent("resync")


@dataclass(frozen=True, slots=True)
class NextMessageQuery:
    """`email` is in lower case; the message's id is higher than `after`."""

    email: str
    after: UUID
    seconds: int


def accepted(message_ids: Sequence[MessageId]) -> LiveEvent:
    """These messages were accepted."""
    return _event("accepted", {"message_ids": [ids.text(ids.MESSAGE, message_id) for message_id in message_ids]})


def final(recipients: Sequence[tuple[MessageId, int]]) -> LiveEvent:
    """These recipients (their message and position) have their result."""
    listed = [
        {"recipient_id": _recipient(message_id, position), "message_id": ids.text(ids.MESSAGE, message_id)}
        for message_id, position in recipients
    ]
    return _event("final", {"recipients": listed})


def end(refusal: Refusal) -> LiveEvent:
    """The stream ends, for the reason for which a new request would be refused."""
    return _event("end", {"error": refusal.text, "code": refusal.code.value})


def next_message_query(recipient: str, after: str | None, wait: str | None, now: datetime) -> NextMessageQuery:
    if " " in recipient.strip():
        raise invalid("`recipient` is a whole address without a name; in a URL, write its + as %2B.")
    email = search.whole_address("recipient", recipient)
    return NextMessageQuery(email, _lowest(after, now), _seconds(wait))


def require_readable(mode: Mode, *, captures: bool) -> None:
    """Refuse live mail, unless no mail leaves: then all of it is for tests."""
    if mode is not Mode.TEST and not captures:
        raise Refusal(
            Code.FORBIDDEN,
            "Only a test key may wait for mail here: use a ph_test_ key with the read scope. With live credentials it "
            'works where no mail leaves (delivery.outbound = "capture").',
        )


def _recipient(message_id: MessageId, position: int) -> str:
    recipient_id: UUID = ids.recipient_id(message_id, position)
    return ids.text(ids.RECIPIENT, recipient_id)


def _event(name: str, content: dict[str, object]) -> LiveEvent:
    return LiveEvent(name, json.dumps(content, separators=(",", ":")).encode())


def _lowest(after: str | None, now: datetime) -> UUID:
    if after is None:
        return ids.lowest_id(now - NEXT_MESSAGE_LOOKBACK)
    return ids.parse(ids.MESSAGE, after) or search.time_bound("after", after, or_="the id of a message")


def _seconds(wait: str | None) -> int:
    if wait is None:
        return NEXT_MESSAGE_SECONDS_MAX
    if wait.isascii() and wait.isdigit() and int(wait[:9]) <= NEXT_MESSAGE_SECONDS_MAX:
        return int(wait[:9])
    raise invalid(f"`wait` is a number of seconds from 0 to {NEXT_MESSAGE_SECONDS_MAX}.")
