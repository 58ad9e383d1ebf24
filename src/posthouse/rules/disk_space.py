"""Room in storage: at which mark nothing more is taken in, and at which it is again.

The two lie apart. Otherwise a single mail, or a single dropped day, would change the answer back and forth.
"""

from dataclasses import dataclass
from typing import Final

from posthouse.rules.refusal import Code, Refusal

RETRY_SECONDS: Final = 30
FREE_AGAIN_PERCENT: Final = 125
USED_AGAIN_PERCENT: Final = 95


@dataclass(frozen=True, slots=True)
class FreeMark:
    """At so many free bytes, or fewer, storage is low."""

    bytes_min: int

    @property
    def again_bytes(self) -> int:
        return self.bytes_min * FREE_AGAIN_PERCENT // 100

    def is_low(self, free_bytes: int, *, was_low: bool) -> bool:
        return free_bytes <= self.bytes_min or (was_low and free_bytes < self.again_bytes)


@dataclass(frozen=True, slots=True)
class UsedMark:
    """At so many used bytes, or more, storage is low."""

    bytes_max: int

    @property
    def again_bytes(self) -> int:
        return self.bytes_max * USED_AGAIN_PERCENT // 100

    def is_low(self, used_bytes: int, *, was_low: bool) -> bool:
        return used_bytes >= self.bytes_max or (was_low and used_bytes > self.again_bytes)


Mark = FreeMark | UsedMark


def no_room() -> Refusal:
    return Refusal(
        Code.SERVICE_UNAVAILABLE,
        "The service's storage is nearly full: try again later.",
        RETRY_SECONDS,
        lacks_room=True,
    )
