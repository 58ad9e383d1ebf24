"""Messages of all accounts, as an operator looks for them: by what a customer quotes, or by an address."""

from datetime import timedelta
from typing import Final, NamedTuple

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.operator_log import OperatorLog
from posthouse.rules import ids, search
from posthouse.rules.actor import OPERATOR, Actor
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.quoted_message import QUOTED_CHARACTERS_MAX, message_id_in
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.search import SearchField
from posthouse.store import message_lookup, usage
from posthouse.store.message_lookup import FoundMessage as FoundMessage
from posthouse.store.message_lookup import Place
from posthouse.store.message_search import IdRange
from posthouse.store.postgres import Connection, Database

SHOWN_MAX: Final = 50
SEARCHED: Final = timedelta(days=7)
ACCOUNTS_A_STEP: Final = 500
# The most that the processes' clocks differ by.
CLOCKS_DIFFER: Final = timedelta(seconds=5)


class FoundMessages(NamedTuple):
    """The newest first; `is_more` says that there are others, which are older."""

    messages: list[FoundMessage]
    is_more: bool


class MessageLookup:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        actor: Actor,
        accounts_a_step: int = ACCOUNTS_A_STEP,
    ) -> None:
        """In an account's log its owners read of "the operator"; the operator's log names the `actor`."""
        self._database = database
        self._clock = clock
        self._audit_log = AuditLog(chance)
        self._operator_log = OperatorLog(chance, actor)
        self._accounts_a_step = accounts_a_step

    async def find(self, given: str) -> FoundMessages:
        """The message whose id the text has; else the mail from or to the address that it is, of the last 7 days."""
        if len(given) > QUOTED_CHARACTERS_MAX:
            raise invalid(f"`q` has at most {QUOTED_CHARACTERS_MAX} characters.")
        message_id = message_id_in(given)
        async with self._database.connection() as connection:
            if message_id is not None:
                place = await message_lookup.with_id(connection, message_id)
                if place is not None:
                    return FoundMessages(await message_lookup.shown(connection, [place]), is_more=False)
            if "@" in given:
                return await self._with_address(connection, search.whole_address("q", given))
        if message_id is not None:
            return FoundMessages([], is_more=False)
        raise invalid("`q` is a message's id, a text that has one, or a whole address, such as ada@example.com.")

    async def account_of(self, given_id: str) -> AccountId:
        """The account whose message it is."""
        message_id = ids.parse(ids.MESSAGE, given_id)
        place = None
        if message_id is not None:
            async with self._database.connection() as connection:
                place = await message_lookup.with_id(connection, MessageId(message_id))
        if place is None:
            raise Refusal(Code.NOT_FOUND, "No account has a message with that id.")
        return place.account_id

    async def note_content_read(self, account_id: AccountId, given_id: str) -> None:
        """To be called before an operator sees what the message says. What is no id is no message's."""
        if ids.parse(ids.MESSAGE, given_id) is None:
            return
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await self._audit_log.note(tx, account_id, OPERATOR, "message.content_read", given_id, now)
            await self._operator_log.note(tx, "message.content_read", given_id, now)

    async def _with_address(self, connection: Connection, address: str) -> FoundMessages:
        now = self._clock.now()
        span = IdRange(ids.lowest_id(now - SEARCHED), ids.lowest_id(now + CLOCKS_DIFFER))
        terms = [search.term(field, address) for field in (SearchField.RECIPIENT, SearchField.SENDER)]
        found: set[Place] = set()
        account_ids: list[AccountId] = []
        # A message from an address to itself has both terms.
        count = 2 * (SHOWN_MAX + 1)
        while account_ids := await usage.accounts_after(
            connection, account_ids[-1] if account_ids else None, self._accounts_a_step
        ):
            found.update(await message_lookup.with_terms(connection, account_ids, terms, span, count))
        newest = sorted(found, key=lambda place: place.message_id, reverse=True)
        messages = await message_lookup.shown(connection, newest[:SHOWN_MAX])
        return FoundMessages(messages, len(newest) > SHOWN_MAX)
