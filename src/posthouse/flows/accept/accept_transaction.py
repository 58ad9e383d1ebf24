"""The transaction that accepts messages: keys, quotas and rows of many at once, each with its own answer."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from posthouse import crash, metrics
from posthouse.clock import Clock
from posthouse.flows.accept.quota_batch import QuotaBatch
from posthouse.flows.accept.replay import AcceptedMessage, check_same, in_progress, replay
from posthouse.flows.shared.account_limits import Defaults, working_copy
from posthouse.flows.shared.tickets import Tickets
from posthouse.rules import ids, send_time
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.limits import BULK_EMAILS_PER_REQUEST
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import acceptance
from posthouse.store.acceptance import IdempotencyKey, PreparedMessage, RememberedKey
from posthouse.store.postgres import Connection, Database

# The time for a failed batch to be tried again in parts. It has waited for its locks once, so a part waits only as
# long as other batches take.
APART_SECONDS_MAX: Final = 3.0
APART_LOCK_MILLISECONDS_MAX: Final = 250
# The search index and the usage counter read messages in the order of their ids, and miss a message written later.
WAITED_MAX: Final = timedelta(seconds=20)


class Bulk(NamedTuple):
    """What the transactions of one bulk request share; each writes messages of it and of no other request."""

    key: IdempotencyKey
    body_hash: bytes
    # All of its messages are accepted, or none.
    is_all: bool
    # How many messages its earlier transactions accepted.
    accepted_count: int = 0


# Writes, in the transaction, what else follows from its answers.
Note = Callable[[Connection, "Sequence[AcceptedMessage | BaseException]"], Awaitable[None]]


class NotAllAcceptedError(Exception):
    """One message at least of a bulk request that wants all was refused; nothing was written."""

    def __init__(self, answers: "Sequence[AcceptedMessage | BaseException]") -> None:
        super().__init__()
        self.answers = answers


class AcceptTransaction:
    def __init__(self, *, database: Database, clock: Clock, defaults: Defaults, tickets: Tickets | None) -> None:
        self._database = database
        self._clock = clock
        self._defaults = defaults
        self._tickets = tickets

    async def accept(self, entries: Sequence[PreparedMessage]) -> Sequence[AcceptedMessage | BaseException]:
        """One transaction for many; where that fails, smaller ones, so that no message fails because of another."""
        try:
            return await self._together(entries)
        except Refusal as refusal:
            if refusal.code is not Code.TEMPORARY_FAILURE:
                raise
            # Another transaction holds an account's row: the other accounts needn't wait for it.
            groups = _by_account(entries)
        except Exception as fault:
            if len(entries) == 1:
                return [fault]
            groups = [[entry] for entry in entries]
        answers = await self._apart(groups)
        return [answers[entry.message_id] for entry in entries]

    async def accept_piece(
        self, entries: Sequence[PreparedMessage], bulk: Bulk
    ) -> Sequence[AcceptedMessage | BaseException]:
        """Messages of a bulk request, in one transaction; its key is remembered with the first of them.

        Where that fails, one by one, so that none fails because of another; unless all or none are wanted.
        """
        try:
            return await self._together(entries, bulk=bulk)
        except (Refusal, NotAllAcceptedError):
            raise
        except Exception:
            if bulk.is_all or len(entries) == 1:
                raise
        answers: list[AcceptedMessage | BaseException] = []
        for entry in entries:
            before = sum(isinstance(answer, AcceptedMessage) for answer in answers)
            try:
                answers += await self._together(
                    [entry], bulk=bulk._replace(accepted_count=bulk.accepted_count + before)
                )
            except Refusal:
                raise
            except Exception as fault:
                answers.append(fault)
        return answers

    async def accept_resent(self, entries: Sequence[PreparedMessage], note: Note) -> None:
        """Old messages of an account that are sent again; they count as one request of its rate."""
        await self._together(entries, note=note)

    async def _apart(
        self, groups: Sequence[Sequence[PreparedMessage]]
    ) -> dict[MessageId, AcceptedMessage | BaseException]:
        give_up_at = self._clock.monotonic() + APART_SECONDS_MAX
        answers: dict[MessageId, AcceptedMessage | BaseException] = {}
        for group in groups:
            try:
                if self._clock.monotonic() > give_up_at:
                    raise _waited_too_long()
                results = await self._together(group, lock_milliseconds=APART_LOCK_MILLISECONDS_MAX)
            except Refusal as refusal:
                results = [refusal.copy() for _ in group]
            except Exception as fault:
                if len(group) > 1:
                    answers |= await self._apart([[entry] for entry in group])
                    continue
                results = [fault]
            answers |= {entry.message_id: result for entry, result in zip(group, results, strict=True)}
        return answers

    async def _together(
        self,
        entries: Sequence[PreparedMessage],
        lock_milliseconds: int | None = None,
        bulk: Bulk | None = None,
        note: Note | None = None,
    ) -> list[AcceptedMessage | BaseException]:
        keys = [entry.key for entry in entries if entry.key is not None]
        locks = keys
        if bulk is not None:
            keys.append(bulk.key)
            # Its messages' keys come with it alone: locked one by one, two equal requests would take some each.
            locks = [bulk.key]
        began_at = self._clock.monotonic()
        async with self._database.transaction() as tx:
            if lock_milliseconds is not None:
                await acceptance.limit_waiting(tx, lock_milliseconds)
            granted, rows = await acceptance.lock(tx, locks, sorted({entry.account_id for entry in entries}))
            crash.point("accept.locked")
            remembered = await acceptance.recall(tx, keys) if keys else {}
            now = self._clock.now()
            if bulk is not None:
                _check_bulk(bulk, granted, remembered, now)
            batch = QuotaBatch({row.id: working_copy(row, self._defaults) for row in rows.values()}, now)
            oldest = ids.lowest_id(now - WAITED_MAX)
            answers: list[AcceptedMessage | BaseException] = []
            for entry in entries:
                try:
                    if entry.key is not None:
                        known = remembered.get(entry.key)
                        if known is not None and known.expires_at > now:
                            answers.append(await replay(tx, entry.key, entry.body_hash, known))
                            continue
                        if bulk is None and not granted[entry.key]:
                            raise in_progress()
                    if entry.message_id < oldest:
                        raise _waited_too_long()
                    is_request = not batch.entries if note else bulk is None or _is_request(bulk, batch)
                    answers.append(batch.admit(entry, is_request=is_request))
                except Refusal as refusal:
                    answers.append(refusal)
            if bulk is not None and bulk.is_all and any(isinstance(answer, Refusal) for answer in answers):
                raise NotAllAcceptedError(answers)
            expired = [key for key, known in remembered.items() if known.expires_at <= now]
            if expired:
                await acceptance.forget(tx, expired)
            crash.point("accept.decided")
            if batch.entries:
                due_at = now if self._tickets is None else now + self._tickets.lease
                await acceptance.write(tx, batch.entries, batch.spendings(), now, due_at)
                if bulk is not None and (bulk.key not in remembered or bulk.key in expired):
                    await acceptance.remember(tx, bulk.key, bulk.body_hash, batch.entries[0].message_id, now)
            if note is not None:
                await note(tx, answers)
            crash.point("accept.before_commit")
        crash.point("accept.after_commit")
        metrics.ACCEPT_BATCH.observe(len(entries))
        metrics.ACCEPT_BATCH_SECONDS.observe(self._clock.monotonic() - began_at)
        metrics.CREDITS.count("reserved", by=sum(entry.credits for entry in batch.entries))
        if self._tickets is not None:
            due = [entry for entry in batch.entries if not send_time.is_ahead(entry.send_at, now)]
            self._tickets.publish(_tickets(due))
            crash.point("accept.published")
        return answers


def _check_bulk(
    bulk: Bulk,
    granted: Mapping[IdempotencyKey, bool],
    remembered: Mapping[IdempotencyKey, RememberedKey],
    now: datetime,
) -> None:
    if not granted[bulk.key]:
        raise in_progress()
    known = remembered.get(bulk.key)
    if known is not None and known.expires_at > now:
        check_same(bulk.body_hash, known)


def _is_request(bulk: Bulk, batch: QuotaBatch) -> bool:
    """Whether the next message counts as a request of the rate: the first of so many."""
    return (bulk.accepted_count + len(batch.entries)) % BULK_EMAILS_PER_REQUEST == 0


def _tickets(entries: Sequence[PreparedMessage]) -> Iterator[DeliveryTicket]:
    for entry in entries:
        for position, recipient in enumerate(entry.recipients):
            destination = entry.routed_to or recipient.destination
            yield DeliveryTicket(
                entry.account_id,
                entry.message_id,
                position,
                0,
                destination,
                entry.sender_domain,
                is_list=entry.is_list,
            )


def _by_account(entries: Sequence[PreparedMessage]) -> list[list[PreparedMessage]]:
    groups: dict[AccountId, list[PreparedMessage]] = {}
    for entry in entries:
        groups.setdefault(entry.account_id, []).append(entry)
    return list(groups.values())


def _waited_too_long() -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, "The service was busy: try again.", 1)
