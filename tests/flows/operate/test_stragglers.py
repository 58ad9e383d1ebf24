"""Mail that is open for longer than its day is kept: it is delivered, charged, shown and reported as any other."""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

import pytest
import pytest_asyncio

from posthouse.flows.account.message_changes import MessageChanges
from posthouse.flows.account.message_detail import MessageDetail
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.operate.maintenance import Maintenance
from posthouse.flows.operate.partitions import Retention
from posthouse.flows.operate.search_indexer import SearchIndexer
from posthouse.flows.shared.account_limits import Defaults
from posthouse.rules import ids
from posthouse.rules.audit.promises import FaultKind
from posthouse.rules.ids import AccountId, MessageId
from posthouse.store import partitions
from posthouse.store.partitions import Partition
from tests.flows.audit import tally_of
from tests.support.accept_flow import RATE, Sender
from tests.support.context import context
from tests.support.database_checks import database_faults
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.maintenance import new_maintenance
from tests.support.webhook_flow import WebhookFlow, open_webhook_flow

RETENTION: Final = Retention(messages_days=2, bodies_days=1, webhooks_days=1)


@dataclass(slots=True)
class Scene:
    """A service with short retention, an account that is suspended, and a neighbour."""

    delivery_flow: DeliveryFlow
    webhook_flow: WebhookFlow
    maintenance: Maintenance
    neighbour: Sender

    async def pass_days(self, days: int) -> None:
        for _ in range(days):
            self.delivery_flow.clock.advance(days=1)
            await self.maintenance.partitions.make()
            await self.maintenance.partitions.drop()
            await self.maintenance.forget_expired()
            await self.delivery_flow.run_due()

    async def old_partitions(self) -> set[Partition]:
        today = self.delivery_flow.clock.now().date()
        async with self.delivery_flow.steps.database.connection() as connection:
            found = await partitions.attached(connection)
        return {row for row in found if row.day < today - timedelta(days=RETENTION.days(row.table))}

    async def count(self, table: str, message_id: MessageId) -> int:
        key = "id" if table == "messages" else "message_id"
        number: int = await self.delivery_flow.steps.value(f"SELECT count(*) FROM {table} WHERE {key} = $1", message_id)
        return number

    async def audit_faults(self) -> list[FaultKind]:
        return [finding.fault for finding in (await tally_of(self.delivery_flow)).findings]


@pytest_asyncio.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with (
        open_delivery_flow(database_url) as delivery_flow,
        open_webhook_flow(delivery_flow.steps) as webhook_flow,
    ):
        delivery_flow.serve("example.org")
        maintenance = new_maintenance(delivery_flow.steps.database, delivery_flow.clock, retention=RETENTION)
        await maintenance.partitions.make()
        neighbour = await delivery_flow.steps.another_sender("neighbour")
        yield Scene(delivery_flow, webhook_flow, maintenance, neighbour)


async def test_mail_held_beyond_retention_retains_no_other_and_is_delivered(scene: Scene) -> None:
    flow, steps = scene.delivery_flow, scene.delivery_flow.steps
    indexer = SearchIndexer(context(steps.database, steps.clock))
    await scene.webhook_flow.subscribe()
    first_day = flow.clock.now().date()
    held = await steps.accept(["ada@example.org", "450-rcpt@example.org", "bob@example.org"])
    others = [await steps.accept(["cy@example.org"], sender=scene.neighbour) for _ in range(20)]
    await flow.run_due()
    # One recipient waits for its retry, and then for the end of the suspension.
    assert await flow.statuses(held) == ["delivered", "deferred", "delivered"]
    await scene.webhook_flow.run_due()
    # The search index is written after a while.
    flow.clock.advance(minutes=2)
    await indexer.run()
    await steps.operator.suspend(steps.sender.account_id)
    await scene.pass_days(5)

    assert {row.day for row in await scene.old_partitions()} == {first_day}
    assert all(row.is_reduced for row in await scene.old_partitions())
    for table in ("messages", "recipients", "bodies", "ledger", "attempts", "events", "search_index"):
        assert sum([await scene.count(table, other) for other in others if table != "events"]) == 0
    assert await steps.value("SELECT count(*) FROM events") == 2
    assert await scene.count("search_index", held) > 0
    assert await scene.audit_faults() == []
    account_id = AccountId(steps.sender.account_id)
    detail = MessageDetail(context(steps.database, steps.clock), bodies_days=1)
    shown = await detail.detail(account_id, ids.text(ids.MESSAGE, held))
    assert len(shown.timeline.recipients) == 3
    assert b"Good morning." in await detail.raw(account_id, ids.text(ids.MESSAGE, held))

    await steps.fetch("UPDATE recipients SET email = 'later@example.org' WHERE message_id = $1 AND position = 1", held)
    await steps.operator.resume(steps.sender.account_id)
    assert await flow.run_due() == 1
    assert await flow.statuses(held) == ["delivered"] * 3
    assert [mail.recipient for mail in flow.receiver.accepted].count("later@example.org") == 1
    assert await flow.message(held) == ("delivered", "settled")
    assert await steps.fetch("SELECT kind, count(*) FROM ledger GROUP BY kind ORDER BY kind") == [
        ("reserve", 1),
        ("settle", 3),
    ]
    await scene.webhook_flow.run_due()
    assert len(scene.webhook_flow.webhook_receiver.requests) == 3
    # Keys are forgotten after a day.
    assert set(await database_faults(steps.url)) == {
        "a message has one key, and one that came over SMTP or is sent again has none"
    }
    assert await scene.audit_faults() == []
    flow.clock.advance(minutes=2)
    await indexer.run()

    await scene.maintenance.partitions.drop()
    assert await scene.old_partitions() == set()
    assert await scene.count("messages", held) == 0
    sums = await steps.fetch(
        "SELECT account_id, sum(reserved), sum(settled), sum(released) FROM ledger_days GROUP BY 1"
    )
    assert set(sums) == {(steps.sender.account_id, 3, 3, 0), (scene.neighbour.account_id, 20, 20, 0)}
    # The last event is kept for its own time.
    assert await scene.audit_faults() == [FaultKind.UNKNOWN]


async def test_a_webhook_delivery_beyond_retention_is_sent_from_its_stored_event(scene: Scene) -> None:
    steps, webhook_flow = scene.delivery_flow.steps, scene.webhook_flow
    await webhook_flow.subscribe("/status/500")
    pending = await webhook_flow.add_event()
    await webhook_flow.run_due()
    await webhook_flow.subscribe("/elsewhere", sender=scene.neighbour)
    done = await webhook_flow.add_event(sender=scene.neighbour)
    await webhook_flow.run_due()
    body = webhook_flow.requests_to("/status/500")[0].body
    await steps.fetch("UPDATE webhook_schedule SET next_at = $1", steps.clock.now() + timedelta(days=4))
    await scene.pass_days(4)
    assert await steps.fetch("SELECT id FROM webhook_deliveries") == [(pending,)]
    assert await steps.value("SELECT count(*) FROM events WHERE message_id IS NOT NULL") == 1
    await webhook_flow.subscribe("/now")
    await webhook_flow.run_due()
    assert await webhook_flow.status_of(pending) == ("succeeded", 2, 200, None)
    assert [request.body for request in webhook_flow.requests_to("/now")] == [body]
    await scene.maintenance.partitions.drop()
    assert await scene.old_partitions() == set()
    assert done != pending


async def test_reduced_days_use_up_nothing_of_what_a_round_may_drop(scene: Scene) -> None:
    steps = scene.delivery_flow.steps
    for _ in range(4):
        await steps.accept(["ada@example.org"], sender=scene.neighbour)
        await steps.fetch(
            "UPDATE delivery_schedule SET next_at = $1 WHERE next_at < $1", steps.clock.now() + timedelta(days=300)
        )
        steps.clock.advance(days=1)
        await scene.maintenance.partitions.make()
    await scene.pass_days(10)
    old = await scene.old_partitions()
    assert all(row.is_reduced for row in old)
    assert len({row.day for row in old}) == 4
    assert await scene.audit_faults() == []


MOVES: Final = 3


async def check_moved_mail(scene: Scene, messages: int, days_ahead: int, seed: int) -> None:
    """Scheduled messages, accepted on three days, each moved three times: a day is kept while it has one of them."""
    flow, steps, randomness = scene.delivery_flow, scene.delivery_flow.steps, random.Random(seed)
    print(f"seed {seed}")
    given = context(steps.database, flow.clock)
    unsent = MessageChanges(given, search=MessageSearch(given), defaults=Defaults(rate=RATE, warmup_limits=None))
    accepted: dict[MessageId, date] = {}
    due_at: dict[MessageId, datetime] = {}
    moves: dict[MessageId, int] = {}

    def later(days_min: float = 0.0) -> datetime:
        return flow.clock.now() + timedelta(days=randomness.uniform(days_min, days_ahead))

    for number in range(4 * days_ahead + 4):
        if number < 3:
            for _ in range(messages // 3):
                at = later(days_ahead - 0.5)
                message_id = await steps.accept(["ada@example.org"], send_at=at.isoformat())
                accepted[message_id], due_at[message_id] = flow.clock.now().date(), at
                moves[message_id] = 0
        await steps.accept(["cy@example.org"], sender=scene.neighbour)
        for message_id in due_at:
            # What is due within a day is moved in any case, until it was moved often enough.
            is_near = due_at[message_id] < flow.clock.now() + timedelta(days=1)
            if moves[message_id] < MOVES and (is_near or randomness.random() < 0.2):
                due_at[message_id] = later(1.0)
                moves[message_id] += 1
                text = due_at[message_id].isoformat()
                await unsent.move(steps.sender.principal(), ids.text(ids.MESSAGE, message_id), text)
        flow.clock.advance(days=1)
        await scene.maintenance.partitions.make()
        await scene.maintenance.partitions.drop()
        today = flow.clock.now().date()
        old = await scene.old_partitions()
        for table in ("messages", "recipients", "bodies", "ledger"):
            last = today - timedelta(days=RETENTION.days(table))
            kept = {accepted[message_id] for message_id in due_at}
            assert {row.day for row in old if row.table == table} == {day for day in kept if day < last}
        assert all(row.is_reduced for row in old)
        await flow.run_due()
        due_at = {message_id: at for message_id, at in due_at.items() if at > flow.clock.now()}
        if number > 3 and not due_at:
            break
    assert due_at == {}
    assert set(moves.values()) == {MOVES}
    assert [mail.recipient for mail in flow.receiver.accepted].count("ada@example.org") == len(accepted)
    await scene.maintenance.partitions.drop()
    assert await scene.old_partitions() == set()


async def test_a_day_is_dropped_when_the_last_of_its_moved_mail_is_sent(scene: Scene) -> None:
    await check_moved_mail(scene, 15, 5, random.randrange(2**32))


@pytest.mark.nightly
async def test_days_of_1_000_messages_moved_three_times_are_dropped_exactly_then(scene: Scene) -> None:
    await check_moved_mail(scene, 1_000, 30, random.randrange(2**32))
