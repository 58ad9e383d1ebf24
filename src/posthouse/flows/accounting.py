"""Accounting: what an account holds, used and paid for."""

from posthouse.clock import Clock
from posthouse.store.postgres import Database


class Accounting:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
