"""Rate limits: an account's requests and recipients, its warm-up days, and the wait after failed logins.

A rate is GCRA, a leaky bucket that needs only a timestamp. `full_at` is when the whole burst is available
again; each request moves it forward by an interval, and a request that would move it further from now than the
burst has to wait. All times are whole microseconds, as PostgreSQL stores them, so rounding errors don't add up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from posthouse.rules import limits
from posthouse.rules.refusal import Code, Refusal

# The clocks of two processes may differ by this much; a time further ahead than the burst and this is not believed.
BEYOND_BURST_MAX: Final = timedelta(minutes=1)
RATES_CACHED_MAX: Final = 1_000
_ZERO: Final = timedelta(0)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)


class Rate(NamedTuple):
    """`per_second` is a whole number, or a fraction for rates of a few times a minute."""

    per_second: float
    burst: int


class RateReading(NamedTuple):
    full_at: datetime
    remaining: int
    reset_seconds: int


@dataclass(frozen=True, slots=True)
class RateWait:
    seconds: int

    def refusal(self, allowed: str, otherwise: str = "") -> Refusal:
        """`allowed` says what the rate is, `otherwise` what can be done instead of waiting."""
        return Refusal(Code.RATE_LIMITED, f"{allowed}: try again in {self.seconds} s{otherwise}.", self.seconds)


def take_from_rate(rate: Rate, full_at: datetime, now: datetime, count: int = 1) -> RateReading | RateWait:
    """Take one from the rate, or `count`; if the result is a RateWait, nothing was taken."""
    interval, burst = _spans(rate)
    used = _used(burst, full_at, now) + interval * count
    if used > burst:
        return RateWait(_seconds_rounded_up(used - burst))
    return RateReading(now + used, (burst - used) // interval, _seconds_rounded_up(used))


def charge(rate: Rate, full_at: datetime, now: datetime, count: int) -> datetime:
    """The time at which the rate is full again after this many more are taken, whether or not they are available."""
    interval, burst = _spans(rate)
    return now + _used(burst, full_at, now) + interval * count


def reading(rate: Rate, full_at: datetime, now: datetime) -> RateReading:
    """The remaining rate, without taking from it."""
    interval, burst = _spans(rate)
    used = _used(burst, full_at, now)
    return RateReading(now + used, max(0, (burst - used) // interval), _seconds_rounded_up(used))


def rate_headers(rate: Rate, reading: RateReading) -> dict[str, str]:
    return {
        "RateLimit-Limit": str(rate.burst),
        "RateLimit-Remaining": str(reading.remaining),
        "RateLimit-Reset": str(reading.reset_seconds),
    }


def _used(burst: timedelta, full_at: datetime, now: datetime) -> timedelta:
    """The used part of the burst. A time far beyond it was written by a clock that was ahead, or for another rate."""
    used = full_at - now
    return used if _ZERO < used <= burst + BEYOND_BURST_MAX else _ZERO


def day_number(started_on: date, today: date) -> int:
    """The day of an account's warm-up, counted from 1.

    Two processes can see midnight a moment apart, so `today` may be the day before the start; that is still day 1.
    """
    return max(1, (today - started_on).days + 1)


def warmup_limit(day_number: int, limits: Sequence[int]) -> int | None:
    """The recipient limit of the day; None once the listed days are over."""
    return limits[day_number - 1] if day_number <= len(limits) else None


def seconds_to_midnight(now: datetime) -> int:
    """The seconds to the next 00:00 UTC, at least 1."""
    utc = now.astimezone(UTC)
    midnight = utc.replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
    return _seconds_rounded_up(midnight - utc)


def seconds_to_day(now: datetime, day: date) -> int:
    """The seconds to the day's 00:00 UTC, at least 1."""
    return max(1, _seconds_rounded_up(datetime.combine(day, time(), UTC) - now))


def login_wait_seconds(failures: int) -> int:
    """How long to refuse logins after this many failures in a row."""
    beyond = failures - limits.LOGIN_FAILURES_FREE
    if beyond <= 0:
        return 0
    # Bounded before the shift: a persistent attacker must not create a huge number.
    doublings = min(beyond - 1, limits.LOGIN_WAIT_SECONDS_MAX.bit_length())
    return min(1 << doublings, limits.LOGIN_WAIT_SECONDS_MAX)


def login_delay_seconds(failures: int) -> float:
    """How long to delay a login after this many failures beyond those that are free; never longer than the limit."""
    if failures <= 0:
        return 0.0
    doublings = min(failures - 1, 10)
    return min(limits.LOGIN_DELAY_SECONDS_MIN * (1 << doublings), limits.LOGIN_DELAY_SECONDS_MAX)


@lru_cache(RATES_CACHED_MAX)
def _spans(rate: Rate) -> tuple[timedelta, timedelta]:
    """The interval and the whole burst."""
    # Rounded up, so that a rate that doesn't divide a second is never exceeded; the burst is counted in the same
    # intervals, so it is never too small.
    interval = timedelta(microseconds=math.ceil(1_000_000 / rate.per_second))
    return interval, interval * rate.burst


def _seconds_rounded_up(span: timedelta) -> int:
    return -(-span // _SECOND)
