"""Claims: a worker reserves many recipients for itself before it tries to deliver.

One statement locks the rows of the schedule whose fence is the ticket's; another, whose snapshot is newer than
the locks, raises their fences and records the attempts as started. So an attempt is on record before there is a
connection, and of two tickets for one recipient the second finds the fence changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.erasure import ErasureKey
from posthouse.rules.ids import AccountId, MessageId, time_of
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.retry import DELIVERY, HOLD_MAX, Schedule
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_schedule, erasures, restore
from posthouse.store.delivery_schedule import RecipientKey, id_bounds
from posthouse.store.postgres import Connection
from posthouse.store.statement import DayStatement, common_day

# The longest body that is returned with its claim: hundreds are in memory at a time.
BODY_BYTES_MAX: Final = 64 * 1024
LIFETIME_UNLIMITED: Final = timedelta(days=36_500)
NOT_TRUSTED: Final = "The database has a new timeline: nothing is sent until it is known whether it was restored."


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """The data that all recipients of a message share.

    `mailing_list` is the list that it was sent to, according to its tag; with `one_click`, its recipients get a link
    to unsubscribe. `trace` is the trace that it belongs to, if it is traced. `mime_bytes` is the length of its body,
    None if the body is no longer stored or not needed; `mime` is the body itself unless it is longer than
    BODY_BYTES_MAX (`bodies.whole` reads it then).
    """

    id: MessageId
    source: str
    sender: str
    envelope_sender: str
    subject: str
    created_at: datetime
    mailing_list: str | None
    one_click: bool
    trace: bytes | None
    mime_bytes: int | None
    mime: bytes | None


@dataclass(frozen=True, slots=True)
class ClaimedRecipient:
    """One recipient to be tried, under its own fence.

    `attempt_count` includes this attempt, and any whose worker died before it reported; `suspended` is how long the
    account was suspended since `counts_from` (its acceptance, or its message's `send_at`), `held` also includes how
    long operators held it. A recipient that is suppressed (for all mail, or because it `has_left` the message's list),
    or over (its attempts, lifetime or time held are used up), is not to be tried: no attempt is written or counted for
    it, only its outcome is to be recorded. A recipient that a block holds has the time at which it bounces, and the
    first reply.
    """

    account_id: AccountId
    message_id: MessageId
    position: int
    fence: int
    destination: str
    email: str
    attempt_count: int
    counts_from: datetime
    held: timedelta
    suspended: timedelta
    is_suppressed: bool
    has_left: bool
    is_over: bool
    bounce_at: datetime | None
    first_code: int | None
    first_response: str | None
    message: ClaimedMessage

    @property
    def key(self) -> RecipientKey:
        return self.account_id, self.message_id, self.position, self.fence


# Nearly all mail belongs to no list, and then unsubscriptions are not read.
_CLAIM: Final = DayStatement(f"""
WITH asked AS MATERIALIZED (
    SELECT due.*, recipient.email, suppression.email IS NOT NULL OR leaver.email IS NOT NULL
        OR ({erasures.IS_ERASED.format(account_id="due.account_id", email="recipient.email")}) AS is_suppressed,
        leaver.email IS NOT NULL AS has_left,
        suspended.time AS suspended, scheduled.paused, suspended.time + scheduled.paused AS held,
        scheduled.counts_from, scheduled.attempt_count >= :attempts_max OR suspended.time >= :hold_max::interval
            OR scheduled.counts_from + :lifetime::interval + suspended.time + scheduled.paused < :now
            OR coalesce(scheduled.bounce_at <= :now, false) AS is_over
    FROM unnest(:due::due_recipient[]) due
    CROSS JOIN LATERAL (
        SELECT attempt_count, bounce_at, coalesce(send_at, due.accepted_at) AS counts_from,
            paused + CASE WHEN held_by IS NULL THEN interval '0' ELSE :now::timestamptz - held_since END AS paused
        FROM delivery_schedule WHERE ctid = due.place) scheduled
    CROSS JOIN LATERAL ({delivery_schedule.SUSPENDED_TIME}) suspended
    CROSS JOIN LATERAL (
        SELECT email FROM <recipients>
        WHERE account_id = due.account_id AND message_id = due.message_id AND position = due.position
          AND message_id >= :lowest AND message_id <= :highest LIMIT 1) recipient
    LEFT JOIN LATERAL (
        SELECT email FROM suppressions
        WHERE account_id = due.account_id AND email = lower(recipient.email) LIMIT 1) suppression ON true
    LEFT JOIN LATERAL (
        SELECT email FROM unsubscriptions
        WHERE due.mailing_list IS NOT NULL AND account_id = due.account_id
          AND mailing_list = due.mailing_list AND email = lower(recipient.email) LIMIT 1) leaver ON true
), claimed AS (
    UPDATE delivery_schedule AS waiting SET fence = waiting.fence + 1, worker_id = :worker_id, next_at = :until,
        attempt_count = attempt_count + CASE WHEN asked.is_suppressed OR asked.is_over THEN 0 ELSE 1 END,
        held_since = NULL, held_by = NULL, paused = asked.paused
    FROM asked WHERE waiting.ctid = asked.place AND {restore.IS_TRUSTED}
    RETURNING waiting.account_id, waiting.message_id, waiting.position, waiting.fence, destination, asked.email,
        attempt_count, asked.counts_from, asked.held, asked.suspended, asked.is_suppressed,
        asked.has_left, coalesce(asked.is_over, false) AS is_over, bounce_at, first_code, first_response
), started AS (
    INSERT INTO <attempts> (account_id, message_id, position, fence, worker_id, started_at)
    SELECT account_id, message_id, position, fence, :worker_id, :now FROM claimed WHERE NOT is_suppressed
        AND NOT is_over
)
SELECT * FROM claimed
""")

# The length of a body is known without reading it.
_MESSAGES: Final = DayStatement("""
SELECT wanted.account_id, message.*, body.mime_bytes, body.mime
FROM unnest(:keys::message_key[]) wanted(account_id, id)
CROSS JOIN LATERAL (
    SELECT id, source, sender, envelope_sender, subject, created_at, mailing_list, one_click, trace FROM <messages>
    WHERE account_id = wanted.account_id AND id = wanted.id AND id >= :lowest AND id <= :highest LIMIT 1) message
LEFT JOIN LATERAL (
    SELECT octet_length(mime) AS mime_bytes, CASE WHEN octet_length(mime) <= :body_bytes_max THEN mime END AS mime
    FROM <bodies>
    WHERE account_id = wanted.account_id AND message_id = wanted.id
      AND message_id >= :lowest AND message_id <= :highest LIMIT 1) body ON true
""")

# The suppressions that a claim would find, without claiming anything. Only mail to a list has a list.
_SUPPRESSED: Final = DayStatement(f"""
SELECT due.account_id, due.message_id, due.position, due.fence
FROM unnest(:keys::recipient_key[], :of_lists::boolean[]) due(account_id, message_id, position, fence, of_list)
CROSS JOIN LATERAL (
    SELECT email FROM <recipients>
    WHERE account_id = due.account_id AND message_id = due.message_id AND position = due.position
      AND message_id >= :lowest AND message_id <= :highest LIMIT 1) recipient
WHERE EXISTS (SELECT FROM suppressions WHERE account_id = due.account_id AND email = lower(recipient.email))
    OR ({erasures.IS_ERASED.format(account_id="due.account_id", email="recipient.email")})
    OR (due.of_list AND EXISTS (
        SELECT FROM <messages> message
        JOIN unsubscriptions leaver ON leaver.account_id = due.account_id
            AND leaver.mailing_list = message.mailing_list AND leaver.email = lower(recipient.email)
        WHERE message.account_id = due.account_id AND message.id = due.message_id
          AND message.id >= :lowest AND message.id <= :highest))
""")


async def suppressed(
    connection: Connection, tickets: Sequence[DeliveryTicket], now: datetime, erasure_keys: Sequence[ErasureKey] = ()
) -> set[RecipientKey]:
    """The tickets whose address is suppressed for all mail, or has left the message's list."""
    low, high = id_bounds(ticket.key for ticket in tickets)
    rows = await connection.fetch(
        *_SUPPRESSED.for_days(common_day(low, high, now)).bind(
            lowest=low,
            highest=high,
            keys=[ticket.key for ticket in tickets],
            of_lists=[ticket.is_list for ticket in tickets],
            **erasures.bound_keys(erasure_keys),
        )
    )
    return {tuple(row) for row in rows}


async def claim(
    tx: Connection,
    worker_id: UUID,
    tickets: Iterable[DeliveryTicket],
    now: datetime,
    until: datetime,
    retries: Schedule = DELIVERY,
    erasure_keys: Sequence[ErasureKey] = (),
) -> list[ClaimedRecipient]:
    """Claim these for the worker and record the attempts as started; tickets that came too late are absent.

    A claim lasts as long as the worker's lease, and not longer than `until`, which is after the end of the
    longest attempt: recipients that the worker lost are due again then.
    """
    places = await delivery_schedule.lock(tx, [ticket.key for ticket in tickets])
    if not places:
        return []
    low, high = id_bounds(places)
    day = common_day(low, high, now)
    messages = await _messages(tx, places, low, high, day)
    rows = await tx.fetch(
        *_CLAIM.for_days(day).bind(
            worker_id=worker_id,
            now=now,
            until=until,
            lowest=low,
            highest=high,
            attempts_max=retries.attempts_max,
            lifetime=retries.lifetime or LIFETIME_UNLIMITED,
            hold_max=HOLD_MAX,
            due=[(place, *key, time_of(key[1]), messages[key[:2]].mailing_list) for key, place in places.items()],
            **erasures.bound_keys(erasure_keys),
        )
    )
    if not rows and not await restore.is_trusted(tx):
        raise Refusal(Code.SERVICE_UNAVAILABLE, NOT_TRUSTED, 2)
    sent = {(row["account_id"], row["message_id"]) for row in rows if not row["is_suppressed"] and not row["is_over"]}
    if len(sent) < len(messages):
        messages |= {key: replace(messages[key], mime_bytes=None, mime=None) for key in messages.keys() - sent}
    return [ClaimedRecipient(**row, message=messages[row["account_id"], row["message_id"]]) for row in rows]


async def _messages(
    tx: Connection, keys: Iterable[RecipientKey], low: MessageId, high: MessageId, day: date | None
) -> dict[tuple[AccountId, MessageId], ClaimedMessage]:
    """Each message once, with its body, which is nearly always needed."""
    wanted = list(dict.fromkeys([key[:2] for key in keys]))
    found = await tx.fetch(
        *_MESSAGES.for_days(day).bind(
            lowest=low,
            highest=high,
            body_bytes_max=BODY_BYTES_MAX,
            keys=wanted,
        )
    )
    return {(row["account_id"], row["id"]): ClaimedMessage(*tuple(row)[1:]) for row in found}
