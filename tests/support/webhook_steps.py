"""The steps of webhooks without a network: an endpoint, its events, and the outcome of sending them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from posthouse.rules.endpoint import Filters, WebhookFilters
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import delivery_outcomes, endpoint_events, endpoints, webhook_log, webhook_schedule
from posthouse.store.delivery_outcomes import DeliveryOutcome
from posthouse.store.delivery_outcomes import DeliveryResult as MailResult
from posthouse.store.endpoints import Endpoint
from posthouse.store.postgres import Connection
from posthouse.store.webhook_log import WebhookDelivery
from posthouse.store.webhook_schedule import ClaimedWebhook, RecordedWebhooks, WebhookOutcome, WebhookResult
from tests.support.accept_flow import Sender
from tests.support.delivery_steps import LEASE, WAIT, DeliverySteps

URL: Final = "https://hooks.example.com/posthouse"
ALL_EVENTS: Final = ("email.delivered", "email.bounced", "email.failed")
LONGEST_CALL: Final = timedelta(minutes=1)


async def save_webhook(
    tx: Connection,
    account_id: AccountId,
    url: str,
    events: Sequence[str],
    enabled: bool,
    secret_sealed: bytes,
    now: datetime,
) -> tuple[Endpoint, bool]:
    return await endpoints.save(tx, account_id, account_id, url, Filters(tuple(events)), enabled, secret_sealed, now)


async def enter_ping(
    tx: Connection,
    account_id: AccountId,
    event_id: UUID,
    delivery_id: UUID,
    body: bytes,
    now: datetime,
    next_at: datetime,
) -> WebhookDelivery:
    to = await endpoints.find(tx, account_id, account_id)
    assert to is not None
    await endpoint_events.enter_ping(tx, to, event_id, delivery_id, body, now, next_at)
    return await _delivery(tx, account_id, delivery_id)


async def enter_replay(
    tx: Connection, original: WebhookDelivery, delivery_id: UUID, max_attempts: int, now: datetime, next_at: datetime
) -> WebhookDelivery:
    to = await endpoints.find(tx, original.account_id, original.endpoint_id)
    assert to is not None
    await endpoint_events.enter_replays(tx, to, [(delivery_id, original)], now, next_at, max_attempts)
    return await _delivery(tx, original.account_id, delivery_id)


async def _delivery(tx: Connection, account_id: AccountId, delivery_id: UUID) -> WebhookDelivery:
    found = await webhook_log.find_delivery(tx, account_id, delivery_id)
    assert found is not None
    return found


@dataclass(slots=True)
class WebhookSteps:
    steps: DeliverySteps

    @property
    def account_id(self) -> AccountId:
        return AccountId(self.steps.sender.account_id)

    async def save(
        self,
        url: str = URL,
        events: Sequence[str] = ALL_EVENTS,
        enabled: bool = True,
        *,
        account_id: AccountId | None = None,
        endpoint_id: UUID | None = None,
        secret: bytes = b"sealed",
    ) -> Endpoint:
        """The account's webhook, or another endpoint."""
        to = account_id or self.account_id
        async with self.steps.database.transaction() as tx:
            now, filters = self.steps.clock.now(), Filters(tuple(events))
            row, _ = await endpoints.save(tx, to, endpoint_id or to, url, filters, enabled, secret, now)
        return row

    async def add_events(
        self, *results: MailResult, lease: timedelta = LEASE, sender: Sender | None = None
    ) -> list[WebhookTicket]:
        """A new message whose recipients have these results; the tickets of its events."""
        outcomes = await self.outcomes(*results, sender=sender)
        async with self.steps.database.transaction() as tx:
            now = self.steps.clock.now()
            return list((await delivery_outcomes.record(tx, outcomes, now, ticket_lease=lease)).tickets)

    async def outcomes(self, *results: MailResult, sender: Sender | None = None) -> list[DeliveryOutcome]:
        claimed = await self.steps.claimed(len(results), sender=sender)
        return [self.steps.outcome(claim, result) for claim, result in zip(claimed, results, strict=True)]

    async def log(
        self,
        limit: int = 100,
        *,
        account_id: AccountId | None = None,
        message_id: MessageId | None = None,
        before: UUID | None = None,
    ) -> list[WebhookDelivery]:
        """The newest first; of all messages or of one."""
        asked = account_id or self.account_id
        filters = WebhookFilters() if before is None else WebhookFilters(before=before)
        async with self.steps.database.connection() as connection:
            if message_id is None:
                found: Sequence[UUID] = (await webhook_log.search(connection, asked, filters, limit, asked)).ids
            else:
                found = await webhook_log.of_message(connection, asked, message_id, filters, limit, asked)
            return await webhook_log.by_ids(connection, asked, found)

    async def lease(self, limit: int = 1_000) -> list[WebhookTicket]:
        async with self.steps.database.transaction() as tx:
            now = self.steps.clock.now()
            return await webhook_schedule.lease_due(tx, now, now + LEASE, limit)

    async def claim(self, tickets: Iterable[WebhookTicket], worker_id: UUID | None = None) -> list[ClaimedWebhook]:
        async with self.steps.database.transaction() as tx:
            now = self.steps.clock.now()
            return await webhook_schedule.claim(tx, worker_id or self.steps.worker_id, tickets, now, now + LONGEST_CALL)

    async def claimed(self, *results: MailResult) -> list[ClaimedWebhook]:
        return await self.claim(await self.add_events(*results))

    async def record(self, *results: WebhookOutcome) -> RecordedWebhooks:
        async with self.steps.database.transaction() as tx:
            return await webhook_schedule.record(tx, results, self.steps.clock.now())

    async def reclaim(self) -> int:
        async with self.steps.database.transaction() as tx:
            return await webhook_schedule.reclaim_expired_workers(tx, self.steps.clock.now())

    def result(self, claimed: ClaimedWebhook, result: WebhookResult, **given: Any) -> WebhookOutcome:
        """The outcome of a short answer."""
        about: dict[str, Any] = {}
        if result is not WebhookResult.POSTPONED:
            about |= {"url": claimed.url or URL, "duration_ms": 12, "response_body": b"well"}
            about["http_status"] = 204 if result is WebhookResult.SUCCEEDED else 500
            about["error"] = None if result is WebhookResult.SUCCEEDED else "it answered 500"
        if not result.is_final:
            about["next_at"] = self.steps.clock.now() + WAIT
        return WebhookOutcome(*claimed.key, result, **{**about, **given})
