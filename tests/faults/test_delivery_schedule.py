"""Delivery and its schedule: when mail is retried, when it is held, and when it is given up."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Final

import pytest
import pytest_asyncio

from posthouse.rules.credential import Mode
from posthouse.rules.ids import MessageId
from posthouse.rules.retry import DELIVERY, HOLD_MAX
from tests.support.accept_flow import Sender
from tests.support.bad_input import new_seed
from tests.support.database_checks import database_faults
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.maintenance import new_maintenance

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND: Final = timedelta(seconds=1)
# The interval between checks of a suspended account's mail.
LOOK_MIN, LOOK_MAX = timedelta(minutes=7.5), timedelta(minutes=22.5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(new_database: Callable[[], str]) -> AsyncIterator[tuple[DeliveryFlow, int]]:
    """One flow for all tests, each of which begins some time after the last; the database is checked at the end."""
    seed = new_seed()
    url = new_database()
    async with open_delivery_flow(url, seed=seed) as flow:
        flow.serve("example.org")
        yield flow, seed
        assert await database_faults(url) == {}, f"{seed=}"


@pytest_asyncio.fixture(loop_scope="module")
async def flow(shared: tuple[DeliveryFlow, int]) -> DeliveryFlow:
    flow, seed = shared
    print(f"seed {seed}")
    flow.clock.advance(minutes=10)
    # What the previous test left in the schedule becomes final.
    if await flow.steps.value("SELECT count(*) FROM delivery_schedule"):
        await advance(flow, timedelta(days=4))
        await flow.run_due()
    assert await flow.steps.value("SELECT count(*) FROM delivery_schedule") == 0
    flow.carrier.close_idle(0, all_of_them=True)
    flow.receiver.connections = 0
    for kept in (flow.receiver.accepted, flow.receiver.commands, flow.nameserver.asked):
        kept.clear()
    return flow


@pytest_asyncio.fixture(loop_scope="module")
async def sender(flow: DeliveryFlow) -> Sender:
    return await flow.steps.another_sender(f"sender{flow.clock.monotonic():.0f}")


async def advance(flow: DeliveryFlow, by: timedelta) -> None:
    """Time passes, and maintenance does what it does every day."""
    flow.clock.advance(by)
    await new_maintenance(flow.steps.database, flow.clock).partitions.make()


async def is_tried_again_and_fails_after(flow: DeliveryFlow, message_id: MessageId, left: timedelta) -> None:
    """This much of its time is left after the second attempt."""
    assert await state(flow, message_id) == ("deferred", 2)
    await advance(flow, left + SECOND)
    await flow.run_due()
    assert await state(flow, message_id) == ("failed", 2)


async def wait_until_due(flow: DeliveryFlow) -> timedelta:
    """How long it was."""
    at: datetime = await flow.steps.value("SELECT min(next_at) FROM delivery_schedule")
    wait = max(at - flow.clock.now(), timedelta(0))
    flow.clock.advance(wait)
    return wait


async def state(flow: DeliveryFlow, message_id: MessageId) -> tuple[str, int]:
    """Its only recipient's status, and how often it was tried."""
    (row,) = await flow.recipients(message_id)
    return row[1], row[3]


async def events(flow: DeliveryFlow, message_id: MessageId) -> list[str]:
    rows = await flow.steps.fetch("SELECT type FROM events WHERE message_id = $1 ORDER BY 1", message_id)
    return [row[0] for row in rows]


async def attempts(flow: DeliveryFlow, message_id: MessageId) -> int:
    number: int = await flow.steps.value("SELECT count(*) FROM attempts WHERE message_id = $1", message_id)
    return number


# The retry schedule


async def test_a_message_is_tried_ten_times_on_schedule_and_then_it_has_failed(flow: DeliveryFlow) -> None:
    message_id = await flow.steps.accept(["450-rcpt@example.org"])
    begin = flow.clock.now()
    for number, wait in enumerate(DELIVERY.waits, 1):
        assert await flow.run_due() == 1
        assert await state(flow, message_id) == ("deferred", number)
        assert await events(flow, message_id) == []
        next_at = await flow.steps.value("SELECT next_at FROM delivery_schedule")
        chosen = next_at - flow.clock.now()
        assert 0.9 * wait <= chosen <= 1.1 * wait
        flow.clock.advance(chosen - SECOND)
        assert await flow.run_due() == 0, "a second too early"
        assert await attempts(flow, message_id) == number
        flow.clock.advance(SECOND)
    assert await flow.run_due() == 1
    (row,) = await flow.recipients(message_id)
    assert row[1:5] == ("failed", "settled", 10, 450)
    assert await flow.message(message_id) == ("failed", "settled")
    assert await events(flow, message_id) == ["email.failed"]
    assert flow.clock.now() - begin < timedelta(hours=36)
    await advance(flow, timedelta(days=4))
    assert await flow.run_due() == 0
    assert (await attempts(flow, message_id), flow.receiver.accepted) == (10, [])


async def test_what_failed_together_does_not_come_back_together(flow: DeliveryFlow) -> None:
    await flow.steps.accept([f"450-rcpt+{number}@example.org" for number in range(5)])
    await flow.run_due()
    assert await flow.steps.value("SELECT count(DISTINCT next_at) FROM delivery_schedule") == 5


async def test_nothing_is_sent_after_72_hours_however_late_its_turn_comes(flow: DeliveryFlow) -> None:
    late = await flow.steps.accept(["450-rcpt@example.org"])
    await flow.run_due()
    await advance(flow, timedelta(hours=71))
    in_time = await flow.steps.accept(["ada@example.org"])
    await advance(flow, timedelta(hours=1) + SECOND)
    assert await flow.run_due() == 2
    # It is not an attempt, and no server was contacted.
    assert await state(flow, late) == ("failed", 1)
    assert await state(flow, in_time) == ("delivered", 1)
    asked = [command for command in flow.receiver.commands if command.startswith("RCPT")]
    assert asked == ["RCPT TO:<450-rcpt@example.org>", "RCPT TO:<ada@example.org>"]
    assert (await flow.recipients(late))[0][5] == "it could not be delivered in the time that a message may take"
    assert await flow.message(late) == ("failed", "settled")


async def test_mail_that_was_never_tried_in_its_time_is_not_charged(flow: DeliveryFlow) -> None:
    before = await flow.steps.value("SELECT sum(available) FROM accounts")
    message_id = await flow.steps.accept(["ada@example.org"])
    await advance(flow, timedelta(hours=72) + SECOND)
    await flow.run_due()
    assert await state(flow, message_id) == ("failed", 0)
    assert await flow.message(message_id) == ("failed", "released")
    assert await flow.steps.value("SELECT sum(available) FROM accounts") == before


# Suspension


@pytest.mark.rule("DLV-17")
async def test_a_suspended_accounts_mail_is_held_and_delivered_afterwards(flow: DeliveryFlow, sender: Sender) -> None:
    message_id = await flow.steps.accept(["ada@example.org"], sender=sender)
    theirs = await flow.steps.accept(["bob@example.org"])
    await flow.steps.operator.suspend(sender.account_id)
    for _ in range(3):
        await flow.run_due()
        assert await state(flow, message_id) == ("queued", 0)
        assert LOOK_MIN <= await wait_until_due(flow) <= LOOK_MAX
    assert await state(flow, theirs) == ("delivered", 1)
    assert (await attempts(flow, message_id), await events(flow, message_id)) == (0, [])
    await flow.steps.operator.resume(sender.account_id)
    assert await flow.run_due() == 1
    assert await state(flow, message_id) == ("delivered", 1)
    assert [mail.recipient for mail in flow.receiver.accepted] == ["bob@example.org", "ada@example.org"]


async def test_time_spent_held_is_no_part_of_the_72_hours(flow: DeliveryFlow, sender: Sender) -> None:
    message_id = await flow.steps.accept(["450-rcpt@example.org"], sender=sender)
    await flow.run_due()
    await wait_until_due(flow)
    await flow.steps.operator.suspend(sender.account_id)
    await flow.run_due()
    await advance(flow, timedelta(days=6))
    assert await flow.run_due() == 1
    assert await state(flow, message_id) == ("deferred", 1)
    await flow.steps.operator.resume(sender.account_id)
    # All the remaining time still remains: nine more attempts, over a day and a half.
    for number in range(2, 11):
        await wait_until_due(flow)
        assert await flow.run_due() == 1
        assert await state(flow, message_id) == ("failed" if number == 10 else "deferred", number)


@pytest.mark.parametrize("looked_at", [(False, False), (True, False), (False, True), (True, True)])
async def test_the_time_of_two_suspensions_is_added_up(
    flow: DeliveryFlow, sender: Sender, looked_at: tuple[bool, bool]
) -> None:
    message_id = await flow.steps.accept(["450-rcpt@example.org"], sender=sender)
    await flow.run_due()
    for is_looked_at in looked_at:
        await advance(flow, timedelta(hours=20))
        await flow.steps.operator.suspend(sender.account_id)
        if is_looked_at:
            await flow.run_due()
        await advance(flow, timedelta(hours=60))
        await flow.steps.operator.resume(sender.account_id)
    # 160 hours old, 40 of them counted.
    await flow.run_due()
    await is_tried_again_and_fails_after(flow, message_id, timedelta(hours=32))


async def test_mail_held_for_seven_days_has_failed_and_is_not_charged(flow: DeliveryFlow, sender: Sender) -> None:
    available = "SELECT available FROM accounts WHERE id = $1"
    before = await flow.steps.value(available, sender.account_id)
    message_id = await flow.steps.accept(["ada@example.org"], sender=sender)
    await flow.steps.operator.suspend(sender.account_id)
    await flow.run_due()
    await advance(flow, HOLD_MAX - SECOND)
    assert await flow.run_due() == 1
    assert await state(flow, message_id) == ("queued", 0)
    await advance(flow, LOOK_MAX)
    assert await flow.run_due() == 1
    (row,) = await flow.recipients(message_id)
    assert row[1:5] == ("failed", "released", 0, None)
    assert row[5] == "it was held for 7 days because the account was suspended"
    assert await flow.steps.value("SELECT billing_status FROM messages WHERE id = $1", message_id) == "released"
    assert await flow.steps.value(available, sender.account_id) == before
    assert (await events(flow, message_id), await attempts(flow, message_id)) == (["email.failed"], 0)
    assert flow.receiver.connections == 0


# Simulated mail


@pytest.mark.rule("DLV-16", "CRED-08")
async def test_simulator_addresses_have_their_results_without_a_connection(flow: DeliveryFlow) -> None:
    locals_ = ("delivered", "bounced", "failed", "deferred+1", "anyone")
    message_id = await flow.steps.accept([f"{local}@simulator.invalid" for local in locals_])
    await flow.run_due()
    rows = [(row[1], row[2], row[3]) for row in await flow.recipients(message_id)]
    assert rows == [
        ("delivered", "settled", 1),
        ("bounced", "released", 1),
        ("failed", "settled", 1),
        ("deferred", "reserved", 1),
        ("delivered", "settled", 1),
    ]
    for number in range(2, 11):
        await wait_until_due(flow)
        assert await flow.run_due() == 1
        assert (await flow.recipients(message_id))[3][3] == number
    assert (await flow.recipients(message_id))[3][1:3] == ("failed", "settled")
    kinds = ["email.bounced", "email.delivered", "email.delivered", "email.failed", "email.failed"]
    assert await events(flow, message_id) == kinds
    assert (flow.nameserver.asked, flow.receiver.connections) == ([], 0)
    again = await flow.steps.accept(["bounced@simulator.invalid"])
    await flow.run_due()
    assert await state(flow, again) == ("bounced", 1), "a dry-run bounce suppresses no address"


@pytest.mark.rule("DLV-15", "CRED-03", "MONEY-07")
async def test_mail_under_a_test_key_goes_nowhere_costs_nothing_and_has_events(
    flow: DeliveryFlow, sender: Sender
) -> None:
    to = ["ada@example.org", "bounced@example.org", "bounced@simulator.invalid", "bob@nowhere.invalid"]
    message_id = await flow.steps.accept(to, mode=Mode.TEST, sender=sender)
    await flow.run_due()
    assert await flow.statuses(message_id) == ["delivered", "delivered", "bounced", "delivered"]
    assert await events(flow, message_id) == ["email.bounced", *["email.delivered"] * 3]
    assert (flow.nameserver.asked, flow.receiver.connections) == ([], 0)
    assert await flow.steps.value("SELECT count(*) FROM ledger WHERE message_id = $1", message_id) == 0
    available = await flow.steps.value("SELECT available FROM accounts WHERE id = $1", sender.account_id)
    assert available == 1_000_000
