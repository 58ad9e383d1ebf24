"""Rehearsal: what would become of a message, and a test message to oneself."""

from posthouse.clock import Clock
from posthouse.store.postgres import Database


class Rehearsal:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
