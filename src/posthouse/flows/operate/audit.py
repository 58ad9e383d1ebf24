"""Audit: checks whether the promises hold, against the database and the outside logs.

It reads while the service runs: account after account, a page of messages at a time, each from a short snapshot. The
outside logs are read first.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, TypeVar
from uuid import UUID

from posthouse.flows.operate.audit_logs import Observations, OutsideLogReader
from posthouse.flows.operate.audit_logs import OutsideLogs as OutsideLogs
from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import ids
from posthouse.rules.audit import message_record, outside_logs
from posthouse.rules.audit.message_record import MessageRecord, RecipientRecord
from posthouse.rules.audit.promises import AuditFinding, AuditTally, FaultKind, Promise
from posthouse.rules.erasure import ERASED
from posthouse.rules.ids import AccountId
from posthouse.store import audit_reads, partitions
from posthouse.store.audit_reads import EventWithRecipient, IdempotencyRecord, WebhookDeliveryRecord
from posthouse.store.partitions import snapshot
from posthouse.store.postgres import Connection

MESSAGES_BATCH: Final = 500
ROWS_BATCH: Final = 2_000
ACCOUNTS_BATCH: Final = 200
# Longer ledgers are not added up, because the snapshot would be open for too long.
LEDGER_ENTRIES_MAX: Final = 500_000
Row = TypeVar("Row", MessageRecord, EventWithRecipient, WebhookDeliveryRecord)
_FIRST: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class AuditProgress:
    """How far the audit has come."""

    account: str
    messages: int
    events: int


class Audit(Flow):
    def __init__(self, context: Context, *, return_path_domain: str, simulator_domain: str) -> None:
        super().__init__(context)
        self._reader = OutsideLogReader(context, return_path_domain=return_path_domain)
        self._simulator_domain = simulator_domain

    async def audit(
        self,
        logs: OutsideLogs,
        report: Callable[[AuditProgress], None],
        *,
        only: AccountId | None = None,
    ) -> AuditTally:
        """Check every promise for every account, or for `only`. An OutsideLogError names a line that can't be read."""
        tally = AuditTally()
        seen = await self._reader.read(logs, tally)
        messages = events = 0
        async for account_id, name in self._accounts(only):
            async for batch in self._messages(account_id):
                for record in batch:
                    message_record.check_record(record, tally)
                    self._compare(record, logs, seen, tally)
                messages += len(batch)
                report(AuditProgress(name, messages, events))
            async for page in self._events(account_id):
                days = await self._whole_days()
                for event in page:
                    tally.check(Promise.EVENTS, 1, _event_findings(event, days))
                events += len(page)
                report(AuditProgress(name, messages, events))
            async for deliveries in self._webhook_deliveries(account_id):
                for delivery in deliveries:
                    tally.check(Promise.WEBHOOKS, 1, _webhook_findings(delivery, logs, seen))
            await self._check_keys(account_id, seen, tally)
            await self._check_ledger(account_id, tally)
        for key, answered in seen.keys.items():
            findings = outside_logs.compare_key(key, list(answered), seen.credentials)
            tally.check(Promise.IDEMPOTENT, 1, list(findings))
        tally.check(Promise.REGISTERED, seen.unnamed.total(), _unnamed(seen))
        tally.check(Promise.DURABLE, len(seen.accepted), _missing(seen))
        return tally

    async def verify_ledger(self, *, only: AccountId | None = None) -> AuditTally:
        """The part of the audit that is about credits."""
        tally = AuditTally()
        async for account_id, _ in self._accounts(only):
            async for batch in self._messages(account_id):
                for record in batch:
                    message_record.check_ledger(record, tally)
            await self._check_ledger(account_id, tally)
        return tally

    def _compare(self, record: MessageRecord, logs: OutsideLogs, seen: Observations, tally: AuditTally) -> None:
        if logs.sender is not None:
            tally.check(Promise.IDEMPOTENT, 1, _unasked(record, seen))
        if logs.receiver is None or record.credits_reserved == 0:
            return
        # Mail that the simulator took is in no outside log: test mail, mail to its domain, captured mail.
        counts = seen.arrivals.pop(record.id, Counter[str]())
        known = {recipient.email.lower() for recipient in record.recipients}
        if ERASED in known:
            # It arrived at an address that is in no table any more.
            counts[ERASED] = sum(count for email, count in counts.items() if email not in known)
        real = [
            recipient
            for recipient in record.recipients
            if recipient.email.rpartition("@")[2].lower() != self._simulator_domain
            and not record.is_simulated(recipient.position)
        ]
        if real:
            if record.envelope_sender:
                arrivals = {recipient.position: counts[recipient.email.lower()] for recipient in real}
            else:
                arrivals = _taken(real, seen)
            outside_logs.compare_arrivals(record, real, arrivals, tally)

    # The database.

    async def _accounts(self, only: AccountId | None) -> AsyncIterator[tuple[AccountId, str]]:
        after = _FIRST
        while True:
            async with snapshot(self._database, holds_days=True) as tx:
                page = await audit_reads.accounts(tx, after, ACCOUNTS_BATCH)
            for account_id, name in page:
                if only in (None, account_id):
                    yield account_id, name
            if len(page) < ACCOUNTS_BATCH:
                return
            after = page[-1][0]

    def _messages(self, account_id: AccountId) -> AsyncIterator[Sequence[MessageRecord]]:
        return self._pages(audit_reads.next_message_records, account_id, MESSAGES_BATCH)

    def _events(self, account_id: AccountId) -> AsyncIterator[Sequence[EventWithRecipient]]:
        return self._pages(audit_reads.events, account_id, ROWS_BATCH)

    def _webhook_deliveries(self, account_id: AccountId) -> AsyncIterator[Sequence[WebhookDeliveryRecord]]:
        return self._pages(audit_reads.webhook_deliveries, account_id, ROWS_BATCH)

    async def _pages(
        self,
        read: Callable[[Connection, AccountId, UUID, int], Awaitable[Sequence[Row]]],
        account_id: AccountId,
        size: int,
    ) -> AsyncIterator[Sequence[Row]]:
        """All rows by id; each page is read from its own snapshot."""
        after = _FIRST
        while True:
            async with snapshot(self._database, holds_days=True) as tx:
                page = await read(tx, account_id, after, size)
            yield page
            if len(page) < size:
                return
            after = page[-1].id

    async def _check_keys(self, account_id: AccountId, seen: Observations, tally: AuditTally) -> None:
        after: tuple[UUID, str] = (_FIRST, "")
        while True:
            async with snapshot(self._database, holds_days=True) as tx:
                page = await audit_reads.keys(tx, account_id, after, ROWS_BATCH)
            # A login's scope is not always the credential that its message names.
            seen.credentials |= {
                row.message_id: row.credential_id for row in page if row.message_id in seen.keys.get(row.key, ())
            }
            for row in page:
                findings = []
                where = ids.text(ids.MESSAGE, row.message_id)
                if not row.has_message:
                    what = "its key is remembered, but the message is gone"
                    findings.append(AuditFinding(Promise.IDEMPOTENT, FaultKind.LOST, where, what))
                if _was_answered_otherwise(row, seen):
                    what = f"its key {row.key!r} was answered with another message"
                    findings.append(AuditFinding(Promise.IDEMPOTENT, FaultKind.DUPLICATED, where, what))
                tally.check(Promise.IDEMPOTENT, 1, findings)
            if len(page) < ROWS_BATCH:
                return
            after = page[-1].credential_id, page[-1].key

    async def _check_ledger(self, account_id: AccountId, tally: AuditTally) -> None:
        async with snapshot(self._database, holds_days=True) as tx:
            ledger = await audit_reads.ledger_totals(tx, account_id, LEDGER_ENTRIES_MAX)
        where = ids.text(ids.ACCOUNT, account_id)
        findings = []
        if ledger is None:
            what = f"its ledger has more than {LEDGER_ENTRIES_MAX} entries, so it was not added up"
            findings.append(AuditFinding(Promise.LEDGER, FaultKind.UNKNOWN, where, what))
        elif ledger.available != ledger.granted - ledger.reserved + ledger.released:
            wanted = ledger.granted - ledger.reserved + ledger.released
            what = f"{ledger.available} credits are available, but its ledger adds up to {wanted}"
            findings.append(AuditFinding(Promise.LEDGER, FaultKind.UNEXPECTED, where, what))
        tally.check(Promise.LEDGER, 1, findings)

    async def _whole_days(self) -> set[date]:
        """The days whose recipients are all still stored."""
        async with self._database.connection() as connection:
            found = await partitions.attached(connection)
        return {partition.day for partition in found if partition.table == "recipients" and not partition.is_reduced}


def _unasked(record: MessageRecord, seen: Observations) -> list[AuditFinding]:
    """A sender without an answer may have left a message; every other message must be known to its sender."""
    if record.id in seen.accepted:
        seen.accepted.discard(record.id)
        seen.credentials[record.id] = record.credential_id
        return []
    if record.source == "smtp" and seen.smtp_unanswered > 0:
        seen.smtp_unanswered -= 1
        return []
    if record.source != "smtp":
        return []  # known by its key, if at all
    return [AuditFinding(Promise.IDEMPOTENT, FaultKind.UNEXPECTED, record.name, "no sender knows of it")]


def _was_answered_otherwise(row: IdempotencyRecord, seen: Observations) -> bool:
    """Whether the key gave another message of the same credential before it had expired."""
    made_at = ids.time_of(row.message_id)
    return any(
        message_id != row.message_id
        and seen.credentials.get(message_id) == row.credential_id
        and abs(ids.time_of(message_id) - made_at) < outside_logs.KEY_LIFETIME
        for message_id in seen.keys.get(row.key, ())
    )


def _taken(recipients: Sequence[RecipientRecord], seen: Observations) -> dict[int, int]:
    """Match an arrival with the empty sender to each delivered recipient, as long as its address has any left."""
    taken = {}
    for recipient in recipients:
        email = recipient.email.lower()
        if recipient.status == "delivered" and seen.unnamed[email] > 0:
            seen.unnamed[email] -= 1
            taken[recipient.position] = 1
    return taken


def _unnamed(seen: Observations) -> list[AuditFinding]:
    what = "it arrived from the empty sender, which names no message"
    return [
        AuditFinding(Promise.REGISTERED, FaultKind.UNKNOWN, address, what)
        for address in sorted(seen.unnamed.elements())
    ]


def _missing(seen: Observations) -> list[AuditFinding]:
    return [
        AuditFinding(
            Promise.DURABLE, FaultKind.LOST, ids.text(ids.MESSAGE, message_id), "it was accepted, but is not on record"
        )
        for message_id in sorted(seen.accepted)
    ]


def _event_findings(event: EventWithRecipient, whole_days: Collection[date]) -> list[AuditFinding]:
    if event.message_id is None:
        return []
    where = ids.text(ids.EVENT, event.id)
    if event.status is None:
        is_old = ids.time_of(event.message_id).date() not in whole_days
        fault = FaultKind.UNKNOWN if is_old else FaultKind.UNEXPECTED
        return [AuditFinding(Promise.EVENTS, fault, where, "it is about a recipient that doesn't exist")]
    if event.final_at is None or event.type != f"email.{event.status}":
        return [
            AuditFinding(
                Promise.EVENTS,
                FaultKind.UNEXPECTED,
                where,
                f"it says {event.type} about a recipient that is {event.status}",
            )
        ]
    made_at = ids.time_of(event.id)
    if not event.final_at - message_record.EVENT_BEFORE <= made_at <= event.final_at + message_record.EVENT_AFTER:
        return [AuditFinding(Promise.EVENTS, FaultKind.DUPLICATED, where, "its time differs from that of the result")]
    return []


def _webhook_findings(delivery: WebhookDeliveryRecord, logs: OutsideLogs, seen: Observations) -> list[AuditFinding]:
    def finding(fault: FaultKind, what: str) -> AuditFinding:
        return AuditFinding(Promise.WEBHOOKS, fault, ids.text(ids.WEBHOOK_DELIVERY, delivery.id), what)

    found = []
    is_pending = delivery.status == "pending"
    if is_pending and not delivery.is_scheduled:
        found.append(finding(FaultKind.LOST, "it is pending, but nothing will send it"))
    if not is_pending and delivery.is_scheduled:
        found.append(finding(FaultKind.UNEXPECTED, f"it is {delivery.status}, but scheduled to be sent again"))
    if delivery.status == "failed" and delivery.attempt < delivery.max_attempts and not delivery.error:
        found.append(finding(FaultKind.UNEXPECTED, f"it was given up after {delivery.attempt} attempts, for no reason"))
    # Receivers' logs are those of webhooks; their calls are known by their signatures.
    if logs.webhooks is not None and delivery.status == "succeeded" and delivery.is_of_webhook:
        answers: Sequence[int] = seen.webhooks.get(delivery.event_id, ())
        if not any(200 <= status < 300 for status in answers):
            found.append(finding(FaultKind.LOST, "it succeeded, but the receiver never answered with a 2xx"))
    return found
