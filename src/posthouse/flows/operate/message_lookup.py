"""Messages of all accounts, as an operator looks for them: by an id that a customer quotes, or by an address.

`explained` says why a recipient waits or how it ended, with its lane's limit change and what an operator can do.
"""

import re
from datetime import timedelta
from typing import Final, NamedTuple

from posthouse.flows.operate.monitor import RecipientTimeline, StoredLimitChange, Timeline
from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import ids, learned_limits, search
from posthouse.rules.credential import OPERATOR
from posthouse.rules.explanation import operators_step
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.search import SearchField
from posthouse.rules.wait_reason import one_line, quoted
from posthouse.store import message_search, usage
from posthouse.store.message_search import FoundMessage as FoundMessage
from posthouse.store.message_search import IdRange, MessageKey
from posthouse.store.postgres import Connection

QUOTED_CHARACTERS_MAX: Final = 500
# In the account's log.
CONTENT_READ: Final = "message.content_read"

# `queued as em_01k…`, a recipient's `rc_01k…`, `Message-ID: <01k…@mail.example.com>`. A message's id is a recipient's
# id without the recipient's number.
_ID: Final = re.compile(r"(?<![0-9a-z])(?:em_|rc_)?([0-9a-z]{26})(?![0-9a-z])", re.IGNORECASE)
SHOWN_MAX: Final = 50
SEARCHED: Final = timedelta(days=7)
ACCOUNTS_A_STEP: Final = 500
# The most by which the clocks of processes differ.
CLOCKS_DIFFER: Final = timedelta(seconds=5)


def message_id_in(text: str) -> MessageId | None:
    """The first message id in the text: a server's reply, a header, or a line of a log."""
    for found in _ID.finditer(text):
        value = ids.parse("", found[1].lower())
        if value is not None:
            return ids.message_of(value)
    return None


class FoundMessages(NamedTuple):
    """The newest first; `is_more` says that there are older ones."""

    messages: list[FoundMessage]
    is_more: bool


class MessageLookup(Flow):
    def __init__(self, context: Context, *, accounts_a_step: int = ACCOUNTS_A_STEP) -> None:
        """In an account's log its owners see "the operator"; the operator's log names the `actor`."""
        super().__init__(context)
        self._accounts_a_step = accounts_a_step

    async def find(self, given: str) -> FoundMessages:
        """The message whose id is in the text; or, if the text is an address, its mail of the last 7 days."""
        if len(given) > QUOTED_CHARACTERS_MAX:
            raise invalid(f"`q` has at most {QUOTED_CHARACTERS_MAX} characters.")
        message_id = message_id_in(given)
        async with self._database.connection() as connection:
            if message_id is not None:
                place = await message_search.of_any_account_with_id(connection, message_id)
                if place is not None:
                    return FoundMessages(await message_search.shown_to_operators(connection, [place]), is_more=False)
            if "@" in given:
                return await self._with_address(connection, search.whole_address("q", given))
        if message_id is not None:
            return FoundMessages([], is_more=False)
        raise invalid("`q` is a message's id, a text that contains one, or a whole address, such as ada@example.com.")

    async def newest(self, account_id: AccountId, count: int) -> list[FoundMessage]:
        """The account's newest messages of the last 7 days."""
        now = self._clock.now()
        span = IdRange(ids.lowest_id(now - SEARCHED), ids.lowest_id(now + CLOCKS_DIFFER))
        async with self._database.connection() as connection:
            found = await message_search.newest(connection, account_id, span, count)
            places = [MessageKey(account_id, message_id) for message_id in found]
            return await message_search.shown_to_operators(connection, places)

    async def account_of(self, given_id: str) -> AccountId:
        """The account whose message it is."""
        message_id = ids.parse(ids.MESSAGE, given_id)
        place = None
        if message_id is not None:
            async with self._database.connection() as connection:
                place = await message_search.of_any_account_with_id(connection, MessageId(message_id))
        if place is None:
            raise Refusal(Code.NOT_FOUND, "No account has a message with that id.")
        return place.account_id

    async def note_read(self, account_id: AccountId, action: str, message_id: str | None = None) -> None:
        """Log the access; to be called before an operator sees the message, or the file with all of the account's.

        Ignores a text that is no message's id.
        """
        if message_id is not None and ids.parse(ids.MESSAGE, message_id) is None:
            return
        target, now = message_id or ids.text(ids.ACCOUNT, account_id), self._clock.now()
        async with self._database.transaction() as tx:
            await self._audit_log.add_entry(tx, account_id, OPERATOR, action, target, now)
            await self._operator_log.add_entry(tx, action, target, now)

    async def _with_address(self, connection: Connection, address: str) -> FoundMessages:
        now = self._clock.now()
        span = IdRange(ids.lowest_id(now - SEARCHED), ids.lowest_id(now + CLOCKS_DIFFER))
        terms = [search.term(field, address) for field in (SearchField.RECIPIENT, SearchField.SENDER)]
        found: set[MessageKey] = set()
        account_ids: list[AccountId] = []
        # A message from an address to itself has both terms.
        count = 2 * (SHOWN_MAX + 1)
        while account_ids := await usage.accounts_after(
            connection, account_ids[-1] if account_ids else None, self._accounts_a_step
        ):
            found.update(await message_search.of_any_account_with_terms(connection, account_ids, terms, span, count))
        newest = sorted(found, key=lambda place: place.message_id, reverse=True)
        messages = await message_search.shown_to_operators(connection, newest[:SHOWN_MAX])
        return FoundMessages(messages, len(newest) > SHOWN_MAX)


class RecipientExplanation(NamedTuple):
    """`now` is None once it is final; `lane` describes the limit change that stops its lane."""

    email: str
    status: str
    now: str | None
    reason: str
    cause: str | None
    why: str
    lane: str | None
    what_to_do: str
    operator: str | None


def explained(
    timeline: Timeline, recipient: RecipientTimeline, limit_change: StoredLimitChange | None
) -> RecipientExplanation:
    wait, waiting = timeline.wait(recipient), recipient.waiting
    why = timeline.explained(recipient)
    said = quoted(recipient.code, recipient.response)
    step = None
    if wait is not None:
        step = operators_step(
            wait.reason,
            None if waiting is None else waiting.held_by,
            account=ids.text(ids.ACCOUNT, timeline.account_id),
            message=ids.text(ids.MESSAGE, timeline.id),
            lane=limit_change.change.scope.lane if limit_change else recipient.email.rpartition("@")[2].lower(),
        )
    return RecipientExplanation(
        email=one_line(recipient.email),
        status=recipient.status,
        now=None if wait is None else wait.text,
        reason=why.reason,
        cause=why.cause,
        why=why.headline if wait or not said else f"{why.headline.removesuffix('.')}{said}",
        lane=None
        if limit_change is None
        else f"{limit_change.change.scope.lane} {learned_limits.change_text(limit_change.change)}",
        what_to_do=why.what_to_do,
        operator=" ".join(filter(None, (step, about_service(recipient)))) or None,
    )


def about_service(recipient: RecipientTimeline) -> str | None:
    """What the last reply says about this service."""
    replied = [attempt for attempt in recipient.attempts if attempt.code is not None]
    reply_signal = replied[-1].explained_reply_signal() if replied else None
    if reply_signal is None:
        return None
    page = f" See {reply_signal.page}" if reply_signal.page else ""
    return f"About this service: {reply_signal.headline} {reply_signal.what_to_do}{page}"
