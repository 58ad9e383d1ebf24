"""Registration: an account's domains, the records that prove them, and the keys that sign for them."""

from posthouse.clock import Clock
from posthouse.store.postgres import Database


class Registration:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
