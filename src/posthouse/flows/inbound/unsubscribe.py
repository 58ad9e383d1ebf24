"""Unsubscribes the recipient of a mail from its list, by the link in the mail."""

from collections.abc import Sequence

from posthouse.clock import Clock
from posthouse.rules import unsubscribe
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.unsubscribe import ListMember
from posthouse.store import endpoint_events, unsubscriptions
from posthouse.store.postgres import Database


class Unsubscribe:
    """The link is the only proof: its holder has the mail, and more would not be one click (RFC 8058)."""

    def __init__(self, *, database: Database, clock: Clock, keys: Sequence[bytes]) -> None:
        self._database = database
        self._clock = clock
        self._keys = keys

    def member(self, token: str) -> ListMember:
        """The address and the list that the link is about; changes nothing."""
        member = next(filter(None, (unsubscribe.read(token, key) for key in self._keys)), None)
        if member is None:
            raise Refusal(
                Code.NOT_FOUND,
                "This link to unsubscribe is not complete, or not of this service: copy all of it from the mail.",
            )
        return member

    async def unsubscribe(self, token: str) -> ListMember:
        """From now on the address gets no more mail of the list; what is queued for it already bounces."""
        member = self.member(token)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            if await unsubscriptions.unsubscribe(tx, member, now):
                await endpoint_events.enter_of_account(tx, [endpoint_events.of_leaver(member)], now)
        return member
