"""Reroutes: what happens to a message that a server refused because of our address, not because of the message.

A block of our address or network at the greeting, EHLO or MAIL says nothing about the message: no recipient was taken
yet. A message that would bounce because of it is held instead, until the block ends. If that takes too long, it bounces
with the first reply. A refusal from RCPT on stays final: providers forbid sending a message again to a recipient that
they refused.

Where the operator chose it, a little of this mail leaves immediately over a second address, far from the first. Bounds
keep that from becoming evasion: a provider that blocks the second address too gets no more such mail for a day.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Final

from posthouse.rules.learned_limits import BLOCK_SECONDS_MIN
from posthouse.rules.outcome import AttemptResult, OutcomeKind, Replied, Stage, judge
from posthouse.rules.reply_signal import ReplySignal, ReplySignalKind, Scope


class RerouteMode(StrEnum):
    # It bounces immediately.
    OFF = "off"
    # It waits for the end of the block.
    WAIT = "wait"
    # It leaves over another address of its pool or else over the pool's relay, within bounds; mail beyond them waits.
    POOL = "pool"
    # It leaves only over the relay.
    RELAY = "relay"


HOLD_HOURS: Final = 4.0
# Messages that were held by one block are not all tried at the same moment after it.
SPREAD: Final = 0.1
_BEFORE_RECIPIENTS: Final = frozenset({Stage.GREETING, Stage.EHLO, Stage.MAIL})
_OWN_SCOPES: Final = frozenset({Scope.ADDRESS, Scope.NETWORK})

# Bounds of mail over a second address:
TRIES_MAX: Final = 2
PER_MINUTE_MAX: Final = 20
# A part of the mail that the second address brought to the same lane in the last hour.
PART_MAX: Final = 0.05
RETRY_SECONDS: Final = 1.0
RETRY_SPREAD_SECONDS: Final = 3.0
# Two addresses that are blocked within this time end rerouting.
SECOND_BLOCK_WITHIN: Final = timedelta(hours=1)
ENDED_FOR: Final = timedelta(hours=24)
# An address of ours is far from another if it is outside this network.
NETWORK_BITS: Final = {4: 24, 6: 48}
HOUR_SECONDS: Final = 3600.0
MINUTE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Hold:
    """A recipient is held: it is due at `next_at`, and bounces at `bounce_at` with the first reply.

    `source` is our only address that it may leave from, or the lane of a relay; None: the system chooses the address.
    """

    next_at: datetime
    bounce_at: datetime
    source_ip: str | None


@dataclass(frozen=True, slots=True)
class Rerouted:
    """How much was rerouted: in the lane in the last minute, over an address in the last hour, of a recipient."""

    minute: int
    hour_by_address: dict[str, int]
    tries: int


def is_block(result: AttemptResult | None, reply_signal: ReplySignal | None) -> bool:
    """Whether our address or network was refused, before any recipient was taken."""
    return (
        isinstance(result, Replied)
        and result.stage in _BEFORE_RECIPIENTS
        and reply_signal is not None
        and reply_signal.kind is ReplySignalKind.BLOCK
        and bool(reply_signal.scopes)
        and reply_signal.scopes <= _OWN_SCOPES
    )


def would_bounce(result: AttemptResult) -> bool:
    """Whether it is a bounce. A deferred recipient needs no reroute: its lane waits for the end of the block."""
    return judge(result).kind is OutcomeKind.BOUNCED


def hold(
    *, now: datetime, random: float, hours: float, pause_seconds: float, bounce_at: datetime | None, source: str | None
) -> Hold:
    """Hold it until its lane, which pauses for this long, may try again. `bounce_at` is that of an earlier refusal."""
    ends_at = bounce_at or now + timedelta(hours=hours)
    # A lane doesn't pause for a reply that an operator wants ignored.
    seconds = max(pause_seconds, BLOCK_SECONDS_MIN) * (1 + SPREAD * random)
    return Hold(min(now + timedelta(seconds=seconds), ends_at), ends_at, source)


def second_try(*, now: datetime, random: float, hours: float, bounce_at: datetime | None, source: str) -> Hold:
    """Try it over the second address in a moment."""
    ends_at = bounce_at or now + timedelta(hours=hours)
    again_at = now + timedelta(seconds=RETRY_SECONDS + RETRY_SPREAD_SECONDS * random)
    return Hold(min(again_at, ends_at), ends_at, source)


def second_address(first: str, others: Iterable[tuple[str, int]], rerouted: Rerouted) -> str | None:
    """The first of `others` that may send mail which `first` may not; None if there is none.

    Each comes with how much mail it brought to the lane in the last hour. All of them have capacity and are not
    blocked.
    """
    if not is_within_bounds(rerouted):
        return None
    for address, taken in others:
        if is_far(first, address) and rerouted.hour_by_address.get(address, 0) + 1 <= PART_MAX * taken:
            return address
    return None


def is_within_bounds(rerouted: Rerouted) -> bool:
    """Whether one more message may be rerouted, over an address or a relay."""
    return rerouted.tries < TRIES_MAX and rerouted.minute < PER_MINUTE_MAX


def is_far(one: str, other: str) -> bool:
    """Whether a block of the network of `one` does not include `other`."""
    first, second = ip_address(one), ip_address(other)
    bits = NETWORK_BITS[first.version]
    return first.version != second.version or second not in ip_network((first, bits), strict=False)


def ended_until(blocks: Iterable[tuple[str, datetime]]) -> datetime | None:
    """Until when a lane's mail may not use a second address. `blocks` are addresses, and when each was blocked."""
    ordered = sorted(blocks, key=lambda block: block[1])
    ends = [
        at + ENDED_FOR
        for number, (address, at) in enumerate(ordered)
        if any(other != address and at - before <= SECOND_BLOCK_WITHIN for other, before in ordered[:number])
    ]
    return max(ends, default=None)


class HourCount:
    """A count over the last hour, to the minute."""

    __slots__ = ("_minutes", "_total")

    def __init__(self) -> None:
        # The minutes in which something was counted, and how much. A list: every lane has one, and an empty deque is
        # ten times as large.
        self._minutes: list[list[int]] = []
        self._total = 0

    def add(self, count: int, seconds: float) -> None:
        minute = int(seconds // MINUTE_SECONDS)
        if self._minutes and self._minutes[-1][0] == minute:
            self._minutes[-1][1] += count
        else:
            self._minutes.append([minute, count])
        self._total += count
        self._drop_old(seconds)

    def total(self, seconds: float) -> int:
        self._drop_old(seconds)
        return self._total

    def _drop_old(self, seconds: float) -> None:
        oldest = (seconds - HOUR_SECONDS) // MINUTE_SECONDS
        while self._minutes and self._minutes[0][0] < oldest:
            self._total -= self._minutes.pop(0)[1]
