"""Usage statistics: the mailbox provider, the delivery times, and the time range that is counted next.

Times are histograms whose bounds grow by a quarter each. Unlike percentiles, histograms can be summed over hours and
days; the percentiles read from them are at most a quarter off.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from posthouse.rules import lane
from posthouse.rules.refusal import invalid

# From a twentieth of a second to more than the week that mail may be held.
BOUNDS_SECONDS: Final = tuple([0.05 * 1.25**step for step in range(75)])
COUNTS: Final = len(BOUNDS_SECONDS) + 1
# No lane has this name: a domain has a dot, and providers are listed.
OTHER: Final = "other"
# Nor this: where no server was reached.
NO_PROVIDER: Final = "none"

DAYS_DEFAULT: Final = 7
DAYS_MAX: Final = 30
# By the hour: 168 rows.
HOURLY_DAYS_MAX: Final = 7

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)


class Interval(StrEnum):
    HOUR = "hour"
    DAY = "day"


class Percentiles(NamedTuple):
    """In seconds."""

    p50: float
    p95: float
    p99: float


def provider_of(exchange: str | None) -> str:
    """The mailbox provider behind a mail server, by the names that lanes have; or `other`, or `none` without one."""
    return NO_PROVIDER if exchange is None else lane.lane_of(OTHER, exchange)


def sum_histograms(histograms: Iterable[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)]


def percentiles(counts: Sequence[int]) -> Percentiles | None:
    """None when nothing was counted."""
    if not any(counts):
        return None
    return Percentiles(*[_seconds(counts, percent) for percent in (50, 95, 99)])


def _seconds(counts: Sequence[int], percent: int) -> float:
    """The percentile, assuming results are spread evenly within a bucket."""
    sums = list(accumulate(counts))
    rank = -(-sums[-1] * percent // 100)
    bucket = next(number for number, reached in enumerate(sums) if reached >= rank)
    low = BOUNDS_SECONDS[bucket - 1] if bucket else 0.0
    high = BOUNDS_SECONDS[bucket] if bucket < len(BOUNDS_SECONDS) else low
    part = (rank - (sums[bucket] - counts[bucket])) / counts[bucket]
    return _shown(low + (high - low) * part)


def _shown(seconds: float) -> float:
    """Rounded to three digits, more than the histogram's precision."""
    return round(seconds, 2 - math.floor(math.log10(seconds))) if seconds else 0.0


def count_until(low: datetime, bound: datetime, longest: timedelta) -> datetime:
    """The end of the next range to count; never past a full hour, so that a range belongs to a single hour."""
    return max(low, min(bound, low + longest, hour_of(low) + _HOUR))


def hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def parse_interval(given: str) -> Interval:
    if given not in list(Interval):
        raise invalid(f"`by` is one of {', '.join(Interval)}.")
    return Interval(given)


def day_range(
    days: str | None, first: str | None, last: str | None, today: date, *, days_max: int = DAYS_MAX
) -> tuple[date, date]:
    """The first and last requested day: a number of days up to today, or between two days."""
    if first is None and last is None:
        return today - _DAY * (_number(str(DAYS_DEFAULT) if days is None else days, days_max) - 1), today
    if days is not None:
        raise invalid("`days` goes without `from` and `to`: give one or the other.")
    until = today if last is None else parse_day("to", last)
    since = parse_day("from", first) if first is not None else until - _DAY * (DAYS_DEFAULT - 1)
    if not since <= until < since + _DAY * days_max:
        raise invalid(f"`from` is a day before `to`, or the same, and both and those between are {days_max} at most.")
    return since, until


def parse_day(name: str, given: str) -> date:
    """A day written as `2026-11-15`, and in no other format."""
    try:
        found = date.fromisoformat(given)
    except ValueError:
        found = None
    if found is None or found.isoformat() != given or not 1970 <= found.year < 9999:
        raise invalid(f"`{name}` is a day in UTC, such as 2026-11-15.")
    return found


def _number(given: str, days_max: int) -> int:
    if given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= days_max:
        return int(given[:9])
    raise invalid(f"`days` is a number from 1 to {days_max}.")
