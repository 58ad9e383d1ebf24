"""Reckoning on a real database: each message and each result counted once, in its day, whatever breaks off."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from typing import Any

import pytest_asyncio

from posthouse.flows.operate.usage_counter import LATENCY_KEPT, CountingRun, UsageCounter
from posthouse.rules import usage as rules
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId
from posthouse.store import usage
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.postgres import Connection
from posthouse.store.usage import UsageDay
from tests.support.accept_flow import Sender, new_id
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps

DELIVERED, BOUNCED, FAILED, DEFERRED = (
    DeliveryResult.DELIVERED,
    DeliveryResult.BOUNCED,
    DeliveryResult.FAILED,
    DeliveryResult.DEFERRED,
)


def usage_counter(steps: DeliverySteps, accounts_a_step: int = 10) -> UsageCounter:
    """In windows of hours, because days pass here without mail."""
    return UsageCounter(
        database=steps.database,
        clock=steps.clock,
        accounts_a_step=accounts_a_step,
        window_longest=timedelta(hours=6),
    )


@dataclass(slots=True)
class Counting:
    """Mail that comes to its end, and what was counted of it."""

    steps: DeliverySteps
    usage_counter: UsageCounter

    @property
    def today(self) -> date:
        return self.steps.clock.now().astimezone(UTC).date()

    async def send(
        self, *results: DeliveryResult, sender: Sender | None = None, mode: Mode = Mode.LIVE, **given: Any
    ) -> None:
        claimed = await self.steps.claimed(len(results), sender=sender, mode=mode)
        self.steps.clock.advance(seconds=2)
        await self.steps.record(
            *[self.steps.outcome(claim, result, **given) for claim, result in zip(claimed, results, strict=True)]
        )

    async def count(self) -> CountingRun:
        self.steps.clock.advance(minutes=2)
        return await self.usage_counter.run()

    async def days(self, sender: Sender | None = None) -> dict[date, UsageDay]:
        account_id = AccountId((sender or self.steps.sender).account_id)
        async with self.steps.database.connection() as connection:
            return await usage.days(connection, account_id, date(2020, 1, 1), date(2099, 1, 1))

    async def latency(self) -> dict[tuple[date, str], int]:
        async with self.steps.database.connection() as connection:
            account_id = AccountId(self.steps.sender.account_id)
            found = await usage.latency(connection, account_id, date(2020, 1, 1), date(2099, 1, 1))
        return {(row.day, row.provider): sum(row.counts) for row in found}


@pytest_asyncio.fixture
async def counting(database_url: str) -> AsyncIterator[Counting]:
    async with open_delivery_steps(database_url) as steps:
        # Noon, so that minutes that pass don't make another day.
        noon = steps.clock.now().replace(hour=12, minute=0, second=0, microsecond=0)
        steps.clock.advance(noon + timedelta(days=1) - steps.clock.now())
        await steps.renew()
        # To count the days without mail before that would take longer than all that is shown here.
        now = steps.clock.now()
        await steps.fetch("INSERT INTO reckoning (low, high, closing) VALUES ($1, $1, $2)", now, now.date())
        yield Counting(steps, usage_counter(steps))


async def test_each_result_is_counted_once_however_often_is_counted(counting: Counting) -> None:
    await counting.send(DELIVERED, DELIVERED, BOUNCED, FAILED)
    await counting.steps.accept(2)
    assert (await counting.count()).steps > 0
    counted = UsageDay(counting.today, accepted=6, delivered=2, bounced=1, failed=1)
    assert await counting.days() == {counting.today: counted}
    assert counted.open == 2
    await counting.count()
    assert await counting.days() == {counting.today: counted}


async def test_what_is_less_than_a_minute_old_waits_for_the_next_run(counting: Counting) -> None:
    await counting.send(DELIVERED)
    await counting.usage_counter.run()
    assert await counting.days() == {}
    await counting.count()
    assert (await counting.days())[counting.today].delivered == 1


async def test_a_result_belongs_to_the_day_of_its_message(counting: Counting) -> None:
    day = counting.today
    claimed = await counting.steps.claimed(2)
    await counting.steps.record(
        counting.steps.outcome(claimed[0], DELIVERED), counting.steps.outcome(claimed[1], DEFERRED)
    )
    await counting.count()
    assert await counting.days() == {day: UsageDay(day, accepted=2, delivered=1)}
    counting.steps.clock.advance(days=2)
    await counting.steps.renew()
    (again,) = await counting.steps.claim(await counting.steps.lease())
    await counting.steps.record(counting.steps.outcome(again, BOUNCED))
    await counting.count()
    assert await counting.days() == {day: UsageDay(day, accepted=2, delivered=1, bounced=1)}
    assert await counting.latency() == {(day, "other"): 2}


async def test_how_long_it_took_is_kept_by_mailbox_provider(counting: Counting) -> None:
    day = counting.today
    await counting.send(DELIVERED, BOUNCED, exchange="gmail-smtp-in.l.google.com")
    await counting.send(DELIVERED, exchange="acme-com.mail.protection.outlook.com")
    await counting.send(FAILED, exchange=None)
    await counting.count()
    assert await counting.latency() == {(day, "google"): 2, (day, "microsoft"): 1}
    async with counting.steps.database.connection() as connection:
        account_id = AccountId(counting.steps.sender.account_id)
        found = {row.provider: row.counts for row in await usage.latency(connection, account_id, day, day)}
    read = rules.percentiles(found["google"])
    assert read is not None
    assert 1.6 <= read.p50 <= 2.5, "each took two seconds"


async def test_test_mail_is_not_counted(counting: Counting) -> None:
    await counting.send(DELIVERED, mode=Mode.TEST)
    await counting.count()
    assert await counting.days() == {}
    assert await counting.latency() == {}


async def test_accounts_are_walked_in_parts_and_none_is_passed_over(counting: Counting) -> None:
    senders = [counting.steps.sender, *[await counting.steps.another_sender(f"another-{n}") for n in range(4)]]
    for number, sender in enumerate(senders):
        await counting.send(*[DELIVERED] * (number + 1), sender=sender)
    for accounts_a_step in (1, 2, 5):
        counting.usage_counter = usage_counter(counting.steps, accounts_a_step)
        await counting.count()
        for number, sender in enumerate(senders):
            day = UsageDay(counting.today, accepted=number + 1, delivered=number + 1)
            assert await counting.days(sender) == {counting.today: day}


async def test_what_breaks_off_is_taken_up_where_it_was(counting: Counting) -> None:
    other = await counting.steps.another_sender("other")
    await counting.send(DELIVERED)
    await counting.send(BOUNCED, sender=other)
    await counting.count()
    # The last window's end is a minute ago; one more, and the next has what comes now.
    assert await counting.usage_counter.step(counting.steps.clock.now())
    await counting.send(DELIVERED)
    await counting.send(BOUNCED, sender=other)
    counting.steps.clock.advance(minutes=2)

    step = usage_counter(counting.steps, accounts_a_step=1).step
    bound = counting.steps.clock.now() - timedelta(minutes=1)
    assert await step(bound)
    async with counting.steps.database.connection() as connection:
        state = await usage.state(connection)
    assert state is not None
    mine, theirs = AccountId(counting.steps.sender.account_id), AccountId(other.account_id)
    assert state.counted_to(mine) > state.counted_to(theirs), "each row says how new it is"
    assert (await counting.days())[counting.today].delivered == 2
    assert (await counting.days(other))[counting.today].bounced == 1

    await counting.count()
    assert (await counting.days())[counting.today].delivered == 2
    assert (await counting.days(other))[counting.today].bounced == 2


async def test_a_message_that_came_to_light_late_is_counted_when_its_day_is_closed(counting: Counting) -> None:
    day = counting.today
    await counting.send(DELIVERED)
    late = await counting.steps.accept(3)
    async with counting.steps.database.connection() as connection:
        await _hidden(connection, late, is_there=False)
        await counting.count()
        assert (await counting.days())[day].accepted == 1
        await _hidden(connection, late, is_there=True)
    await counting.count()
    assert (await counting.days())[day].accepted == 1
    counting.steps.clock.advance(hours=14)
    assert (await counting.count()).closed > 0
    assert (await counting.days())[day] == UsageDay(day, accepted=4, delivered=1)
    assert (await counting.count()).closed == 0


async def _hidden(connection: Connection, message_id: object, *, is_there: bool) -> None:
    """Not counted while it costs nothing, as a message is not while it isn't committed."""
    await connection.execute(
        """UPDATE messages SET credits_reserved = CASE WHEN $2 THEN recipient_count ELSE 0 END WHERE id = $1""",
        message_id, is_there,
    )  # fmt: skip


async def test_a_transaction_that_is_still_open_holds_the_count_back(counting: Counting) -> None:
    await counting.send(DELIVERED)
    async with counting.steps.database.transaction() as tx:
        await tx.execute("SELECT 1")
        counting.steps.clock.advance(minutes=2)
        await counting.usage_counter.run()
        assert await counting.days() == {}, "who knows which events it has made"
    await counting.usage_counter.run()
    assert (await counting.days())[counting.today].delivered == 1


async def test_how_long_mail_took_is_forgotten_and_how_much_it_was_is_not(counting: Counting) -> None:
    await counting.send(DELIVERED)
    await counting.count()
    (day,) = await counting.days()
    counting.steps.clock.advance(LATENCY_KEPT + timedelta(days=1))
    assert (await counting.count()).forgotten == 1
    assert await counting.latency() == {}
    assert list(await counting.days()) == [day]


async def test_a_test_of_the_webhook_is_no_result(counting: Counting) -> None:
    now = counting.steps.clock.now()
    await counting.steps.fetch(
        "INSERT INTO events (account_id, id, type, created_at, body) VALUES ($1, $2, 'webhook.test', $3, '')",
        counting.steps.sender.account_id, new_id(now), now,
    )  # fmt: skip
    await counting.count()
    assert await counting.days() == {}
