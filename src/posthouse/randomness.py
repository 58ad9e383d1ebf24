"""Randomness is passed in, so that a seeded run can be repeated."""

import os
import random
from typing import Protocol


class Randomness(Protocol):
    def bytes(self, count: int) -> bytes: ...

    def fraction(self) -> float:
        """At least 0 and below 1."""


class SystemRandomness:
    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def fraction(self) -> float:
        return random.random()  # noqa: S311 (it spreads load, and keeps no secret)


class SeededRandomness:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (for repeatable runs only)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def fraction(self) -> float:
        return self._random.random()
