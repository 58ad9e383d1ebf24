"""Usage statistics: mailbox providers and their delays, delivery times, reasons, counted time ranges, and first steps.

Times are histograms whose bounds grow by a quarter each. Unlike percentiles, histograms can be summed over hours and
days; the percentiles read from them are at most a quarter off.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

from posthouse.mail.reply import enhanced_of
from posthouse.rules import lane
from posthouse.rules.delivery_reason import DeliveryReason, reason_of
from posthouse.rules.ids import MessageId
from posthouse.rules.refusal import invalid

# From a twentieth of a second to more than the week for which mail may be held.
BOUNDS_SECONDS: Final = tuple([0.05 * 1.25**step for step in range(75)])
COUNTS: Final = len(BOUNDS_SECONDS) + 1
# No lane has this name: a domain has a dot, and providers are listed.
OTHER: Final = "other"
# Nor this name, which is used where no server was reached.
NO_PROVIDER: Final = "none"

DAYS_DEFAULT: Final = 7
DAYS_MAX: Final = 30
# By the hour, these are 168 rows.
HOURLY_DAYS_MAX: Final = 7

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
# For delays of providers, deliveries of this hour and the one before are compared with those of the week before them.
RECENT: Final = timedelta(hours=1)
WEEK: Final = timedelta(days=7)
TIMES_MAX: Final = 4.0
# A delay is over only when this is reached again, so that it does not come and go.
TIMES_OVER: Final = 2.0
# Less time than this is not a delay, however fast delivery was before.
SECONDS_MIN: Final = 10.0
# With fewer messages, a few of them would decide.
DELIVERED_MIN: Final = 100
WEEK_DELIVERED_MIN: Final = 1_000
# Keys of an account and day. A server can invent codes, and a sender tags: what has further keys is counted together.
KEYS_A_DAY_MAX: Final = 200
# The value under which what is beyond these is counted, by domain and by tag; neither is ever empty.
OTHER_VALUE: Final = ""

_Key = TypeVar("_Key", bound=Any)


class ReasonKey(NamedTuple):
    """`result` is bounced, failed or deferred; `code` is an enhanced status or SMTP code, "" without a reply."""

    provider: str
    result: str
    code: str
    reason: DeliveryReason


class ReasonCount(NamedTuple):
    """`example_id` is the newest message with this result."""

    times: int
    example_id: MessageId


class SplitKind(StrEnum):
    """What live mail is counted by: the domain in From, and each of its tags."""

    DOMAIN = "domain"
    TAG = "tag"


class Interval(StrEnum):
    HOUR = "hour"
    DAY = "day"


class Percentiles(NamedTuple):
    """Percentiles in seconds."""

    p50: float
    p95: float
    p99: float


def provider_of(mx_host: str | None) -> str:
    """The mailbox provider behind a mail server, by the names that lanes have; or `other`, or `none` without one."""
    return NO_PROVIDER if mx_host is None else lane.lane_of(OTHER, mx_host)


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
        raise invalid(f"`from` must not be after `to`, and the range is at most {days_max} days, both included.")
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


class Step(StrEnum):
    """The steps in the order in which an account usually takes them."""

    TEST_MAIL = "test_mail"
    DOMAIN_VERIFIED = "domain_verified"
    KEY_CREATED = "key_created"
    FIRST_REQUEST = "first_request"
    WEBHOOK_SAVED = "webhook_saved"
    WEBHOOK_ANSWERED = "webhook_answered"
    SECOND_FACTOR = "second_factor"
    MEMBER_INVITED = "member_invited"


# Provider delays: when a mailbox provider takes mail much later than it did during the week before.


class ProviderDelay(NamedTuple):
    """The time from acceptance to delivery of 95 % of the mail, in seconds: now, and during the week before."""

    p95_seconds: float
    week_p95_seconds: float


def recent_since(now: datetime) -> datetime:
    """The first hour that counts as recent."""
    return hour_of(now) - RECENT


def may_be_delayed(recent: Sequence[int]) -> bool:
    """Whether the week has to be read."""
    found = percentiles(recent)
    return found is not None and sum(recent) >= DELIVERED_MIN and found.p95 > SECONDS_MIN


def delay_of(recent: Sequence[int], week: Sequence[int], *, is_delayed: bool) -> ProviderDelay | None:
    """The delay according to the histograms of both periods; None if there is no delay, or it is over."""
    now, before = percentiles(recent), percentiles(week)
    if now is None or before is None or not may_be_delayed(recent) or sum(week) < WEEK_DELIVERED_MIN:
        return None
    times = TIMES_OVER if is_delayed else TIMES_MAX
    return ProviderDelay(now.p95, before.p95) if now.p95 > times * before.p95 else None


def reason_key(result: str, mx_host: str | None, code: int | None, response: str | None) -> ReasonKey:
    status = "" if code is None else enhanced_of(code, response or "") or str(code)
    return ReasonKey(provider_of(mx_host), result, status, reason_of(result, code, response))


def count_sum(first: ReasonCount | None, second: ReasonCount) -> ReasonCount:
    if first is None:
        return second
    return ReasonCount(first.times + second.times, max(first.example_id, second.example_id))


def first_whole_day(since: datetime) -> date:
    """The first day that did not begin before this time."""
    at = since.astimezone(UTC)
    return at.date() if at.time() == time() else at.date() + _DAY


def bounded_keys(
    known: Collection[_Key], found: Mapping[_Key, int], other: Callable[[_Key], _Key], keys_max: int = KEYS_A_DAY_MAX
) -> dict[_Key, _Key]:
    """The key under which each is counted on a day that has the `known` ones: itself, or `other` if it doesn't fit."""
    new = [key for key in found if key not in known]
    capacity = max(0, keys_max - len(known))
    if len(new) > capacity:
        new.sort(key=lambda key: (-found[key], key))
    beyond = set(new[capacity:])
    return {key: other(key) if key in beyond else key for key in found}


def bounded_counts(
    known: Collection[ReasonKey], found: Mapping[ReasonKey, ReasonCount], keys_max: int = KEYS_A_DAY_MAX
) -> dict[ReasonKey, ReasonCount]:
    """The counts to add to a day that has the `known` keys."""
    bounded: dict[ReasonKey, ReasonCount] = {}
    times = {key: count.times for key, count in found.items()}
    for key, target in bounded_keys(known, times, _other_reason, keys_max).items():
        bounded[target] = count_sum(bounded.get(target), found[key])
    return bounded


def _other_reason(key: ReasonKey) -> ReasonKey:
    return ReasonKey(OTHER, key.result, OTHER, DeliveryReason.OTHER)
