"""How fast an account may go: its request rate, its warm-up days, and the wait after failed logins.

The request rate is GCRA, the leaky bucket that needs one timestamp. `full_at` is the moment at which
the whole burst is available again; each request pushes it forward by one interval, and a request that
would push it further than the burst away from now has to wait. Everything is counted in whole
microseconds, as PostgreSQL stores them, so that no rounding adds up over a stored value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from posthouse.rules import limits

_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)


class Rate(NamedTuple):
    per_second: int
    burst: int


class RateReading(NamedTuple):
    full_at: datetime
    remaining: int
    reset_seconds: int


@dataclass(frozen=True, slots=True)
class RateWait:
    seconds: int


def take(rate: Rate, full_at: datetime, now: datetime) -> RateReading | RateWait:
    """Take one request from the rate; a Wait has taken nothing."""
    interval = _interval(rate)
    taken = max(full_at, now) + interval
    excess = (taken - now) - interval * rate.burst
    if excess > timedelta(0):
        return RateWait(_seconds_rounded_up(excess))
    return reading(rate, taken, now)


def reading(rate: Rate, full_at: datetime, now: datetime) -> RateReading:
    """What the rate has left, without taking any of it."""
    interval = _interval(rate)
    full_at = max(full_at, now)
    left = interval * rate.burst - (full_at - now)
    return RateReading(full_at, max(0, left // interval), _seconds_rounded_up(full_at - now))


def day_number(started_on: date, today: date) -> int:
    """Which day of its warm-up an account is in, counted from one.

    Two processes can see midnight a moment apart, so that `today` may be the day before the start;
    that is still day one.
    """
    return max(1, (today - started_on).days + 1)


def warmup_limit(day_number: int, limits: Sequence[int]) -> int | None:
    """How many recipients that day allows; None once the listed days are over."""
    return limits[day_number - 1] if day_number <= len(limits) else None


def seconds_to_midnight(now: datetime) -> int:
    """The seconds to the next 00:00 UTC, at least one."""
    utc = now.astimezone(UTC)
    midnight = utc.replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
    return _seconds_rounded_up(midnight - utc)


def login_wait_seconds(failures: int) -> int:
    """How long to refuse further logins after that many failures in a row."""
    beyond = failures - limits.LOGIN_FAILURES_FREE
    if beyond <= 0:
        return 0
    # The doubling is bounded before it is computed: a patient attacker must not make it a huge number.
    doublings = min(beyond - 1, limits.LOGIN_WAIT_SECONDS_MAX.bit_length())
    return min(1 << doublings, limits.LOGIN_WAIT_SECONDS_MAX)


def _interval(rate: Rate) -> timedelta:
    # Rounded up, so that a rate that doesn't divide a second is never exceeded; the burst is counted
    # in the same intervals, so that it is never one short.
    return timedelta(microseconds=-(-1_000_000 // rate.per_second))


def _seconds_rounded_up(span: timedelta) -> int:
    return -(-span // _SECOND)
