"""The team: an account's members, the invitations to join it, and the log of who changed what."""

from posthouse.clock import Clock
from posthouse.store.postgres import Database


class Team:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
