"""Whether an account may send this message now: its rates, its stored bytes, its warm-up, then its credits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from posthouse.rules import limits, rate_limit
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate, RateReading, RateWait
from posthouse.rules.refusal import Code, Refusal

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)

# Credits that last this long are far from their end; the alert `days_left` has the same default.
CREDIT_DAYS_FAR: Final = 7


@dataclass(slots=True)
class Account:
    """The working copy of an account's row while a group commit is decided; `admit` changes it.

    `full_at` belongs to the rate of requests, `recipients_full_at` to that of recipients. `warmup_limits` is None for
    an exempt account. `warmup_used` counts the recipients accepted on `warmup_day`, `warmup_ahead` those accepted for
    later days; `stored_bytes` and `stored_test_bytes` what was stored on `stored_on`, of live and of test mail.
    """

    id: AccountId
    suspended: bool
    available: int
    rate: Rate
    full_at: datetime
    warmup_limits: tuple[int, ...] | None
    warmup_started_on: date | None
    warmup_day: date | None
    warmup_used: int
    warmup_ahead: Mapping[date, int] = field(default_factory=dict)
    recipients_full_at: datetime = _LONG_AGO
    stored_on: date | None = None
    stored_bytes: int = 0
    stored_test_bytes: int = 0
    stored_bytes_max: int = limits.STORED_BYTES_PER_DAY


@dataclass(frozen=True, slots=True)
class Charge:
    """What a message costs. Test mail costs no credits and does not count for the warm-up.

    `is_request` is false for a message whose request was counted with another of its batch request. `send_at` is set if
    it is sent later. `stored_bytes` is its assembled size.
    """

    recipients: int
    credits: int
    is_request: bool = True
    send_at: datetime | None = None
    stored_bytes: int = 0

    @property
    def is_test(self) -> bool:
        return not self.credits


class WarmupReading(NamedTuple):
    """`on` is day `day` of the warm-up, with `used` recipients so far; a `limit` of None means unlimited."""

    started_on: date
    on: date
    day: int
    limit: int | None
    used: int
    # Whether `on` is after today.
    is_ahead: bool = False


class LimitKind(StrEnum):
    """`warmup`: the recipients of a day. `credits`: those that are left."""

    WARMUP = "warmup"
    CREDITS = "credits"


class NearestLimit(NamedTuple):
    """`share` is 1 at the limit: the used part of today's warm-up, or of credits for CREDIT_DAYS_FAR days."""

    kind: LimitKind
    share: float
    # Only for credits.
    days_left: float | None = None


def admit(account: Account, charge: Charge, now: datetime) -> RateReading:
    """Charge the account for a message, or refuse it without changing the account."""
    taken = check_rate(account, now) if charge.is_request else rate_limit.reading(account.rate, account.full_at, now)
    recipients = check_recipients(account, charge, now)
    stored = _stored(account, charge, now)
    if charge.credits:
        warmup = warmup_reading(account, now, charge.send_at)
        _check_warmup(account, charge, warmup, now)
        _check_credits(account, charge, now)
        account.available -= charge.credits
        _count_warmup(account, warmup, charge.recipients)
    account.full_at = taken.full_at
    account.recipients_full_at = recipients.full_at
    account.stored_on, account.stored_bytes, account.stored_test_bytes = stored
    return taken


def check_rate(account: Account, now: datetime) -> RateReading:
    """The rate after one more request, which is not counted yet; or a Refusal."""
    taken = rate_limit.take_from_rate(account.rate, account.full_at, now)
    if isinstance(taken, RateWait):
        rate = account.rate
        raise _wait(account, taken, f"{rate.per_second} requests a second and {rate.burst} in a burst", now)
    return taken


def check_recipients(account: Account, charge: Charge, now: datetime) -> RateReading:
    """The rate of recipients after this message, which is not counted yet; or a Refusal."""
    rate = _recipient_rate(account.rate)
    weight = limits.TEST_RECIPIENT_WEIGHT if charge.is_test else 1
    taken = rate_limit.take_from_rate(rate, account.recipients_full_at, now, charge.recipients * weight)
    if isinstance(taken, RateWait):
        allowed = f"to {rate.per_second // weight:,.0f} recipients a second and {rate.burst // weight:,} in a burst"
        raise _wait(account, taken, f"{allowed} with a test key" if charge.is_test else allowed, now)
    return taken


def warmup_reading(account: Account, now: datetime, send_at: datetime | None = None) -> WarmupReading:
    """The account's state in its warm-up on the day of `send_at`, if that is ahead, or today; without sending."""
    # A process whose clock is behind must not reopen the previous day.
    today = max(now.astimezone(UTC).date(), account.warmup_day or date.min)
    on = today if send_at is None else max(today, send_at.astimezone(UTC).date())
    # A warm-up starts with the first mail that is sent, not with the first that is accepted for later.
    started_on = account.warmup_started_on or on
    used = account.warmup_used if account.warmup_day == on else account.warmup_ahead.get(on, 0)
    day = rate_limit.day_number(started_on, on)
    limit = None if account.warmup_limits is None else rate_limit.warmup_limit(day, account.warmup_limits)
    return WarmupReading(started_on, on, day, limit, used, is_ahead=on > today)


def move_quota(account: Account, recipients: int, before: datetime, after: datetime, now: datetime) -> None:
    """Count a message for the day of another `send_at`, or refuse that without changing the account."""
    old, new = (warmup_reading(account, now, at) for at in (before, after))
    if old.on == new.on:
        return
    _check_warmup(account, Charge(recipients, recipients), new, now)
    # A message that should have been sent on an earlier day was counted on that day.
    if old.on == before.astimezone(UTC).date():
        _count_warmup(account, old, -min(recipients, old.used))
    _count_warmup(account, new, recipients)


def release_quota(account: Account, recipients: int, send_at: datetime | None, now: datetime) -> None:
    """Stop counting a cancelled message that was for a later day. What today has accepted stays counted."""
    warmup = warmup_reading(account, now, send_at)
    if warmup.is_ahead:
        _count_warmup(account, warmup, -min(recipients, warmup.used))


def nearest_limit(account: Account, per_day: float, now: datetime) -> NearestLimit | None:
    """The limit that ends its sending next: today's warm-up limit, or the end of its credits.

    None if the account is far from both, or suspended. It sends to `per_day` recipients a day.
    """
    if account.suspended:
        return None
    near: list[NearestLimit] = []
    # Of two equally near, credits come first: a warm-up continues at midnight.
    if per_day > 0 and (days_left := max(0.0, account.available / per_day)) < CREDIT_DAYS_FAR:
        near.append(NearestLimit(LimitKind.CREDITS, 1 - days_left / CREDIT_DAYS_FAR, days_left))
    warmup = warmup_reading(account, now)
    if warmup.limit is not None and warmup.used > 0:
        near.append(NearestLimit(LimitKind.WARMUP, min(1.0, warmup.used / warmup.limit)))
    return max(near, key=lambda limit: limit.share, default=None)


@lru_cache(rate_limit.RATES_CACHED_MAX)
def _recipient_rate(rate: Rate) -> Rate:
    # The largest batch always fits, with a test key too.
    least = limits.BATCH_RECIPIENTS_MAX * limits.TEST_RECIPIENT_WEIGHT
    burst = max(rate.burst * limits.RECIPIENTS_PER_BURST_REQUEST, least)
    return Rate(rate.per_second * limits.RECIPIENTS_PER_REQUEST, burst)


def _stored(account: Account, charge: Charge, now: datetime) -> tuple[date, int, int]:
    """The day, and the bytes of live and of test mail stored on it with this message; or a Refusal."""
    # A process whose clock is behind must not reopen the previous day.
    today = max(now.astimezone(UTC).date(), account.stored_on or date.min)
    live, test = (account.stored_bytes, account.stored_test_bytes) if account.stored_on == today else (0, 0)
    if charge.is_test:
        used = test = test + charge.stored_bytes
        most = account.stored_bytes_max // limits.STORED_TEST_PART
    else:
        used = live = live + charge.stored_bytes
        most = account.stored_bytes_max
    if used > most:
        raise Refusal(
            Code.RATE_LIMITED,
            f"This account may store {most // limits.MIB:,} MiB of {'test ' * charge.is_test}email a day, and this "
            "message would go beyond it: send it after 00:00 UTC, or ask the operator for more.",
            retry_after_seconds=rate_limit.seconds_to_midnight(now),
            headers=_untaken_headers(account, now),
        )
    return today, live, test


def _count_warmup(account: Account, warmup: WarmupReading, recipients: int) -> None:
    """Count recipients, for exempt accounts too: one that loses its exemption continues at its real count."""
    used = warmup.used + recipients
    if warmup.is_ahead:
        account.warmup_ahead = {**account.warmup_ahead, warmup.on: used}
        return
    account.warmup_started_on = warmup.started_on
    account.warmup_day = warmup.on
    account.warmup_used = used
    if account.warmup_ahead:
        account.warmup_ahead = {day: count for day, count in account.warmup_ahead.items() if day > warmup.on}


def _check_warmup(account: Account, charge: Charge, warmup: WarmupReading, now: datetime) -> None:
    day, limit, used = warmup.day, warmup.limit, warmup.used
    if limit is None or used + charge.recipients <= limit:
        return
    left = max(0, limit - used)
    capacity_on = _next_day_with_capacity(account, charge.recipients, warmup)
    if warmup.is_ahead:
        raise Refusal(
            Code.WARMUP_LIMITED,
            f"Day {day} of this account's warm-up, {warmup.on}, allows {limit} recipients, {left} are left and this"
            f" message has {charge.recipients}: choose another day for `send_at`, such as {capacity_on},"
            f" {_or_fewer(left)}",
            retry_after_seconds=rate_limit.seconds_to_day(now, capacity_on),
            headers=_untaken_headers(account, now),
        )
    when = "after 00:00 UTC" if capacity_on == warmup.on + timedelta(days=1) else f"on {capacity_on} (UTC)"
    raise Refusal(
        Code.WARMUP_LIMITED,
        f"Day {day} of this account's warm-up allows {limit} recipients, {left} are left today and this"
        f" message has {charge.recipients}: send it {when}, {_or_fewer(left)}",
        retry_after_seconds=rate_limit.seconds_to_day(now, capacity_on),
        headers=_untaken_headers(account, now),
    )


def _next_day_with_capacity(account: Account, recipients: int, warmup: WarmupReading) -> date:
    """The first day after the reading's on which the message fits; the very next day if it fits on no listed day."""
    listed = account.warmup_limits or ()
    following = [warmup.on + timedelta(days) for days in range(1, len(listed) + limits.SEND_AT_DAYS_MAX + 1)]
    for day in following:
        # A warm-up that has not started starts then.
        number = rate_limit.day_number(account.warmup_started_on or day, day)
        limit = rate_limit.warmup_limit(number, listed)
        if limit is None or account.warmup_ahead.get(day, 0) + recipients <= limit:
            return day
    return following[0]


def _check_credits(account: Account, charge: Charge, now: datetime) -> None:
    if charge.credits <= account.available:
        return
    raise Refusal(
        Code.INSUFFICIENT_CREDITS,
        f"This message needs {charge.credits} credits, {account.available} are available:"
        f" add credits, {_or_fewer(account.available)}",
        headers=_untaken_headers(account, now),
    )


def _wait(account: Account, wait: RateWait, allowed: str, now: datetime) -> Refusal:
    refusal = wait.refusal(f"This account may send {allowed}")
    refusal.headers = _untaken_headers(account, now)
    return refusal


def _or_fewer(recipients: int) -> str:
    return f"or send to at most {recipients} recipients." if recipients else "or ask the operator for more."


def _untaken_headers(account: Account, now: datetime) -> dict[str, str]:
    return rate_limit.rate_headers(account.rate, rate_limit.reading(account.rate, account.full_at, now))
