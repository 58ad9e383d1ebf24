"""The question for the next message to a recipient: its parameters, and which mail an API key may read by it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules import ids, search
from posthouse.rules.credential import Mode
from posthouse.rules.limits import NEXT_MESSAGE_SECONDS_MAX
from posthouse.rules.refusal import Code, Refusal, invalid

# Without `after`: a test asks after it made the service send, and its mail may have been accepted before.
RECENT: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class NextMessageQuery:
    """`email` is in lower case; the message's id is higher than `after`."""

    email: str
    after: UUID
    seconds: int


def next_message_query(recipient: str, after: str | None, wait: str | None, now: datetime) -> NextMessageQuery:
    if " " in recipient.strip():
        raise invalid("`recipient` is a whole address without a name; in a URL, write its + as %2B.")
    email = search.whole_address("recipient", recipient)
    return NextMessageQuery(email, _lowest(after, now), _seconds(wait))


def require_readable(mode: Mode, *, captures: bool) -> None:
    """Refuse live mail, unless none leaves: then all of it is for tests."""
    if mode is not Mode.TEST and not captures:
        raise Refusal(
            Code.FORBIDDEN,
            "Only a test key may wait for mail here: use a ph_test_ key with the read scope. With live credentials it "
            'works where no mail leaves (delivery.outbound = "capture").',
        )


def _lowest(after: str | None, now: datetime) -> UUID:
    if after is None:
        return ids.lowest_id(now - RECENT)
    return ids.parse(ids.MESSAGE, after) or search.time_bound("after", after, or_="the id of a message")


def _seconds(wait: str | None) -> int:
    if wait is None:
        return NEXT_MESSAGE_SECONDS_MAX
    if wait.isascii() and wait.isdigit() and int(wait[:9]) <= NEXT_MESSAGE_SECONDS_MAX:
        return int(wait[:9])
    raise invalid(f"`wait` is a number of seconds from 0 to {NEXT_MESSAGE_SECONDS_MAX}.")
