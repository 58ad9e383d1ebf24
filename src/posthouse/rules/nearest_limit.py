"""How near an account is to what ends its sending: today's warm-up limit, or the end of its credits."""

from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from posthouse.rules import send_quota
from posthouse.rules.send_quota import Account

# Credits that last as long are far from their end; the alert `days_left` has the same default.
DAYS_FAR: Final = 7


class LimitKind(StrEnum):
    WARMUP = "warmup"
    CREDITS = "credits"


class NearestLimit(NamedTuple):
    """`share` is 1 at the limit: the used part of today's warm-up, or of credits for DAYS_FAR days."""

    kind: LimitKind
    share: float
    # Of credits alone.
    days_left: float | None = None


def nearest_limit(account: Account, per_day: float, now: datetime) -> NearestLimit | None:
    """None if it is far from both, or suspended. It sends to `per_day` recipients a day."""
    if account.suspended:
        return None
    near: list[NearestLimit] = []
    # Of two as near, credits come first: a warm-up goes on at midnight.
    if per_day > 0 and (days_left := max(0.0, account.available / per_day)) < DAYS_FAR:
        near.append(NearestLimit(LimitKind.CREDITS, 1 - days_left / DAYS_FAR, days_left))
    warmup = send_quota.warmup_reading(account, now)
    if warmup.limit is not None and warmup.used > 0:
        near.append(NearestLimit(LimitKind.WARMUP, min(1.0, warmup.used / warmup.limit)))
    return max(near, key=lambda limit: limit.share, default=None)
