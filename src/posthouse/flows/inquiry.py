"""Inquiry: what became of a message."""

from posthouse.rules import ids
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import messages
from posthouse.store.messages import Message as Message
from posthouse.store.messages import Recipient as Recipient
from posthouse.store.postgres import Database


class Inquiry:
    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def message(self, account_id: AccountId, given_id: str) -> Message:
        """The account's message; another account's is not found, exactly like one that never was."""
        message_id = ids.parse(ids.MESSAGE, given_id)
        if message_id is not None:
            async with self._database.connection() as connection:
                found = await messages.message(connection, account_id, MessageId(message_id))
            if found is not None:
                return found
        raise Refusal(Code.NOT_FOUND, "This account has no message with that id.")
