"""Unsubscribes the recipient of a message from its list, through the link in the message."""

from posthouse.flows.shared.context import Flow
from posthouse.rules import unsubscribe
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.unsubscribe import ListMember
from posthouse.store import endpoint_events, suppressions


class Unsubscribe(Flow):
    """The link is the only proof: its holder has the message, and asking for more would not be one click (RFC 8058)."""

    def member(self, token: str) -> ListMember:
        """The address and the list that the link is about, without unsubscribing."""
        member = next(filter(None, (unsubscribe.read(token, key) for key in self._keys.unsubscribe)), None)
        if member is None:
            raise Refusal(
                Code.NOT_FOUND,
                "This unsubscribe link is incomplete or not from this service: copy all of it from the email.",
            )
        return member

    async def unsubscribe(self, token: str) -> ListMember:
        """The address gets no more mail of the list from now on; mail that is already queued for it bounces."""
        member = self.member(token)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            if await suppressions.unsubscribe(tx, member, now):
                await endpoint_events.enter_of_account(tx, [endpoint_events.of_leaver(member)], now)
        return member
