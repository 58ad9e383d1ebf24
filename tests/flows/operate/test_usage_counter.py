"""Counting usage on a real database: each message and result counts once, in its day, whatever is interrupted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from typing import Any

import asyncpg
import pytest

from posthouse.flows.operate.usage_counter import DETAILS_KEPT, CountingRun, UsageCounter
from posthouse.rules import usage as rules
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId
from posthouse.rules.usage import KEYS_A_DAY_MAX, OTHER_VALUE
from posthouse.store import usage, usage_reasons
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.partitions import bounds
from posthouse.store.postgres import Connection
from posthouse.store.usage import ProviderDay, UsageCounts, UsageRow
from tests.support.accept_flow import Sender, new_id
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps

DELIVERED, BOUNCED, FAILED, DEFERRED = (
    DeliveryResult.DELIVERED, DeliveryResult.BOUNCED, DeliveryResult.FAILED, DeliveryResult.DEFERRED,
)  # fmt: skip
GOOGLE = "gmail-smtp-in.l.google.com"
EVER = date(2020, 1, 1), date(2099, 1, 1)


def usage_counter(steps: DeliverySteps, accounts_a_step: int = 10) -> UsageCounter:
    """In windows of hours, because days pass here without mail."""
    return UsageCounter(
        context(steps.database, steps.clock), accounts_a_step=accounts_a_step, window_longest=timedelta(hours=6)
    )


@dataclass(slots=True)
class Counting:
    """Mail that becomes final, and what was counted of it."""

    steps: DeliverySteps
    usage_counter: UsageCounter

    @property
    def account_id(self) -> AccountId:
        return AccountId(self.steps.sender.account_id)

    @property
    def today(self) -> date:
        return self.steps.clock.now().astimezone(UTC).date()

    async def begin_now(self) -> None:
        """To count the days without mail before would take longer than all of these tests."""
        await self.steps.fetch("DELETE FROM usage_counter_progress")
        await self.steps.fetch(
            "INSERT INTO usage_counter_progress (counted_before, pass_before, recount_day, splits_since)"
            " VALUES ($1, $1, $2, $3)",
            self.steps.clock.now(),
            self.today,
            bounds(self.today)[0],
        )

    async def send(
        self,
        *results: DeliveryResult,
        sender: Sender | None = None,
        mode: Mode = Mode.LIVE,
        tags: Sequence[str] = (),
        **given: Any,
    ) -> None:
        claimed = await self.steps.claimed(len(results), sender=sender, mode=mode, tags=tags)
        self.steps.clock.advance(seconds=2)
        await self.steps.record(
            *[self.steps.outcome(claim, result, **given) for claim, result in zip(claimed, results, strict=True)]
        )

    async def count(self) -> CountingRun:
        self.steps.clock.advance(minutes=2)
        return await self.usage_counter.run()

    async def rows(self, sender: Sender | None = None) -> dict[date, UsageRow]:
        account_id = AccountId((sender or self.steps.sender).account_id)
        async with self.steps.database.connection() as connection:
            return await usage.days(connection, account_id, *EVER)

    async def days(self, sender: Sender | None = None) -> dict[date, UsageCounts]:
        return {day: row.live for day, row in (await self.rows(sender)).items()}

    async def hours(self) -> dict[int, UsageRow]:
        """Today's, by their number."""
        begin = self.steps.clock.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        async with self.steps.database.connection() as connection:
            found = await usage.hours(connection, self.account_id, begin, begin + timedelta(days=1))
        return {hour.astimezone(UTC).hour: row for hour, row in found.items()}

    async def reasons(self) -> dict[tuple[str, str, str, str], int]:
        async with self.steps.database.connection() as connection:
            found = await usage_reasons.of_days(connection, self.account_id, *EVER)
        return {(*key[:3], key.reason.value): count.times for key, count in found}

    async def providers(self) -> dict[tuple[date, str], ProviderDay]:
        async with self.steps.database.connection() as connection:
            return {(row.day, row.provider): row for row in await usage.providers(connection, self.account_id, *EVER)}

    async def splits(self) -> dict[str, UsageCounts]:
        """By domain and tag, which look different here."""
        async with self.steps.database.connection() as connection:
            return {value: counts for _, value, counts in await usage.splits(connection, self.account_id, *EVER)}

    async def latency(self) -> dict[tuple[date, str], int]:
        return {key: sum(row.counts) for key, row in (await self.providers()).items()}


@pytest.fixture
async def counting(steps: DeliverySteps) -> Counting:
    # Noon, so that minutes that pass don't make another day.
    noon = steps.clock.now().replace(hour=12, minute=0, second=0, microsecond=0)
    steps.clock.advance(noon + timedelta(days=1) - steps.clock.now())
    await steps.renew()
    counting = Counting(steps, usage_counter(steps))
    await counting.begin_now()
    return counting


async def test_each_result_is_counted_once_after_a_minute_however_often_is_counted(counting: Counting) -> None:
    await counting.send(DELIVERED, DELIVERED, BOUNCED, FAILED)
    await counting.steps.accept(2)
    await counting.usage_counter.run()
    assert await counting.days() == {}
    assert (await counting.count()).steps > 0
    counted = UsageCounts(accepted=6, delivered=2, bounced=1, failed=1)
    assert await counting.days() == {counting.today: counted}
    assert counted.open == 2
    await counting.count()
    assert await counting.days() == {counting.today: counted}


async def test_a_result_belongs_to_the_day_of_its_message(counting: Counting) -> None:
    day = counting.today
    await counting.send(DELIVERED, DEFERRED)
    await counting.count()
    assert await counting.days() == {day: UsageCounts(accepted=2, delivered=1)}
    counting.steps.clock.advance(days=2)
    await counting.steps.renew()
    (again,) = await counting.steps.claim(await counting.steps.lease())
    await counting.steps.record(counting.steps.outcome(again, BOUNCED))
    await counting.count()
    assert await counting.days() == {day: UsageCounts(accepted=2, delivered=1, bounced=1)}
    assert await counting.latency() == {(day, "other"): 2}


async def test_outcomes_and_how_long_they_took_are_stored_by_mailbox_provider(counting: Counting) -> None:
    day = counting.today
    await counting.send(DELIVERED, DELIVERED, BOUNCED, FAILED, mx_host=GOOGLE)
    await counting.send(DELIVERED, mx_host="acme-com.mail.protection.outlook.com")
    await counting.send(FAILED, mx_host=None)
    await counting.count()
    assert await counting.latency() == {(day, "google"): 4, (day, "microsoft"): 1}
    google = (await counting.providers())[day, "google"]
    assert (google.delivered, google.bounced, google.failed, sum(google.delivered_counts)) == (2, 1, 1, 2)
    read = rules.percentiles(google.counts)
    assert read is not None
    assert 1.6 <= read.p50 <= 2.5, "each took two seconds"


async def test_test_mail_is_counted_separately(counting: Counting) -> None:
    await counting.send(DELIVERED, BOUNCED, mode=Mode.TEST)
    await counting.count()
    row = UsageRow(test=UsageCounts(accepted=2, delivered=1, bounced=1))
    assert await counting.rows() == {counting.today: row}
    assert await counting.hours() == {12: row}
    assert await counting.latency() == {}
    assert await counting.reasons() == {}


async def test_a_result_belongs_to_the_hour_of_its_message(counting: Counting) -> None:
    first, second = await counting.steps.claimed(2)
    await counting.steps.record(counting.steps.outcome(first, DELIVERED))
    counting.steps.clock.advance(hours=1)
    await counting.steps.record(counting.steps.outcome(second, BOUNCED))
    await counting.steps.accept(3)
    await counting.count()
    assert await counting.hours() == {
        12: UsageRow(UsageCounts(accepted=2, delivered=1, bounced=1)),
        13: UsageRow(UsageCounts(accepted=3)),
    }
    assert await counting.days() == {counting.today: UsageCounts(accepted=5, delivered=1, bounced=1)}


async def test_reasons_are_counted_by_provider_and_code(counting: Counting) -> None:
    google: dict[str, Any] = {"mx_host": GOOGLE, "stage": "rcpt"}
    await counting.send(BOUNCED, BOUNCED, **google, code=550, response="5.1.1 does not exist")
    await counting.send(BOUNCED, mx_host=None, remote_ip=None, code=None, response="the domain does not exist")
    await counting.send(DELIVERED, **google)
    await counting.count()
    counted = {("google", "bounced", "5.1.1", "unknown_address"): 2, ("none", "bounced", "", "unknown_domain"): 1}
    assert await counting.reasons() == counted
    await counting.count()
    assert await counting.reasons() == counted


async def test_deferrals_are_counted_once_their_recipient_is_final(counting: Counting) -> None:
    (first,) = await counting.steps.claimed(1)
    greylisted = {"mx_host": "mx.example.org", "stage": "rcpt", "code": 451, "response": "4.7.1 greylisted"}
    await counting.steps.record(counting.steps.outcome(first, DEFERRED, **greylisted))
    await counting.count()
    assert await counting.reasons() == {}
    async with counting.steps.database.transaction() as tx:
        waiting = await usage_reasons.deferred_now(tx, counting.account_id)
    ((key, count),) = waiting.items()
    assert (key.provider, key.result, key.code, key.reason) == ("other", "deferred", "4.7.1", "greylisted")
    assert count == (1, first.message_id)
    counting.steps.clock.advance(minutes=10)
    await counting.steps.renew()
    (again,) = await counting.steps.claim(await counting.steps.lease())
    await counting.steps.record(counting.steps.outcome(again, DELIVERED))
    await counting.count()
    assert await counting.reasons() == {("other", "deferred", "4.7.1", "greylisted"): 1}
    async with counting.steps.database.transaction() as tx:
        assert await usage_reasons.deferred_now(tx, counting.account_id) == {}


async def test_a_server_that_invents_codes_fills_no_table(counting: Counting) -> None:
    for number in range(6):
        outcomes = [
            counting.steps.outcome(claim, BOUNCED, code=550, response=f"5.{number + 100}.{place} no")
            for place, claim in enumerate(await counting.steps.claimed(40))
        ]
        await counting.steps.record(*outcomes)
        counting.steps.clock.advance(seconds=1)
    await counting.count()
    reasons = await counting.reasons()
    assert len(reasons) == KEYS_A_DAY_MAX + 1
    assert sum(reasons.values()) == 240
    assert reasons["other", "bounced", "other", "other"] == 240 - KEYS_A_DAY_MAX


async def test_live_mail_is_counted_by_domain_and_tag(counting: Counting) -> None:
    domain = counting.steps.sender.domain
    await counting.send(DELIVERED, BOUNCED, tags=["order", "order", "eu"])
    await counting.steps.fetch("UPDATE messages SET sender = $1", f'"@ Ada" <ada@{domain.upper()}>')
    await counting.send(FAILED, DEFERRED, tags=["eu"])
    await counting.steps.accept(2)
    await counting.send(DELIVERED, tags=["order"], mode=Mode.TEST)
    await counting.count()
    await counting.count()
    assert await counting.splits() == {
        domain: UsageCounts(accepted=6, delivered=1, bounced=1, failed=1),
        "order": UsageCounts(accepted=2, delivered=1, bounced=1),
        "eu": UsageCounts(accepted=4, delivered=1, bounced=1, failed=1),
    }


async def test_a_sender_that_invents_tags_fills_no_table(counting: Counting) -> None:
    for number in range(12):
        await counting.send(DELIVERED, tags=[f"{number}-{place}" for place in range(20)])
    await counting.count()
    splits = await counting.splits()
    assert len(splits) == 1 + KEYS_A_DAY_MAX + 1
    assert splits[OTHER_VALUE] == UsageCounts(accepted=40, delivered=40)


async def test_a_day_that_the_version_before_began_to_count_is_not_split(counting: Counting) -> None:
    await counting.steps.fetch("UPDATE usage_counter_progress SET splits_since = $1", counting.steps.clock.now())
    await counting.send(DELIVERED, DEFERRED, tags=["old"])
    await counting.count()
    counting.steps.clock.advance(days=1)
    await counting.steps.renew()
    (again,) = await counting.steps.claim(await counting.steps.lease())
    await counting.steps.record(counting.steps.outcome(again, BOUNCED))
    await counting.send(DELIVERED, tags=["new"])
    await counting.count()
    assert await counting.splits() == {
        value: UsageCounts(accepted=1, delivered=1) for value in (counting.steps.sender.domain, "new")
    }


async def test_a_step_that_fails_counts_nothing(counting: Counting) -> None:
    await counting.send(DELIVERED, BOUNCED, mx_host=GOOGLE, code=550, response="5.1.1 unknown")
    # The last statement of the step fails, as if the process had died before its commit.
    await counting.steps.fetch(
        "CREATE FUNCTION fail() RETURNS trigger AS $$ BEGIN RAISE 'not now'; END $$ LANGUAGE plpgsql"
    )
    await counting.steps.fetch("CREATE TRIGGER fails BEFORE UPDATE ON usage_counter_progress EXECUTE FUNCTION fail()")
    with pytest.raises(asyncpg.RaiseError):
        await counting.count()
    assert (await counting.rows(), await counting.hours()) == ({}, {})
    assert (await counting.latency(), await counting.reasons(), await counting.splits()) == ({}, {}, {})
    await counting.steps.fetch("DROP TRIGGER fails ON usage_counter_progress")
    await counting.count()
    assert await counting.days() == {counting.today: UsageCounts(accepted=2, delivered=1, bounced=1)}
    assert await counting.hours() == {12: UsageRow(UsageCounts(accepted=2, delivered=1, bounced=1))}
    assert await counting.latency() == {(counting.today, "google"): 2}
    assert await counting.reasons() == {("google", "bounced", "5.1.1", "unknown_address"): 1}


async def test_accounts_are_walked_in_parts_and_none_is_skipped(counting: Counting) -> None:
    senders = [counting.steps.sender, *[await counting.steps.another_sender(f"another-{n}") for n in range(4)]]
    for number, sender in enumerate(senders):
        await counting.send(*[DELIVERED] * (number + 1), sender=sender)
    for accounts_a_step in (1, 2, 5):
        counting.usage_counter = usage_counter(counting.steps, accounts_a_step)
        await counting.count()
        for number, sender in enumerate(senders):
            day = UsageCounts(accepted=number + 1, delivered=number + 1)
            assert await counting.days(sender) == {counting.today: day}


async def test_an_interrupted_count_continues_where_it_stopped(counting: Counting) -> None:
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
    older = state.counted_to(AccountId(other.account_id))
    assert state.counted_to(counting.account_id) > older, "each row says how new it is"
    assert (await counting.days())[counting.today].delivered == 2
    assert (await counting.days(other))[counting.today].bounced == 1

    await counting.count()
    assert (await counting.days())[counting.today].delivered == 2
    assert (await counting.days(other))[counting.today].bounced == 2


async def test_a_message_that_appeared_late_is_counted_when_its_day_is_closed(counting: Counting) -> None:
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
    assert (await counting.days())[day] == UsageCounts(accepted=4, delivered=1)
    async with counting.steps.database.connection() as connection:
        found = await connection.fetchval("SELECT sum(accepted)::int FROM usage_hours")
    assert found == 4, "the hours add up to the day"
    assert (await counting.count()).closed == 0


async def _hidden(connection: Connection, message_id: object, *, is_there: bool) -> None:
    """Not counted while it costs nothing, as a message is not while it isn't committed."""
    costs = "UPDATE messages SET credits_reserved = CASE WHEN $2 THEN recipient_count ELSE 0 END WHERE id = $1"
    await connection.execute(costs, message_id, is_there)


async def test_a_transaction_that_is_still_open_holds_the_count_back(counting: Counting) -> None:
    await counting.send(DELIVERED)
    async with counting.steps.database.transaction() as tx:
        await tx.execute("SELECT 1")
        counting.steps.clock.advance(minutes=2)
        await counting.usage_counter.run()
        assert await counting.days() == {}, "who knows which events it has made"
    await counting.usage_counter.run()
    assert (await counting.days())[counting.today].delivered == 1


async def test_how_long_mail_took_is_forgotten_but_not_how_much_it_was(counting: Counting) -> None:
    await counting.send(DELIVERED)
    await counting.count()
    (day,) = await counting.days()
    counting.steps.clock.advance(DETAILS_KEPT + timedelta(days=1))
    await counting.begin_now()
    assert (await counting.count()).forgotten == 3, "a provider, a domain and an hour"
    assert await counting.hours() == {}
    assert (await counting.latency(), await counting.splits()) == ({}, {})
    assert list(await counting.days()) == [day]


async def test_a_test_of_the_webhook_is_no_result(counting: Counting) -> None:
    now = counting.steps.clock.now()
    event = "INSERT INTO events (account_id, id, type, created_at, body) VALUES ($1, $2, 'webhook.test', $3, '')"
    await counting.steps.fetch(event, counting.account_id, new_id(now), now)
    await counting.count()
    assert await counting.days() == {}


async def test_a_reason_that_a_newer_version_stored_is_counted_as_another(counting: Counting) -> None:
    await counting.send(BOUNCED)
    await counting.count()
    await counting.steps.fetch("UPDATE usage_reasons SET reason = 'of_tomorrow'")
    assert {reason for *_, reason in await counting.reasons()} == {"other"}
    await counting.send(BOUNCED)
    await counting.count()
