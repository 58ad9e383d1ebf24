"""All waiting messages with a tag or with metadata are cancelled, a bounded number with each request.

Each message is decided by a transaction of its own, as a single cancellation is: a request that ends in between has
cancelled some of them, and the same request again cancels the others.
"""

from dataclasses import dataclass
from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.account.unsent_mail import UnsentMail
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.principal import Caller
from posthouse.rules import ids
from posthouse.rules.message import MessageStatus
from posthouse.rules.refusal import invalid
from posthouse.rules.search import SearchFilters
from posthouse.store.postgres import Database

# Of a request: messages, and pages of the search, each of which may be empty.
MESSAGES_MAX: Final = 100
PAGES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class CancelledMessages:
    """`tried` were found and stay as they are. Without a `next_cursor`, there were no more."""

    cancelled: int
    tried: int
    next_cursor: str | None


class MessageCancellation:
    def __init__(
        self, *, database: Database, clock: Clock, chance: Chance, search: MessageSearch, unsent_mail: UnsentMail
    ) -> None:
        self._database = database
        self._clock = clock
        self._audit_log = AuditLog(chance)
        self._search = search
        self._unsent_mail = unsent_mail

    async def cancel(
        self, caller: Caller, filters: SearchFilters, cursor: str | None, *, is_dry_run: bool
    ) -> CancelledMessages:
        """Cancel what waits and matches the filters, from the cursor on; a dry run only counts it."""
        if filters.tag is None and not filters.metadata:
            raise invalid("`tag` or `metadata` says which messages are meant: give one of them, or both.")
        counts = {True: 0, False: 0}
        pages = 0
        while pages == 0 or (cursor is not None and pages < PAGES_MAX and sum(counts.values()) < MESSAGES_MAX):
            room = MESSAGES_MAX - sum(counts.values())
            page = await self._search.page(caller.account_id, filters, room, cursor)
            for message in page.items:
                is_cancelled = await self._unsent_mail.cancel_found(
                    caller.account_id, message.id, is_dry_run=is_dry_run
                )
                counts[is_cancelled] += 1
            pages, cursor = pages + 1, page.next_cursor
        if counts[True] and not is_dry_run:
            await self._note(caller, filters, counts[True])
        return CancelledMessages(counts[True], counts[False], cursor)

    async def _note(self, caller: Caller, filters: SearchFilters, cancelled: int) -> None:
        detail: dict[str, str | int] = {"cancelled": cancelled}
        if filters.tag is not None:
            detail["tag"] = filters.tag
        if filters.metadata:
            # Values may be personal data.
            detail["metadata"] = ", ".join([name for name, _ in filters.metadata])
        async with self._database.transaction() as tx:
            await self._audit_log.note(
                tx,
                caller.account_id,
                caller.actor,
                "messages.cancelled",
                ids.text(ids.ACCOUNT, caller.account_id),
                self._clock.now(),
                detail,
            )


def waiting(tag: str | None, metadata: dict[str, str] | None) -> SearchFilters:
    """Messages that are not final, with this tag and all of this metadata."""
    return SearchFilters(status=MessageStatus.QUEUED, tag=tag, metadata=tuple((metadata or {}).items()))
