"""Sessions: logging in and out of the dashboard, passwords, and the second factor."""

from posthouse.clock import Clock
from posthouse.store.postgres import Database


class Sessions:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
