"""Delivery and the calendar: when mail is tried again, when it is held, and when it has been long enough."""

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import pytest
import pytest_asyncio

from posthouse.flows.operate.upkeep import Retention, Upkeep
from posthouse.rules.credential import Mode
from posthouse.rules.ids import MessageId
from posthouse.rules.retry import DELIVERY, HOLD_MAX, Schedule
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.support.books import faults_in_the_books
from tests.support.house import Sender
from tests.support.round_trip import RoundTrip, on_the_road

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND: Final = timedelta(seconds=1)
# How far apart looks at a suspended account's mail are.
LOOK_MIN, LOOK_MAX = timedelta(minutes=7.5), timedelta(minutes=22.5)
PATIENT: Final = Schedule((timedelta(hours=25),) * 9, lifetime=timedelta(hours=72))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def town(new_database: Callable[[], str]) -> AsyncIterator[tuple[RoundTrip, int]]:
    """One road for all tests, each of which begins some time after the last; the books are looked at in the end."""
    seed = random.randrange(2**32)
    url = new_database()
    async with on_the_road(url, seed=seed) as road:
        road.serve("example.org")
        yield road, seed
        assert await faults_in_the_books(url) == {}, f"{seed=}"


@pytest_asyncio.fixture(loop_scope="module")
async def road(town: tuple[RoundTrip, int]) -> RoundTrip:
    road, seed = town
    print(f"seed {seed}")
    road.clock.advance(minutes=10)
    # Whatever the test before left in the calendar comes to its end.
    if await road.rounds.value("SELECT count(*) FROM schedule"):
        await advance(road, timedelta(days=4))
        await road.round()
    assert await road.rounds.value("SELECT count(*) FROM schedule") == 0
    road.carrier.close_idle(0, all_of_them=True)
    road.receiver.connections = 0
    for kept in (road.receiver.accepted, road.receiver.commands, road.names.asked):
        kept.clear()
    return road


@pytest_asyncio.fixture(loop_scope="module")
async def sender(road: RoundTrip) -> Sender:
    return await road.rounds.another_sender(f"sender{road.clock.monotonic():.0f}")


async def advance(road: RoundTrip, by: timedelta) -> None:
    """Time passes, and upkeep does what it does every day."""
    road.clock.advance(by)
    upkeep = Upkeep(
        database=road.rounds.database,
        clock=road.clock,
        resolver=Resolver([road.names.endpoint]),
        sealer=Sealer({"1": bytes(32)}, "1"),
        retention=Retention(30, 3),
    )
    await upkeep.make_partitions()


async def wait_until_due(road: RoundTrip) -> timedelta:
    """How long it was."""
    at: datetime = await road.rounds.value("SELECT min(next_at) FROM schedule")
    wait = max(at - road.clock.now(), timedelta(0))
    road.clock.advance(wait)
    return wait


async def state(road: RoundTrip, message_id: MessageId) -> tuple[str, int]:
    """Its only recipient's status, and how often it was tried."""
    (row,) = await road.recipients(message_id)
    return row[1], row[3]


async def events(road: RoundTrip, message_id: MessageId) -> list[str]:
    told = await road.rounds.fetch("SELECT type FROM events WHERE message_id = $1 ORDER BY 1", message_id)
    return [row[0] for row in told]


async def attempts(road: RoundTrip, message_id: MessageId) -> int:
    number: int = await road.rounds.value("SELECT count(*) FROM attempts WHERE message_id = $1", message_id)
    return number


# The retry schedule


async def test_a_mail_is_tried_ten_times_each_in_its_time_and_then_it_has_failed(road: RoundTrip) -> None:
    message_id = await road.rounds.accept(["450-rcpt@example.org"])
    begin = road.clock.now()
    for number, wait in enumerate(DELIVERY.waits, 1):
        assert await road.round() == 1
        assert await state(road, message_id) == ("deferred", number)
        assert await events(road, message_id) == []
        next_at = await road.rounds.value("SELECT next_at FROM schedule")
        chosen = next_at - road.clock.now()
        assert 0.9 * wait <= chosen <= 1.1 * wait
        road.clock.advance(chosen - SECOND)
        assert await road.round() == 0, "a second too early"
        assert await attempts(road, message_id) == number
        road.clock.advance(SECOND)
    assert await road.round() == 1
    (row,) = await road.recipients(message_id)
    assert row[1:5] == ("failed", "settled", 10, 450)
    assert await road.message(message_id) == ("failed", "settled")
    assert await events(road, message_id) == ["email.failed"]
    assert road.clock.now() - begin < timedelta(hours=36)
    await advance(road, timedelta(days=4))
    assert await road.round() == 0
    assert (await attempts(road, message_id), road.receiver.accepted) == (10, [])


async def test_what_failed_together_does_not_come_back_together(road: RoundTrip) -> None:
    await road.rounds.accept([f"450-rcpt+{number}@example.org" for number in range(20)])
    await road.round()
    waits = [at - road.clock.now() for (at,) in await road.rounds.fetch("SELECT next_at FROM schedule")]
    assert len(set(waits)) == 20
    assert timedelta(seconds=54) <= min(waits) < timedelta(seconds=60)
    assert timedelta(seconds=60) < max(waits) <= timedelta(seconds=66)


async def test_an_attempt_that_would_come_after_72_hours_is_not_waited_for(road: RoundTrip) -> None:
    patient = replace(road, delivery=road.another_worker(retries=PATIENT))
    message_id = await road.rounds.accept(["450-rcpt@example.org"])
    for number in (1, 2):
        await patient.round()
        assert await state(road, message_id) == ("deferred", number)
        assert await wait_until_due(road) == timedelta(hours=25)
    await patient.round()
    # The next would be after 75 hours.
    assert await state(road, message_id) == ("failed", 3)
    assert await events(road, message_id) == ["email.failed"]


async def test_nothing_is_sent_after_72_hours_however_late_its_turn_comes(road: RoundTrip) -> None:
    late = await road.rounds.accept(["450-rcpt@example.org"])
    await road.round()
    await advance(road, timedelta(hours=71))
    in_time = await road.rounds.accept(["ada@example.org"])
    await advance(road, timedelta(hours=1) + SECOND)
    assert await road.round() == 2
    # It is not an attempt, and nobody was asked.
    assert await state(road, late) == ("failed", 1)
    assert await state(road, in_time) == ("delivered", 1)
    asked = [command for command in road.receiver.commands if command.startswith("RCPT")]
    assert asked == ["RCPT TO:<450-rcpt@example.org>", "RCPT TO:<ada@example.org>"]
    assert (await road.recipients(late))[0][5] == "it could not be delivered in the time that a message may take"
    assert await road.message(late) == ("failed", "settled")


async def test_a_first_attempt_within_the_72_hours_is_made_however_late(road: RoundTrip) -> None:
    message_id = await road.rounds.accept(["ada@example.org"])
    await advance(road, timedelta(hours=72) - SECOND)
    await road.round()
    assert await state(road, message_id) == ("delivered", 1)


# Suspension


async def test_a_suspended_accounts_mail_is_held_and_goes_on_afterwards(road: RoundTrip, sender: Sender) -> None:
    message_id = await road.rounds.accept(["ada@example.org"], sender=sender)
    theirs = await road.rounds.accept(["bob@example.org"])
    await road.rounds.operator.suspend(sender.account_id)
    for _ in range(3):
        await road.round()
        assert await state(road, message_id) == ("queued", 0)
        assert LOOK_MIN <= await wait_until_due(road) <= LOOK_MAX
    assert await state(road, theirs) == ("delivered", 1)
    assert (await attempts(road, message_id), await events(road, message_id)) == (0, [])
    await road.rounds.operator.resume(sender.account_id)
    assert await road.round() == 1
    assert await state(road, message_id) == ("delivered", 1)
    assert [one.recipient for one in road.receiver.accepted] == ["bob@example.org", "ada@example.org"]


async def test_time_spent_held_is_no_part_of_the_72_hours(road: RoundTrip, sender: Sender) -> None:
    message_id = await road.rounds.accept(["450-rcpt@example.org"], sender=sender)
    await road.round()
    await wait_until_due(road)
    await road.rounds.operator.suspend(sender.account_id)
    await road.round()
    await advance(road, timedelta(days=6))
    assert await road.round() == 1
    assert await state(road, message_id) == ("deferred", 1)
    await road.rounds.operator.resume(sender.account_id)
    # All that was left of it is left now: nine more attempts, over a day and a half.
    for number in range(2, 11):
        await wait_until_due(road)
        assert await road.round() == 1
        assert await state(road, message_id) == ("failed" if number == 10 else "deferred", number)


async def test_the_72_hours_go_on_where_they_stopped(road: RoundTrip, sender: Sender) -> None:
    message_id = await road.rounds.accept(["450-rcpt@example.org"], sender=sender)
    await road.round()
    await advance(road, timedelta(hours=70))
    await road.rounds.operator.suspend(sender.account_id)
    await road.round()
    await advance(road, timedelta(days=3))
    await road.rounds.operator.resume(sender.account_id)
    await road.round()
    # 70 hours of its own: tried once more, and the next wait still fits.
    assert await state(road, message_id) == ("deferred", 2)
    await advance(road, timedelta(hours=2) + SECOND)
    await road.round()
    assert await state(road, message_id) == ("failed", 2)


async def test_mail_that_was_held_for_seven_days_has_failed(road: RoundTrip, sender: Sender) -> None:
    message_id = await road.rounds.accept(["ada@example.org"], sender=sender)
    await road.rounds.operator.suspend(sender.account_id)
    await road.round()
    await advance(road, HOLD_MAX - SECOND)
    assert await road.round() == 1
    assert await state(road, message_id) == ("queued", 0)
    await advance(road, LOOK_MAX)
    assert await road.round() == 1
    (row,) = await road.recipients(message_id)
    assert row[1:5] == ("failed", "settled", 0, None)
    assert row[5] == "it was held for 7 days because the account was suspended"
    assert (await events(road, message_id), await attempts(road, message_id)) == (["email.failed"], 0)
    assert road.receiver.connections == 0


# Addresses that get no more mail


@pytest.mark.parametrize(
    ("local", "is_suppressed"),
    [("550-rcpt", True), ("554-rcpt", False), ("551-rcpt", False), ("552-dot", False), ("550-dot", False)],
    ids=["5.1.1", "5.7.1", "a bare 5xx", "5.2.2 at the dot", "5.1.1 at the dot"],
)
async def test_only_an_address_that_is_told_to_be_unknown_gets_no_more_mail(
    road: RoundTrip, sender: Sender, local: str, is_suppressed: bool
) -> None:
    asked = []
    for spelling in (f"{local}@example.org", f"{local.upper()}@example.org"):
        message_id = await road.rounds.accept([spelling], sender=sender)
        await road.round()
        (row,) = await road.recipients(message_id)
        assert row[1:3] == ("bounced", "released")
        assert await events(road, message_id) == ["email.bounced"]
        asked.append((row[4] is not None, sum(one.startswith("RCPT") for one in road.receiver.commands)))
    assert asked == [(True, 1), (False, 1) if is_suppressed else (True, 2)]
    # Another account may know better, and finds out for itself.
    message_id = await road.rounds.accept([f"{local}@example.org"])
    await road.round()
    assert (await road.recipients(message_id))[0][4] is not None
    available = "SELECT available FROM accounts WHERE id = $1"
    assert await road.rounds.value(available, sender.account_id) == 1_000_000


# Rehearsals


async def test_simulator_addresses_end_as_their_name_says_without_dns_or_a_connection(road: RoundTrip) -> None:
    locals_ = ("delivered", "bounced", "failed", "deferred+1", "anyone")
    message_id = await road.rounds.accept([f"{local}@simulator.invalid" for local in locals_])
    await road.round()
    told = [(row[1], row[2], row[3]) for row in await road.recipients(message_id)]
    assert told == [
        ("delivered", "settled", 1),
        ("bounced", "released", 1),
        ("failed", "settled", 1),
        ("deferred", "reserved", 1),
        ("delivered", "settled", 1),
    ]
    for number in range(2, 11):
        await wait_until_due(road)
        assert await road.round() == 1
        assert (await road.recipients(message_id))[3][3] == number
    assert (await road.recipients(message_id))[3][1:3] == ("failed", "settled")
    kinds = ["email.bounced", "email.delivered", "email.delivered", "email.failed", "email.failed"]
    assert await events(road, message_id) == kinds
    assert (road.names.asked, road.receiver.connections) == ([], 0)
    again = await road.rounds.accept(["bounced@simulator.invalid"])
    await road.round()
    assert await state(road, again) == ("bounced", 1), "a rehearsed bounce suppresses nobody"


async def test_mail_under_a_test_key_goes_nowhere_costs_nothing_and_is_told(road: RoundTrip, sender: Sender) -> None:
    to = ["ada@example.org", "bounced@example.org", "bounced@simulator.invalid", "bob@nowhere.invalid"]
    message_id = await road.rounds.accept(to, mode=Mode.TEST, sender=sender)
    await road.round()
    assert await road.statuses(message_id) == ["delivered", "delivered", "bounced", "delivered"]
    assert await events(road, message_id) == ["email.bounced", *["email.delivered"] * 3]
    assert (road.names.asked, road.receiver.connections) == ([], 0)
    assert await road.rounds.value("SELECT count(*) FROM ledger WHERE message_id = $1", message_id) == 0
    available = await road.rounds.value("SELECT available FROM accounts WHERE id = $1", sender.account_id)
    assert available == 1_000_000
