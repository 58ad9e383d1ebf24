"""Lanes that an operator pauses: no session begins in any worker, the time does not count, and nothing is forgotten."""

from datetime import timedelta
from typing import Final

import pytest

from posthouse.flows.operate.lanes import Lanes
from posthouse.flows.operate.monitor import Monitor
from posthouse.rules import ids
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.refusal import Refusal
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_schedule
from posthouse.store.delivery_schedule import PAUSE_KNOWN_WITHIN, DeliveryPostponement
from posthouse.wire.stream import TicketKind
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow

ONE: Final = LaneLimits(Limits(per_second=1e6, burst=1_000_000, connections_start=1, connections_max=1))


def lanes_of(flow: DeliveryFlow) -> Lanes:
    return Lanes(context(flow.steps.database, flow.clock), lane_limits=LaneLimits())


async def held(flow: DeliveryFlow) -> list[tuple[str, str | None]]:
    return await flow.steps.fetch("SELECT destination, held_by FROM delivery_schedule ORDER BY destination")


async def test_a_paused_lane_sends_nothing_until_it_is_resumed_and_the_time_does_not_count(flow: DeliveryFlow) -> None:
    lanes = lanes_of(flow)
    await lanes.pause("Example.org", "a test")
    message = await flow.steps.accept(["a@example.org", "a@example.net"])
    await flow.run_due()
    assert await flow.statuses(message) == ["queued", "delivered"]
    assert await held(flow) == [("example.org", "example.org")]
    monitor = Monitor(context(flow.steps.database, flow.clock))
    timeline = await monitor.timeline(ids.text(ids.MESSAGE, message))
    wait = timeline.wait(timeline.recipients[0])
    assert wait is not None
    assert "paused the lane example.org" in wait.text
    # Checked from time to time, by a worker that began later as well.
    flow.clock.advance(timedelta(days=4))
    flow.delivery = flow.another_worker()
    assert await flow.run_due() == 1
    assert await flow.statuses(message) == ["queued", "delivered"]
    assert await lanes.resume("example.org") == 1
    await flow.delivery.synchronize_learned_limits()
    flow.clock.advance(PAUSE_KNOWN_WITHIN)
    await flow.run_due()
    assert await flow.message(message) == ("delivered", "settled")
    assert [row[3] for row in await flow.recipients(message)] == [1, 1]
    actions = [found.entry.action for found in await monitor.operator_log(10)]
    assert [action for action in actions if action.startswith("lane.")] == ["lane.resumed", "lane.paused"]


async def test_a_domain_can_be_paused_in_the_lane_of_its_provider(flow: DeliveryFlow) -> None:
    for domain in ("one.test", "two.test"):
        flow.nameserver.records[domain, "MX"] = ["10 aspmx.l.google.com."]
    flow.nameserver.records["aspmx.l.google.com", "A"] = ["127.0.0.1"]
    await lanes_of(flow).pause("one.test", "")
    message = await flow.steps.accept(["a@one.test", "a@two.test"])
    await flow.run_due()
    assert await flow.statuses(message) == ["queued", "delivered"]
    await lanes_of(flow).pause("google", "")
    message = await flow.steps.accept(["a@two.test"])
    await flow.delivery.synchronize_learned_limits()
    await flow.run_due()
    assert await held(flow) == [("one.test", "one.test"), ("two.test", "google")]


async def test_mail_waiting_in_a_worker_is_held_back_when_its_lane_is_paused(database_url: str) -> None:
    async with open_delivery_flow(database_url, behaviour="delay-300", lane_limits=ONE) as flow:
        flow.serve("example.org")
        messages = [await flow.steps.accept(["a@example.org"]) for _ in range(5)]
        await flow.delivery.renew()
        await flow.dispatch.step()
        found = await flow.stream.fetch(TicketKind.DELIVER, frozenset(range(4)), 100, 0)
        await flow.delivery.offer(found)
        await lanes_of(flow).pause("example.org", "")
        await flow.delivery.synchronize_learned_limits()
        await flow.delivery.settle()
        statuses = sorted([(await flow.statuses(message))[0] for message in messages])
        # What was being sent is sent to its end.
        assert statuses == ["delivered", "queued", "queued", "queued", "queued"]
        assert await held(flow) == [("example.org", "example.org")] * 4


async def test_mail_that_a_worker_holds_back_after_the_end_of_the_pause_is_due_soon(flow: DeliveryFlow) -> None:
    await flow.steps.accept(["a@example.org"])
    (ticket,) = await flow.steps.lease()
    assert isinstance(ticket, DeliveryTicket)
    now = flow.clock.now()
    late = DeliveryPostponement(*ticket.key, now + timedelta(hours=1), is_held=True, held_by="example.org")
    async with flow.steps.database.transaction() as tx:
        assert await delivery_schedule.postpone(tx, [late], now) == 1
    rows = await flow.steps.fetch("SELECT next_at, held_since, held_by FROM delivery_schedule")
    assert rows == [(now + PAUSE_KNOWN_WITHIN, None, None)]


async def test_a_pause_that_is_there_or_is_not_is_refused(flow: DeliveryFlow) -> None:
    operator = lanes_of(flow)
    with pytest.raises(Refusal, match="not paused"):
        await operator.resume("google")
    await operator.pause("google", "their outage")
    with pytest.raises(Refusal, match="already paused"):
        await operator.pause("google", "")
    with pytest.raises(Refusal, match="is not a lane"):
        await operator.pause("goggle", "")
    (pause,) = (await operator.all()).pauses
    assert (pause.lane, pause.reason) == ("google", "their outage")


@pytest.mark.parametrize("lane", ["relay:smarthost", "simulator.invalid"])
async def test_every_lane_that_is_listed_can_be_opened_and_paused(flow: DeliveryFlow, lane: str) -> None:
    operator = lanes_of(flow)
    await operator.pause(lane, "")
    listed = await operator.all()
    assert [pause.lane for pause in listed.pauses] == [lane]
    assert (await operator.explain(lane, 1)).lane == lane
    assert [pause.lane for pause in (await operator.one(lane)).pauses] == [lane]
