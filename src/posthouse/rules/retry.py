"""When a failed attempt is repeated: the schedules of delivery and of webhooks."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final


@dataclass(frozen=True, slots=True)
class Schedule:
    """The first attempt is made at once, each further attempt after its wait, counted from the end of the last.

    `spread` is the fraction by which a wait may be longer or shorter, so that attempts that failed together are not
    repeated together. After `lifetime` there are no attempts.
    """

    waits: tuple[timedelta, ...]
    spread: float = 0.0
    lifetime: timedelta | None = None

    def __post_init__(self) -> None:
        if any(wait < timedelta(0) for wait in self.waits) or not 0 <= self.spread <= 1:
            raise ValueError("a schedule has no wait below zero, and a spread between 0 and 1")

    @property
    def attempts_max(self) -> int:
        return len(self.waits) + 1


DELIVERY: Final = Schedule(
    waits=(
        timedelta(minutes=1),
        timedelta(minutes=5),
        timedelta(minutes=15),
        timedelta(minutes=30),
        timedelta(hours=1),
        timedelta(hours=2),
        timedelta(hours=4),
        timedelta(hours=8),
        timedelta(hours=16),
    ),
    spread=0.10,
    lifetime=timedelta(hours=72),
)
# The contract promises customers these waits to the second, so there is no spread.
WEBHOOK: Final = Schedule(
    waits=(
        timedelta(seconds=5),
        timedelta(minutes=5),
        timedelta(minutes=30),
        timedelta(hours=2),
        timedelta(hours=5),
        timedelta(hours=10),
    )
)
# How long mail of a suspended account is held before it is given up.
HOLD_MAX: Final = timedelta(days=7)


def next_at(
    schedule: Schedule,
    *,
    attempts: int,
    started_at: datetime,
    now: datetime,
    random: float,
    held: timedelta = timedelta(0),
) -> datetime | None:
    """When to try again after `attempts` attempts, the last of which ends now; None when there is no further attempt.

    The lifetime starts at `started_at` and is extended by `held`: the time during which the account was suspended or
    an operator had paused the lane. `random` is at least 0 and below 1.
    """
    if attempts < 1:
        raise ValueError(f"a retry follows an attempt: {attempts=}")
    if attempts >= schedule.attempts_max:
        return None
    at = now + schedule.waits[attempts - 1] * (1 + schedule.spread * (2 * random - 1))
    if schedule.lifetime is not None and at > started_at + schedule.lifetime + held:
        return None
    return at


def is_held_too_long(held_since: datetime, now: datetime) -> bool:
    return now - held_since >= HOLD_MAX
