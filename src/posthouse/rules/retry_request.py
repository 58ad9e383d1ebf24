"""A member's request for the next try now: which recipients it moves, and how often it may be made.

It moves the time of the next attempt and nothing else: the attempt counts, and its destination's limits hold as before.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.rules.rate_limit import Rate
from posthouse.rules.wait_reason import WaitExplanation, WaitReason, when

# Of an account: so many at once, and one a minute after that.
RATE: Final = Rate(1 / 60, 60)
PER_MESSAGE_MAX: Final = 5
# Longer than any mail can be open.
REMEMBERED: Final = timedelta(days=30)

_MOVABLE: Final = frozenset({WaitReason.DEFERRED, WaitReason.GREYLISTED})


class RetryAnswer(StrEnum):
    """What becomes of a recipient, besides the reasons for which it waits."""

    NOW = "now"
    FINAL = "final"
    LAST_ATTEMPT = "last_attempt"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class RetryResult:
    """`result` is a RetryAnswer, or the WaitReason for which the recipient stays as it is."""

    result: RetryAnswer | WaitReason
    text: str


def judge(
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
            f"a single attempt is left, and if it fails the mail has failed: it stays at its time, {when(next_at)}",
        )
    return RetryResult(RetryAnswer.NOW, "due now; it is tried as soon as its destination's limits allow")


def taken() -> RetryResult:
    """Between the reading and the change a worker took the recipient."""
    return RetryResult(RetryAnswer.TAKEN, "a worker has taken it for its next try already")
