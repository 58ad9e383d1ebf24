"""Erases addresses: a page of messages of each running erasure at a time, in a transaction for each.

The messages are found through the search index. A waiting recipient that was not tried yet is cancelled. One that was
tried is due immediately, and its next claim finds the address suppressed. A message is erased once its recipients with
the address are final. A pass that had to leave some is followed by another; the last one begins when the index has all
mail from before the erasure. Each transaction writes how far the erasure is, so when a process dies, each message has
been erased completely or not at all.
"""

from datetime import timedelta
from typing import Final

import structlog

from posthouse import crash, metrics
from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import erasure as rules
from posthouse.rules import ids, reputation, search
from posthouse.rules.erasure import ErasurePhase
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.message import MessageStatus, read_metadata
from posthouse.rules.search import SearchField
from posthouse.rules.suppression import SuppressionReason
from posthouse.store import delivery_outcomes, erasures, message_changes, message_detail, search_index, suppressions
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult
from posthouse.store.erasures import AddressedRecipient, ErasureRow, StoredBody
from posthouse.store.postgres import Connection
from posthouse.store.search_index import IndexEntry

log = structlog.get_logger(__name__)

ERASURES_A_RUN_MAX: Final = 20
MESSAGES_A_STEP: Final = 50
EVENTS_A_STEP: Final = 2_000
# Until another pass looks for the messages that this one had to leave.
PASS_PAUSE: Final = timedelta(seconds=20)
# An id is created before its message is committed, and the clocks of processes differ.
COMMITTED_WITHIN: Final = timedelta(seconds=60)


class Erasing(Flow):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_idle = False

    def is_idle(self) -> bool:
        """Whether the last step found no running erasure."""
        return self._is_idle

    async def step(self) -> int:
        """Continue each erasure that is due; returns how many there were."""
        async with self._database.connection() as connection:
            due = await erasures.due(connection, self._clock.now(), ERASURES_A_RUN_MAX)
            self._is_idle = not due and not await erasures.is_any_running(connection)
        for erasure in due:
            match erasure.phase:
                case ErasurePhase.MESSAGES:
                    await self._erase_messages(erasure)
                case ErasurePhase.EVENTS:
                    await self._erase_events(erasure)
                case _:
                    await self._finish(erasure)
        return len(due)

    async def _erase_messages(self, erasure: ErasureRow) -> None:
        async with self._database.connection() as connection:
            term = search.term(SearchField.RECIPIENT, search.address(erasure.email or ""))
            found = await erasures.with_term(connection, erasure.account_id, term, erasure.position, MESSAGES_A_STEP)
            progress = await search_index.progress(connection)
        for message_id in found:
            async with self._database.transaction() as tx:
                locked = await erasures.lock(tx, erasure)
                if locked is None or locked.position >= message_id:
                    return
                await self._erase_message(tx, locked, message_id, term)
                crash.point("erase.before_commit")
            crash.point("erase.after_commit")
        if len(found) == MESSAGES_A_STEP:
            return
        settled = ids.lowest_id(erasure.created_at + COMMITTED_WITHIN)
        is_indexed = progress is not None and progress.messages_to >= settled
        async with self._database.transaction() as tx:
            locked = await erasures.lock(tx, erasure)
            if locked is None or locked.phase is not ErasurePhase.MESSAGES:
                return
            now = self._clock.now()
            if is_indexed and not locked.left_open:
                await erasures.advance(tx, locked, ErasurePhase.EVENTS, rules.START, now)
            else:
                await erasures.advance(tx, locked, ErasurePhase.MESSAGES, rules.START, now + PASS_PAUSE)

    async def _erase_message(self, tx: Connection, erasure: ErasureRow, message_id: MessageId, term: int) -> None:
        account_id, email = erasure.account_id, erasure.email or ""
        now = self._clock.now()
        cancelled = erased = 0
        left_open = erasure.left_open
        # The message is locked before the schedule's rows, as everywhere.
        if await message_changes.lock(tx, account_id, message_id) is not None:
            addressed = await erasures.addressed(tx, account_id, message_id, email)
            cancelled = await self._cancel(tx, account_id, message_id, addressed)
            if cancelled:
                addressed = await erasures.addressed(tx, account_id, message_id, email)
            if any(recipient.fence is not None for recipient in addressed):
                positions = [recipient.position for recipient in addressed]
                await erasures.hurry(tx, account_id, message_id, positions, now)
                left_open += 1
            elif addressed:
                await self._erase(tx, erasure, message_id, addressed)
                erased = 1
            else:
                # Another address with the same hash, or the address is in a field with another name.
                await erasures.erase_terms(tx, account_id, message_id, [term])
        await erasures.advance(
            tx,
            erasure,
            ErasurePhase.MESSAGES,
            message_id,
            now,
            left_open=left_open,
            cancelled=cancelled,
            erased=erased,
        )

    async def _cancel(
        self, tx: Connection, account_id: AccountId, message_id: MessageId, addressed: list[AddressedRecipient]
    ) -> int:
        """Cancel those that no worker has tried; returns how many."""
        outcomes = [
            DeliveryOutcome(account_id, message_id, recipient.position, recipient.fence, DeliveryResult.CANCELLED)
            for recipient in addressed
            if recipient.fence is not None
            and not (recipient.attempt_count or recipient.is_claimed or recipient.is_restored)
        ]
        if not outcomes:
            return 0
        recorded = await delivery_outcomes.record(tx, outcomes, self._clock.now())
        # Other results reach the search index through their events.
        status = await message_detail.timeline(tx, account_id, message_id, self._clock.now())
        if status is not None and status.status != MessageStatus.QUEUED:
            term = search.term(SearchField.STATUS, status.status)
            await search_index.enter(tx, [IndexEntry(account_id, term, message_id)])
        metrics.CREDITS.count("released", by=recorded.released)
        return len(recorded.counted)

    async def _erase(
        self, tx: Connection, erasure: ErasureRow, message_id: MessageId, addressed: list[AddressedRecipient]
    ) -> None:
        account_id, email = erasure.account_id, erasure.email or ""
        timeline = await message_detail.timeline(tx, account_id, message_id, self._clock.now())
        told = [] if timeline is None else [each.event.id for each in timeline.recipients if each.event is not None]
        for event in await erasures.events(tx, account_id, told):
            if rules.is_in(event.body, email):
                await erasures.set_event(tx, account_id, event._replace(body=rules.blanked(event.body)))
        for event in await erasures.endpoint_events(tx, account_id, message_id):
            await self._blank(tx, account_id, event, email)
        before = await erasures.message(tx, account_id, message_id)
        terms = search.terms_of(
            sender="",
            recipients=[email],
            subject=before.subject,
            tags=[tag for tag in before.tags or () if email in tag.lower()],
            template=None,
            source=before.source,
            credential_id=before.credential_id,
            metadata=read_metadata(before.metadata),
        )
        kept = search.terms_of(
            sender=before.sender,
            recipients=[],
            subject="",
            tags=[tag for tag in before.tags or () if email not in tag.lower()],
            template=before.template,
            source=before.source,
            credential_id=before.credential_id,
        )
        await erasures.erase_terms(tx, account_id, message_id, sorted(terms - kept))
        positions = [recipient.position for recipient in addressed]
        if message_id >= ids.lowest_id(self._clock.now() - reputation.WINDOW):
            await erasures.count_recipients(tx, erasure, message_id, positions)
        await erasures.erase_message(tx, account_id, message_id, positions, rules.pattern(email))

    async def _blank(self, tx: Connection, account_id: AccountId, event: StoredBody, email: str) -> None:
        if rules.is_in(event.body, email):
            await erasures.set_endpoint_event(tx, account_id, event._replace(body=rules.blanked(event.body)))

    async def _erase_events(self, erasure: ErasureRow) -> None:
        async with self._database.transaction() as tx:
            locked = await erasures.lock(tx, erasure)
            if locked is None or locked.phase is not ErasurePhase.EVENTS:
                return
            found, last = await erasures.other_events(tx, locked.account_id, locked.position, EVENTS_A_STEP)
            for event in found:
                await self._blank(tx, locked.account_id, event, locked.email or "")
            now = self._clock.now()
            if last is None:
                await erasures.advance(tx, locked, ErasurePhase.OTHERS, rules.START, now)
            else:
                await erasures.advance(tx, locked, ErasurePhase.EVENTS, last, now)
            crash.point("erase.before_events")

    async def _finish(self, erasure: ErasureRow) -> None:
        async with self._database.transaction() as tx:
            locked = await erasures.lock(tx, erasure)
            if locked is None or locked.email is None:
                return
            now = self._clock.now()
            row = await suppressions.remove(tx, locked.account_id, locked.email)
            suppressed = "no"
            if row is not None and row.reason == SuppressionReason.MANUAL:
                await suppressions.enter(tx, locked.account_id, -1)
            elif row is not None and row.at >= now - reputation.WINDOW:
                await suppressions.lift(tx, locked.account_id, row.reason, row.at)
                suppressed = row.reason
            await erasures.erase_others(tx, locked.account_id, locked.email, rules.pattern(locked.email))
            await erasures.finish(tx, locked, now)
            crash.point("erase.before_end")
        crash.point("erase.ended")
        metrics.ERASED.count(suppressed)
        log.info(
            "address_erased",
            account=ids.text(ids.ACCOUNT, erasure.account_id),
            erasure=ids.text(ids.ERASURE, erasure.id),
            suppressed=suppressed,
        )
