"""How webhook deliveries are claimed, recorded and postponed, and the spans of their turns.

The first is the part of `shared.claims` specific to webhooks. The spans of a traced turn are `webhook`, and in it
`ticket`, `claim`, `call` and `record`.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse import traces
from posthouse.flows.shared.claims import ClaimStore, CrashPoints, Postponement, Recorded
from posthouse.flows.shared.tickets import Item
from posthouse.rules import ids
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import endpoints, webhook_schedule
from posthouse.store.postgres import Connection
from posthouse.store.webhook_schedule import ClaimedWebhook, WebhookOutcome, WebhookResult
from posthouse.traces import Span, Tracer
from posthouse.wire.webhook_client import WebhookAnswer, WebhookCallResult

# Longer than any attempt. A delivery that a living worker forgot is due again after this.
CLAIM_LONGEST: Final = timedelta(minutes=5)


class WebhookClaimStore(ClaimStore[WebhookTicket, ClaimedWebhook, WebhookOutcome]):
    kind = "webhook"
    points = CrashPoints(
        before_claim_commit="notification.before_claim_commit",
        after_claim_commit="notification.claimed",
        before_record_commit="notification.before_commit",
        after_record_commit="notification.after_commit",
        before_ack="notification.before_ack",
        after_ack="notification.acked",
    )

    async def claim(
        self, tx: Connection, worker_id: UUID, tickets: Sequence[WebhookTicket], now: datetime
    ) -> Sequence[ClaimedWebhook]:
        return await webhook_schedule.claim(tx, worker_id, tickets, now, now + CLAIM_LONGEST)

    async def release_unknown(
        self, tx: Connection, worker_id: UUID, known: Collection[ClaimedWebhook], now: datetime
    ) -> None:
        await webhook_schedule.release_unknown(tx, worker_id, [claimed.key[:2] for claimed in known], now)

    async def record(
        self, tx: Connection, outcomes: Sequence[WebhookOutcome], now: datetime
    ) -> Recorded[WebhookOutcome]:
        recorded = await webhook_schedule.record(tx, outcomes, now)
        # Late outcomes count too, because their calls were made all the same.
        await endpoints.note_calls(tx, outcomes, now)
        return Recorded(recorded.late)

    async def postpone(
        self, tx: Connection, postponements: Sequence[Postponement[WebhookTicket]], now: datetime
    ) -> None:
        del now
        await webhook_schedule.postpone(tx, {late.ticket.key: late.next_at for late in postponements})

    def log_fields(self, work: WebhookTicket | WebhookOutcome) -> Mapping[str, str]:
        delivery_id = work.webhook_delivery_id if isinstance(work, WebhookTicket) else work.id
        return {
            "account": ids.text(ids.ACCOUNT, work.account_id),
            "webhook_delivery": ids.text(ids.WEBHOOK_DELIVERY, delivery_id),
        }


def begin(tracer: Tracer, item: Item[WebhookTicket], claimed: Sequence[ClaimedWebhook], turn_at: float) -> Span | None:
    """The span of a claimed delivery, from when its ticket was received; None if it is not traced.

    `turn_at` is when its turn came, by the monotonic clock.
    """
    if not claimed or claimed[0].trace is None:
        return None
    taken_at, turn = tracer.times_of(item.taken_at, turn_at)
    span = tracer.follow(claimed[0].trace, "webhook", taken_at)
    if span is None:
        return None
    span.set_attributes(
        {
            traces.ACCOUNT: ids.text(ids.ACCOUNT, claimed[0].account_id),
            traces.EVENT: ids.text(ids.EVENT, claimed[0].event_id),
            traces.WEBHOOK_DELIVERY: ids.text(ids.WEBHOOK_DELIVERY, claimed[0].id),
            traces.ATTEMPT: claimed[0].attempt_count,
        }
    )
    span.child("ticket", began_at=taken_at).end(ended_at=turn)
    span.child("claim", began_at=turn).end()
    return span


def end_call(call: Span, answer: WebhookCallResult) -> None:
    """The endpoint's URL is left out, because it may be the customer's secret."""
    status = answer.status if isinstance(answer, WebhookAnswer) else None
    call.end({traces.HTTP_STATUS: status}, is_error=status is None or not 200 <= status <= 299)


def end(span: Span, record: Span, outcomes: Sequence[WebhookOutcome]) -> None:
    outcome = outcomes[0].result
    record.end({traces.OUTCOME: outcome.value})
    span.end({traces.OUTCOME: outcome.value}, is_error=outcome is WebhookResult.FAILED)
