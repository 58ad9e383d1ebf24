"""The archive: finding an account's messages, newest first."""

from posthouse.clock import Clock
from posthouse.store.postgres import Database


class Archive:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
