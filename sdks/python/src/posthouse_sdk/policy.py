"""When a call is tried again, and how long it waits before that."""

from __future__ import annotations

import email.utils
import re
from dataclasses import dataclass
from typing import Final

from posthouse_sdk import checks
from posthouse_sdk.errors import InvalidArgumentError

POLL_BASE_SECONDS: Final = 0.5
POLL_FACTOR: Final = 1.5
POLL_CAP_SECONDS: Final = 5.0

_digits: Final = re.compile(r"[0-9]+", re.ASCII).fullmatch
_date: Final = re.compile(r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a call is tried, and how it backs off. `RetryPolicy.none()` never tries again.

    A call never takes longer than `total_seconds_max`, all its attempts and waits together: if the next wait doesn't
    fit into what is left, the error is raised at once.
    """

    attempts_max: int = 4
    base_seconds: float = 0.5
    factor: float = 2.0
    cap_seconds: float = 8.0
    total_seconds_max: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1:
            raise InvalidArgumentError("attempts_max counts the first attempt, too, and must be at least 1")
        for name in ("base_seconds", "factor", "cap_seconds"):
            checks.seconds(getattr(self, name), name)
        if not self.total_seconds_max >= 0:
            raise InvalidArgumentError("total_seconds_max must be at least 0")

    @classmethod
    def none(cls) -> RetryPolicy:
        return cls(attempts_max=1, total_seconds_max=float("inf"))

    def wait_seconds(self, attempt: int, random: float, retry_after: float | None) -> float:
        """The wait after the attempt of that number, from 1; `random` is in [0, 1)."""
        backed_off = jittered(self.base_seconds, self.factor, self.cap_seconds, attempt, random)
        return max(backed_off, retry_after or 0.0)


def poll_seconds(poll: int, random: float) -> float:
    """The wait after the poll of that number, from 1."""
    return jittered(POLL_BASE_SECONDS, POLL_FACTOR, POLL_CAP_SECONDS, poll, random)


def jittered(base: float, factor: float, cap: float, number: int, random: float) -> float:
    try:
        grown = base * factor ** (number - 1)
    except OverflowError:
        grown = cap
    return min(cap, grown) * (0.5 + random / 2)


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """The header Retry-After, in seconds from `now`; None if it is absent or can't be read."""
    text = (value or "").strip()
    if _digits(text):
        return float(text)
    if not _date(text):
        return None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None
