"""A message's dossier: everything on record about it, and whether the parts agree.

The checks are of what the database alone can prove. All of a dossier was read from one snapshot.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.audit.promises import AuditFinding, AuditTally, FaultKind, Promise
from posthouse.rules.ids import AccountId, MessageId

FINAL: Final = frozenset({"delivered", "bounced", "failed"})
CLOSES: Final = {"delivered": "settle", "failed": "settle", "bounced": "release"}
# An event may be this much older than the result that it tells of, by the clocks of the processes.
EVENT_BEFORE: Final = timedelta(seconds=7)
EVENT_AFTER: Final = timedelta(seconds=1)
# A claim may have looked while the suppression was being written.
SUPPRESSION_SEEN: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class RecipientRecord:
    position: int
    field: str
    email: str
    status: str
    attempt_count: int
    final_at: datetime | None
    # What was last heard of it; words without a code are our own.
    last_code: int | None
    last_response: str | None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def is_ended_by_us(self) -> bool:
        """No attempt is made, or written down, for who is suppressed or was held, tried or known for too long."""
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
    has_credential: bool
    has_body: bool
    recipients: Sequence[RecipientRecord]
    attempts: Sequence[AttemptRecord]
    # Positions of the calendar, amounts and kinds of the ledger by position (-1 reserves).
    scheduled: frozenset[int]
    ledger: Mapping[int, tuple[str, int]]
    events: Sequence[EventRecord]
    # When the account began to send nothing to the address, by position; what was lifted since isn't known.
    suppressed_at: Mapping[int, datetime]

    @property
    def name(self) -> str:
        return ids.text(ids.MESSAGE, self.id)

    def attempts_of(self, position: int) -> list[AttemptRecord]:
        return [one for one in self.attempts if one.position == position]


def event_windows(recipients: Sequence[RecipientRecord]) -> list[tuple[datetime, datetime]]:
    """The times within which these recipients' events were made, joined where they overlap."""
    joined: list[tuple[datetime, datetime]] = []
    for at in sorted(one.final_at for one in recipients if one.final_at is not None):
        begin, end = at - EVENT_BEFORE, at + EVENT_AFTER
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return joined


def check_record(dossier: MessageRecord, tally: AuditTally) -> None:
    """Count what was checked, and find what doesn't hold."""
    count = len(dossier.recipients)
    tally.check(Promise.DURABLE, count, _durable(dossier))
    finals = [one for one in dossier.recipients if one.is_final]
    tally.check(Promise.TRUE, len(finals), _true(dossier, finals))
    tally.check(Promise.ONCE, count, _once(dossier))
    tally.check(Promise.LEDGER, count, _ledger(dossier))
    tally.check(Promise.EVENTS, count, _events(dossier))
    tally.check(Promise.TENANCY, 1, _tenancy(dossier))
    tally.check(Promise.SUPPRESSED, count, _suppressed(dossier))


def unproven_attempts(attempts: Sequence[AttemptRecord]) -> int:
    """How many attempts may have sent the mail without anybody knowing: it may come again as often.

    One whose worker was given up for dead, and told what came of it only when another attempt had begun, is of these:
    until then nobody knew.
    """
    return sum(one.outcome is None or one.is_ambiguous or _came_late(one, attempts) for one in attempts)


def _came_late(attempt: AttemptRecord, attempts: Sequence[AttemptRecord]) -> bool:
    told_at = attempt.finished_at
    return told_at is not None and any(one.fence > attempt.fence and one.started_at < told_at for one in attempts)


def _durable(dossier: MessageRecord) -> Iterator[AuditFinding]:
    def finding(fault: FaultKind, what: str) -> AuditFinding:
        return AuditFinding(Promise.DURABLE, fault, dossier.name, what)

    known = {one.position for one in dossier.recipients}
    if len(known) < dossier.recipient_count:
        yield finding(FaultKind.LOST, f"it has {len(known)} of its {dossier.recipient_count} recipients")
    if len(known) > dossier.recipient_count:
        yield finding(
            FaultKind.UNEXPECTED, f"it has {len(known)} recipients, and {dossier.recipient_count} were accepted"
        )
    for one in dossier.recipients:
        if not one.is_final and one.position not in dossier.scheduled:
            yield finding(FaultKind.LOST, f"recipient {one.position} is {one.status}, and nothing will try it again")
        if one.is_final and one.position in dossier.scheduled:
            yield finding(FaultKind.UNEXPECTED, f"recipient {one.position} is {one.status}, and is to be tried again")
    for position in sorted(dossier.scheduled - known):
        yield finding(FaultKind.UNEXPECTED, f"recipient {position} is to be tried, and there is none")
    is_open = any(not one.is_final for one in dossier.recipients)
    if is_open and not dossier.has_body:
        yield finding(FaultKind.LOST, "its body is gone before all of its recipients are final")
    if _fold(dossier.recipients) != (
        dossier.open_count,
        dossier.delivered_count,
        dossier.released_count,
        dossier.status,
        dossier.billing_status,
    ):
        yield finding(FaultKind.UNEXPECTED, f"it says {dossier.status}, and its recipients come to something else")


def _fold(recipients: Sequence[RecipientRecord]) -> tuple[int, int, int, str, str]:
    total = len(recipients)
    delivered = sum(one.status == "delivered" for one in recipients)
    bounced = sum(one.status == "bounced" for one in recipients)
    remaining = total - sum(one.is_final for one in recipients)
    if remaining:
        return remaining, delivered, bounced, "queued", "reserved"
    status = "delivered" if delivered == total else "partial" if delivered else "failed"
    return 0, delivered, bounced, status, "released" if bounced == total else "settled"


def _true(dossier: MessageRecord, finals: Sequence[RecipientRecord]) -> Iterator[AuditFinding]:
    for one in finals:
        told = [attempt for attempt in dossier.attempts_of(one.position) if attempt.outcome == one.status]
        if not told and one.is_ended_by_us:
            continue
        if not told:
            what = f"recipient {one.position} is {one.status}, and no attempt came to that"
            yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, dossier.name, what)
        elif one.status == "delivered" and not any(attempt.code in range(200, 300) for attempt in told):
            what = f"recipient {one.position} is delivered, and no server said so"
            yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, dossier.name, what)
        elif one.status == "bounced" and not any(
            attempt.code in range(500, 600) or (attempt.code is None and attempt.response) for attempt in told
        ):
            what = f"recipient {one.position} is bounced, and nothing on record is permanent"
            yield AuditFinding(Promise.TRUE, FaultKind.UNEXPECTED, dossier.name, what)


def _once(dossier: MessageRecord) -> Iterator[AuditFinding]:
    for one in dossier.recipients:
        attempts = dossier.attempts_of(one.position)
        sent = sum(attempt.outcome == "delivered" for attempt in attempts)
        if sent > 1 + unproven_attempts(attempts):
            what = f"recipient {one.position} was delivered to {sent} times, by attempts that all had an answer"
            yield AuditFinding(Promise.ONCE, FaultKind.DUPLICATED, dossier.name, what)


def _ledger(dossier: MessageRecord) -> Iterator[AuditFinding]:
    def finding(what: str) -> AuditFinding:
        return AuditFinding(Promise.LEDGER, FaultKind.UNEXPECTED, dossier.name, what)

    reserve = dossier.ledger.get(-1)
    if (0 if reserve is None else reserve[1]) != dossier.credits_reserved:
        yield finding(f"{dossier.credits_reserved} credits were reserved, and the ledger says {reserve}")
    statuses = {one.position: one.status for one in dossier.recipients}
    for position, status in statuses.items():
        wanted = CLOSES.get(status) if dossier.credits_reserved else None
        closed = dossier.ledger.get(position)
        if (closed and closed[0]) != wanted:
            yield finding(f"recipient {position} is {status}, and its credit's close is {closed and closed[0]}")
    for position in sorted(set(dossier.ledger) - set(statuses) - {-1}):
        yield finding(f"a credit was closed for recipient {position}, and there is none")


def _events(dossier: MessageRecord) -> Iterator[AuditFinding]:
    for one in dossier.recipients:
        types = [told.type for told in dossier.events if told.position == one.position]
        wanted = [f"email.{one.status}"] if one.is_final else []
        if types == wanted:
            continue
        fault = (
            FaultKind.LOST
            if not types
            else FaultKind.DUPLICATED
            if len(types) > len(wanted) > 0
            else FaultKind.UNEXPECTED
        )
        what = f"recipient {one.position} is {one.status}, and its events are {', '.join(types) or 'none'}"
        yield AuditFinding(Promise.EVENTS, fault, dossier.name, what)


def _tenancy(dossier: MessageRecord) -> Iterator[AuditFinding]:
    if not dossier.has_credential:
        what = "it was sent by a credential that its account doesn't have"
        yield AuditFinding(Promise.TENANCY, FaultKind.UNEXPECTED, dossier.name, what)


def _suppressed(dossier: MessageRecord) -> Iterator[AuditFinding]:
    for one in dossier.recipients:
        since = dossier.suppressed_at.get(one.position)
        if since is None:
            continue
        seen = since + SUPPRESSION_SEEN
        if any(attempt.is_connected and attempt.started_at > seen for attempt in dossier.attempts_of(one.position)):
            what = f"recipient {one.position} was tried after its address had been suppressed"
            yield AuditFinding(Promise.SUPPRESSED, FaultKind.UNEXPECTED, dossier.name, what)
