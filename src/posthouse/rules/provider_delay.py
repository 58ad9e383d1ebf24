"""Provider delays: when a mailbox provider takes mail much later than it did during the week before."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from posthouse.rules import usage

# What was delivered in this hour and the one before is compared with the week before them.
RECENT: Final = timedelta(hours=1)
WEEK: Final = timedelta(days=7)
TIMES_MAX: Final = 4.0
# A delay is over when this is reached again, so that it does not come and go.
TIMES_OVER: Final = 2.0
# What takes less time than this is no delay, however fast it was before.
SECONDS_MIN: Final = 10.0
# With fewer mails, a few of them would decide.
DELIVERED_MIN: Final = 100
WEEK_DELIVERED_MIN: Final = 1_000


class ProviderDelay(NamedTuple):
    """The time from acceptance to delivery of 95 % of the mail, in seconds: now, and during the week before."""

    p95_seconds: float
    week_p95_seconds: float


def recent_since(now: datetime) -> datetime:
    """The first hour that counts as recent."""
    return usage.hour_of(now) - RECENT


def may_be_delayed(recent: Sequence[int]) -> bool:
    """Whether the week has to be read."""
    found = usage.percentiles(recent)
    return found is not None and sum(recent) >= DELIVERED_MIN and found.p95 > SECONDS_MIN


def delay_of(recent: Sequence[int], week: Sequence[int], *, is_delayed: bool) -> ProviderDelay | None:
    """By the histograms of both times; None if there is no delay, or it is over."""
    now, before = usage.percentiles(recent), usage.percentiles(week)
    if now is None or before is None or not may_be_delayed(recent) or sum(week) < WEEK_DELIVERED_MIN:
        return None
    times = TIMES_OVER if is_delayed else TIMES_MAX
    return ProviderDelay(now.p95, before.p95) if now.p95 > times * before.p95 else None
