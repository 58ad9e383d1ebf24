"""The keyring: an account's SMTP credentials and API keys."""

from posthouse.clock import Clock
from posthouse.store.postgres import Database


class Keyring:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
