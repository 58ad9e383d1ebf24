"""Inspection: whether the promises hold, by what is on record and by what witnesses outside have seen.

It reads beside the running service: an account after another, some messages at a time, each time from one short
snapshot. What the witnesses saw is read first, in one pass over each log; of every arrival no more is kept than a
count.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar
from uuid import UUID

from posthouse.clock import Clock
from posthouse.mail.address import AddressError, parse_mailbox
from posthouse.mail.envelope import parse_return_path
from posthouse.rules import ids
from posthouse.rules.audit import message_record as dossiers
from posthouse.rules.audit import outside_logs
from posthouse.rules.audit.message_record import MessageRecord
from posthouse.rules.audit.outside_logs import ArrivalLine, OutsideLogError, SenderLine, WebhookLine
from posthouse.rules.audit.promises import AuditFinding, AuditTally, FaultKind, Promise
from posthouse.rules.ids import AccountId, MessageId
from posthouse.store import audit_reads, partitions, webhooks
from posthouse.store.audit_reads import ToldOf, WebhookDeliveryRecord
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer, SealError
from posthouse.store.webhooks import EndpointRow

MESSAGES_AT_ONCE: Final = 500
ROWS_AT_ONCE: Final = 2_000
ACCOUNTS_AT_ONCE: Final = 200
# Longer ledgers are not added up: it would take a snapshot for too long.
LEDGER_ENTRIES_MAX: Final = 500_000
ARRIVALS_MAX: Final = 5_000_000
ARRIVALS_AT_ONCE: Final = 200
CALLS_AT_ONCE: Final = 200
_FIRST: Final = UUID(int=0)
_LAST: Final = UUID(int=(1 << 128) - 1)

Line = TypeVar("Line")


@dataclass(frozen=True, slots=True)
class Logs:
    """The witnesses' logs, line by line; None where there is no such witness."""

    sender: Iterable[str] | None = None
    receiver: Iterable[str] | None = None
    webhooks: Iterable[str] | None = None


@dataclass(slots=True)
class _Seen:
    """What the witnesses saw, in short."""

    accepted: set[MessageId] = field(default_factory=set)
    keys: dict[str, MessageId | None] = field(default_factory=dict)
    smtp_unanswered: int = 0
    # By message, and in it by address: how often it arrived.
    arrivals: defaultdict[UUID, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    # The statuses that each event's calls were answered with.
    calls: defaultdict[UUID, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class AuditProgress:
    """How far the audit has come."""

    account: str
    messages: int
    events: int


class Audit:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        sealer: Sealer,
        return_path_domain: str,
        return_path_key: bytes,
        simulator_domain: str,
    ) -> None:
        self._database = database
        self._clock = clock
        self._sealer = sealer
        self._return_path_domain = return_path_domain
        self._return_path_key = return_path_key
        self._simulator_domain = simulator_domain

    async def audit(
        self,
        logs: Logs,
        report: Callable[[AuditProgress], None],
        *,
        only: AccountId | None = None,
    ) -> AuditTally:
        """Check every promise for every account, or for one. A WitnessError names the line that can't be read."""
        tally = AuditTally()
        seen = _Seen()
        self._hear_senders(logs, seen, tally)
        await self._hear_receivers(logs, seen, tally)
        await self._hear_webhooks(logs, seen, tally)
        messages = events = 0
        async for account_id, name in self._accounts(only):
            async for batch in self._messages(account_id):
                for one in batch:
                    dossiers.check_record(one, tally)
                    self._compare(one, logs, seen, tally)
                messages += len(batch)
                report(AuditProgress(name, messages, events))
            async for told in self._events(account_id):
                oldest = await self._oldest()
                for event in told:
                    tally.check(Promise.EVENTS, 1, _event_findings(event, oldest))
                events += len(told)
                report(AuditProgress(name, messages, events))
            async for sendings in self._sendings(account_id):
                for sending in sendings:
                    tally.check(Promise.WEBHOOKS, 1, _sending_findings(sending, logs, seen))
            await self._check_keys(account_id, logs, seen, tally)
            await self._check_books(account_id, tally)
        tally.check(Promise.DURABLE, len(seen.accepted), _missing(seen))
        return tally

    # What the witnesses saw.

    def _hear_senders(self, logs: Logs, seen: _Seen, tally: AuditTally) -> None:
        for one in _read(logs.sender, outside_logs.parse_sender_line):
            if one.key is not None:
                known = seen.keys.get(one.key)
                findings = []
                if known is not None and one.message_id not in (None, known):
                    where = ids.text(ids.MESSAGE, known)
                    what = f"a second message was accepted for its key {one.key!r}"
                    findings = [AuditFinding(Promise.IDEMPOTENT, FaultKind.DUPLICATED, where, what)]
                tally.check(Promise.IDEMPOTENT, 1, findings)
                seen.keys[one.key] = known or one.message_id
            _note_outcome(one, seen)

    async def _hear_receivers(self, logs: Logs, seen: _Seen, tally: AuditTally) -> None:
        lines = _read(logs.receiver, outside_logs.parse_arrival_line)
        heard = 0
        while batch := list(islice(lines, ARRIVALS_AT_ONCE)):
            heard += len(batch)
            if heard > ARRIVALS_MAX:
                raise OutsideLogError(
                    f"the receiving server's log has more than {ARRIVALS_MAX} lines: give a part of it"
                )
            await self._hear_arrivals(batch, seen, tally)

    async def _hear_arrivals(self, batch: Sequence[ArrivalLine], seen: _Seen, tally: AuditTally) -> None:
        origins = [parse_return_path(one.sender, self._return_path_domain, [self._return_path_key]) for one in batch]
        async with self._snapshot() as tx:
            tails = {origin.message_id: origin.account_tail for origin in origins if origin is not None}
            owners = await audit_reads.owners(tx, tails)
            by_account: defaultdict[AccountId, set[UUID]] = defaultdict(set)
            for message_id, account_id in owners.items():
                by_account[account_id].add(message_id)
            found: dict[UUID, MessageRecord] = {}
            stored: dict[UUID, bytes] = {}
            owned = {account_id: await audit_reads.domains(tx, account_id) for account_id in by_account}
            for account_id, message_ids in by_account.items():
                found |= {one.id: one for one in await audit_reads.dossiers(tx, account_id, message_ids)}
                stored |= await audit_reads.bodies(tx, account_id, message_ids)
        for arrived, origin in zip(batch, origins, strict=True):
            dossier = None if origin is None else found.get(origin.message_id)
            if dossier is None:
                tally.check(Promise.REGISTERED, 1, [_stray(arrived)])
                continue
            seen.arrivals[dossier.id][arrived.recipient] += 1
            tally.check(Promise.REGISTERED, 1, _registered(dossier, owned[dossier.account_id]))
            _compare_arrival(dossier, arrived, stored.get(dossier.id), tally)

    async def _hear_webhooks(self, logs: Logs, seen: _Seen, tally: AuditTally) -> None:
        lines = _read(logs.webhooks, outside_logs.parse_webhook_line)
        while batch := list(islice(lines, CALLS_AT_ONCE)):
            await self._hear_calls(batch, seen, tally)

    async def _hear_calls(self, batch: Sequence[WebhookLine], seen: _Seen, tally: AuditTally) -> None:
        secrets: dict[AccountId, str | None] = {}
        async with self._snapshot() as tx:
            for one in batch:
                event_id = outside_logs.event_id(one.body)
                if event_id is None:
                    found = AuditFinding(Promise.WEBHOOKS, FaultKind.UNEXPECTED, "a call", "its body is no event")
                    tally.check(Promise.WEBHOOKS, 1, [found])
                    continue
                seen.calls[event_id].append(one.status)
                known = await audit_reads.event(tx, event_id)
                if known is None:
                    tally.check(Promise.WEBHOOKS, 1, list(outside_logs.compare_call(one, None, None)))
                    continue
                if known.account_id not in secrets:
                    secrets[known.account_id] = self._secret(await webhooks.find(tx, known.account_id))
                findings = outside_logs.compare_call(one, known.body, secrets[known.account_id])
                tally.check(Promise.WEBHOOKS, 1, list(findings))

    def _secret(self, endpoint: EndpointRow | None) -> str | None:
        """That which the account's calls are signed with, if there is one that can be read."""
        if endpoint is None:
            return None
        try:
            return self._sealer.open(endpoint.secret_sealed, webhooks.secret_purpose(endpoint.account_id)).decode()
        except SealError:
            return None

    def _compare(self, one: MessageRecord, logs: Logs, seen: _Seen, tally: AuditTally) -> None:
        if logs.sender is not None:
            tally.check(Promise.IDEMPOTENT, 1, _unasked(one, seen))
        if logs.receiver is None or one.credits_reserved == 0:
            return
        # What was rehearsed, or the simulator took, nobody else saw.
        counts = seen.arrivals.pop(one.id, Counter[str]())
        real = [
            recipient
            for recipient in one.recipients
            if recipient.email.rpartition("@")[2].lower() != self._simulator_domain
        ]
        if real:
            arrivals = {recipient.position: counts[recipient.email.lower()] for recipient in real}
            outside_logs.compare_arrivals(one, real, arrivals, tally)

    # What is on record.

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[Connection]:
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection

    async def _accounts(self, only: AccountId | None) -> AsyncIterator[tuple[AccountId, str]]:
        after = _FIRST
        while True:
            async with self._snapshot() as tx:
                page = await audit_reads.accounts(tx, after, ACCOUNTS_AT_ONCE)
            for account_id, name in page:
                if only in (None, account_id):
                    yield account_id, name
            if len(page) < ACCOUNTS_AT_ONCE:
                return
            after = page[-1][0]

    async def _messages(self, account_id: AccountId) -> AsyncIterator[list[MessageRecord]]:
        after: UUID = _FIRST
        while True:
            async with self._snapshot() as tx:
                page = await audit_reads.next_dossiers(tx, account_id, after, MESSAGES_AT_ONCE)
            yield page
            if len(page) < MESSAGES_AT_ONCE:
                return
            after = page[-1].id

    async def _events(self, account_id: AccountId) -> AsyncIterator[list[ToldOf]]:
        after = _FIRST
        while True:
            async with self._snapshot() as tx:
                page = await audit_reads.events(tx, account_id, after, ROWS_AT_ONCE)
            yield page
            if len(page) < ROWS_AT_ONCE:
                return
            after = page[-1].id

    async def _sendings(self, account_id: AccountId) -> AsyncIterator[list[WebhookDeliveryRecord]]:
        after = _FIRST
        while True:
            async with self._snapshot() as tx:
                page = await audit_reads.sendings(tx, account_id, after, ROWS_AT_ONCE)
            yield page
            if len(page) < ROWS_AT_ONCE:
                return
            after = page[-1].id

    async def _check_keys(self, account_id: AccountId, logs: Logs, seen: _Seen, tally: AuditTally) -> None:
        after: tuple[UUID, str] = (_FIRST, "")
        while True:
            async with self._snapshot() as tx:
                page = await audit_reads.keys(tx, account_id, after, ROWS_AT_ONCE)
            for one in page:
                findings = []
                where = ids.text(ids.MESSAGE, one.message_id)
                if not one.has_message:
                    what = "its key is remembered, and it is gone"
                    findings.append(AuditFinding(Promise.IDEMPOTENT, FaultKind.LOST, where, what))
                answered = seen.keys.get(one.key)
                if logs.sender is not None and answered not in (None, one.message_id):
                    what = f"its key {one.key!r} was answered with another message"
                    findings.append(AuditFinding(Promise.IDEMPOTENT, FaultKind.DUPLICATED, where, what))
                tally.check(Promise.IDEMPOTENT, 1, findings)
            if len(page) < ROWS_AT_ONCE:
                return
            after = page[-1].credential_id, page[-1].key

    async def _check_books(self, account_id: AccountId, tally: AuditTally) -> None:
        async with self._snapshot() as tx:
            books = await audit_reads.books(tx, account_id, LEDGER_ENTRIES_MAX)
        where = ids.text(ids.ACCOUNT, account_id)
        findings = []
        if books is None:
            what = f"its ledger has more than {LEDGER_ENTRIES_MAX} entries, and was not added up"
            findings.append(AuditFinding(Promise.LEDGER, FaultKind.UNKNOWN, where, what))
        elif books.available != books.granted - books.reserved + books.released:
            wanted = books.granted - books.reserved + books.released
            what = f"{books.available} credits are available, and its ledger comes to {wanted}"
            findings.append(AuditFinding(Promise.LEDGER, FaultKind.UNEXPECTED, where, what))
        tally.check(Promise.LEDGER, 1, findings)

    async def _oldest(self) -> UUID:
        """The lowest id of a message whose day is still kept."""
        async with self._database.connection() as connection:
            days = [one.day for one in await partitions.attached(connection) if one.table == "recipients"]
        return ids.lowest_id(partitions.bounds(min(days))[0]) if days else _LAST


def _read(lines: Iterable[str] | None, understood: Callable[[str], Line]) -> Iterator[Line]:
    for number, line in enumerate(lines or (), 1):
        if line.strip():
            try:
                yield understood(line)
            except OutsideLogError as error:
                raise OutsideLogError(f"line {number}: {error}") from None


def _note_outcome(one: SenderLine, seen: _Seen) -> None:
    if one.outcome == "accepted" and one.message_id is not None:
        seen.accepted.add(one.message_id)
    if one.outcome == "unanswered" and one.via == "smtp":
        seen.smtp_unanswered += 1


def _unasked(one: MessageRecord, seen: _Seen) -> list[AuditFinding]:
    """Whoever heard no answer may have left a message; nobody else leaves one that they don't know of."""
    if one.id in seen.accepted:
        seen.accepted.discard(one.id)
        return []
    if one.source == "smtp" and seen.smtp_unanswered > 0:
        seen.smtp_unanswered -= 1
        return []
    if one.source != "smtp":
        return []  # by its key, if at all
    return [AuditFinding(Promise.IDEMPOTENT, FaultKind.UNEXPECTED, one.name, "no sender knows of it")]


def _missing(seen: _Seen) -> list[AuditFinding]:
    return [
        AuditFinding(
            Promise.DURABLE, FaultKind.LOST, ids.text(ids.MESSAGE, one), "it was accepted, and is not on record"
        )
        for one in sorted(seen.accepted)
    ]


def _stray(arrived: ArrivalLine) -> AuditFinding:
    if not arrived.sender:
        what = "it arrived from the empty sender, which names no message"
        return AuditFinding(Promise.REGISTERED, FaultKind.UNKNOWN, arrived.recipient, what)
    what = f"it arrived from {arrived.sender}, and no account has a message with this return path"
    return AuditFinding(Promise.REGISTERED, FaultKind.UNEXPECTED, arrived.recipient, what)


def _compare_arrival(dossier: MessageRecord, arrived: ArrivalLine, stored: bytes | None, tally: AuditTally) -> None:
    position = next((one.position for one in dossier.recipients if one.email.lower() == arrived.recipient), None)
    if position is None:
        what = f"it arrived at {arrived.recipient}, who is none of its recipients"
        tally.check(Promise.TRUE, 1, [AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, dossier.name, what)])
    elif arrived.message is not None:
        outside_logs.compare_content(dossier, position, arrived.message, stored, tally)


def _registered(found: MessageRecord, owned: frozenset[str]) -> list[AuditFinding]:
    try:
        domain = parse_mailbox(found.sender).domain
    except AddressError:
        domain = found.sender
    if domain in owned:
        return []
    what = f"it was sent from {domain}, which the account doesn't have, or not any more"
    return [AuditFinding(Promise.REGISTERED, FaultKind.UNEXPECTED, found.name, what)]


def _event_findings(event: ToldOf, oldest: UUID) -> list[AuditFinding]:
    if event.message_id is None:
        return []
    where = ids.text(ids.EVENT, event.id)
    if event.status is None:
        is_old = event.message_id < oldest
        fault = FaultKind.UNKNOWN if is_old else FaultKind.UNEXPECTED
        return [AuditFinding(Promise.EVENTS, fault, where, "it tells of a recipient that is not there")]
    if event.final_at is None or event.type != f"email.{event.status}":
        return [
            AuditFinding(
                Promise.EVENTS, FaultKind.UNEXPECTED, where, f"it says {event.type} of one who is {event.status}"
            )
        ]
    made_at = ids.time_of(event.id)
    if not event.final_at - dossiers.EVENT_BEFORE <= made_at <= event.final_at + dossiers.EVENT_AFTER:
        return [
            AuditFinding(Promise.EVENTS, FaultKind.DUPLICATED, where, "it was made at another time than the result")
        ]
    return []


def _sending_findings(sending: WebhookDeliveryRecord, logs: Logs, seen: _Seen) -> list[AuditFinding]:
    def finding(fault: FaultKind, what: str) -> AuditFinding:
        return AuditFinding(Promise.WEBHOOKS, fault, ids.text(ids.WEBHOOK_DELIVERY, sending.id), what)

    found = []
    is_pending = sending.status == "pending"
    if is_pending and not sending.is_scheduled:
        found.append(finding(FaultKind.LOST, "it is pending, and nothing will send it"))
    if not is_pending and sending.is_scheduled:
        found.append(finding(FaultKind.UNEXPECTED, f"it is {sending.status}, and is to be sent again"))
    if sending.status == "failed" and sending.attempt < sending.max_attempts and not sending.error:
        found.append(finding(FaultKind.UNEXPECTED, f"it was given up after {sending.attempt} attempts, for no reason"))
    if logs.webhooks is not None and sending.status == "succeeded":
        answers: Sequence[int] = seen.calls.get(sending.event_id, ())
        if not any(200 <= status < 300 for status in answers):
            found.append(finding(FaultKind.LOST, "it succeeded, and the receiver never said yes to it"))
    return found
