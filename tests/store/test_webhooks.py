"""Endpoints and their log: one per account, pinged at a limited rate, replayed, cancelled, forgotten, isolated."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store import endpoints, webhook_log
from posthouse.store.delivery_outcomes import DeliveryResult as MailResult
from posthouse.store.endpoints import PING_COOLDOWN
from posthouse.store.postgres import Database
from posthouse.store.webhook_log import WebhookDelivery
from posthouse.store.webhook_schedule import DISABLED, WebhookResult
from tests.support import query_plans
from tests.support.accept_flow import new_id
from tests.support.delivery_steps import LEASE, DeliverySteps
from tests.support.locks import lock_waits
from tests.support.webhook_steps import ALL_EVENTS, URL, WebhookSteps, enter_ping, enter_replay, save_webhook

MOMENT = timedelta(milliseconds=1)
DELIVERED, BOUNCED, FAILED = MailResult.DELIVERED, MailResult.BOUNCED, MailResult.FAILED


@pytest.fixture
async def webhooks(webhooks: WebhookSteps) -> WebhookSteps:
    """Of an account with an enabled endpoint for all events."""
    await webhooks.save()
    return webhooks


async def changed_at(steps: DeliverySteps) -> Any:
    return await steps.value("SELECT changed_at FROM accounts WHERE id = $1", steps.sender.account_id)


async def found(webhooks: WebhookSteps, delivery_id: UUID) -> WebhookDelivery:
    async with webhooks.steps.database.connection() as connection:
        delivery = await webhook_log.find_delivery(connection, webhooks.account_id, delivery_id)
    assert delivery is not None
    return delivery


# Endpoints


async def test_an_endpoint_reads_back_as_it_was_saved_and_is_new_once(steps: DeliverySteps) -> None:
    account_id = AccountId(steps.sender.account_id)
    steps.clock.advance(hours=1)
    created_at = steps.clock.now()
    async with steps.database.transaction() as tx:
        assert await endpoints.find(tx, account_id, account_id) is None
        row, is_new = await save_webhook(tx, account_id, URL, ALL_EVENTS, True, b"first", created_at)
        assert is_new
        assert await endpoints.find(tx, account_id, account_id) == row
    assert (row.url, row.filters.types, row.enabled, row.secret_sealed) == (URL, ALL_EVENTS, True, b"first")
    assert (row.created_at, row.updated_at, row.pinged_at) == (created_at, created_at, None)
    assert "first" not in repr(row)
    assert await changed_at(steps) == created_at
    steps.clock.advance(seconds=1)
    url, now = "https://new.example.com/", steps.clock.now()
    async with steps.database.transaction() as tx:
        again, is_new = await save_webhook(tx, account_id, url, ["email.failed"], False, b"second", now)
    assert not is_new
    assert (again.url, again.filters.types, again.enabled) == (url, ("email.failed",), False)
    assert (again.secret_sealed, again.created_at, again.updated_at) == (b"first", created_at, now)
    assert await changed_at(steps) == now


async def test_of_two_who_save_the_first_endpoint_one_has_made_it(steps: DeliverySteps) -> None:
    async def save(secret: bytes) -> bool:
        account_id, now = AccountId(steps.sender.account_id), steps.clock.now()
        async with steps.database.transaction() as tx:
            return (await save_webhook(tx, account_id, URL, ALL_EVENTS, True, secret, now))[1]

    made = await asyncio.gather(*(save(str(number).encode()) for number in range(5)))
    assert sum(made) == 1
    assert await steps.value("SELECT secret_sealed FROM endpoints") == str(made.index(True)).encode()


@pytest.mark.parametrize("events", [[], ["webhook.test"], ["email.delivered", "email.opened"]])
async def test_an_endpoint_subscribes_to_known_types_and_at_least_one(
    events: list[str], webhooks: WebhookSteps
) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await webhooks.save(events=events)


async def test_a_new_secret_replaces_the_old_one_at_once(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    async def rotate(account_id: AccountId) -> bool:
        async with steps.database.transaction() as tx:
            return await endpoints.rotate_secret(tx, account_id, account_id, b"new", steps.clock.now())

    assert not await rotate(AccountId(uuid4()))
    steps.clock.advance(hours=1)
    assert await rotate(webhooks.account_id)
    assert await steps.fetch("SELECT secret_sealed, updated_at FROM endpoints") == [(b"new", steps.clock.now())]
    assert await changed_at(steps) == steps.clock.now()


async def test_a_secret_is_sealed_again_unless_it_was_rotated_meanwhile(steps: DeliverySteps) -> None:
    webhooks = WebhookSteps(steps)
    row = await webhooks.save(secret=b"\x01\x03old sealed")
    async with steps.database.transaction() as tx:
        assert await endpoints.sealed_with(tx, ["new", "other"], 10) == []
        assert await endpoints.sealed_with(tx, ["old"], 10) == [row]
        await endpoints.rotate_secret(
            tx, webhooks.account_id, webhooks.account_id, b"\x01\x03new rotated", steps.clock.now()
        )
        await endpoints.reseal(tx, row, [b"\x01\x03new resealed", None, None])
        (kept,) = await endpoints.sealed_with(tx, ["new"], 10)
        assert kept.secret_sealed == b"\x01\x03new rotated"
        await endpoints.reseal(tx, kept, [b"\x01\x05newer again", None, None])
        (newer,) = await endpoints.sealed_with(tx, ["newer"], 10)
        assert newer.secret_sealed == b"\x01\x05newer again"


# Pings


async def mark_pinged(steps: DeliverySteps, account_id: AccountId) -> bool:
    async with steps.database.transaction() as tx:
        return await endpoints.mark_pinged(tx, account_id, account_id, steps.clock.now()) is None


async def test_a_ping_is_followed_by_a_cooldown_to_the_second(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    pinged_at = steps.clock.now()
    assert await mark_pinged(steps, webhooks.account_id)
    steps.clock.advance(PING_COOLDOWN - MOMENT)
    assert not await mark_pinged(steps, webhooks.account_id)
    assert await steps.value("SELECT pinged_at FROM endpoints") == pinged_at
    # Neither a new URL nor a new secret makes it shorter.
    await webhooks.save("https://new.example.com/")
    assert not await mark_pinged(steps, webhooks.account_id)
    steps.clock.advance(MOMENT)
    assert await mark_pinged(steps, webhooks.account_id)


async def test_of_two_simultaneous_pings_one_is_sent(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    account_id = webhooks.account_id
    async with steps.database.transaction() as tx:
        assert await endpoints.mark_pinged(tx, account_id, account_id, steps.clock.now()) is None
        second = asyncio.ensure_future(mark_pinged(steps, account_id))
        await lock_waits(tx, unless=second)
    assert not await second


async def ping(steps: DeliverySteps, webhooks: WebhookSteps, body: bytes = b"{}") -> WebhookDelivery:
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        return await enter_ping(tx, webhooks.account_id, new_id(now), new_id(now), body, now, now + LEASE)


async def test_a_ping_is_a_test_event_that_is_sent_once(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    await webhooks.save(events=["email.failed"])
    now = steps.clock.now()
    entered = await ping(steps, webhooks, b'{"test":true}')
    assert (entered.type, entered.message_id, entered.position, entered.replay_of) == ("webhook.test", None, None, None)
    assert (entered.status, entered.attempt, entered.max_attempts, entered.url) == ("pending", 0, 1, URL)
    assert (entered.request_body, entered.request_truncated) == (b'{"test":true}', False)
    assert (entered.created_at, entered.next_attempt_at, entered.last_attempt_at) == (now, now, None)
    assert await steps.fetch("SELECT id, type, message_id, created_at, body FROM events") == [
        (entered.event_id, "webhook.test", None, now, b'{"test":true}')
    ]
    assert await webhooks.lease() == []
    steps.clock.advance(LEASE)
    (claimed,) = await webhooks.claim(await webhooks.lease())
    assert (claimed.id, claimed.body, claimed.max_attempts) == (entered.id, b'{"test":true}', 1)
    steps.clock.advance(LEASE)
    assert await webhooks.reclaim() == 1
    (over,) = await webhooks.claim(await webhooks.lease())
    assert over.is_over


# Replays


async def test_a_replay_sends_the_same_event_with_all_its_attempts(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    (claimed,) = await webhooks.claimed(BOUNCED)
    await webhooks.record(webhooks.result(claimed, WebhookResult.FAILED))
    original = await found(webhooks, claimed.id)
    await webhooks.save("https://new.example.com/", ["email.delivered"])
    steps.clock.advance(days=6)
    await steps.renew()
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        entered = await enter_replay(tx, original, new_id(now), 7, now, now)
    assert (entered.event_id, entered.type) == (original.event_id, "email.bounced")
    assert (entered.message_id, entered.position) == (original.message_id, 0)
    assert (entered.replay_of, entered.url, entered.created_at) == (original.id, "https://new.example.com/", now)
    assert (entered.status, entered.attempt, entered.max_attempts, entered.http_status) == ("pending", 0, 7, None)
    (again,) = await webhooks.claim(await webhooks.lease())
    assert (again.id, again.event_id, again.attempt_count) == (entered.id, claimed.event_id, 1)
    assert again.body == claimed.body
    await webhooks.record(webhooks.result(again, WebhookResult.SUCCEEDED))
    assert await found(webhooks, original.id) == original
    assert (await found(webhooks, entered.id)).status == "succeeded"
    assert await steps.value("SELECT count(*) FROM events") == 1


# The log


async def test_the_log_is_read_newest_first_page_by_page(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    tickets = []
    for _ in range(3):
        tickets += await webhooks.add_events(DELIVERED, BOUNCED)
        steps.clock.advance(hours=20)
    wanted = sorted((ticket.webhook_delivery_id for ticket in tickets), reverse=True)
    assert [delivery.id for delivery in await webhooks.log()] == wanted
    pages, before = [], None
    while page := await webhooks.log(limit=4, before=before):
        pages.append([delivery.id for delivery in page])
        before = page[-1].id
    assert pages == [wanted[:4], wanted[4:]]
    bodies = {delivery.request_body for delivery in await webhooks.log()}
    assert bodies == {b"delivered r0@example.org", b"bounced r1@example.org"}


async def test_the_log_of_one_message_contains_its_recipients_and_their_replays(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    first, second = await webhooks.add_events(DELIVERED, FAILED)
    await webhooks.add_events(DELIVERED)
    original = await found(webhooks, first.webhook_delivery_id)
    steps.clock.advance(days=1)
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        replay = await enter_replay(tx, original, new_id(now), 7, now, now)
    assert original.message_id is not None
    listed = await webhooks.log(message_id=original.message_id)
    assert listed[0] == replay
    assert {delivery.id for delivery in listed[1:]} == {first.webhook_delivery_id, second.webhook_delivery_id}
    assert await webhooks.log(message_id=original.message_id, limit=1) == [replay]
    assert await webhooks.log(message_id=original.message_id, before=listed[-1].id) == []
    assert await webhooks.log(message_id=MessageId(uuid4())) == []


async def test_a_long_body_is_shown_to_two_kilobytes_and_stored_whole(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    pings = [await ping(steps, webhooks, b"x" * length) for length in (2_048, 2_049)]
    shown = [(entered.request_body, entered.request_truncated) for entered in pings]
    assert shown == [(b"x" * 2_048, False), (b"x" * 2_048, True)]
    assert await steps.value("SELECT max(octet_length(body)) FROM events") == 2_049


async def test_another_accounts_log_is_not_found(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    (ticket,) = await webhooks.add_events(DELIVERED)
    original = await found(webhooks, ticket.webhook_delivery_id)
    other = AccountId((await steps.another_sender("other")).account_id)
    await webhooks.save(account_id=other, enabled=False)
    async with steps.database.transaction() as tx:
        assert await webhook_log.find_delivery(tx, other, original.id) is None
        assert await webhook_log.cancel_pending(tx, other, other) == await webhook_log.forget(tx, other, other) == 0
        assert await endpoints.delete(tx, other, other, steps.clock.now())
    assert await webhooks.log(account_id=other) == []
    assert await webhooks.log(account_id=other, message_id=original.message_id) == []
    assert await found(webhooks, original.id) == original
    assert await steps.value("SELECT count(*) FROM webhook_schedule") == 1


# Disabling and deleting


async def cancel(steps: DeliverySteps, webhooks: WebhookSteps, limit: int = 1_000) -> int:
    async with steps.database.transaction() as tx:
        return await webhook_log.cancel_pending(tx, webhooks.account_id, webhooks.account_id, limit)


@pytest.mark.rule("HOOK-07")
async def test_disabling_cancels_what_is_pending_and_says_so(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    tried, sent, waiting = await webhooks.add_events(DELIVERED, DELIVERED, DELIVERED)
    claimed = {claim.id: claim for claim in await webhooks.claim([tried, sent])}
    await webhooks.record(
        webhooks.result(claimed[tried.webhook_delivery_id], WebhookResult.DEFERRED),
        webhooks.result(claimed[sent.webhook_delivery_id], WebhookResult.SUCCEEDED),
    )
    assert await cancel(steps, webhooks) == 0, "the endpoint is enabled"
    await webhooks.save(enabled=False)
    assert await cancel(steps, webhooks) == 2
    assert await cancel(steps, webhooks) == 0
    log = {
        delivery.id: (delivery.status, delivery.attempt, delivery.http_status, delivery.error)
        for delivery in await webhooks.log()
    }
    assert log == {
        tried.webhook_delivery_id: ("failed", 1, 500, DISABLED),
        sent.webhook_delivery_id: ("succeeded", 1, 204, None),
        waiting.webhook_delivery_id: ("failed", 0, None, DISABLED),
    }
    assert {delivery.next_attempt_at for delivery in await webhooks.log()} == {None}
    assert await steps.value("SELECT count(*) FROM webhook_schedule") == 0
    await webhooks.save()
    assert await webhooks.claim([tried, waiting]) == []


async def test_many_are_cancelled_in_batches_of_the_given_size(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    await webhooks.add_events(*[DELIVERED] * 5)
    steps.clock.advance(days=1)
    await webhooks.add_events(*[DELIVERED] * 2)
    await webhooks.save(enabled=False)
    assert [await cancel(steps, webhooks, 3) for _ in range(4)] == [3, 3, 1, 0]
    assert {delivery.status for delivery in await webhooks.log()} == {"failed"}


async def test_what_is_being_sent_may_still_succeed_and_is_cancelled_if_it_does_not(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    lucky, unlucky = await webhooks.claimed(DELIVERED, DELIVERED)
    await webhooks.save(enabled=False)
    assert await cancel(steps, webhooks) == 0
    await webhooks.record(
        webhooks.result(lucky, WebhookResult.SUCCEEDED), webhooks.result(unlucky, WebhookResult.DEFERRED)
    )
    assert (await found(webhooks, lucky.id)).status == "succeeded"
    assert await cancel(steps, webhooks) == 1
    assert (await found(webhooks, unlucky.id)).error == DISABLED


@pytest.mark.rule("HOOK-08")
async def test_deleting_leaves_neither_endpoint_nor_log_nor_anything_pending(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    other = WebhookSteps(steps)
    theirs = await steps.another_sender("other")
    await other.save(account_id=AccountId(theirs.account_id))
    kept = await other.add_events(DELIVERED, sender=theirs)
    for _ in range(3):
        (claimed, *_) = await webhooks.claimed(DELIVERED, BOUNCED)
        steps.clock.advance(days=1)
        await steps.renew()
    waiting = await webhooks.add_events(FAILED)

    async def forget() -> int:
        async with steps.database.transaction() as tx:
            return await webhook_log.forget(tx, webhooks.account_id, webhooks.account_id, 2)

    assert await forget() == 0, "the endpoint is enabled"
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        assert await endpoints.disable(tx, webhooks.account_id, webhooks.account_id, now)
    numbers = []
    while number := await forget():
        numbers.append(number)
    assert numbers == [2, 2, 2, 1]
    async with steps.database.transaction() as tx:
        assert await endpoints.delete(tx, webhooks.account_id, webhooks.account_id, now)
        assert not await endpoints.delete(tx, webhooks.account_id, webhooks.account_id, now)
        assert not await endpoints.disable(tx, webhooks.account_id, webhooks.account_id, now)
        assert await endpoints.find(tx, webhooks.account_id, webhooks.account_id) is None
    assert await changed_at(steps) == now
    assert await webhooks.log() == []
    # What was being sent meanwhile comes too late, and what waited is not there.
    late = webhooks.result(claimed, WebhookResult.SUCCEEDED)
    assert await webhooks.record(late) == ((), (late,))
    assert await webhooks.claim(waiting) == []
    for table in ("webhook_deliveries", "webhook_schedule"):
        assert await steps.fetch(f"SELECT id FROM {table}") == [(delivery.webhook_delivery_id,) for delivery in kept]
    assert await steps.value("SELECT count(*) FROM events") == 8, "events are the messages', not the endpoint's"


# All endpoints are read when a seal key is retired, and only then.
STATEMENTS = {
    name: text for name, text in query_plans.statements(endpoints, webhook_log).items() if "SEALED_WITH" not in name
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    for scan in await query_plans.scans(database, STATEMENTS[name]):
        condition = query_plans.condition(scan)
        if "ctid" in condition:
            continue
        assert "account_id = " in condition, scan
        is_of_one_message = name == "webhook_log._OF_MESSAGE" or scan["Alias"].startswith("other")
        assert ("message_id = " in condition) is is_of_one_message, scan
        if scan["Alias"].startswith("other"):
            continue  # by its message: deliveries of one event may be of several days
        if scan["Relation Name"].startswith(("webhook_deliveries", "events")) and name != "webhook_log._OLDEST":
            assert " id " in condition.replace(".id ", " id ").replace("(id ", "( id "), scan
