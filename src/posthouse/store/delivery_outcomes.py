"""The results of attempts, recorded for many recipients together.

Every process records in one order: lock the messages, then the schedule's rows, by their keys; change the
recipients; update the messages according to what was really changed; write events, delete or postpone schedule rows,
write the ledger; release credits last, account by account. Locks taken in another order deadlock, a message whose
recipients are counted by two transactions at the same time stays open forever, and all transactions of an account
wait for its row: it is locked only at the very end, and only if credits are released.

An event becomes a webhook delivery for each endpoint of its account that asks for it, in the same transaction
(`endpoint_events`). Endpoints are only read, so that nothing waits for their rows; a change that is made meanwhile
takes effect when the delivery is claimed. Endpoints besides the webhook also get a first deferral and a cancellation.

A statement's snapshot is older than the locks it takes, so one statement locks and later ones change. They
find the rows that they change by place (ctid): a join with the keys, planned while a day's partition was
empty, would read the whole partition from then on. The message's id, which the same lookup returns with the
place, selects the partition.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import cache
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from posthouse.rules.delivery_reason import reason_of
from posthouse.rules.endpoint import FurtherType
from posthouse.rules.ids import AccountId, MessageId, derived_id
from posthouse.rules.message import BillingStatus, RecipientStatus, billing_of, message_state
from posthouse.rules.reroute import Hold
from posthouse.rules.retry import WEBHOOK
from posthouse.rules.simulator import FollowUp
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import endpoint_events
from posthouse.store.delivery_schedule import RecipientKey, RowLocation, id_bounds
from posthouse.store.endpoint_events import MailEvent
from posthouse.store.postgres import Connection, required, storable
from posthouse.store.statement import DayStatement, common_day, statement


class DeliveryResult(StrEnum):
    """The result of an attempt for its recipient. `POSTPONED` was not an attempt and doesn't count.

    `CANCELLED` comes from the sender, without an attempt and without an event.
    """

    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEFERRED = "deferred"
    POSTPONED = "postponed"

    def __init__(self, text: str) -> None:
        # An attribute, since it is asked several times for each message.
        self.is_final = text not in ("deferred", "postponed")


_WITH_EVENT: Final = frozenset({DeliveryResult.DELIVERED, DeliveryResult.BOUNCED, DeliveryResult.FAILED})
_MAY_BE_AMBIGUOUS: Final = frozenset({DeliveryResult.FAILED, DeliveryResult.DEFERRED})


@cache
def _billing_status(result: DeliveryResult, is_released: bool) -> BillingStatus:
    return billing_of(RecipientStatus(result), is_released=is_released)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event for the customer."""

    id: UUID
    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The result of one claim. Texts are the remote server's, made printable, or our own.

    A final result has its event, unless it is `CANCELLED`; any other has the time of the next attempt. `suppress`: the
    address gets no more mail of this account. `is_released`: the credit is returned although the message failed.
    `source_ip` is our address that the attempt was made from; with `returns_to_source_ip` the next attempt is made from
    it again. `relay` is the relay that it was tried over. `reply_signal` is what the reply says about us. With a
    `hold`, a block of our address holds the recipient, and this was its reply. `trace` is the trace of its webhook
    delivery, if the message is traced. `counts_from` is as in the claim, for the metrics. `follow_up`, of a simulated
    delivery, is recorded by the caller.
    """

    account_id: AccountId
    message_id: MessageId
    position: int
    fence: int
    result: DeliveryResult
    event: NewEvent | None = None
    next_at: datetime | None = None
    suppress: bool = False
    is_released: bool = False
    is_ambiguous: bool = False
    mx_host: str | None = None
    remote_ip: str | None = None
    tls: str | None = None
    stage: str | None = None
    code: int | None = None
    response: str | None = None
    source_ip: str | None = None
    returns_to_source_ip: bool = False
    relay: str | None = None
    trace: bytes | None = None
    reply_signal: str | None = None
    hold: Hold | None = None
    counts_from: datetime | None = None
    follow_up: FollowUp | None = None

    def __post_init__(self) -> None:
        has_event = self.result in _WITH_EVENT
        if (self.event is not None) is not has_event or (self.next_at is None) is not self.result.is_final:
            raise ValueError(f"a final result has an event, any other a next time: {self.result}")
        if self.is_ambiguous and self.result not in _MAY_BE_AMBIGUOUS:
            raise ValueError(f"{self.result} is never ambiguous")
        if self.hold is not None and (self.result is not DeliveryResult.POSTPONED or self.code is None):
            raise ValueError("a result with a hold must be postponed")

    @property
    def key(self) -> RecipientKey:
        return self.account_id, self.message_id, self.position, self.fence

    @property
    def billing_status(self) -> BillingStatus:
        return _billing_status(self.result, self.is_released)

    @property
    def releases_credit(self) -> bool:
        return self.billing_status is BillingStatus.RELEASED


class RecordedOutcomes(NamedTuple):
    """`counted` outcomes changed their recipients; `late` ones came after another claim or record, and did not.

    `tickets` belong to the new webhook deliveries: these are leased, and the caller publishes the tickets. `settled`
    and `released` are credits.
    """

    counted: tuple[DeliveryOutcome, ...]
    late: tuple[DeliveryOutcome, ...]
    tickets: tuple[WebhookTicket, ...] = ()
    settled: int = 0
    released: int = 0


# Without the range of ids: where a range has pruned partitions, PostgreSQL 18.4 drops a row that it had to wait for.
_LOCK: Final = DayStatement("""
SELECT number, place, open_count, delivered_count, released_count, recipient_count, credits_reserved,
       NULL::smallint AS attempt_count
FROM (
    SELECT wanted.number, message.*
    FROM unnest(:closing::message_key[]) WITH ORDINALITY wanted(account_id, id, number)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, open_count, delivered_count, released_count, recipient_count, credits_reserved
        FROM <messages>
        WHERE account_id = wanted.account_id AND id = wanted.id
        LIMIT 1 FOR NO KEY UPDATE) message) messages
UNION ALL
SELECT number, place, NULL, NULL, NULL, NULL, NULL, attempt_count
FROM (
    SELECT asked.number, due.*
    FROM unnest(:keys::recipient_key[]) WITH ORDINALITY asked(account_id, message_id, position, fence, number)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, attempt_count FROM delivery_schedule
        WHERE account_id = asked.account_id AND message_id = asked.message_id AND position = asked.position
          AND fence = asked.fence
        LIMIT 1 FOR NO KEY UPDATE) due) schedule
""")

_CHANGE: Final = DayStatement("""
UPDATE <recipients> AS recipients SET status = given.status, billing_status = given.billing_status,
    attempt_count = given.attempt_count, last_smtp_code = given.code, last_smtp_response = given.response,
    delivered_at = CASE given.status WHEN 'delivered' THEN :now::timestamptz END,
    bounced_at = CASE given.status WHEN 'bounced' THEN :now::timestamptz END,
    failed_at = CASE given.status WHEN 'failed' THEN :now::timestamptz END,
    cancelled_at = CASE given.status WHEN 'cancelled' THEN :now::timestamptz END
FROM (
    SELECT place, place_id, was_queued, asked.*
    FROM unnest(:recipients::changed_recipient[]) WITH ORDINALITY
        asked(account_id, message_id, position, status, billing_status, attempt_count, code, response, number)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, message_id AS place_id, status = 'queued' AS was_queued FROM <recipients>
        WHERE account_id = asked.account_id AND message_id = asked.message_id AND position = asked.position
          AND message_id >= :lowest AND message_id <= :highest LIMIT 1) recipient) given
WHERE recipients.ctid = given.place AND recipients.message_id = given.place_id
  AND recipients.status IN ('queued', 'deferred')
RETURNING given.number, given.was_queued
""")

_WRITE: Final = DayStatement("""
WITH folded AS (
    UPDATE <messages> AS messages SET open_count = given.open_count, delivered_count = given.delivered_count,
        released_count = given.released_count, status = given.status, billing_status = given.billing_status
    FROM unnest(:folded::counted_message[]) given
    WHERE messages.ctid = given.place AND messages.id = given.id
    RETURNING 1
), given AS MATERIALIZED (
    SELECT * FROM unnest(:attempts::finished_attempt[])
), tried AS (
    UPDATE <attempts> AS attempts SET finished_at = :now, outcome = attempt.result, is_ambiguous = attempt.is_ambiguous,
        mx_host = attempt.mx_host, remote_ip = attempt.remote_ip, tls = attempt.tls, stage = attempt.stage,
        code = attempt.code, response = attempt.response, source_ip = attempt.source_ip,
        relay = attempt.relay, reply_signal = attempt.reply_signal
    FROM (
        SELECT place, place_id, given.* FROM given CROSS JOIN LATERAL (
            SELECT ctid AS place, message_id AS place_id FROM <attempts>
            WHERE account_id = given.account_id AND message_id = given.message_id AND position = given.position
              AND fence = given.fence AND message_id >= :lowest AND message_id <= :highest LIMIT 1) started) attempt
    WHERE attempts.ctid = attempt.place AND attempts.message_id = attempt.place_id
      AND attempts.finished_at IS NULL
), struck AS (
    DELETE FROM delivery_schedule WHERE ctid = ANY(:struck_places::tid[])
    RETURNING 1
), postponed AS (
    UPDATE delivery_schedule AS waiting SET next_at = least(later.next_at, waiting.bounce_at), fence = fence + 1,
        worker_id = NULL, attempt_count = attempt_count - later.uncounted,
        source_ip = coalesce(later.source_ip, waiting.source_ip),
        bounce_at = coalesce(waiting.bounce_at, later.bounce_at),
        first_code = coalesce(waiting.first_code, later.first_code),
        first_response = coalesce(waiting.first_response, later.first_response)
    FROM unnest(:later::postponed_recipient[]) later
    WHERE waiting.ctid = later.place
    RETURNING 1
), closed AS (
    INSERT INTO <ledger> (account_id, message_id, position, kind, amount, at)
    SELECT account_id, message_id, position, ledger_kind, 1, :now FROM given WHERE ledger_kind IS NOT NULL
), announced AS (
    INSERT INTO events (account_id, id, message_id, position, type, created_at, body)
    SELECT account_id, event_id, message_id, position, event_type, :now, event_body
    FROM given WHERE event_id IS NOT NULL
)
SELECT (SELECT count(*) FROM folded), (SELECT count(*) FROM struck), (SELECT count(*) FROM postponed),
    ARRAY(SELECT account_id FROM endpoints WHERE account_id = ANY(:changed_account_ids::uuid[]) AND enabled)
""")

# Also in one order: two transactions that insert the same addresses wait for each other. A bounce outranks the
# account's own entry: suppressing an address just after sending to it must not hide the bounce.
_SUPPRESS: Final = statement("""
INSERT INTO suppressions (account_id, email, reason, code, response, at)
SELECT DISTINCT ON (1, 2) given.account_id, lower(recipient.email) AS email, 'bounce', given.code, given.response, :now
FROM unnest(:account_ids::uuid[], :message_ids::uuid[], :positions::smallint[], :codes::smallint[], :responses::text[])
    given(account_id, message_id, position, code, response)
CROSS JOIN LATERAL (
    SELECT email FROM recipients
    WHERE account_id = given.account_id AND message_id = given.message_id AND position = given.position
      AND message_id >= :lowest AND message_id <= :highest LIMIT 1) recipient
ORDER BY 1, 2
ON CONFLICT (account_id, email) DO UPDATE
    SET reason = excluded.reason, code = excluded.code, response = excluded.response, at = excluded.at
    WHERE suppressions.reason = 'manual'
""")

_LOCK_ACCOUNTS: Final = "SELECT FROM accounts WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE"

_RELEASE: Final = """
UPDATE accounts SET available = available + freed.credits
FROM unnest($1::uuid[], $2::bigint[]) freed(account_id, credits)
WHERE accounts.id = freed.account_id AND accounts.id = ANY($1::uuid[])
"""


@dataclass(slots=True)
class _Counts:
    """A locked message, counted down."""

    place: RowLocation
    open: int
    delivered: int
    released: int
    total: int
    credits: int

    def close(self, outcome: DeliveryOutcome) -> None:
        self.open -= 1
        self.delivered += outcome.result is DeliveryResult.DELIVERED
        self.released += outcome.releases_credit


_Messages = dict[tuple[AccountId, MessageId], _Counts]
# Place and attempt count of the rows whose fence was still the outcome's.
_Schedule = dict[RecipientKey, tuple[RowLocation, int]]


async def record(
    tx: Connection,
    outcomes: Iterable[DeliveryOutcome],
    now: datetime,
    *,
    ticket_lease: timedelta = timedelta(0),
    webhook_attempts_max: int = WEBHOOK.attempts_max,
) -> RecordedOutcomes:
    """Record the results of claims, with everything that follows; a second time changes nothing.

    An outcome counts while its fence is the schedule's. A late outcome fills its own attempt and suppresses the
    address if it must; the recipient belongs to a newer claim. Webhook deliveries start leased for `ticket_lease`:
    without it, they are due immediately, and the dispatcher finds them.
    """
    batch = _in_order(outcomes)
    if not batch:
        return RecordedOutcomes((), ())
    low, high = id_bounds(batch)
    day = common_day(low, high, now)
    messages, schedule = await _lock(tx, batch, day)
    changed, first_changed = await _change(tx, batch, messages, schedule, now, low, high, day)
    closed = {key: outcome for key, outcome in changed.items() if outcome.result.is_final}
    for key, outcome in closed.items():
        messages[key[:2]].close(outcome)
    # How the credit of each recipient that is final is accounted for, if it has one.
    ledger_kinds = {
        key: "release" if outcome.releases_credit else "settle"
        for key, outcome in closed.items()
        if messages[key[:2]].credits
    }
    with_endpoints = await _write(tx, batch, messages, schedule, changed, closed, ledger_kinds, now)
    tickets: list[WebhookTicket] = []
    if with_endpoints:
        of_them = [outcome for outcome in changed.values() if outcome.account_id in with_endpoints]
        events = [event for outcome in of_them for event in _endpoint_events(outcome, first_changed, now)]
        if events:
            tickets = await endpoint_events.enter_mail(tx, events, now, now + ticket_lease, webhook_attempts_max)
    await _suppress(tx, batch.values(), now, low, high)
    freed = Counter([key[0] for key, kind in ledger_kinds.items() if kind == "release"])
    await _release(tx, freed)
    released = freed.total()
    counted = changed.keys() | {key for key in schedule if batch[key].result is DeliveryResult.POSTPONED}
    return RecordedOutcomes(
        tuple([outcome for key, outcome in batch.items() if key in counted]),
        tuple([outcome for key, outcome in batch.items() if key not in counted]),
        tuple(tickets),
        settled=len(ledger_kinds) - released,
        released=released,
    )


def _in_order(outcomes: Iterable[DeliveryOutcome]) -> dict[RecipientKey, DeliveryOutcome]:
    """The outcomes by their keys, in the order of locking; of two with the same key the first counts."""
    batch: dict[RecipientKey, DeliveryOutcome] = {}
    for outcome in outcomes:
        batch.setdefault(outcome.key, outcome)
    return dict(sorted(batch.items(), key=itemgetter(0)))


async def _lock(
    tx: Connection, batch: Mapping[RecipientKey, DeliveryOutcome], day: date | None
) -> tuple[_Messages, _Schedule]:
    """The messages that may become final, then the schedule's rows whose fence still matches."""
    keys = list(batch)
    ends = list(dict.fromkeys([key[:2] for key, outcome in batch.items() if outcome.result.is_final]))
    messages: _Messages = {}
    schedule: _Schedule = {}
    rows = await tx.fetch(
        *_LOCK.for_days(day).bind(
            closing=ends,
            keys=keys,
        )
    )
    for number, place, *counts, attempt_count in rows:
        if attempt_count is None:
            messages[ends[number - 1]] = _Counts(place, *counts)
        else:
            schedule[keys[number - 1]] = place, attempt_count
    return messages, schedule


async def _change(
    tx: Connection,
    batch: Mapping[RecipientKey, DeliveryOutcome],
    messages: _Messages,
    schedule: _Schedule,
    now: datetime,
    low: MessageId,
    high: MessageId,
    day: date | None,
) -> tuple[dict[RecipientKey, DeliveryOutcome], Collection[RecipientKey]]:
    """Give the recipients their new states; return those that really changed, and which of them for the first time."""
    keys = [
        key
        for key in schedule
        if batch[key].result is DeliveryResult.DEFERRED or (batch[key].result.is_final and key[:2] in messages)
    ]
    if not keys:
        return {}, ()
    rows = await tx.fetch(
        *_CHANGE.for_days(day).bind(
            now=now,
            lowest=low,
            highest=high,
            recipients=[_changed_recipient(batch[key], schedule[key][1]) for key in keys],
        )
    )
    changed = {keys[number - 1]: batch[keys[number - 1]] for number, _ in rows}
    return changed, {keys[number - 1] for number, was_queued in rows if was_queued}


def _changed_recipient(outcome: DeliveryOutcome, attempt_count: int) -> tuple[object, ...]:
    """As the type `changed_recipient`."""
    return (
        outcome.account_id,
        outcome.message_id,
        outcome.position,
        outcome.result,
        outcome.billing_status,
        attempt_count,
        outcome.code,
        storable(outcome.response),
    )


async def _write(
    tx: Connection,
    batch: Mapping[RecipientKey, DeliveryOutcome],
    messages: _Messages,
    schedule: _Schedule,
    changed: Mapping[RecipientKey, DeliveryOutcome],
    closed: Collection[RecipientKey],
    ledger_kinds: Mapping[RecipientKey, str],
    now: datetime,
) -> Collection[AccountId]:
    """Write everything that follows from the changes; return the accounts that have enabled endpoints."""
    low, high = id_bounds(batch)
    folded = [(key[1], messages[key]) for key in dict.fromkeys([key[:2] for key in closed])]
    states = [message_state(counts.open, counts.delivered, counts.released, counts.total) for _, counts in folded]
    struck, later = _schedule_changes(batch, schedule, changed)
    row = await tx.fetchrow(
        *_WRITE.for_days(common_day(low, high, now)).bind(
            now=now,
            lowest=low,
            highest=high,
            folded=[
                (counts.place, message_id, counts.open, counts.delivered, counts.released, *state)
                for (message_id, counts), state in zip(folded, states, strict=True)
            ],
            attempts=[
                _finished_attempt(outcome, ledger_kinds.get(key), outcome.event if key in changed else None)
                for key, outcome in batch.items()
            ],
            struck_places=struck,
            later=[_postponed_recipient(place, outcome, uncounted) for place, outcome, uncounted in later],
            changed_account_ids=list({account_id for account_id, _, _, _ in changed}),
        )
    )
    *written, with_endpoints = required(row)
    if written != [len(folded), len(struck), len(later)]:
        raise RuntimeError(f"a locked row was not found at its place: {written}")
    found: Collection[AccountId] = with_endpoints
    return found


def _finished_attempt(outcome: DeliveryOutcome, ledger_kind: str | None, event: NewEvent | None) -> tuple[object, ...]:
    """As the type `finished_attempt`; the last two if the outcome changed its recipient."""
    return (
        outcome.account_id,
        outcome.message_id,
        outcome.position,
        outcome.fence,
        outcome.result,
        outcome.is_ambiguous,
        storable(outcome.mx_host),
        outcome.remote_ip,
        outcome.tls,
        outcome.stage,
        outcome.code,
        storable(outcome.response),
        outcome.source_ip,
        outcome.relay,
        outcome.reply_signal,
        ledger_kind,
        event and event.id,
        event and event.type,
        event and event.body,
    )


def _postponed_recipient(place: RowLocation, outcome: DeliveryOutcome, uncounted: int) -> tuple[object, ...]:
    """As the type `postponed_recipient`."""
    if (hold := outcome.hold) is None:
        source_ip = outcome.source_ip if outcome.returns_to_source_ip else None
        return place, outcome.next_at, uncounted, source_ip, None, None, None
    response = storable(outcome.response or "")
    return place, outcome.next_at, uncounted, hold.source_ip, hold.bounce_at, outcome.code, response


def _schedule_changes(
    batch: Mapping[RecipientKey, DeliveryOutcome], schedule: _Schedule, changed: Mapping[RecipientKey, DeliveryOutcome]
) -> tuple[list[RowLocation], list[tuple[RowLocation, DeliveryOutcome, int]]]:
    """The places of rows to delete; and of rows to postpone, each with its outcome and its uncounted attempts."""
    struck = []
    later = []
    for key, (place, attempt_count) in schedule.items():
        outcome = batch[key]
        if outcome.result is DeliveryResult.POSTPONED:
            later.append((place, outcome, min(attempt_count, 1)))
        elif outcome.result is DeliveryResult.DEFERRED and key in changed:
            later.append((place, outcome, 0))
        else:
            # It became final, or was already final or gone: either way it must not be tried again.
            struck.append(place)
    return struck, later


def _endpoint_events(
    outcome: DeliveryOutcome, first_changed: Collection[RecipientKey], now: datetime
) -> Iterator[MailEvent]:
    """The events of a result that endpoints may want."""
    account_id, message_id, position = outcome.account_id, outcome.message_id, outcome.position

    def further(type_: FurtherType, **about: Any) -> MailEvent:
        event_id = derived_id(now, message_id.bytes, bytes([position]), type_.encode())
        return MailEvent(account_id, event_id, type_, message_id, position, **about)

    code, event = outcome.code, outcome.event
    if event is not None:
        reason = None
        if outcome.result is not DeliveryResult.DELIVERED:
            reason = reason_of(outcome.result, code, outcome.response).value
        about = account_id, event.id, event.type, message_id, position, event.body
        yield MailEvent(*about, reason=reason, trace=outcome.trace)
    elif outcome.result is DeliveryResult.CANCELLED:
        yield further(FurtherType.CANCELLED)
    elif outcome.result is DeliveryResult.DEFERRED and outcome.key in first_changed:
        reason = reason_of(outcome.result, code, outcome.response).value
        yield further(FurtherType.DEFERRED, code=code, response=storable(outcome.response), reason=reason)


async def _suppress(
    tx: Connection, outcomes: Iterable[DeliveryOutcome], now: datetime, low: MessageId, high: MessageId
) -> None:
    suppressing = [outcome for outcome in outcomes if outcome.suppress]
    if suppressing:
        await tx.execute(
            *_SUPPRESS.bind(
                now=now,
                lowest=low,
                highest=high,
                account_ids=[outcome.account_id for outcome in suppressing],
                message_ids=[outcome.message_id for outcome in suppressing],
                positions=[outcome.position for outcome in suppressing],
                codes=[outcome.code for outcome in suppressing],
                responses=[storable(outcome.response) for outcome in suppressing],
            )
        )


async def _release(tx: Connection, freed: Mapping[AccountId, int]) -> None:
    """Return the credits of recipients that are not charged: the last locks that the transaction takes."""
    if freed:
        await tx.execute(_LOCK_ACCOUNTS, list(freed))
        await tx.execute(_RELEASE, list(freed), list(freed.values()))
