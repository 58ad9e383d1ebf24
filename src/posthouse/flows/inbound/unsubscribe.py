"""Unsubscription: whoever holds the link of a mail leaves the list that the mail was sent to."""

from posthouse.clock import Clock
from posthouse.rules import unsubscribe
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.unsubscribe import ListMember
from posthouse.store import unsubscriptions
from posthouse.store.postgres import Database


class Unsubscribe:
    """The link is all that is asked for: whoever has it has the mail, and anything more would not be one click."""

    def __init__(self, *, database: Database, clock: Clock, key: bytes) -> None:
        self._database = database
        self._clock = clock
        self._key = key

    def leaver(self, token: str) -> ListMember:
        """Who would leave which list; nothing happens."""
        leaver = unsubscribe.read(token, self._key)
        if leaver is None:
            raise Refusal(
                Code.NOT_FOUND,
                "This link to unsubscribe is not complete, or not of this service: copy all of it from the mail.",
            )
        return leaver

    async def leave(self, token: str) -> ListMember:
        """From now on the address gets no more mail of the list; what is queued for it already bounces."""
        leaver = self.leaver(token)
        async with self._database.transaction() as tx:
            await unsubscriptions.leave(tx, leaver, self._clock.now())
        return leaver
