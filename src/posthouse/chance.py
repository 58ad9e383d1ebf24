"""Randomness, passed in, so that a seeded run can be repeated."""

import os
import random
from typing import Protocol


class Chance(Protocol):
    def bytes(self, count: int) -> bytes: ...


class SystemChance:
    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


class SeededChance:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (for repeatable runs only)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)
