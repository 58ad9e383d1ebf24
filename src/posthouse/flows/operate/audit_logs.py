"""Reads the outside logs of an audit: what senders, receiving servers and webhook receivers recorded of the same mail.

Each log is read in one pass; only a count is kept of every arrival.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Final, TypeVar
from uuid import UUID

from posthouse.flows.shared.context import Context, Flow
from posthouse.mail.address import AddressError, parse_mailbox
from posthouse.mail.envelope import parse_return_path
from posthouse.rules.audit import outside_logs
from posthouse.rules.audit.message_record import MessageRecord
from posthouse.rules.audit.outside_logs import ArrivalLine, OutsideLogError, SenderLine, WebhookLine
from posthouse.rules.audit.promises import AuditFinding, AuditTally, FaultKind, Promise
from posthouse.rules.erasure import ERASED
from posthouse.rules.ids import AccountId, CredentialId, MessageId
from posthouse.store import audit_reads, endpoints
from posthouse.store.endpoints import Endpoint
from posthouse.store.partitions import snapshot
from posthouse.store.seal import SealError

ARRIVALS_MAX: Final = 5_000_000
ARRIVALS_BATCH: Final = 200
WEBHOOKS_BATCH: Final = 200

Line = TypeVar("Line")


@dataclass(frozen=True, slots=True)
class OutsideLogs:
    """Logs that others kept of the same mail, line by line; None if there is none."""

    sender: Iterable[str] | None = None
    receiver: Iterable[str] | None = None
    webhooks: Iterable[str] | None = None


@dataclass(slots=True)
class Observations:
    """What the outside logs say, in short."""

    accepted: set[MessageId] = field(default_factory=set)
    # The messages returned for each key, and the credentials of those that are on record.
    keys: defaultdict[str, set[MessageId]] = field(default_factory=lambda: defaultdict(set))
    credentials: dict[MessageId, CredentialId] = field(default_factory=dict)
    smtp_unanswered: int = 0
    # By message, then by address: how often it arrived.
    arrivals: defaultdict[UUID, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    # By address: mail with the empty sender, which names no message.
    unnamed: Counter[str] = field(default_factory=Counter)
    # For each event, the statuses with which the receiver answered its webhooks.
    webhooks: defaultdict[UUID, list[int]] = field(default_factory=lambda: defaultdict(list))


class OutsideLogReader(Flow):
    def __init__(self, context: Context, *, return_path_domain: str) -> None:
        super().__init__(context)
        self._return_path_domain = return_path_domain

    async def read(self, logs: OutsideLogs, tally: AuditTally) -> Observations:
        """Check each line against the database; an OutsideLogError names a line that can't be read."""
        seen = Observations()
        self._read_senders(logs, seen)
        await self._read_receivers(logs, seen, tally)
        await self._read_webhooks(logs, seen, tally)
        return seen

    def _read_senders(self, logs: OutsideLogs, seen: Observations) -> None:
        for line in _read(logs.sender, outside_logs.parse_sender_line):
            if line.key is not None and line.message_id is not None:
                seen.keys[line.key].add(line.message_id)
            _note_outcome(line, seen)

    async def _read_receivers(self, logs: OutsideLogs, seen: Observations, tally: AuditTally) -> None:
        lines = _read(logs.receiver, outside_logs.parse_arrival_line)
        count = 0
        while batch := list(islice(lines, ARRIVALS_BATCH)):
            count += len(batch)
            if count > ARRIVALS_MAX:
                raise OutsideLogError(
                    f"the receiving server's log has more than {ARRIVALS_MAX} lines: pass a part of it"
                )
            await self._note_arrivals(batch, seen, tally)

    async def _note_arrivals(self, batch: Sequence[ArrivalLine], seen: Observations, tally: AuditTally) -> None:
        origins = [parse_return_path(line.sender, self._return_path_domain, self._keys.return_path) for line in batch]
        async with snapshot(self._database, holds_days=True) as tx:
            tails = {origin.message_id: origin.account_tail for origin in origins if origin is not None}
            owners = await audit_reads.owners(tx, tails)
            by_account: defaultdict[AccountId, set[UUID]] = defaultdict(set)
            for message_id, account_id in owners.items():
                by_account[account_id].add(message_id)
            found: dict[UUID, MessageRecord] = {}
            stored: dict[UUID, bytes] = {}
            owned = {account_id: await audit_reads.domains(tx, account_id) for account_id in by_account}
            for account_id, message_ids in by_account.items():
                found |= {
                    record.id: record for record in await audit_reads.message_records(tx, account_id, message_ids)
                }
                stored |= await audit_reads.bodies(tx, account_id, message_ids)
        for arrived, origin in zip(batch, origins, strict=True):
            if not arrived.sender:
                seen.unnamed[arrived.recipient] += 1
                continue
            record = None if origin is None else found.get(origin.message_id)
            if record is None:
                tally.check(Promise.REGISTERED, 1, [_stray(arrived)])
                continue
            seen.arrivals[record.id][arrived.recipient] += 1
            tally.check(Promise.REGISTERED, 1, _registered(record, owned[record.account_id]))
            _compare_arrival(record, arrived, stored.get(record.id), tally)

    async def _read_webhooks(self, logs: OutsideLogs, seen: Observations, tally: AuditTally) -> None:
        lines = _read(logs.webhooks, outside_logs.parse_webhook_line)
        while batch := list(islice(lines, WEBHOOKS_BATCH)):
            await self._note_webhooks(batch, seen, tally)

    async def _note_webhooks(self, batch: Sequence[WebhookLine], seen: Observations, tally: AuditTally) -> None:
        secrets: dict[AccountId, tuple[str | None, datetime | None]] = {}
        async with snapshot(self._database, holds_days=True) as tx:
            for line in batch:
                event_id = outside_logs.event_id(line.body)
                if event_id is None:
                    found = AuditFinding(Promise.WEBHOOKS, FaultKind.UNEXPECTED, "a call", "its body is no event")
                    tally.check(Promise.WEBHOOKS, 1, [found])
                    continue
                seen.webhooks[event_id].append(line.status)
                known = await audit_reads.event(tx, event_id)
                if known is None:
                    tally.check(Promise.WEBHOOKS, 1, list(outside_logs.compare_call(line, None, None)))
                    continue
                if known.account_id not in secrets:
                    webhook = await endpoints.find(tx, known.account_id, endpoints.webhook_id(known.account_id))
                    secret = self._secret(webhook)
                    secrets[known.account_id] = secret, await audit_reads.webhook_secret_since(tx, known.account_id)
                findings = outside_logs.compare_call(line, known.body, *secrets[known.account_id])
                tally.check(Promise.WEBHOOKS, 1, list(findings))

    def _secret(self, webhook: Endpoint | None) -> str | None:
        """The secret that signs the account's webhooks, if it can be opened."""
        if webhook is None:
            return None
        try:
            purpose = endpoints.secret_purpose(webhook.account_id, webhook.id)
            return self._keys.sealer.open(webhook.secret_sealed, purpose).decode()
        except SealError:
            return None


def _read(lines: Iterable[str] | None, parse: Callable[[str], Line]) -> Iterator[Line]:
    for number, line in enumerate(lines or (), 1):
        if line.strip():
            try:
                yield parse(line)
            except OutsideLogError as error:
                raise OutsideLogError(f"line {number}: {error}") from None


def _note_outcome(line: SenderLine, seen: Observations) -> None:
    if line.outcome == "accepted" and line.message_id is not None:
        seen.accepted.add(line.message_id)
    if line.outcome == "unanswered" and line.via == "smtp":
        seen.smtp_unanswered += 1


def _stray(arrived: ArrivalLine) -> AuditFinding:
    what = f"it arrived from {arrived.sender}, but no account has a message with this return path"
    return AuditFinding(Promise.REGISTERED, FaultKind.UNEXPECTED, arrived.recipient, what)


def _compare_arrival(record: MessageRecord, arrived: ArrivalLine, stored: bytes | None, tally: AuditTally) -> None:
    position = next(
        (
            recipient.position
            for recipient in sorted(record.recipients, key=lambda recipient: recipient.email == ERASED)
            if recipient.email.lower() in (arrived.recipient, ERASED)
        ),
        None,
    )
    if position is None:
        what = f"it arrived at {arrived.recipient}, which is not one of its recipients"
        tally.check(Promise.TRUE, 1, [AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, record.name, what)])
    elif arrived.message is not None:
        outside_logs.compare_content(record, position, arrived.message, stored, tally)


def _registered(found: MessageRecord, owned: frozenset[str]) -> list[AuditFinding]:
    try:
        domain = parse_mailbox(found.sender).domain
    except AddressError:
        domain = found.sender
    if domain in owned:
        return []
    what = f"it was sent from {domain}, which the account doesn't have, or no longer has"
    return [AuditFinding(Promise.REGISTERED, FaultKind.UNEXPECTED, found.name, what)]
