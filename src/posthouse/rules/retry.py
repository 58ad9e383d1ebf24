"""When something that failed is tried again: the schedules of delivery and of webhooks."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final


@dataclass(frozen=True, slots=True)
class Schedule:
    """The first attempt is made at once, each further one after its wait, counted from the end of the last.

    `spread` is the part by which a wait may be longer or shorter, so that what failed together doesn't
    come back together. Nothing is tried once `lifetime` is over.
    """

    waits: tuple[timedelta, ...]
    spread: float = 0.0
    lifetime: timedelta | None = None

    def __post_init__(self) -> None:
        if any(wait < timedelta(0) for wait in self.waits) or not 0 <= self.spread <= 1:
            raise ValueError("a schedule waits forwards: no wait below zero, and a spread between 0 and 1")

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
# The contract gives customers these waits to the second, so there is no spread.
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
# Mail of a suspended account is held and not tried; it doesn't wait for ever.
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
    """When to try again after `attempts` attempts, the last of which ends now; None when that was the last.

    `started_at` begins the lifetime; `held` is how long it stood still since, while an account was
    suspended or an operator had paused the lane. `random` is at least 0 and below 1.
    """
    if attempts < 1:
        raise ValueError(f"nothing is tried again before it was tried: {attempts=}")
    if attempts >= schedule.attempts_max:
        return None
    at = now + schedule.waits[attempts - 1] * (1 + schedule.spread * (2 * random - 1))
    if schedule.lifetime is not None and at > started_at + schedule.lifetime + held:
        return None
    return at


def is_held_too_long(held_since: datetime, now: datetime) -> bool:
    return now - held_since >= HOLD_MAX
