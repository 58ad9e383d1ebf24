"""Suppression: the addresses that an account sends nothing to."""

from posthouse.clock import Clock
from posthouse.store.postgres import Database


class Suppression:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
