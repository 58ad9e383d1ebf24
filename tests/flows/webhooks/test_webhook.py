"""Webhook endpoints: secrets shown once, tickets after the commit, spaced pings, long logs deleted in parts."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from posthouse.clock import Clock
from posthouse.flows.shared.tickets import LEASE, Tickets
from posthouse.flows.webhooks.endpoints import Endpoints, Saved
from posthouse.flows.webhooks.event_feed import SETTLED_AFTER, EventFeed
from posthouse.rules import ids
from posthouse.rules.credential import Actor
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.ticket import Ticket, WebhookTicket, unpack
from posthouse.rules.webhook_url import WebhookTarget, check_url
from posthouse.store.delivery_outcomes import DeliveryResult as MailResult
from posthouse.store.endpoints import PING_COOLDOWN, secret_purpose
from posthouse.store.seal import Sealer
from posthouse.store.webhook_log import CHANGED_BATCH_MAX
from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from tests.support.accept_flow import new_id
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.webhook_steps import URL, WebhookSteps

SHARDS: Final = 4
SEALER: Final = Sealer({"first": bytes(32)}, "first")
ADA: Final = Actor(None, "ada@example.com")
DELIVERED: Final = MailResult.DELIVERED
BOUNCED: Final = MailResult.BOUNCED


class ImpatientClock(SettableClock):
    """A clock on which ten seconds pass with every read."""

    def monotonic(self) -> float:
        self.advance(seconds=10)
        return super().monotonic()


def judged(url: str) -> WebhookTarget:
    return check_url(url, own_domains=["posthouse.example.net"])


class EndpointFlow:
    """The flow with its own stream, on the database of the steps."""

    def __init__(self, steps: DeliverySteps) -> None:
        self.account_id = AccountId(steps.sender.account_id)
        self.steps = steps
        self.stream = MemoryStream(StreamSettings(), monotonic=steps.clock.monotonic)
        self.endpoints = self.with_tickets(Tickets(self.stream, SHARDS))
        self.feed = EventFeed(context(steps.database, steps.clock))

    def with_tickets(self, tickets: Tickets | None, clock: Clock | None = None) -> Endpoints:
        return Endpoints(
            context(self.steps.database, clock or self.steps.clock, sealer=SEALER), tickets=tickets, check=judged
        )

    def opened(self, sealed: bytes) -> str:
        return SEALER.open(sealed, secret_purpose(self.account_id, self.account_id)).decode()

    async def save(self, url: str = URL, events: Sequence[str] = (), *, enabled: bool = True) -> Saved:
        return await self.endpoints.save_webhook(self.account_id, url, events, ADA, enabled=enabled)

    async def published(self) -> list[Ticket]:
        """Takes and returns the tickets in the stream."""
        found = await self.stream.fetch(TicketKind.NOTIFY, frozenset(range(SHARDS)), 1_000, 0)
        for message in found:
            await message.ack()
        return [ticket for message in found for ticket in unpack(message.payload)]

    async def call_of(self, delivery_id: UUID) -> Any:
        (row,) = await self.steps.fetch(
            "SELECT next_at, fence, max_attempts FROM webhook_schedule WHERE id = $1", delivery_id
        )
        return row

    async def refusal_of(self, doing: Any) -> Refusal:
        with pytest.raises(Refusal) as caught:
            await doing
        return caught.value


@pytest.fixture
def flow(steps: DeliverySteps) -> EndpointFlow:
    return EndpointFlow(steps)


@pytest.mark.rule("HOOK-09")
async def test_a_secret_is_stored_sealed_for_its_account_and_shown_once(flow: EndpointFlow) -> None:
    saved = await flow.save()
    assert saved.secret is not None
    assert saved.secret not in repr(saved)
    sealed = saved.endpoint.secret_sealed
    assert flow.opened(sealed) == saved.secret
    again = await flow.save()
    assert again.secret is None
    assert again.endpoint.secret_sealed == sealed
    rotated, _ = await flow.endpoints.rotate_secret(flow.account_id, ADA)
    found = await flow.endpoints.webhook(flow.account_id)
    assert found is not None
    assert flow.opened(found.secret_sealed) == rotated != saved.secret


async def test_the_urls_own_spelling_is_saved_and_this_service_is_refused(flow: EndpointFlow) -> None:
    saved = await flow.save("HTTPS://Hooks.Example.COM")
    assert saved.endpoint.url == "https://hooks.example.com/"
    assert (await flow.refusal_of(flow.save("https://api.posthouse.example.net/"))).code is Code.INVALID_REQUEST


async def test_a_new_delivery_has_a_valid_ticket_and_no_second_one(flow: EndpointFlow, webhooks: WebhookSteps) -> None:
    now = flow.steps.clock.now()
    await webhooks.save()
    ping = await flow.endpoints.ping(flow.account_id)
    assert await flow.call_of(ping.id) == (now + LEASE, 0, 1)
    replay = await flow.endpoints.replay(flow.account_id, ids.text(ids.WEBHOOK_DELIVERY, ping.id), of_webhook=True)
    assert await flow.call_of(replay.id) == (now + LEASE, 0, 7)
    published = await flow.published()
    tickets = [ticket for ticket in published if isinstance(ticket, WebhookTicket)]
    assert {ticket.webhook_delivery_id for ticket in tickets} == {ping.id, replay.id}
    assert await webhooks.lease() == []
    claimed = await webhooks.claim(tickets)
    assert {webhook.id for webhook in claimed} == {ping.id, replay.id}
    assert {webhook.event_id for webhook in claimed} == {ping.event_id}
    assert len({webhook.body for webhook in claimed}) == 1


async def test_without_a_stream_it_is_due_at_once(flow: EndpointFlow, webhooks: WebhookSteps) -> None:
    await webhooks.save()
    ping = await flow.with_tickets(None).ping(flow.account_id)
    assert (await flow.call_of(ping.id))[0] == flow.steps.clock.now()
    assert [ticket.webhook_delivery_id for ticket in await webhooks.lease()] == [ping.id]


@pytest.mark.rule("HOOK-10")
async def test_a_refusal_publishes_nothing(flow: EndpointFlow, webhooks: WebhookSteps) -> None:
    ping = flow.endpoints.ping
    assert (await flow.refusal_of(ping(flow.account_id))).code is Code.NOT_FOUND
    await webhooks.save(enabled=False)
    assert (await flow.refusal_of(ping(flow.account_id))).code is Code.CONFLICT
    assert await flow.published() == []
    assert await flow.steps.value("SELECT count(*) FROM events") == 0


async def test_the_next_ping_may_be_sent_when_the_refusal_says(flow: EndpointFlow, webhooks: WebhookSteps) -> None:
    await webhooks.save()
    await flow.endpoints.ping(flow.account_id)
    flow.steps.clock.advance(seconds=0.5)
    refusal = await flow.refusal_of(flow.endpoints.ping(flow.account_id))
    assert (refusal.code, refusal.retry_after_seconds) == (Code.RATE_LIMITED, 15)
    flow.steps.clock.advance(PING_COOLDOWN - timedelta(seconds=0.501))
    refusal = await flow.refusal_of(flow.endpoints.ping(flow.account_id))
    assert refusal.retry_after_seconds == 1
    flow.steps.clock.advance(seconds=refusal.retry_after_seconds)
    await flow.endpoints.ping(flow.account_id)
    assert len(await flow.published()) == 2


async def test_a_delivery_without_its_event_is_not_replayed(flow: EndpointFlow, webhooks: WebhookSteps) -> None:
    await webhooks.save()
    (ticket,) = await webhooks.add_events(DELIVERED)
    await flow.steps.fetch("DELETE FROM events")
    given = ids.text(ids.WEBHOOK_DELIVERY, ticket.webhook_delivery_id)
    refusal = await flow.refusal_of(flow.endpoints.replay(flow.account_id, given, of_webhook=True))
    assert (refusal.code, "no longer stored" in refusal.text) == (Code.CONFLICT, True)
    assert await flow.published() == []


async def test_changes_are_in_the_audit_log_and_secrets_are_not(flow: EndpointFlow) -> None:
    saved = await flow.save("https://hooks.example.com/inbox?token=hunter2", ["email.bounced"])
    rotated, _ = await flow.endpoints.rotate_secret(flow.account_id, ADA)
    await flow.endpoints.ping(flow.account_id)
    await flow.endpoints.delete(flow.account_id, ADA)
    await flow.refusal_of(flow.endpoints.delete(flow.account_id, ADA))
    query = "SELECT action, target, detail::text FROM audit_log WHERE actor = $1"
    rows = [tuple(row) for row in await flow.steps.fetch(query, ADA.name)]
    assert {(action, target) for action, target, _ in rows} == {
        ("webhook.saved", "hooks.example.com"),
        ("webhook.secret_rotated", "webhook"),
        ("webhook.deleted", "webhook"),
    }
    assert len(rows) == 3
    assert all(secret not in str(rows) for secret in ("hunter2", saved.secret or "", rotated))


async def logged(flow: EndpointFlow, count: int) -> None:
    """This many pending deliveries."""
    now = flow.steps.clock.now()
    made = [new_id(now) for _ in range(count)]
    await flow.steps.fetch(
        "WITH calls AS (INSERT INTO webhook_schedule (account_id, id, event_id, endpoint_id, next_at, due_at,"
        "   max_attempts) SELECT $1, id, id, $1, $3, $3, 7 FROM unnest($2::uuid[]) made(id))"
        " INSERT INTO webhook_deliveries (account_id, id, event_id, endpoint_id, type, url, max_attempts,"
        "   created_at, next_attempt_at) SELECT $1, id, id, $1, 'webhook.test', $4, 7, $3, $3"
        "   FROM unnest($2::uuid[]) made(id)",
        flow.account_id, made, now, URL,
    )  # fmt: skip


async def remaining(flow: EndpointFlow) -> tuple[int, int]:
    calls = await flow.steps.value("SELECT count(*) FROM webhook_schedule")
    return calls, await flow.steps.value("SELECT count(*) FROM webhook_deliveries")


async def test_several_parts_of_a_log_are_cancelled_and_deleted(flow: EndpointFlow, webhooks: WebhookSteps) -> None:
    await webhooks.save()
    await logged(flow, CHANGED_BATCH_MAX + 1)
    await flow.save(enabled=False)
    assert await remaining(flow) == (0, CHANGED_BATCH_MAX + 1)
    assert await flow.steps.value("SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'") == 0
    await flow.endpoints.delete(flow.account_id, ADA)
    assert await remaining(flow) == (0, 0)
    assert await flow.endpoints.webhook(flow.account_id) is None


async def test_a_log_too_long_for_one_request_is_deleted_by_the_next(
    flow: EndpointFlow, webhooks: WebhookSteps
) -> None:
    await webhooks.save()
    await logged(flow, CHANGED_BATCH_MAX + 1)
    hurried = flow.with_tickets(None, ImpatientClock(flow.steps.clock.now()))
    refusal = await flow.refusal_of(hurried.delete(flow.account_id, ADA))
    assert (refusal.code, refusal.retry_after_seconds) == (Code.TEMPORARY_FAILURE, 1)
    assert await remaining(flow) == (1, 1)
    endpoint = await flow.endpoints.webhook(flow.account_id)
    assert endpoint is not None
    assert not endpoint.enabled
    await hurried.delete(flow.account_id, ADA)
    assert await remaining(flow) == (0, 0)
    assert await flow.endpoints.webhook(flow.account_id) is None


@pytest.mark.rule("EVT-04")
async def test_an_event_is_shown_when_it_has_settled(flow: EndpointFlow, webhooks: WebhookSteps) -> None:
    await webhooks.add_events(DELIVERED)
    page = await flow.feed.page(flow.account_id, 10)
    assert (page.items, page.next_cursor, page.has_more) == ([], None, False)
    flow.steps.clock.advance(SETTLED_AFTER + timedelta(milliseconds=1))
    page = await flow.feed.page(flow.account_id, 10)
    (shown,) = page.items
    assert (page.next_cursor, page.has_more) == (ids.text(ids.EVENT, shown.id), False)


async def test_the_events_of_a_message_are_paged_like_all_others(flow: EndpointFlow, webhooks: WebhookSteps) -> None:
    await webhooks.add_events(DELIVERED)
    claimed = await webhooks.outcomes(DELIVERED, BOUNCED, DELIVERED)
    await flow.steps.record(*claimed)
    flow.steps.clock.advance(minutes=1)
    message_id = ids.text(ids.MESSAGE, claimed[0].message_id)
    whole = await flow.feed.page(flow.account_id, 10, message_id=message_id)
    assert sorted(event.type for event in whole.items) == ["email.bounced", "email.delivered", "email.delivered"]
    first = await flow.feed.page(flow.account_id, 2, message_id=message_id)
    assert first.has_more
    second = await flow.feed.page(flow.account_id, 2, message_id=message_id, after=first.next_cursor)
    assert [*first.items, *second.items] == whole.items
    assert not second.has_more
    bounced = await flow.feed.page(flow.account_id, 10, message_id=message_id, event_type="email.bounced")
    assert [event.type for event in bounced.items] == ["email.bounced"]
