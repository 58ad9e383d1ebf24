"""A fair share of something that all accounts use together: sessions, bytes of memory, calls in progress.

What was taken can't be taken back, so a part stays free for those who have nothing yet:

- a holder that has nothing, or whose whole is at most `least`, may take, as long as anything is free;
- a holder beside others may have its share: `MOST_PART` of the capacity, divided by the number of holders;
- a holder never has more than `FREE_FACTOR` times what is left. Alone, that is `MOST_PART` of the capacity.

A holder above its share keeps what it has and gets no more until it has given back enough. Shares depend on holders
alone, not on how many keys, addresses or connections each of them uses.
"""

from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

MOST_PART: Final = 0.8
FREE_FACTOR: Final = MOST_PART / (1 - MOST_PART)

Holder = TypeVar("Holder", bound=Hashable)


class FairShare(Generic[Holder]):
    """Every operation takes constant time."""

    __slots__ = ("_capacity", "_held", "_least", "_taken")

    def __init__(self, capacity: int, *, least: int = 0) -> None:
        """`least` is for what is taken in parts: a share must not become too small for a single whole."""
        if capacity < 1:
            raise ValueError("there must be something to share")
        self._capacity = capacity
        self._least = least
        self._held: dict[Holder, int] = {}
        self._taken = 0

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def most(self) -> int:
        """How many units a holder may have once it has taken one more; 0 while none is free."""
        free_after = self._capacity - self._taken - 1
        if free_after < 0:
            return 0
        share = MOST_PART * self._capacity / max(1, len(self._held))
        return max(1, self._least, int(min(FREE_FACTOR * free_after, share)))

    @property
    def holdings(self) -> Mapping[Holder, int]:
        """How many units each holder has; the others have none."""
        return self._held

    def held(self, holder: Holder) -> int:
        return self._held.get(holder, 0)

    def has_room(self, holder: Holder, units: int = 1) -> bool:
        """Whether the holder may take so many units now."""
        return self._fits(self._held.get(holder, 0), units)

    def _fits(self, held: int, units: int) -> bool:
        free_after = self._capacity - self._taken - units
        if free_after < 0:
            return False
        wanted = held + units
        if not held or wanted <= self._least:
            return True
        return wanted <= FREE_FACTOR * free_after and wanted <= MOST_PART * self._capacity / len(self._held)

    def take(self, holder: Holder, units: int = 1) -> bool:
        """Take the units, if there is room for them; they must be given back."""
        held = self._held.get(holder, 0)
        if not self._fits(held, units):
            return False
        self._held[holder] = held + units
        self._taken += units
        return True

    def give_back(self, holder: Holder, units: int = 1) -> None:
        left = self._held.get(holder, 0) - units
        if left < 0:
            raise ValueError("more was given back than was taken")
        self._taken -= units
        if left:
            self._held[holder] = left
        else:
            self._held.pop(holder, None)
