"""Lane reports and the backlog: what an operator watches, without slowing down what is watched."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from posthouse.store import backlog as backlog_store
from posthouse.store.backlog import COUNTED_MAX, Backlog, BoundedCount, backlog
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.delivery_schedule import DeliveryPostponement, postpone
from posthouse.store.lanes import REPORTS_KEPT_FOR, LaneReport, ReportedLane, report, reports
from posthouse.store.postgres import Database
from tests.support.delivery_steps import LEASE, DeliverySteps

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
NONE = BoundedCount(0, False)


def lane(name: str, waiting: int = 0, last_reply: str | None = None, in_flight: int = 0) -> ReportedLane:
    return ReportedLane(name, waiting, in_flight, 2, 0, 0, NOON if last_reply else None, last_reply)


async def reported(database: Database, worker_id: UUID, states: Sequence[ReportedLane], now: datetime = NOON) -> None:
    async with database.transaction() as tx:
        await report(tx, worker_id, states, now)


async def seen(database: Database, since: datetime = NOON - SECOND) -> list[LaneReport]:
    async with database.connection() as connection:
        return await reports(connection, since)


async def test_a_report_is_read_as_it_was_written(database: Database) -> None:
    worker = uuid4()
    states = [lane("example.org", 3, "421 4.7.0 too many connections"), lane("google", 1, in_flight=2)]
    await reported(database, worker, states)
    assert await seen(database) == [LaneReport(worker, NOON, state) for state in states]


async def test_a_report_replaces_the_workers_last_one_and_no_others(database: Database) -> None:
    first, other = sorted([uuid4(), uuid4()])
    await reported(database, first, [lane("google", 1), lane("example.org", 1)])
    await reported(database, other, [lane("google", 5)])
    await reported(database, first, [lane("google", 2), lane("example.net", 7)], NOON + SECOND)
    reports = [(each.worker_id, each.state.lane, each.state.waiting) for each in await seen(database)]
    assert reports == [(first, "example.net", 7), (first, "google", 2), (other, "google", 5)]


async def test_a_worker_without_lanes_has_no_rows(database: Database) -> None:
    worker = uuid4()
    await reported(database, worker, [lane("google", 1)])
    await reported(database, worker, [])
    assert await seen(database) == []


async def test_what_the_silent_said_is_not_shown_and_later_forgotten(database: Database) -> None:
    silent, loud = uuid4(), uuid4()
    await reported(database, silent, [lane("google", 1)])
    await reported(database, loud, [lane("google", 2)], NOON + 11 * SECOND)
    assert [each.worker_id for each in await seen(database, NOON + SECOND)] == [loud]
    assert len(await seen(database)) == 2
    await reported(database, loud, [lane("google", 2)], NOON + REPORTS_KEPT_FOR + SECOND)
    assert [each.worker_id for each in await seen(database)] == [loud]


@pytest.mark.parametrize("odd", ["\x00", "a\ud800b", "é" * 100_000, "two\nlines"])
async def test_no_reply_is_too_odd_to_be_reported(database: Database, odd: str) -> None:
    await reported(database, uuid4(), [lane("google", 1, odd)])
    (found,) = await seen(database)
    assert found.state.last_reply is not None
    assert len(found.state.last_reply) <= 300


async def test_workers_report_at_once_without_waiting_for_each_other(database: Database) -> None:
    await reported(database, uuid4(), [lane(f"{number}.example") for number in range(200)], NOON - 2 * REPORTS_KEPT_FOR)
    workers = [uuid4() for _ in range(8)]
    states = [lane(f"{number}.example", number) for number in range(50)]
    for second in range(5):
        await asyncio.gather(*(reported(database, worker, states, NOON + second * SECOND) for worker in workers))
    assert len(await seen(database)) == 8 * 50


# The backlog


async def counted(steps: DeliverySteps) -> Backlog:
    now = steps.clock.now()
    async with steps.database.connection() as connection:
        return await backlog(connection, now, now + LEASE)


def exactly(number: int) -> BoundedCount:
    return BoundedCount(number, False)


async def test_nothing_waits_in_an_empty_schedule(steps: DeliverySteps) -> None:
    assert await counted(steps) == Backlog(NONE, NONE, NONE, NONE, NONE, None)


async def test_every_recipient_that_waits_is_in_one_count(steps: DeliverySteps) -> None:
    await steps.accept(5)
    since = steps.clock.now()
    steps.clock.advance(seconds=3)
    assert await counted(steps) == Backlog(exactly(5), NONE, NONE, NONE, NONE, since)
    tickets = await steps.lease()
    assert await counted(steps) == Backlog(NONE, exactly(5), NONE, NONE, NONE, None)
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        held = tickets.pop()
        await postpone(tx, [DeliveryPostponement(held.account_id, held.message_id, held.position, 0, now, True)], now)
    claimed = await steps.claim(tickets[:3])
    await steps.record(
        steps.outcome(claimed[0], DeliveryResult.DEFERRED, next_at=now + timedelta(hours=1)),
        steps.outcome(claimed[1], DeliveryResult.DELIVERED),
    )
    assert await counted(steps) == Backlog(
        due=exactly(0), leased=exactly(1), claimed=exactly(1), later=exactly(1), held=exactly(1), oldest_due_at=None
    )


# A schedule of a few large mailings: half of it due, the rest claimed, held, or postponed.
LARGE = """
INSERT INTO delivery_schedule
    (account_id, message_id, position, destination, next_at, fence, worker_id, attempt_count, held_since)
SELECT $1, gen_random_uuid(), 0, 'example.org', $2::timestamptz + (number - 50000) * interval '0.1 s', 1,
    CASE WHEN number % 4 = 1 THEN $3::uuid END, 1, CASE WHEN number % 4 = 2 THEN $2 END
FROM generate_series(1, 100000) number
"""


async def test_a_large_schedule_is_counted_no_further_than_the_bound(steps: DeliverySteps) -> None:
    now = steps.clock.now()
    async with steps.database.connection() as connection:
        await connection.execute(LARGE, steps.sender.account_id, now, steps.worker_id)
        await connection.execute("ANALYZE delivery_schedule")
        plans = [
            json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", *values))[0]["Plan"]
            for query, *values in (
                (backlog_store._DUE, now),
                (backlog_store._LEASED, now, now + LEASE),
                (backlog_store._LATER, now + LEASE),
                (backlog_store._CLAIMED_AND_HELD,),
                (backlog_store._SHARES, 50),
            )
        ]
    found = await counted(steps)
    assert found.claimed == found.held == BoundedCount(COUNTED_MAX, True)
    assert (found.due.is_more, found.later.is_more) == (True, True)
    assert found.leased == exactly(300)
    assert found.oldest_due_at == now - timedelta(seconds=0.1) * 49_997
    assert max(rows for plan in plans for rows in _rows(plan)) <= COUNTED_MAX + 1


def _rows(node: dict[str, Any]) -> Iterator[int]:
    """How many rows each step of a plan gave, and threw away."""
    yield node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    for inner in node.get("Plans", ()):
        yield from _rows(inner)
