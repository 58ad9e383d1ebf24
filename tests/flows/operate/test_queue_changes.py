"""An operator retries, holds, releases and cancels mail; each credit is returned once, whatever workers do."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.queue_changes import Chosen, QueueChanges, QueueSelection
from posthouse.randomness import SeededRandomness
from posthouse.rules import ids
from posthouse.rules.explanation import explain
from posthouse.rules.ids import AccountId
from posthouse.rules.queue_change import CANCELLED, QueueChange
from posthouse.rules.refusal import Refusal
from posthouse.store import queue_changes as store
from posthouse.wire.dns import Resolver
from tests.flows.audit import audit_findings, audit_of
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, PausingCarrier, open_delivery_flow

OLD: Final = timedelta(hours=1)


class Desk:
    """A delivery worker, and the operator."""

    def __init__(self, flow: DeliveryFlow) -> None:
        self.flow = flow
        self.steps = flow.steps
        self.changes = QueueChanges(
            context(self.steps.database, flow.clock, SeededRandomness(7)),
            resolver=Resolver([flow.nameserver.endpoint], lookup_seconds_max=4.0, monotonic=flow.clock.monotonic),
        )
        self.monitor = Monitor(context(self.steps.database, flow.clock))

    async def apply(self, change: QueueChange, **chosen: Any) -> int:
        return await self.changes.apply(change, await self.changes.select(Chosen(**chosen)), "a test")

    async def count(self, change: QueueChange, **chosen: Any) -> tuple[int, ...]:
        return tuple(await self.changes.count(change, await self.changes.select(Chosen(**chosen))))

    async def available(self) -> int:
        query = "SELECT available FROM accounts WHERE id = $1"
        return int(await self.steps.value(query, self.steps.sender.account_id))

    async def sql(self, statement: str, *arguments: object) -> list[Any]:
        return await self.steps.fetch(statement, *arguments)

    async def assert_audit_clean(self) -> None:
        assert await audit_findings(self.flow) == []
        assert not (await audit_of(self.flow).verify_ledger()).is_broken


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with open_delivery_flow(database_url) as flow:
        flow.serve("example.org", "example.net")
        yield Desk(flow)


def text(message_id: UUID) -> str:
    return ids.text(ids.MESSAGE, message_id)


async def test_cancelled_mail_has_failed_with_an_event_and_its_credit_is_returned_once(desk: Desk) -> None:
    before = await desk.available()
    message = await desk.steps.accept(["a@example.org", "b@example.org"])
    assert await desk.available() == before - 2
    assert await desk.apply(QueueChange.CANCEL, message=text(message)) == 2
    assert await desk.apply(QueueChange.CANCEL, message=text(message)) == 0
    assert await desk.available() == before
    assert await desk.flow.message(message) == ("failed", "released")
    rows = await desk.flow.recipients(message)
    assert [row[1:] for row in rows] == [("failed", "released", 0, None, CANCELLED)] * 2
    assert [row[0] for row in await desk.sql("SELECT type FROM events")] == ["email.failed"] * 2
    assert await desk.flow.run_due() == 0
    assert desk.flow.receiver.accepted == []
    assert explain("failed", None, CANCELLED).headline == "The operator of this service cancelled the message."
    await desk.assert_audit_clean()
    log = [found.entry for found in await desk.monitor.operator_log(10)]
    noted = [(entry.action, dict(entry.detail)) for entry in log if entry.action.startswith("queue.")]
    assert noted == [("queue.cancel", {"recipients": 2, "credits_returned": 2})]


async def test_mail_that_a_worker_has_is_left_and_its_outcome_counts(desk: Desk) -> None:
    pausing = PausingCarrier(desk.flow.carrier, sets_out=False)
    worker = desk.flow.another_worker(carrier=pausing)
    await worker.renew()
    message = await desk.steps.accept(["a@example.org"])
    desk.flow.delivery = worker
    delivering = asyncio.create_task(desk.flow.run_due())
    await pausing.claimed.wait()
    for change in (QueueChange.CANCEL, QueueChange.HOLD, QueueChange.RETRY):
        assert (await desk.count(change, message=text(message)))[:4] == (0, 0, 0, 1)
        assert await desk.apply(change, message=text(message)) == 0
    pausing.resume.set()
    await delivering
    assert await desk.flow.message(message) == ("delivered", "settled")
    await desk.assert_audit_clean()


async def test_a_ticket_that_was_out_before_a_cancellation_claims_nothing(desk: Desk) -> None:
    message = await desk.steps.accept(["a@example.org"])
    await desk.flow.delivery.renew()
    await desk.flow.dispatch.step()
    assert await desk.apply(QueueChange.CANCEL, message=text(message)) == 1
    assert await desk.flow.deliver_fetched() == 1
    assert desk.flow.receiver.accepted == []
    await desk.assert_audit_clean()


async def test_a_cancellation_that_is_cut_off_leaves_the_mail_as_it_was(desk: Desk) -> None:
    message = await desk.steps.accept(["a@example.org"])
    now = desk.flow.clock.now()
    async with desk.steps.database.transaction() as tx:
        selection = QueueSelection(ids.MessageId(ids.lowest_id(now + OLD)), message_id=message)
        (taken,) = await store.take_recipients(tx, selection, now, now + timedelta(minutes=2), 10)
    assert taken.email == "a@example.org"
    assert await desk.flow.run_due() == 0
    desk.flow.clock.advance(timedelta(minutes=3))
    await desk.flow.run_due()
    assert await desk.flow.message(message) == ("delivered", "settled")
    await desk.assert_audit_clean()


async def test_two_cancellations_at_once_return_each_credit_once(desk: Desk) -> None:
    before = await desk.available()
    for _ in range(5):
        await desk.steps.accept([f"{number}@example.org" for number in range(10)])
    done = await asyncio.gather(*(desk.apply(QueueChange.CANCEL, destination="Example.org") for _ in range(3)))
    assert sum(done) == 50
    assert await desk.available() == before
    await desk.assert_audit_clean()


async def test_held_mail_continues_only_when_released_and_the_time_does_not_count(desk: Desk) -> None:
    message = await desk.steps.accept(["a@example.org"])
    assert await desk.apply(QueueChange.HOLD, account_id=AccountId(desk.steps.sender.account_id)) == 1
    assert await desk.apply(QueueChange.HOLD, message=text(message)) == 0
    desk.flow.clock.advance(timedelta(days=5))
    assert await desk.flow.run_due() == 0
    timeline = await desk.monitor.timeline(text(message))
    wait = timeline.wait(timeline.recipients[0])
    assert wait is not None
    assert "the operator of this service holds it" in wait.text
    # The end of a suspension wakes only that account's mail.
    await desk.steps.suspend()
    await desk.steps.operator.resume(desk.steps.sender.account_id)
    assert await desk.flow.run_due() == 0
    assert await desk.apply(QueueChange.RELEASE, message=text(message)) == 1
    await desk.flow.run_due()
    # Five days are longer than mail lives.
    assert await desk.flow.message(message) == ("delivered", "settled")
    await desk.assert_audit_clean()


async def test_held_mail_can_be_cancelled(desk: Desk) -> None:
    message = await desk.steps.accept(["a@example.org"])
    await desk.apply(QueueChange.HOLD, message=text(message))
    assert await desk.apply(QueueChange.CANCEL, message=text(message)) == 1
    assert await desk.flow.message(message) == ("failed", "released")
    await desk.assert_audit_clean()


async def test_deferred_mail_is_tried_now_except_for_its_last_try(desk: Desk) -> None:
    flow = desk.flow
    message = await desk.steps.accept(["450-rcpt@example.org"])
    await flow.run_due()
    assert await flow.statuses(message) == ["deferred"]
    assert await flow.run_due() == 0
    assert (await desk.count(QueueChange.RETRY, message=text(message)))[0] == 1
    assert await desk.apply(QueueChange.RETRY, message=text(message)) == 1
    assert await flow.run_due() == 1
    assert (await flow.recipients(message))[0][3] == 2
    # A released mail keeps the time of its next try.
    await desk.apply(QueueChange.HOLD, message=text(message))
    await desk.apply(QueueChange.RELEASE, message=text(message))
    assert await flow.run_due() == 0
    await desk.sql("UPDATE delivery_schedule SET attempt_count = 9, fence = fence + 9")
    assert await desk.count(QueueChange.RETRY, message=text(message)) == (0, 0, 0, 0, 1)
    await desk.sql("UPDATE delivery_schedule SET attempt_count = 2")
    await desk.assert_audit_clean()


async def test_mail_is_selected_by_account_destination_lane_and_age(desk: Desk) -> None:
    flow = desk.flow
    flow.nameserver.records["hosted.test", "MX"] = ["10 aspmx.l.google.com."]
    other = await desk.steps.another_sender("Other")
    await desk.steps.accept(["a@example.org", "b@example.net"])
    flow.clock.advance(2 * OLD)
    await desk.steps.accept(["a@gmail.com", "b@hosted.test", "c@example.net"])
    await desk.steps.accept(["a@example.org"], sender=other)

    async def reached(**chosen: Any) -> int:
        return (await desk.count(QueueChange.CANCEL, **chosen))[0]

    assert await reached(account_id=AccountId(other.account_id)) == 1
    assert await reached(destination="example.org") == 2
    assert await reached(lane="google") == 2
    assert await reached(lane="example.net") == 2
    assert await reached(older_than=OLD) == 2
    assert await reached(older_than=OLD, destination="example.net") == 1
    assert await reached(older_than=timedelta(0)) == 6
    assert await reached(lane="yahoo") == 0
    with pytest.raises(Refusal, match="which mail"):
        await reached()
    with pytest.raises(Refusal, match="is not a message's id"):
        await reached(message="em_nothing")


async def test_mail_that_is_accepted_after_the_count_is_not_part_of_the_change(desk: Desk) -> None:
    await desk.steps.accept(["a@example.org"])
    selection = await desk.changes.select(Chosen(destination="example.org"))
    desk.flow.clock.advance(timedelta(seconds=1))
    later = await desk.steps.accept(["a@example.org"])
    assert await desk.changes.apply(QueueChange.CANCEL, selection, "a test") == 1
    assert await desk.flow.statuses(later) == ["queued"]
