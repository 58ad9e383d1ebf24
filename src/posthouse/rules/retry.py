"""When a failed attempt is repeated: the schedules of delivery and of webhooks, and members' requests to try now.

A request only moves the time of the next attempt: the attempt counts, and its destination's limits still apply.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.rules.rate_limit import Rate
from posthouse.rules.wait_reason import WaitExplanation, WaitReason, when

# How long mail of a suspended account is held before it is given up.
HOLD_MAX: Final = timedelta(days=7)

# An account's rate of requests to try now: this many in a burst, and one a minute after that.
REQUEST_RATE: Final = Rate(1 / 60, 60)
REQUESTS_PER_MESSAGE_MAX: Final = 5
# Longer than any message can be open.
REQUEST_REMEMBERED: Final = timedelta(days=30)

_MOVABLE: Final = frozenset({WaitReason.DEFERRED, WaitReason.GREYLISTED})


@dataclass(frozen=True, slots=True)
class Schedule:
    """The first attempt is made immediately, each further attempt after its wait, counted from the end of the last.

    `spread` is the fraction by which a wait may be longer or shorter, so that attempts that failed together are not
    repeated together. After `lifetime` there are no more attempts.
    """

    waits: tuple[timedelta, ...]
    spread: float = 0.0
    lifetime: timedelta | None = None

    def __post_init__(self) -> None:
        if any(wait < timedelta(0) for wait in self.waits) or not 0 <= self.spread <= 1:
            raise ValueError("a schedule's waits must not be negative, and its spread must be between 0 and 1")

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


class RetryAnswer(StrEnum):
    """What the request does to a recipient, besides the reasons for which one waits."""

    NOW = "now"
    FINAL = "final"
    LAST_ATTEMPT = "last_attempt"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class RetryResult:
    """`result` is a RetryAnswer, or the WaitReason for which the recipient stays as it is."""

    result: RetryAnswer | WaitReason
    text: str


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


def judge_request(
    status: str, wait: WaitExplanation | None, next_at: datetime | None, attempts: int, attempts_max: int
) -> RetryResult:
    """What a request does to a recipient; NOW if its next attempt can be moved."""
    if wait is None:
        return RetryResult(RetryAnswer.FINAL, f"it is final: {status}")
    if wait.reason not in _MOVABLE or next_at is None:
        return RetryResult(wait.reason, wait.text)
    if attempts >= attempts_max - 1:
        return RetryResult(
            RetryAnswer.LAST_ATTEMPT,
            f"only one attempt is left, and if it fails the message has failed: it stays at its time, {when(next_at)}",
        )
    return RetryResult(RetryAnswer.NOW, "due now; it is tried as soon as its destination's limits allow")


def taken_by_worker() -> RetryResult:
    """A worker took the recipient after it was read and before it was changed."""
    return RetryResult(RetryAnswer.TAKEN, "a worker has taken it for its next try already")
