"""Endpoints and their log: one an account, pinged not too often, replayed, cancelled, forgotten, never another's."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store import accounts, webhook_schedule, webhooks
from posthouse.store.delivery_outcomes import DeliveryResult as MailResult
from posthouse.store.postgres import Database
from posthouse.store.webhook_schedule import DISABLED, WebhookOutcome, WebhookResult
from posthouse.store.webhooks import PING_COOLDOWN, WebhookDelivery
from tests.support import plans
from tests.support.rounds import LEASE, Rounds, beginning, new_id
from tests.support.webhooks import ALL_EVENTS, URL, Webhooks

MOMENT = timedelta(milliseconds=1)
DELIVERED, BOUNCED, FAILED = MailResult.DELIVERED, MailResult.BOUNCED, MailResult.FAILED


@pytest_asyncio.fixture
async def rounds(database_url: str) -> AsyncIterator[Rounds]:
    async with beginning(database_url) as begun:
        yield begun


@pytest.fixture
def hooks(rounds: Rounds) -> Webhooks:
    return Webhooks(rounds)


async def changed_at(rounds: Rounds) -> Any:
    return await rounds.value("SELECT changed_at FROM accounts WHERE id = $1", rounds.sender.account_id)


async def log_of(hooks: Webhooks, **asked: Any) -> list[WebhookDelivery]:
    async with hooks.rounds.database.connection() as connection:
        return await webhooks.list_deliveries(connection, hooks.account_id, asked.pop("limit", 100), **asked)


async def found(hooks: Webhooks, delivery_id: UUID) -> WebhookDelivery:
    async with hooks.rounds.database.connection() as connection:
        delivery = await webhooks.find_delivery(connection, hooks.account_id, delivery_id)
    assert delivery is not None
    return delivery


# Endpoints


async def test_an_endpoint_reads_back_as_it_was_saved_and_is_new_once(rounds: Rounds, hooks: Webhooks) -> None:
    rounds.clock.advance(hours=1)
    created_at = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        assert await webhooks.find(tx, hooks.account_id) is None
        row, is_new = await webhooks.save(tx, hooks.account_id, URL, ALL_EVENTS, True, b"first", created_at)
        assert is_new
        assert await webhooks.find(tx, hooks.account_id) == row
    assert (row.url, row.events, row.enabled, row.secret_sealed, row.pinged_at) == (
        URL,
        ALL_EVENTS,
        True,
        b"first",
        None,
    )
    assert (row.created_at, row.updated_at) == (created_at, created_at)
    assert "first" not in repr(row)
    assert await changed_at(rounds) == created_at
    rounds.clock.advance(seconds=1)
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        again, is_new = await webhooks.save(
            tx, hooks.account_id, "https://new.example.com/", ["email.failed"], False, b"second", now
        )
    assert not is_new
    assert (again.url, again.events, again.enabled) == ("https://new.example.com/", ("email.failed",), False)
    assert (again.secret_sealed, again.created_at, again.updated_at) == (b"first", created_at, now)
    assert await changed_at(rounds) == now


async def test_of_two_who_save_the_first_endpoint_one_has_made_it(rounds: Rounds, hooks: Webhooks) -> None:
    async def save(secret: bytes) -> bool:
        async with rounds.database.transaction() as tx:
            now = rounds.clock.now()
            _, is_new = await webhooks.save(tx, hooks.account_id, URL, ALL_EVENTS, True, secret, now)
            return is_new

    made = await asyncio.gather(*(save(str(number).encode()) for number in range(5)))
    assert sum(made) == 1
    assert await rounds.value("SELECT secret_sealed FROM webhook_endpoints") == str(made.index(True)).encode()


@pytest.mark.parametrize("events", [[], ["webhook.test"], ["email.delivered", "email.opened"]])
async def test_nobody_subscribes_to_nothing_or_to_what_there_is_not(events: list[str], hooks: Webhooks) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await hooks.save(events=events)


async def test_a_new_secret_replaces_the_old_one_at_once(rounds: Rounds, hooks: Webhooks) -> None:
    async def rotate(account_id: AccountId) -> bool:
        async with rounds.database.transaction() as tx:
            return await webhooks.rotate_secret(tx, account_id, b"new", rounds.clock.now())

    assert not await rotate(hooks.account_id)
    await hooks.save()
    assert not await rotate(AccountId(uuid4()))
    rounds.clock.advance(hours=1)
    assert await rotate(hooks.account_id)
    assert await rounds.fetch("SELECT secret_sealed, updated_at FROM webhook_endpoints") == [
        (b"new", rounds.clock.now())
    ]
    assert await changed_at(rounds) == rounds.clock.now()


async def test_a_secret_is_sealed_anew_unless_it_was_rotated_meanwhile(rounds: Rounds, hooks: Webhooks) -> None:
    row = await hooks.save(secret=b"\x01\x03old sealed")
    async with rounds.database.transaction() as tx:
        assert await webhooks.sealed_with(tx, ["new", "other"], 10) == []
        assert await webhooks.sealed_with(tx, ["old"], 10) == [row]
        await webhooks.rotate_secret(tx, hooks.account_id, b"\x01\x03new rotated", rounds.clock.now())
        await webhooks.reseal(tx, row, b"\x01\x03new resealed")
        (kept,) = await webhooks.sealed_with(tx, ["new"], 10)
        assert kept.secret_sealed == b"\x01\x03new rotated"
        await webhooks.reseal(tx, kept, b"\x01\x05newer again")
        assert [one.secret_sealed for one in await webhooks.sealed_with(tx, ["newer"], 10)] == [b"\x01\x05newer again"]


# Pings


async def mark_pinged(rounds: Rounds, account_id: AccountId) -> bool:
    async with rounds.database.transaction() as tx:
        return await webhooks.mark_pinged(tx, account_id, rounds.clock.now())


async def test_a_ping_is_followed_by_a_cooldown_to_the_second(rounds: Rounds, hooks: Webhooks) -> None:
    assert not await mark_pinged(rounds, hooks.account_id)
    await hooks.save()
    pinged_at = rounds.clock.now()
    assert await mark_pinged(rounds, hooks.account_id)
    rounds.clock.advance(PING_COOLDOWN - MOMENT)
    assert not await mark_pinged(rounds, hooks.account_id)
    assert await rounds.value("SELECT pinged_at FROM webhook_endpoints") == pinged_at
    # Neither a new URL nor a new secret makes it shorter.
    await hooks.save("https://new.example.com/")
    assert not await mark_pinged(rounds, hooks.account_id)
    rounds.clock.advance(MOMENT)
    assert await mark_pinged(rounds, hooks.account_id)


async def test_of_many_who_ping_at_once_one_does(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    assert sum(await asyncio.gather(*(mark_pinged(rounds, hooks.account_id) for _ in range(8)))) == 1


async def test_a_ping_that_came_to_nothing_leaves_no_cooldown(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    async with rounds.database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await webhooks.mark_pinged(connection, hooks.account_id, rounds.clock.now())
        await transaction.rollback()
    assert await mark_pinged(rounds, hooks.account_id)


async def test_what_is_disabled_is_not_pinged(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save(enabled=False)
    assert not await mark_pinged(rounds, hooks.account_id)


async def ping(rounds: Rounds, hooks: Webhooks, body: bytes = b"{}") -> WebhookDelivery | None:
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        return await webhooks.enter_ping(tx, hooks.account_id, new_id(now), new_id(now), body, now, now + LEASE)


async def test_a_ping_is_a_test_event_that_is_sent_once(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save(events=["email.failed"])
    now = rounds.clock.now()
    entered = await ping(rounds, hooks, b'{"test":true}')
    assert entered is not None
    assert (entered.type, entered.message_id, entered.position, entered.replay_of) == ("webhook.test", None, None, None)
    assert (entered.status, entered.attempt, entered.max_attempts, entered.url) == ("pending", 0, 1, URL)
    assert (entered.request_body, entered.request_truncated) == (b'{"test":true}', False)
    assert (entered.created_at, entered.next_attempt_at, entered.last_attempt_at) == (now, now, None)
    assert await rounds.fetch("SELECT id, type, message_id, created_at, body FROM events") == [
        (entered.event_id, "webhook.test", None, now, b'{"test":true}')
    ]
    assert await hooks.lease() == []
    rounds.clock.advance(LEASE)
    (claimed,) = await hooks.claim(await hooks.lease())
    assert (claimed.id, claimed.body, claimed.max_attempts) == (entered.id, b'{"test":true}', 1)
    rounds.clock.advance(LEASE)
    assert await hooks.reclaim() == 1
    (over,) = await hooks.claim(await hooks.lease())
    assert over.is_over


@pytest.mark.parametrize("is_there", [True, False])
async def test_nothing_is_entered_when_there_is_no_enabled_endpoint(
    is_there: bool, rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    (ticket,) = await hooks.tell(DELIVERED)
    original = await found(hooks, ticket.webhook_delivery_id)
    await hooks.save(enabled=False)
    if not is_there:
        async with rounds.database.transaction() as tx:
            assert await webhooks.delete(tx, hooks.account_id, rounds.clock.now())
    before = await rounds.fetch("SELECT id FROM calls UNION ALL SELECT id FROM events")
    assert await ping(rounds, hooks) is None
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        assert await webhooks.enter_replay(tx, original, new_id(now), 7, now, now) is None
    assert await rounds.fetch("SELECT id FROM calls UNION ALL SELECT id FROM events") == before


# Replays


async def test_a_replay_sends_the_same_event_with_all_its_attempts(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await hooks.claimed(BOUNCED)
    await hooks.record(hooks.result(claimed, WebhookResult.FAILED))
    original = await found(hooks, claimed.id)
    await hooks.save("https://new.example.com/", ["email.delivered"])
    rounds.clock.advance(days=6)
    await rounds.renew()
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        entered = await webhooks.enter_replay(tx, original, new_id(now), 7, now, now)
    assert entered is not None
    assert (entered.event_id, entered.type) == (original.event_id, "email.bounced")
    assert (entered.message_id, entered.position) == (original.message_id, 0)
    assert (entered.replay_of, entered.url, entered.created_at) == (original.id, "https://new.example.com/", now)
    assert (entered.status, entered.attempt, entered.max_attempts, entered.http_status) == ("pending", 0, 7, None)
    (again,) = await hooks.claim(await hooks.lease())
    assert (again.id, again.event_id, again.attempt_count) == (entered.id, claimed.event_id, 1)
    assert again.body == claimed.body
    await hooks.record(hooks.result(again, WebhookResult.SUCCEEDED))
    assert await found(hooks, original.id) == original
    assert (await found(hooks, entered.id)).status == "succeeded"
    assert await rounds.value("SELECT count(*) FROM events") == 1


async def test_what_is_no_longer_stored_can_not_be_replayed(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (ticket,) = await hooks.tell(DELIVERED)
    async with rounds.database.transaction() as tx:
        await tx.execute("DELETE FROM events")
        original = await webhooks.find_delivery(tx, hooks.account_id, ticket.webhook_delivery_id)
        assert original is not None
        assert original.request_body is None
        now = rounds.clock.now()
        assert await webhooks.enter_replay(tx, original, new_id(now), 7, now, now) is None


# The log


async def test_the_log_is_read_newest_first_page_by_page(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    tickets = []
    for _ in range(3):
        tickets += await hooks.tell(DELIVERED, BOUNCED)
        rounds.clock.advance(hours=20)
    wanted = sorted((one.webhook_delivery_id for one in tickets), reverse=True)
    assert [one.id for one in await log_of(hooks)] == wanted
    pages, before = [], None
    while page := await log_of(hooks, limit=4, before=before):
        pages.append([one.id for one in page])
        before = page[-1].id
    assert pages == [wanted[:4], wanted[4:]]
    assert {one.request_body for one in await log_of(hooks)} == {
        b"delivered r0@example.org",
        b"bounced r1@example.org",
    }


async def test_the_log_of_one_message_holds_its_recipients_and_their_replays(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    first, second = await hooks.tell(DELIVERED, FAILED)
    await hooks.tell(DELIVERED)
    original = await found(hooks, first.webhook_delivery_id)
    rounds.clock.advance(days=1)
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        replay = await webhooks.enter_replay(tx, original, new_id(now), 7, now, now)
    assert replay is not None
    assert original.message_id is not None
    listed = await log_of(hooks, message_id=original.message_id)
    assert listed[0] == replay
    assert {one.id for one in listed[1:]} == {first.webhook_delivery_id, second.webhook_delivery_id}
    assert await log_of(hooks, message_id=original.message_id, limit=1) == [replay]
    assert await log_of(hooks, message_id=original.message_id, before=listed[-1].id) == []
    assert await log_of(hooks, message_id=MessageId(uuid4())) == []


async def test_a_long_body_is_shown_to_two_kilobytes_and_kept_whole(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    shown = []
    for length in (2_048, 2_049):
        entered = await ping(rounds, hooks, b"x" * length)
        assert entered is not None
        shown.append((entered.request_body, entered.request_truncated))
    assert shown == [(b"x" * 2_048, False), (b"x" * 2_048, True)]
    assert await rounds.value("SELECT max(octet_length(body)) FROM events") == 2_049


async def test_another_accounts_log_is_as_if_it_were_not_there(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (ticket,) = await hooks.tell(DELIVERED)
    original = await found(hooks, ticket.webhook_delivery_id)
    other = AccountId((await rounds.another_sender("other")).account_id)
    await hooks.save(account_id=other, enabled=False)
    async with rounds.database.transaction() as tx:
        assert await webhooks.find_delivery(tx, other, original.id) is None
        assert await webhooks.list_deliveries(tx, other, 100) == []
        assert await webhooks.list_deliveries(tx, other, 100, message_id=original.message_id) == []
        assert await webhooks.cancel_pending(tx, other) == await webhooks.forget(tx, other) == 0
        assert await webhooks.delete(tx, other, rounds.clock.now())
    assert await found(hooks, original.id) == original
    assert await rounds.value("SELECT count(*) FROM calls") == 1


# Disabling and deleting


async def cancel(rounds: Rounds, hooks: Webhooks, limit: int = 1_000) -> int:
    async with rounds.database.transaction() as tx:
        return await webhooks.cancel_pending(tx, hooks.account_id, limit)


async def test_disabling_cancels_what_is_pending_and_says_so(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    tried, sent, waiting = await hooks.tell(DELIVERED, DELIVERED, DELIVERED)
    claimed = {one.id: one for one in await hooks.claim([tried, sent])}
    await hooks.record(
        hooks.result(claimed[tried.webhook_delivery_id], WebhookResult.DEFERRED),
        hooks.result(claimed[sent.webhook_delivery_id], WebhookResult.SUCCEEDED),
    )
    assert await cancel(rounds, hooks) == 0, "the endpoint is enabled"
    await hooks.save(enabled=False)
    assert await cancel(rounds, hooks) == 2
    assert await cancel(rounds, hooks) == 0
    log = {one.id: (one.status, one.attempt, one.http_status, one.error) for one in await log_of(hooks)}
    assert log == {
        tried.webhook_delivery_id: ("failed", 1, 500, DISABLED),
        sent.webhook_delivery_id: ("succeeded", 1, 204, None),
        waiting.webhook_delivery_id: ("failed", 0, None, DISABLED),
    }
    assert {one.next_attempt_at for one in await log_of(hooks)} == {None}
    assert await rounds.value("SELECT count(*) FROM calls") == 0
    await hooks.save()
    assert await hooks.claim([tried, waiting]) == []


async def test_many_are_cancelled_as_many_at_once_as_are_asked_for(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    await hooks.tell(*[DELIVERED] * 5)
    rounds.clock.advance(days=1)
    await hooks.tell(*[DELIVERED] * 2)
    await hooks.save(enabled=False)
    assert [await cancel(rounds, hooks, 3) for _ in range(4)] == [3, 3, 1, 0]
    assert {one.status for one in await log_of(hooks)} == {"failed"}


async def test_what_is_being_sent_may_still_succeed_and_is_cancelled_if_it_does_not(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    lucky, unlucky = await hooks.claimed(DELIVERED, DELIVERED)
    await hooks.save(enabled=False)
    assert await cancel(rounds, hooks) == 0
    await hooks.record(hooks.result(lucky, WebhookResult.SUCCEEDED), hooks.result(unlucky, WebhookResult.DEFERRED))
    assert (await found(hooks, lucky.id)).status == "succeeded"
    assert await cancel(rounds, hooks) == 1
    assert (await found(hooks, unlucky.id)).error == DISABLED


async def test_deleting_leaves_neither_endpoint_nor_log_nor_anything_pending(rounds: Rounds, hooks: Webhooks) -> None:
    other = Webhooks(rounds)
    theirs = await rounds.another_sender("other")
    await other.save(account_id=AccountId(theirs.account_id))
    kept = await other.tell(DELIVERED, sender=theirs)
    await hooks.save()
    for _ in range(3):
        (claimed, *_) = await hooks.claimed(DELIVERED, BOUNCED)
        rounds.clock.advance(days=1)
        await rounds.renew()
    waiting = await hooks.tell(FAILED)

    async def forget() -> int:
        async with rounds.database.transaction() as tx:
            return await webhooks.forget(tx, hooks.account_id, 2)

    assert await forget() == 0, "the endpoint is enabled"
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        assert await webhooks.disable(tx, hooks.account_id, now)
    numbers = []
    while number := await forget():
        numbers.append(number)
    assert numbers == [2, 2, 2, 1]
    async with rounds.database.transaction() as tx:
        assert await webhooks.delete(tx, hooks.account_id, now)
        assert not await webhooks.delete(tx, hooks.account_id, now)
        assert not await webhooks.disable(tx, hooks.account_id, now)
        assert await webhooks.find(tx, hooks.account_id) is None
    assert await changed_at(rounds) == now
    assert await log_of(hooks) == []
    # What was being sent meanwhile comes too late, and what waited is not there.
    late = hooks.result(claimed, WebhookResult.SUCCEEDED)
    assert await hooks.record(late) == ((), (late,))
    assert await hooks.claim(waiting) == []
    assert await rounds.fetch("SELECT id FROM webhook_deliveries") == [(one.webhook_delivery_id,) for one in kept]
    assert await rounds.fetch("SELECT id FROM calls") == [(one.webhook_delivery_id,) for one in kept]
    assert await rounds.value("SELECT count(*) FROM events") == 8, "events are the messages', not the endpoint's"


async def test_an_event_that_slipped_in_while_the_endpoint_was_deleted_is_cancelled_at_its_claim(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    tickets = await hooks.tell(DELIVERED)
    async with rounds.database.transaction() as tx:
        await webhooks.delete(tx, hooks.account_id, rounds.clock.now())
    (claimed,) = await hooks.claim(tickets)
    await hooks.record(WebhookOutcome(*claimed.key, WebhookResult.FAILED, error=claimed.cancelled))
    assert await rounds.value("SELECT count(*) FROM calls") == 0
    assert [one.error for one in await log_of(hooks)] == [webhook_schedule.DELETED]


async def test_an_account_that_is_not_there_has_no_endpoint(database: Database, rounds: Rounds) -> None:
    async with database.transaction() as tx:
        nobody = AccountId(uuid4())
        assert await accounts.find_by_id(tx, nobody) is None
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await webhooks.save(tx, nobody, URL, ALL_EVENTS, True, b"sealed", rounds.clock.now())


# All endpoints are looked through when a seal key is retired, and only then.
STATEMENTS = {name: text for name, text in plans.statements(webhooks).items() if "SEALED_WITH" not in name}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    for scan in await plans.scans(database, STATEMENTS[name]):
        condition = plans.condition(scan)
        if "ctid" in condition:
            continue
        assert "account_id = " in condition, scan
        is_of_one_message = name == "webhooks._LIST_OF_MESSAGE"
        assert ("message_id = " in condition) is is_of_one_message, scan
        if scan["Relation Name"].startswith(("webhook_deliveries", "events")) and name != "webhooks._OLDEST":
            assert " id " in condition.replace(".id ", " id ").replace("(id ", "( id "), scan
