"""Randomness is passed in, so that a seeded run can be repeated."""

import os
import random
from typing import Final, Protocol

from posthouse.rules.ids import RANDOM_BYTES

# For this many ids, which are never those of a forked process, bytes are drawn in one system call.
_DRAWN: Final = 400
_for_ids: list[bytes] = []
os.register_at_fork(after_in_child=_for_ids.clear)


class Randomness(Protocol):
    def id_bytes(self) -> bytes:
        """For an id, which is no secret."""

    def bytes(self, count: int) -> bytes: ...

    def fraction(self) -> float:
        """At least 0 and below 1."""


class SystemRandomness:
    def id_bytes(self) -> bytes:
        try:
            return _for_ids.pop()
        except IndexError:
            drawn = os.urandom(_DRAWN * RANDOM_BYTES)
            _for_ids.extend(
                drawn[start : start + RANDOM_BYTES] for start in range(RANDOM_BYTES, len(drawn), RANDOM_BYTES)
            )
            return drawn[:RANDOM_BYTES]

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def fraction(self) -> float:
        return random.random()  # noqa: S311 (it spreads load, and keeps no secret)


class SeededRandomness:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (for repeatable runs only)

    def id_bytes(self) -> bytes:
        return self.bytes(RANDOM_BYTES)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def fraction(self) -> float:
        return self._random.random()
