"""Disk space: the mark below which new mail is refused, and the mark above which it is accepted again.

The two marks differ. Otherwise a single message, or a single dropped day, would switch back and forth.
"""

from dataclasses import dataclass
from typing import Final

from posthouse.rules.refusal import Code, Refusal

RETRY_SECONDS: Final = 30
FREE_AGAIN_PERCENT: Final = 125
USED_AGAIN_PERCENT: Final = 95


@dataclass(frozen=True, slots=True)
class FreeMark:
    """Disk space is low at this many free bytes or fewer."""

    bytes_min: int

    @property
    def again_bytes(self) -> int:
        return self.bytes_min * FREE_AGAIN_PERCENT // 100

    def is_low(self, free_bytes: int, *, was_low: bool) -> bool:
        return free_bytes <= self.bytes_min or (was_low and free_bytes < self.again_bytes)


@dataclass(frozen=True, slots=True)
class UsedMark:
    """Disk space is low at this many used bytes or more."""

    bytes_max: int

    @property
    def again_bytes(self) -> int:
        return self.bytes_max * USED_AGAIN_PERCENT // 100

    def is_low(self, used_bytes: int, *, was_low: bool) -> bool:
        return used_bytes >= self.bytes_max or (was_low and used_bytes > self.again_bytes)


Mark = FreeMark | UsedMark


def no_capacity() -> Refusal:
    return Refusal(
        Code.SERVICE_UNAVAILABLE,
        "The service's storage is nearly full: try again later.",
        RETRY_SECONDS,
        lacks_capacity=True,
    )
