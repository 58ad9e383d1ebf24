"""One message's timeline: the request, every attempt, and each recipient's wait or result.

For its account, and for operators, who know only a message's id and look it up in all accounts. All of it is read from
one snapshot; otherwise a recipient could be shown as waiting although its schedule row was just deleted.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.mail.reply import Reply, enhanced_of
from posthouse.rules import explanation, ids, usage, wait_reason
from posthouse.rules.delivery_reason import DeliveryReason, reason_of
from posthouse.rules.explanation import Explanation, ReplySignalExplanation
from posthouse.rules.ids import AccountId, CredentialId, MessageId, RequestId
from posthouse.rules.message import MessageState, MessageStatus, RecipientStatus, read_metadata
from posthouse.rules.outcome import Stage
from posthouse.rules.reply_signal import ReplySignal, reply_signal_of
from posthouse.rules.wait_reason import LastAttempt, ScheduleState, WaitExplanation
from posthouse.store.delivery_schedule import SUSPENDED_TIME
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement

# Postponements don't count as attempts, so nothing else bounds how many there are.
ATTEMPTS_SHOWN_MAX: Final = 2_000
# Nothing else bounds how often an event is replayed.
SENDINGS_SHOWN_MAX: Final = 500
# Events have no index by message. An event's id contains the time at which it was made: after the last attempt began,
# if that is what ended the recipient, and no later than it was recorded, give or take the difference of clocks.
_CLOCKS_DIFFER: Final = timedelta(seconds=5)
_RECORDED_WITHIN: Final = timedelta(hours=1)
# Reasons of a bounce without an attempt at the destination.
_NOT_SENT: Final = frozenset({DeliveryReason.SUPPRESSED, DeliveryReason.UNSUBSCRIBED})


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """A claim and its result; without an outcome it is under way, or its worker was lost."""

    position: int
    fence: int
    worker_id: UUID
    started_at: datetime
    finished_at: datetime | None
    outcome: str | None
    is_ambiguous: bool
    mx_host: str | None
    remote_ip: str | None
    tls: str | None
    stage: str | None
    code: int | None
    response: str | None
    source_ip: str | None
    relay: str | None

    def reply_signal(self) -> ReplySignal | None:
        """What the server's reply says about this service."""
        if self.code is None or self.stage is None:
            return None
        response = self.response or ""
        reply = Reply(self.code, enhanced_of(self.code, response), response)
        return reply_signal_of(usage.provider_of(self.mx_host), Stage(self.stage), reply)

    def explained_reply_signal(self) -> ReplySignalExplanation | None:
        reply_signal = self.reply_signal()
        if reply_signal is None:
            return None
        return explanation.explain_reply_signal(usage.provider_of(self.mx_host), self.response or "", reply_signal)


@dataclass(frozen=True, slots=True)
class ScheduledRecipient:
    """The recipient's row in the schedule; `is_worker_alive`: the worker that claimed it still has its lease."""

    position: int
    next_at: datetime
    fence: int
    worker_id: UUID | None
    is_worker_alive: bool
    attempt_count: int
    held_since: datetime | None
    held_by: str | None
    held: timedelta
    bounce_at: datetime | None
    first_code: int | None
    first_response: str | None
    send_at: datetime | None


@dataclass(frozen=True, slots=True)
class RecipientSuppression:
    position: int
    reason: str
    at: datetime
    code: int | None
    response: str | None


@dataclass(frozen=True, slots=True)
class WebhookDeliverySummary:
    """A webhook delivery of an event, after its last attempt."""

    id: UUID
    event_id: UUID
    status: str
    attempt: int
    max_attempts: int
    http_status: int | None
    error: str | None
    replay_of: UUID | None
    created_at: datetime
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True)
class RecipientEvent:
    """The event of the final result, and its webhook deliveries, the newest first."""

    position: int
    id: UUID
    type: str
    created_at: datetime
    sendings: tuple[WebhookDeliverySummary, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageReport:
    """A bounce or a complaint that was received; without a position it names none of the recipients.

    `detail` is the address that a bounce names, or the kind of a complaint; `suppressed` says whether it is a reason
    to send no more mail to the address.
    """

    position: int | None
    kind: str
    detail: str
    status: str | None
    code: int | None
    response: str | None
    suppressed: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class RecipientTimeline:
    """`waiting` is None once it is final; `suppression` is the account's, and may be newer than the message."""

    position: int
    field: str
    email: str
    status: str
    billing_status: str
    attempt_count: int
    code: int | None
    response: str | None
    final_at: datetime | None
    attempts: tuple[DeliveryAttempt, ...]
    waiting: ScheduledRecipient | None
    suppression: RecipientSuppression | None
    event: RecipientEvent | None
    reports: tuple[MessageReport, ...]

    @property
    def state(self) -> str:
        """The status, or that nothing was sent because the address is suppressed or unsubscribed."""
        if self.status == RecipientStatus.BOUNCED and reason_of(self.status, self.code, self.response) in _NOT_SENT:
            return MessageState.SUPPRESSED
        return self.status

    def is_under_way(self, attempt: DeliveryAttempt) -> bool:
        """Whether the attempt's worker is alive and still has the recipient claimed."""
        return (
            attempt.outcome is None
            and self.waiting is not None
            and self.waiting.is_worker_alive
            and (self.waiting.worker_id, self.waiting.fence) == (attempt.worker_id, attempt.fence)
        )

    def explained(self, attempt: DeliveryAttempt) -> Explanation:
        """What the attempt's result means."""
        if attempt.outcome is None:
            return explanation.explain_unfinished(is_under_way=self.is_under_way(attempt))
        return explanation.explain(attempt.outcome, attempt.code, attempt.response)


@dataclass(frozen=True, slots=True)
class Timeline:
    account_id: AccountId
    account_name: str
    suspended_at: datetime | None
    suspended_reason: str | None
    id: MessageId
    credential_id: CredentialId
    credential_name: str | None
    request_id: RequestId
    source: str
    status: str
    billing_status: str
    sender: str
    envelope_sender: str
    subject: str
    tags: tuple[str, ...]
    template: str | None
    recipient_count: int
    credits_reserved: int
    created_at: datetime
    metadata: Mapping[str, str]
    send_at: datetime | None
    resent_from: MessageId | None
    forgets_content: bool | None
    recipients: tuple[RecipientTimeline, ...]
    # Reports about none of the recipients.
    reports: tuple[MessageReport, ...]
    # Some attempts or sendings were left out: those before the latest ATTEMPTS_SHOWN_MAX, or SENDINGS_SHOWN_MAX.
    is_shortened: bool
    read_at: datetime

    @property
    def state(self) -> str:
        """As `message_search` reads it for the list."""
        if self.status == MessageStatus.QUEUED and self.send_at is not None and self.send_at > self.read_at:
            return MessageState.SCHEDULED
        states = {recipient.state for recipient in self.recipients}
        return states.pop() if self.status == MessageStatus.FAILED and len(states) == 1 else self.status

    def wait(self, recipient: RecipientTimeline) -> WaitExplanation | None:
        """What the recipient waits for; None if it is final."""
        if recipient.final_at is not None:
            return None
        row, last, why = recipient.waiting, recipient.attempts[-1:], recipient.suppression
        place = None
        if row is not None:
            is_claimed = row.worker_id is not None
            place = ScheduleState(
                row.next_at,
                row.fence,
                is_claimed,
                row.is_worker_alive,
                row.attempt_count,
                row.held_since,
                row.held_by,
                row.bounce_at,
                row.first_code,
                row.first_response,
                row.send_at,
            )
        return wait_reason.explain(
            place,
            next(
                (
                    LastAttempt(attempt.fence, attempt.outcome, attempt.mx_host, attempt.code, attempt.response)
                    for attempt in last
                ),
                None,
            ),
            is_suspended=self.suspended_at is not None,
            suppressed=None if why is None else (why.reason, why.at),
            now=self.read_at,
        )

    def explained(self, recipient: RecipientTimeline) -> Explanation:
        """What the recipient's state means."""
        wait = self.wait(recipient)
        if wait is None:
            return explanation.explain(recipient.status, recipient.code, recipient.response)
        return explanation.explain_wait(wait.reason, recipient.code, recipient.response)


_MESSAGE: Final = """
SELECT accounts.id AS account_id, accounts.name AS account_name, suspended_at, suspended_reason, message.*,
    (SELECT name FROM credentials WHERE account_id = accounts.id AND id = message.credential_id) AS credential_name
FROM accounts CROSS JOIN LATERAL (
    SELECT id, credential_id, request_id, source, status, billing_status, sender, envelope_sender, subject,
        coalesce(tags, '{}') AS tags, template, recipient_count, credits_reserved, created_at, metadata,
        send_at, resent_from, forgets_content
    FROM messages WHERE account_id = accounts.id AND id = $1 LIMIT 1) message
"""
# Reads each account's part of the one day in the id: some microseconds an account.
_MESSAGE_OF_ANY: Final = f"{_MESSAGE} LIMIT 1"
_MESSAGE_OF_ONE: Final = f"{_MESSAGE} WHERE accounts.id = $2"

_RECIPIENTS: Final = """
SELECT position, field, email, status, billing_status, attempt_count, last_smtp_code AS code,
    last_smtp_response AS response, coalesce(delivered_at, bounced_at, failed_at, cancelled_at) AS final_at
FROM recipients WHERE account_id = $1 AND message_id = $2 ORDER BY position
"""

_ATTEMPTS: Final = """
SELECT position, fence, worker_id, started_at, finished_at, outcome, is_ambiguous, mx_host, remote_ip, tls, stage,
    code, response, source_ip, relay
FROM attempts WHERE account_id = $1 AND message_id = $2 ORDER BY started_at DESC, position, fence DESC LIMIT $3
"""

# The time held is counted as a claim counts it.
_WAITING: Final = statement(f"""
SELECT position, coalesce(due_at, next_at) AS next_at, fence, worker_id, attempt_count, held_since, held_by,
    suspended.time + paused + CASE WHEN held_by IS NULL THEN interval '0'
        ELSE :now::timestamptz - held_since END AS held,
    bounce_at, first_code, first_response, send_at,
    EXISTS (SELECT FROM workers WHERE workers.id = worker_id AND expires_at > :now) AS is_worker_alive
FROM delivery_schedule due
CROSS JOIN LATERAL (SELECT coalesce(send_at, :accepted_at::timestamptz) AS counts_from) scheduled
CROSS JOIN LATERAL ({SUSPENDED_TIME}) suspended
WHERE account_id = :account_id AND message_id = :message_id
""")

_SUPPRESSIONS: Final = """
SELECT asked.position, suppression.*
FROM unnest($2::smallint[], $3::text[]) asked(position, email)
CROSS JOIN LATERAL (
    SELECT reason, at, code, response FROM suppressions
    WHERE account_id = $1 AND email = lower(asked.email) LIMIT 1) suppression
"""

# From the end of the span down: an event is made a moment before its recipient is final, and the span may be an hour.
# With the bounds of all spans PostgreSQL doesn't open the other days' partitions.
_EVENTS: Final = statement("""
SELECT asked.position, event.*
FROM unnest(:positions::smallint[], :lowest_ids::uuid[], :highest_ids::uuid[]) asked(position, lowest, highest)
CROSS JOIN LATERAL (
    SELECT id, type, created_at FROM events
    WHERE account_id = :account_id AND id >= asked.lowest AND id < asked.highest AND id >= :lowest AND id < :highest
      AND message_id = :message_id AND position = asked.position
    ORDER BY id DESC LIMIT 1) event
""")


# The number that is kept for one message.
_REPORTS: Final = """
SELECT position, kind, detail, status, code, response, suppressed, at
FROM reports WHERE account_id = $1 AND message_id = $2 ORDER BY at, id
"""


# The log has a partition for each day of its own ids. A delivery is no older than its event, but a replay may be days
# newer: the days from then until now are read, for most messages one or two.
_SENDINGS: Final = statement("""
SELECT id, event_id, status, attempt, max_attempts, http_status, error, replay_of, created_at, last_attempt_at,
    next_attempt_at
FROM webhook_deliveries
WHERE account_id = :account_id AND message_id = :message_id AND id >= :lowest AND id < :highest
  AND endpoint_id = account_id
ORDER BY id DESC LIMIT :limit
""")


async def timeline(tx: Connection, account_id: AccountId, message_id: MessageId, now: datetime) -> Timeline | None:
    """The timeline of the account's message. `tx` sees one snapshot."""
    return await _timeline(tx, await tx.fetchrow(_MESSAGE_OF_ONE, message_id, account_id), now)


async def timeline_of_any(tx: Connection, message_id: MessageId, now: datetime) -> Timeline | None:
    """The same for a message of any account."""
    return await _timeline(tx, await tx.fetchrow(_MESSAGE_OF_ANY, message_id), now)


async def _timeline(tx: Connection, message: Row | None, now: datetime) -> Timeline | None:
    if message is None:
        return None
    message_id = message["id"]
    key = message["account_id"], message_id
    recipients = await tx.fetch(_RECIPIENTS, *key)
    newest = [DeliveryAttempt(**row) for row in await tx.fetch(_ATTEMPTS, *key, ATTEMPTS_SHOWN_MAX + 1)]
    attempts: defaultdict[int, list[DeliveryAttempt]] = defaultdict(list)
    for attempt in reversed(newest[:ATTEMPTS_SHOWN_MAX]):
        attempts[attempt.position].append(attempt)
    scheduled = {row["position"]: ScheduledRecipient(**row) for row in await _waiting(tx, key, now)}
    suppressions = await _suppressions(tx, key[0], recipients)
    spans = _spans(recipients, attempts)
    sendings = await _sendings(tx, key, spans, now)
    events = await _events(tx, key, spans, sendings[:SENDINGS_SHOWN_MAX])
    reports = [MessageReport(**row) for row in await tx.fetch(_REPORTS, *key)]
    return Timeline(
        **{**message, "tags": tuple(message["tags"]), "metadata": read_metadata(message["metadata"])},
        recipients=tuple(
            [
                RecipientTimeline(
                    **row,
                    attempts=tuple(attempts.get(row["position"], ())),
                    waiting=scheduled.get(row["position"]),
                    suppression=suppressions.get(row["position"]),
                    event=events.get(row["position"]),
                    reports=tuple([report for report in reports if report.position == row["position"]]),
                )
                for row in recipients
            ]
        ),
        reports=tuple([report for report in reports if report.position is None]),
        is_shortened=len(newest) > ATTEMPTS_SHOWN_MAX or len(sendings) > SENDINGS_SHOWN_MAX,
        read_at=now,
    )


async def _waiting(tx: Connection, key: tuple[AccountId, MessageId], now: datetime) -> Sequence[Row]:
    account_id, message_id = key
    return await tx.fetch(
        *_WAITING.bind(account_id=account_id, message_id=message_id, accepted_at=ids.time_of(message_id), now=now)
    )


async def _suppressions(
    tx: Connection, account_id: AccountId, recipients: Sequence[Row]
) -> dict[int, RecipientSuppression]:
    asked = [row["position"] for row in recipients], [row["email"] for row in recipients]
    return {row["position"]: RecipientSuppression(**row) for row in await tx.fetch(_SUPPRESSIONS, account_id, *asked)}


def _spans(
    recipients: Sequence[Row], attempts: Mapping[int, Sequence[DeliveryAttempt]]
) -> list[tuple[int, UUID, UUID]]:
    """For each final recipient, the ids between which its event is."""
    spans = []
    for row in recipients:
        position, final_at = row["position"], row["final_at"]
        if final_at is not None:
            began = [attempt.started_at - _CLOCKS_DIFFER for attempt in attempts.get(position, ())[-1:]]
            since = max([final_at - _RECORDED_WITHIN, *began])
            spans.append((position, ids.lowest_id(since), ids.lowest_id(final_at + _CLOCKS_DIFFER)))
    return spans


async def _sendings(
    tx: Connection, key: tuple[AccountId, MessageId], spans: Sequence[tuple[int, UUID, UUID]], now: datetime
) -> list[WebhookDeliverySummary]:
    """The newest first; one more than is shown, if there are more."""
    if not spans:
        return []
    account_id, message_id = key
    rows = await tx.fetch(
        *_SENDINGS.bind(
            account_id=account_id,
            message_id=message_id,
            lowest=min(lowest for _, lowest, _ in spans),
            highest=ids.lowest_id(now + _CLOCKS_DIFFER),
            limit=SENDINGS_SHOWN_MAX + 1,
        )
    )
    return [WebhookDeliverySummary(**row) for row in rows]


async def _events(
    tx: Connection,
    key: tuple[AccountId, MessageId],
    spans: Sequence[tuple[int, UUID, UUID]],
    sendings: Sequence[WebhookDeliverySummary],
) -> dict[int, RecipientEvent]:
    by_event: defaultdict[UUID, list[WebhookDeliverySummary]] = defaultdict(list)
    for sending in sendings:
        by_event[sending.event_id].append(sending)
    if not spans:
        return {}
    account_id, message_id = key
    found = await tx.fetch(
        *_EVENTS.bind(
            account_id=account_id,
            message_id=message_id,
            positions=[position for position, _, _ in spans],
            lowest_ids=[lowest for _, lowest, _ in spans],
            highest_ids=[highest for _, _, highest in spans],
            lowest=min(lowest for _, lowest, _ in spans),
            highest=max(highest for _, _, highest in spans),
        )
    )
    return {row["position"]: RecipientEvent(**row, sendings=tuple(by_event.get(row["id"], ()))) for row in found}
