"""A message's record: everything stored about it, and whether the parts agree.

The checks cover what can be proved from the database only. The whole record is read from a single snapshot.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.audit.promises import AuditFinding, AuditTally, FaultKind, Promise
from posthouse.rules.ids import AccountId, CredentialId, MessageId

CANCELLED: Final = "cancelled"
FINAL: Final = frozenset({"delivered", "bounced", "failed", CANCELLED})
CLOSES: Final = {"settled": "settle", "released": "release"}
# The credit of a recipient that failed because its account was suspended for too long is released.
BILLING: Final = {
    "delivered": frozenset({"settled"}),
    "failed": frozenset({"settled", "released"}),
    "bounced": frozenset({"released"}),
    CANCELLED: frozenset({"released"}),
}
# An event may be this much older than its result, since the clocks of processes differ.
EVENT_BEFORE: Final = timedelta(seconds=7)
EVENT_AFTER: Final = timedelta(seconds=1)
# A claim may have been made while the suppression was being written.
SUPPRESSION_SEEN: Final = timedelta(seconds=10)
# How far a worker's clock may be behind that of the process that found the message due.
CLOCKS_DIFFER: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class RecipientRecord:
    position: int
    field: str
    email: str
    status: str
    billing_status: str
    attempt_count: int
    final_at: datetime | None
    # The last reply; a response without a code is our own text.
    last_code: int | None
    last_response: str | None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def is_ended_by_us(self) -> bool:
        """Whether we ended it without an attempt: it was suppressed, or held or tried for too long."""
        return self.status in ("bounced", "failed") and self.last_code is None and bool(self.last_response)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    position: int
    fence: int
    started_at: datetime
    finished_at: datetime | None
    outcome: str | None
    is_ambiguous: bool
    code: int | None
    response: str | None
    is_connected: bool


@dataclass(frozen=True, slots=True)
class EventRecord:
    position: int
    id: UUID
    type: str


@dataclass(frozen=True, slots=True)
class MessageRecord:
    account_id: AccountId
    id: MessageId
    credential_id: CredentialId
    source: str
    status: str
    billing_status: str
    sender: str
    envelope_sender: str
    recipient_count: int
    credits_reserved: int
    open_count: int
    delivered_count: int
    released_count: int
    created_at: datetime
    send_at: datetime | None
    has_credential: bool
    has_body: bool
    forgets_content: bool
    recipients: Sequence[RecipientRecord]
    attempts: Sequence[AttemptRecord]
    # Scheduled positions, and the ledger's kinds and amounts by position (-1 is the reservation).
    scheduled: frozenset[int]
    ledger: Mapping[int, tuple[str, int]]
    events: Sequence[EventRecord]
    # When the address was suppressed, by position; suppressions lifted since are unknown.
    suppressed_at: Mapping[int, datetime]

    @property
    def name(self) -> str:
        return ids.text(ids.MESSAGE, self.id)

    def attempts_of(self, position: int) -> list[AttemptRecord]:
        return [attempt for attempt in self.attempts if attempt.position == position]

    def is_simulated(self, position: int) -> bool:
        """Whether the simulator delivered it: no mail server was connected to."""
        attempts = self.attempts_of(position)
        return any(attempt.outcome == "delivered" for attempt in attempts) and not any(
            attempt.is_connected for attempt in attempts
        )


def event_windows(recipients: Sequence[RecipientRecord]) -> list[tuple[datetime, datetime]]:
    """The time ranges in which these recipients' events were created, merged where they overlap."""
    joined: list[tuple[datetime, datetime]] = []
    for at in sorted(recipient.final_at for recipient in recipients if recipient.final_at is not None):
        begin, end = at - EVENT_BEFORE, at + EVENT_AFTER
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return joined


def check_record(record: MessageRecord, tally: AuditTally) -> None:
    """Count the checks, and record the findings."""
    count = len(record.recipients)
    tally.check(Promise.DURABLE, count, _durable(record))
    finals = [recipient for recipient in record.recipients if recipient.is_final]
    tally.check(Promise.TRUE, len(finals), _true(record, finals))
    tally.check(Promise.TRUE, count if record.send_at else 0, _at_its_time(record))
    tally.check(Promise.ONCE, count, _once(record))
    check_ledger(record, tally)
    tally.check(Promise.EVENTS, count, _events(record))
    tally.check(Promise.TENANCY, 1, _tenancy(record))
    tally.check(Promise.SUPPRESSED, count, _suppressed(record))


def check_ledger(record: MessageRecord, tally: AuditTally) -> None:
    """Check that the ledger agrees with the recipients."""
    tally.check(Promise.LEDGER, len(record.recipients), _ledger(record))


def unproven_attempts(attempts: Sequence[AttemptRecord]) -> int:
    """How many attempts may have sent the message without a recorded result: each may cause a duplicate.

    This includes an attempt whose worker was considered dead and reported its result only after another attempt had
    begun.
    """
    return sum(
        attempt.outcome is None or attempt.is_ambiguous or _finished_late(attempt, attempts) for attempt in attempts
    )


def _finished_late(attempt: AttemptRecord, attempts: Sequence[AttemptRecord]) -> bool:
    finished_at = attempt.finished_at
    return finished_at is not None and any(
        other.fence > attempt.fence and other.started_at < finished_at for other in attempts
    )


def _durable(record: MessageRecord) -> Iterator[AuditFinding]:
    def finding(fault: FaultKind, what: str) -> AuditFinding:
        return AuditFinding(Promise.DURABLE, fault, record.name, what)

    known = {recipient.position for recipient in record.recipients}
    if len(known) < record.recipient_count:
        yield finding(FaultKind.LOST, f"it has {len(known)} of its {record.recipient_count} recipients")
    if len(known) > record.recipient_count:
        yield finding(
            FaultKind.UNEXPECTED, f"it has {len(known)} recipients, and {record.recipient_count} were accepted"
        )
    for recipient in record.recipients:
        if not recipient.is_final and recipient.position not in record.scheduled:
            yield finding(
                FaultKind.LOST, f"recipient {recipient.position} is {recipient.status}, and nothing will try it again"
            )
        if recipient.is_final and recipient.position in record.scheduled:
            yield finding(
                FaultKind.UNEXPECTED, f"recipient {recipient.position} is {recipient.status}, and is to be tried again"
            )
    for position in sorted(record.scheduled - known):
        yield finding(FaultKind.UNEXPECTED, f"recipient {position} is to be tried, and does not exist")
    is_open = any(not recipient.is_final for recipient in record.recipients)
    if is_open and not record.has_body:
        yield finding(FaultKind.LOST, "its body is gone before all of its recipients are final")
    if _expected_state(record.recipients) != (
        record.open_count,
        record.delivered_count,
        record.released_count,
        record.status,
        record.billing_status,
    ):
        yield finding(FaultKind.UNEXPECTED, f"its status is {record.status}, and its recipients add up to another")


def _expected_state(recipients: Sequence[RecipientRecord]) -> tuple[int, int, int, str, str]:
    total = len(recipients)
    delivered = sum(recipient.status == "delivered" for recipient in recipients)
    released = sum(recipient.billing_status == "released" for recipient in recipients)
    remaining = total - sum(recipient.is_final for recipient in recipients)
    if remaining:
        return remaining, delivered, released, "queued", "reserved"
    status = "delivered" if delivered == total else "partial" if delivered else "failed"
    return 0, delivered, released, status, "released" if released == total else "settled"


def _true(record: MessageRecord, finals: Sequence[RecipientRecord]) -> Iterator[AuditFinding]:
    for recipient in finals:
        if recipient.status == CANCELLED:
            yield from _not_tried(record, recipient)
            continue
        attempts = [
            attempt for attempt in record.attempts_of(recipient.position) if attempt.outcome == recipient.status
        ]
        if not attempts and (recipient.is_ended_by_us or _is_still_blocked(record, recipient)):
            continue
        if not attempts:
            what = f"recipient {recipient.position} is {recipient.status}, and no attempt had that outcome"
            yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, record.name, what)
        elif recipient.status == "delivered" and not any(attempt.code in range(200, 300) for attempt in attempts):
            what = f"recipient {recipient.position} is delivered, and no server said so"
            yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, record.name, what)
        elif recipient.status == "bounced" and not any(
            attempt.code in range(500, 600) or (attempt.code is None and attempt.response) for attempt in attempts
        ):
            what = f"recipient {recipient.position} is bounced, and nothing on record is permanent"
            yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, record.name, what)


def _not_tried(record: MessageRecord, recipient: RecipientRecord) -> Iterator[AuditFinding]:
    if any(attempt.outcome != "postponed" for attempt in record.attempts_of(recipient.position)):
        what = f"recipient {recipient.position} is cancelled, but was tried"
        yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, record.name, what)


def _at_its_time(record: MessageRecord) -> Iterator[AuditFinding]:
    for attempt in record.attempts:
        if record.send_at is not None and attempt.started_at < record.send_at - CLOCKS_DIFFER:
            what = f"recipient {attempt.position} was tried at {attempt.started_at}, before {record.send_at}"
            yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, record.name, what)


def _is_still_blocked(record: MessageRecord, recipient: RecipientRecord) -> bool:
    """Whether it bounced with the reply of an attempt that was postponed because our address was refused."""
    return recipient.status == "bounced" and any(
        attempt.outcome == "postponed" and attempt.code in range(500, 600) and attempt.code == recipient.last_code
        for attempt in record.attempts_of(recipient.position)
    )


def _once(record: MessageRecord) -> Iterator[AuditFinding]:
    for recipient in record.recipients:
        attempts = record.attempts_of(recipient.position)
        sent = sum(attempt.outcome == "delivered" for attempt in attempts)
        if sent > 1 + unproven_attempts(attempts):
            what = f"recipient {recipient.position} was delivered to {sent} times, by attempts that all had an answer"
            yield AuditFinding(Promise.ONCE, FaultKind.DUPLICATED, record.name, what)


def _ledger(record: MessageRecord) -> Iterator[AuditFinding]:
    def finding(what: str) -> AuditFinding:
        return AuditFinding(Promise.LEDGER, FaultKind.UNEXPECTED, record.name, what)

    reserve = record.ledger.get(-1)
    if (0 if reserve is None else reserve[1]) != record.credits_reserved:
        yield finding(f"{record.credits_reserved} credits were reserved, and the ledger says {reserve}")
    for recipient in record.recipients:
        position, status, billing = recipient.position, recipient.status, recipient.billing_status
        if billing not in BILLING.get(status, {"reserved"}):
            yield finding(f"recipient {position} is {status}, and its credit is {billing}")
        wanted = CLOSES.get(billing) if record.credits_reserved else None
        closed = record.ledger.get(position)
        if (closed and closed[0]) != wanted:
            yield finding(f"recipient {position} is {status}, and its credit's close is {closed and closed[0]}")
    positions = {recipient.position for recipient in record.recipients}
    for position in sorted(set(record.ledger) - positions - {-1}):
        yield finding(f"a credit was closed for recipient {position}, which does not exist")


def _events(record: MessageRecord) -> Iterator[AuditFinding]:
    for recipient in record.recipients:
        types = [event.type for event in record.events if event.position == recipient.position]
        is_announced = recipient.is_final and recipient.status != CANCELLED
        wanted = [f"email.{recipient.status}"] if is_announced else []
        if types == wanted:
            continue
        fault = (
            FaultKind.LOST
            if not types
            else FaultKind.DUPLICATED
            if len(types) > len(wanted) > 0
            else FaultKind.UNEXPECTED
        )
        what = f"recipient {recipient.position} is {recipient.status}, and its events are {', '.join(types) or 'none'}"
        yield AuditFinding(Promise.EVENTS, fault, record.name, what)


def _tenancy(record: MessageRecord) -> Iterator[AuditFinding]:
    if not record.has_credential:
        what = "it was sent by a credential that its account doesn't have"
        yield AuditFinding(Promise.TENANCY, FaultKind.UNEXPECTED, record.name, what)


def _suppressed(record: MessageRecord) -> Iterator[AuditFinding]:
    for recipient in record.recipients:
        since = record.suppressed_at.get(recipient.position)
        if since is None:
            continue
        seen = since + SUPPRESSION_SEEN
        if any(
            attempt.is_connected and attempt.started_at > seen for attempt in record.attempts_of(recipient.position)
        ):
            what = f"recipient {recipient.position} was tried after its address had been suppressed"
            yield AuditFinding(Promise.SUPPRESSED, FaultKind.UNEXPECTED, record.name, what)
