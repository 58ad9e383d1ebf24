"""Mail with a `send_at`: never sent before, and treated as new when it is due."""

import asyncio
import time
from datetime import timedelta
from typing import Final
from uuid import uuid4

import pytest

from posthouse.flows.operate.queue_changes import Chosen, QueueChanges
from posthouse.randomness import SeededRandomness
from posthouse.rules.alert import AlertKind
from posthouse.rules.ids import AccountId, MessageId, RequestId
from posthouse.rules.limits import GROUP_COMMIT_ITEMS_MAX
from posthouse.rules.queue_change import QueueChange
from posthouse.rules.refusal import Refusal
from posthouse.rules.ticket import DeliveryTicket, unpack
from posthouse.store import alerts, message_detail
from posthouse.store.delivery_schedule import RecipientKey
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import TicketKind
from tests.support.accept_flow import new_id, new_intake
from tests.support.context import context
from tests.support.delivery_flow import SHARDS, DeliveryFlow

MOMENT = timedelta(microseconds=1)
ACCEPTED_BATCH: Final = 500
CLAIMED_SECONDS_MAX: Final = 10.0


async def accept_later(flow: DeliveryFlow, to: str = "ada@example.org", **ahead: float) -> MessageId:
    at = flow.clock.now() + timedelta(**ahead)
    return await flow.steps.accept([to], send_at=at.isoformat())


async def move(flow: DeliveryFlow, change: QueueChange) -> int:
    changes = QueueChanges(
        context(flow.steps.database, flow.clock, SeededRandomness(7)),
        resolver=Resolver([flow.nameserver.endpoint], lookup_seconds_max=4.0, monotonic=flow.clock.monotonic),
    )
    chosen = Chosen(account_id=AccountId(flow.steps.sender.account_id))
    return await changes.apply(change, await changes.select(chosen), "a test")


async def waiting_for(flow: DeliveryFlow, message_id: MessageId) -> str | None:
    account_id = AccountId(flow.steps.sender.account_id)
    async with flow.steps.database.transaction() as tx:
        timeline = await message_detail.timeline(tx, account_id, message_id, flow.clock.now())
    assert timeline is not None
    wait = timeline.wait(timeline.recipients[0])
    return None if wait is None else wait.reason.value


async def test_mail_is_sent_at_its_time_and_not_a_moment_before(flow: DeliveryFlow) -> None:
    message_id = await accept_later(flow, hours=1)
    assert await waiting_for(flow, message_id) == "scheduled"
    assert await flow.run_due() == 0
    flow.clock.advance(timedelta(hours=1) - MOMENT)
    assert await flow.run_due() == 0
    assert flow.receiver.accepted == []
    flow.clock.advance(MOMENT)
    assert await flow.run_due() == 1
    assert await flow.statuses(message_id) == ["delivered"]


async def test_a_retry_whose_time_is_long_past_is_answered_as_the_first_request(flow: DeliveryFlow) -> None:
    accept_flow, sender = flow.steps.accept_flow, flow.steps.sender
    draft = sender.draft(send_at=(flow.clock.now() + timedelta(hours=1)).isoformat())
    first = await accept_flow.accept(sender, "a key", draft)
    flow.clock.advance(hours=3)
    again = await accept_flow.accept(sender, "a key", draft)
    assert (again.message_id, again.is_replay) == (first.message_id, True)
    with pytest.raises(Refusal, match="past"):
        await accept_flow.accept(sender, "another key", draft)


@pytest.mark.parametrize(("seconds", "tickets"), [(30, 0), (0, 1), (-60, 1)])
async def test_a_ticket_is_published_at_once_only_for_mail_that_is_due(
    flow: DeliveryFlow, seconds: int, tickets: int
) -> None:
    steps = flow.steps
    intake = new_intake(steps.database, steps.accept_flow.control_cache, flow.clock, tickets=flow.tickets)
    at = flow.clock.now() + timedelta(seconds=seconds)
    draft = steps.sender.draft(["ada@example.org"], send_at=at.isoformat())
    request_id = RequestId(new_id(flow.clock.now()))
    await intake.accept(steps.sender.principal(), str(uuid4()), draft, intake.fingerprint(b""), request_id)
    found = await flow.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10, 0)
    assert len(found) == tickets
    ahead = flow.tickets.lease if tickets else timedelta(seconds=seconds)
    assert await steps.value("SELECT next_at FROM delivery_schedule") == flow.clock.now() + ahead


async def test_the_72_hours_count_from_when_it_is_due(flow: DeliveryFlow) -> None:
    message_id = await accept_later(flow, "450-rcpt@example.org", days=20)
    await flow.pass_days(20)
    assert await flow.run_due() == 1
    assert await flow.statuses(message_id) == ["deferred"]
    await flow.pass_days(71 / 24)
    await flow.run_due()
    assert await flow.statuses(message_id) == ["deferred"]
    flow.clock.advance(hours=2)
    await flow.run_due()
    assert await flow.statuses(message_id) == ["failed"]


async def test_a_suspension_before_it_is_due_does_not_count(flow: DeliveryFlow) -> None:
    message_id = await accept_later(flow, days=20)
    await flow.steps.suspend()
    await flow.pass_days(10)
    await flow.steps.resume()
    await flow.pass_days(10)
    assert await flow.run_due() == 1
    assert await flow.statuses(message_id) == ["delivered"]


async def test_mail_that_becomes_due_during_a_suspension_is_held_for_7_days_at_most(flow: DeliveryFlow) -> None:
    message_id = await accept_later(flow, days=20)
    await flow.pass_days(15)
    await flow.steps.suspend()
    await flow.pass_days(5)
    await flow.run_due()
    await flow.pass_days(6)
    await flow.run_due()
    assert await flow.statuses(message_id) == ["queued"]
    await flow.pass_days(1)
    await flow.run_due()
    assert await flow.statuses(message_id) == ["failed"]
    assert flow.receiver.accepted == []


async def test_an_operator_does_not_send_it_early(flow: DeliveryFlow) -> None:
    message_id = await accept_later(flow, hours=2)
    assert await move(flow, QueueChange.RETRY) == 0
    assert await move(flow, QueueChange.HOLD) == 1
    flow.clock.advance(hours=1)
    assert await move(flow, QueueChange.RELEASE) == 1
    assert await flow.run_due() == 0
    flow.clock.advance(hours=1)
    assert await flow.run_due() == 1
    assert await flow.statuses(message_id) == ["delivered"]


async def test_scheduled_mail_raises_no_alert_of_waiting_mail(flow: DeliveryFlow) -> None:
    account_id = AccountId(flow.steps.sender.account_id)

    async def oldest_minutes() -> list[int]:
        async with flow.steps.database.transaction() as tx:
            found = await alerts.read(tx, {AlertKind.OLDEST_WAITING: [account_id]}, flow.clock.now())
        return [round(reading.value or 0) for readings in found.values() for reading in readings]

    await accept_later(flow, hours=10)
    flow.clock.advance(hours=9)
    assert await oldest_minutes() == []
    await flow.steps.accept(["bob@example.org"])
    flow.clock.advance(minutes=20)
    assert await oldest_minutes() == [20]
    await flow.run_due()
    flow.clock.advance(minutes=50)
    assert await oldest_minutes() == [10]


@pytest.mark.parametrize("messages", [2 * ACCEPTED_BATCH, pytest.param(10_000, marks=pytest.mark.nightly)])
async def test_all_that_becomes_due_in_a_second_is_claimed_once_within_10_seconds(
    flow: DeliveryFlow, messages: int
) -> None:
    steps, due_at = flow.steps, flow.clock.now() + timedelta(hours=1)
    for start in range(0, messages, ACCEPTED_BATCH):
        times = [due_at + timedelta(seconds=number / messages) for number in range(start, start + ACCEPTED_BATCH)]
        await asyncio.gather(*[steps.accept(1, send_at=at.isoformat()) for at in times])
    flow.clock.advance(hours=1, seconds=1)
    claimed: set[RecipientKey] = set()
    began = time.monotonic()
    while True:
        dispatched = await flow.dispatch.step()
        for message in await flow.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10_000, 0):
            tickets = [ticket for ticket in unpack(message.payload) if isinstance(ticket, DeliveryTicket)]
            for first in range(0, len(tickets), GROUP_COMMIT_ITEMS_MAX):
                found = await steps.claim(tickets[first : first + GROUP_COMMIT_ITEMS_MAX])
                assert claimed.isdisjoint({claim.key for claim in found})
                claimed |= {claim.key for claim in found}
        if not dispatched:
            break
    passed = time.monotonic() - began
    assert len(claimed) == messages
    assert await steps.value("SELECT count(*) FROM attempts") == messages
    # A thousand prove no speed.
    assert messages < 10_000 or passed <= CLAIMED_SECONDS_MAX
