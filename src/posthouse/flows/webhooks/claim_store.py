"""How webhook deliveries are claimed, recorded and postponed: the part of `shared.claims` that is their own."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.flows.shared.claims import ClaimStore, CrashPoints, Postponement, Recorded
from posthouse.rules import ids
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import endpoints, webhook_schedule, webhooks
from posthouse.store.postgres import Connection
from posthouse.store.webhook_schedule import ClaimedWebhook, WebhookOutcome, WebhookPostponement

# Longer than any attempt: what a living worker forgot is due again then.
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
        # Late outcomes as well: their calls were made all the same.
        news = [outcome for outcome in outcomes if outcome.is_news]
        if of_webhooks := [outcome for outcome in news if outcome.endpoint_id is None]:
            await webhooks.note_calls(tx, of_webhooks, now)
        if of_endpoints := [outcome for outcome in news if outcome.endpoint_id is not None]:
            await endpoints.note_calls(tx, of_endpoints, now)
        return Recorded(recorded.late)

    async def postpone(
        self, tx: Connection, postponements: Sequence[Postponement[WebhookTicket]], now: datetime
    ) -> None:
        del now
        await webhook_schedule.postpone(
            tx, [WebhookPostponement(*late.ticket.key, late.next_at) for late in postponements]
        )

    def log_fields(self, work: WebhookTicket | WebhookOutcome) -> Mapping[str, str]:
        delivery_id = work.webhook_delivery_id if isinstance(work, WebhookTicket) else work.id
        return {
            "account": ids.text(ids.ACCOUNT, work.account_id),
            "webhook_delivery": ids.text(ids.WEBHOOK_DELIVERY, delivery_id),
        }
