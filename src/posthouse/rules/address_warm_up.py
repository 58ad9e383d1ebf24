"""Warm-up of an address: how much mail a day it sends in a lane, learnt from how the day before went.

Not to be confused with an account's warm-up (`send_quota`): this is about what a mailbox provider takes from an IP
address that it doesn't know yet. Each address has a quota for each lane and UTC day, and a twelfth of it for an
hour. The quota grows as long as the provider takes what it is given, and falls with the first day that it doesn't.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import ceil
from typing import Any, Final

from posthouse.rules import lane as lanes

FIRST_DAY_OF_PROVIDERS: Final = 200
FIRST_DAY: Final = 50
HOURS_OF_A_DAY: Final = 12
# An address with this quota is warm: it has no quota any more.
WARM: Final = 50_000
WARM_TIMES_BEST: Final = 4
HISTORY_DAYS: Final = 30
BEST_OF_DAYS: Final = 7
IDLE_DAYS_MAX: Final = 30

SLOW_SHARE_MAX: Final = 0.02
COMPLAINT_SHARE_MIN: Final = 0.001
USED_SHARE_MIN: Final = 0.7
AFTER_SLOW: Final = 0.7
# Two days in a row with a larger share than this: a provider that trusts us less each day blocks us in the end.
SLOW_SHARE_MAX_AGAIN: Final = 0.002
AFTER_SLOW_AGAIN: Final = 0.5
AFTER_BLOCK: Final = 0.5
AFTER_IDLE: Final = 0.25

# Above this share, an hour's and a day's quota is reserved for mail to single persons: lists wait first.
LIST_SHARE_MAX: Final = 0.7
# After this time an address is known well enough to send to any single domain for the first time.
SETTLED_DAYS: Final = 30
# Days that are counted one by one when nothing was sent for long; more days change nothing.
DAYS_BETWEEN_MAX: Final = 2 * IDLE_DAYS_MAX

GROWTH: Final = 1.4
CAREFUL_GROWTH: Final = 1.15
CAREFUL_DAYS: Final = 7
GROWTH_AFTER_ONE: Final = 1.3
GROWTH_AFTER_TWO: Final = 1.25


@dataclass(frozen=True, slots=True)
class Volumes:
    """The first day's quota of a provider and of a single domain, and the quota of an address that is warm."""

    first_of_providers: int = FIRST_DAY_OF_PROVIDERS
    first: int = FIRST_DAY
    warm: int = WARM

    def first_day(self, lane: str) -> int:
        return self.first_of_providers if lanes.is_provider(lane) else self.first


VOLUMES: Final = Volumes()


class Change(StrEnum):
    """Why the quota is what it is today."""

    BEGAN = "began"
    GREW = "grew"
    NOT_USED = "not_used"
    SLOWED = "slowed"
    COMPLAINTS = "complaints"
    BLOCKED = "blocked"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class WarmUpDay:
    """What happened to a UTC day's mail from one address in one lane."""

    taken: int
    slow: int = 0
    complaints: int = 0
    was_blocked: bool = False

    @property
    def slow_share(self) -> float:
        return self.slow / (self.taken + self.slow) if self.slow else 0.0

    @property
    def is_idle(self) -> bool:
        return not (self.taken or self.slow or self.was_blocked)


@dataclass(frozen=True, slots=True)
class AddressWarmUp:
    """`taken` is what was taken on the days before, the newest last; `good_days` are those since the last bad one."""

    lane: str
    day: int
    quota: int
    change: Change
    taken: tuple[int, ...] = ()
    bad_days: int = 0
    good_days: int = 0
    idle_days: int = 0
    was_blocked: bool = False
    was_slow: bool = False
    volumes: Volumes = field(default=VOLUMES, compare=False)

    @property
    def is_warm(self) -> bool:
        """The address is known: its quota is large, or far more than the lane has needed for 30 days."""
        best = max(self.taken, default=0)
        is_enough = len(self.taken) == HISTORY_DAYS and best > 0 and self.quota >= WARM_TIMES_BEST * best
        return self.quota >= self.volumes.warm or is_enough

    @property
    def quota_an_hour(self) -> int:
        return -(-self.quota // HOURS_OF_A_DAY)

    def capacity(self, *, taken_today: int, taken_this_hour: int, is_list: bool = False) -> int | None:
        """How many messages may still be sent within this hour; None is any number."""
        if self.is_warm:
            return None
        share = LIST_SHARE_MAX if is_list else 1.0
        today, hour = ceil(share * self.quota), ceil(share * self.quota_an_hour)
        return max(0, min(today - taken_today, hour - taken_this_hour))


def begin(lane: str, volumes: Volumes = VOLUMES, *, age_days: int = 0) -> AddressWarmUp:
    """The first day in a lane, for an address that has warmed up in others for `age_days`."""
    is_settled = age_days >= SETTLED_DAYS and not lanes.is_provider(lane)
    quota = volumes.warm if is_settled else volumes.first_day(lane)
    return AddressWarmUp(lane, 1, quota, Change.BEGAN, volumes=volumes)


def after_days(before: AddressWarmUp, day: WarmUpDay, days: int) -> AddressWarmUp:
    """The warm-up `days` days after `day`, with nothing sent on the days between."""
    after = next_day(before, day)
    for _ in range(min(days - 1, DAYS_BETWEEN_MAX)):
        after = next_day(after, WarmUpDay(0))
    return after


def stored(warm_up: AddressWarmUp) -> dict[str, Any]:
    """As stored: without the lane, which has its own column, and the volumes, which are settings of the service."""
    kept = asdict(warm_up)
    del kept["lane"], kept["volumes"]
    return kept


def restored(lane: str, kept: Mapping[str, Any], volumes: Volumes = VOLUMES) -> AddressWarmUp:
    given = {**kept, "change": Change(kept["change"]), "taken": tuple(kept["taken"])}
    return AddressWarmUp(lane=lane, volumes=volumes, **given)


def next_day(before: AddressWarmUp, day: WarmUpDay) -> AddressWarmUp:
    """The warm-up on the day after this one."""
    idle_days = before.idle_days + 1 if day.is_idle else 0
    after = replace(
        before,
        day=before.day + 1,
        taken=(*before.taken, day.taken)[-HISTORY_DAYS:],
        good_days=before.good_days + 1,
        idle_days=idle_days,
        was_blocked=day.was_blocked,
        was_slow=day.slow_share > SLOW_SHARE_MAX_AGAIN,
    )
    bad = _bad_day(before, day)
    if bad is not None:
        change, quota = bad
        # Without a floor, a day on which nothing was taken would end the warm-up for good.
        quota = max(_bounded(quota, before), before.volumes.first_day(before.lane) // 2, 1)
        return replace(after, change=change, quota=quota, bad_days=before.bad_days + 1, good_days=0)
    if idle_days == IDLE_DAYS_MAX:
        # The provider has forgotten the address: what it took before no longer counts.
        quota = max(int(before.quota * AFTER_IDLE), before.volumes.first_day(before.lane))
        return replace(after, change=Change.IDLE, quota=min(quota, before.quota), taken=(), idle_days=0)
    growth = _growth(after)
    if day.taken >= USED_SHARE_MIN * before.quota:
        return replace(after, change=Change.GREW, quota=_grown(growth, max(before.quota, day.taken), before))
    needed = _grown(growth, max(after.taken[-BEST_OF_DAYS:]), before)
    change = Change.GREW if needed > before.quota else Change.NOT_USED
    return replace(after, change=change, quota=_bounded(max(before.quota, needed), before))


def _bad_day(before: AddressWarmUp, day: WarmUpDay) -> tuple[Change, int] | None:
    """What was wrong with the day, and the quota after it."""
    if day.was_blocked:
        # Nothing more is learnt from the second day of a block.
        return Change.BLOCKED, before.quota if before.was_blocked else int(before.quota * AFTER_BLOCK)
    if before.was_slow and day.slow_share > SLOW_SHARE_MAX_AGAIN:
        return Change.SLOWED, int(day.taken * AFTER_SLOW_AGAIN)
    if day.slow_share > SLOW_SHARE_MAX:
        return Change.SLOWED, int(day.taken * AFTER_SLOW)
    if day.complaints and day.taken and day.complaints >= COMPLAINT_SHARE_MIN * day.taken:
        return Change.COMPLAINTS, int(day.taken * AFTER_SLOW)
    return None


def _growth(after: AddressWarmUp) -> float:
    if not after.bad_days:
        return GROWTH
    if after.good_days <= CAREFUL_DAYS:
        return CAREFUL_GROWTH
    return GROWTH_AFTER_ONE if after.bad_days == 1 else GROWTH_AFTER_TWO


def _grown(growth: float, taken: int, before: AddressWarmUp) -> int:
    return _bounded(growth * taken, before)


def _bounded(quota: float, before: AddressWarmUp) -> int:
    return min(int(quota), before.volumes.warm)
