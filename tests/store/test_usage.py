"""Usage and ledger in the database: every statement finds its rows by keys, whatever was there when planned."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import pytest

from posthouse.rules.ids import AccountId, time_of
from posthouse.rules.usage import COUNTS, KEYS_A_DAY_MAX, OTHER_VALUE, SplitKind
from posthouse.store import backlog, ledger, usage, usage_reasons
from posthouse.store.postgres import Database
from posthouse.store.usage import ProviderCounts, SplitGroup, UsageCounts, UsageRow
from tests.support import query_plans
from tests.support.delivery_steps import DeliverySteps

DAY = date(2026, 11, 15)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
# A single row, the accounts themselves, what is searched or deleted day by day for all accounts, operators' figures.
NOT_AN_ACCOUNTS = (
    "usage._STATE", "usage._ACCOUNTS", "usage._FORGET", "usage_reasons._FORGET", "usage._ADVANCE", "usage._OLDEST",
    "usage._OF_ALL", "backlog._DUE", "backlog._LEASED", "backlog._LATER", "backlog._CLAIMED", "backlog._DISABLE",
    "backlog._SHARES",
)  # fmt: skip
STATEMENTS = {
    name: text
    for name, text in query_plans.statements(usage, usage_reasons, ledger, backlog).items()
    if not name.startswith(NOT_AN_ACCOUNTS) and "INSERT" not in text
}


def histogram(**counts: int) -> list[int]:
    return [counts.get(f"b{bucket}", 0) for bucket in range(COUNTS)]


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    scans = await query_plans.scans(database, STATEMENTS[name])
    assert scans
    for scan in scans:
        assert "account_id = " in query_plans.condition(scan), scan


@pytest.mark.parametrize("name", ["ledger._ENTRIES", "ledger._ENTRIES_OF_KIND", "ledger._END_OF_BATCH"])
async def test_a_page_of_the_ledger_walks_the_key_backwards_and_sorts_nothing(name: str, database: Database) -> None:
    async with database.connection() as connection:
        text = STATEMENTS[name]
        await connection.execute(f"PREPARE shown AS {text}")
        low, high = "'00000000-0000-0000-0000-000000000000'", "'ffffffff-0000-0000-0000-000000000000'"
        values = {"account_id": low, "lowest": low, "lowest_position": "-1", "id": high, "position": "1"}
        values["kind"] = "'settle'"
        given = [values.get(parameter, "50") for parameter in getattr(ledger, name.rpartition(".")[2]).names]
        lines = [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE shown({', '.join(given)})")]
        await connection.execute("DEALLOCATE shown")
    plan = "\n".join(lines)
    assert "Sort" not in plan, plan
    assert "Merge" not in plan, "day after day, so that days behind the page are not touched"
    assert "Index Scan Backward" in plan or "Index Only Scan Backward" in plan, plan
    conditions = [line for line in lines if "Index Cond" in line]
    assert conditions
    assert all("ROW(message_id, " in line for line in conditions), plan


async def test_what_is_added_adds_up(database: Database) -> None:
    account_id = AccountId(uuid4())
    for _ in range(2):
        async with database.transaction() as tx:
            await usage.add(
                tx,
                {
                    (account_id, NOON): Counter(accepted=5, delivered=2, bounced=1, failed=1, test_accepted=1),
                    (account_id, NOON + HOUR): Counter(accepted=1, test_delivered=1),
                },
                {
                    (account_id, DAY, "google"): ProviderCounts(
                        Counter(delivered=2, bounced=1), histogram(b0=1, b7=2), histogram(b7=2)
                    ),
                    (account_id, DAY, "other"): ProviderCounts(Counter(failed=1), histogram(b75=1), histogram()),
                },
            )
    async with database.connection() as connection:
        assert await usage.days(connection, account_id, DAY, DAY) == {
            DAY: UsageRow(UsageCounts(12, 4, 2, 2), UsageCounts(2, 2, 0, 0))
        }
        assert await usage.hours(connection, account_id, NOON, NOON + 2 * HOUR) == {
            NOON: UsageRow(UsageCounts(10, 4, 2, 2), UsageCounts(2)),
            NOON + HOUR: UsageRow(UsageCounts(2), UsageCounts(0, 2)),
        }
        assert list(await usage.hours(connection, account_id, NOON, NOON + HOUR)) == [NOON]
        assert await usage.providers(connection, account_id, DAY, DAY) == [
            (DAY, "google", histogram(b0=2, b7=4), 4, 2, 0, histogram(b7=4)),
            (DAY, "other", histogram(b75=2), 0, 0, 2, histogram()),
        ]
        assert await usage.days(connection, AccountId(uuid4()), DAY, DAY) == {}


async def test_values_that_a_day_has_no_room_for_are_counted_together(database: Database) -> None:
    account_id = AccountId(uuid4())
    tags, domains = SplitGroup(account_id, DAY, SplitKind.TAG), SplitGroup(account_id, DAY, SplitKind.DOMAIN)
    next_day = tags._replace(day=DAY + timedelta(days=1))
    rare = {f"rare-{number:03}": [1, 0, 0, 0] for number in range(KEYS_A_DAY_MAX)}
    async with database.transaction() as tx:
        counted = {"order": [3, 0, 1, 0], **rare}
        await usage.add_splits(tx, {tags: counted, domains: {"acme.example": [9, 0, 0, 0]}})
        await usage.add_splits(tx, {})
    async with database.transaction() as tx:
        counted = {
            "order": [0, 2, 0, 1],
            "rare-199": [0, 1, 0, 0],
            "new": [5, 0, 0, 0],
        }
        await usage.add_splits(tx, {tags: counted, next_day: {"new": [2, 0, 0, 0]}})
    async with database.connection() as connection:
        of_day = {(kind, value): counts for kind, value, counts in await usage.splits(connection, account_id, DAY, DAY)}
        of_both = await usage.splits(connection, account_id, DAY, next_day.day)
        assert await usage.splits(connection, AccountId(uuid4()), DAY, DAY) == []
    assert len(of_day) == 1 + KEYS_A_DAY_MAX + 1
    assert of_day[SplitKind.DOMAIN, "acme.example"] == UsageCounts(9)
    assert of_day[SplitKind.TAG, "order"] == UsageCounts(3, 2, 1, 1)
    assert of_day[SplitKind.TAG, "rare-198"] == UsageCounts(1)
    assert of_day[SplitKind.TAG, OTHER_VALUE] == UsageCounts(1 + 5, 1), "the last one, and what came later"
    assert [(kind, value) for kind, value, _ in of_both[:3]] == [
        (SplitKind.DOMAIN, "acme.example"), (SplitKind.TAG, OTHER_VALUE), (SplitKind.TAG, "order"),
    ]  # fmt: skip
    assert (SplitKind.TAG, "new", UsageCounts(2)) in of_both


async def test_only_one_counts_at_a_time(database: Database) -> None:
    async with database.transaction() as tx:
        assert await usage.lock(tx) is None, "it hasn't begun"
        await usage.begin(tx, datetime(2026, 11, 15, tzinfo=UTC))
    async with database.transaction() as tx:
        assert await usage.lock(tx) is not None
        async with database.transaction() as another:
            assert await usage.lock(another) is None


async def test_counting_begins_with_the_oldest_mail_and_only_once(steps: DeliverySteps) -> None:
    first = time_of(await steps.accept())
    steps.clock.advance(hours=30)
    await steps.accept()
    for _ in range(2):
        async with steps.database.connection() as connection:
            await usage.begin(connection, steps.clock.now())
            state = await usage.state(connection)
        midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
        assert state == usage.CountingProgress(first, first, None, first.date(), None, midnight)
        steps.clock.advance(hours=1)


async def test_counting_begins_now_where_there_is_no_mail(database: Database) -> None:
    now = datetime(2026, 11, 15, 12, tzinfo=UTC)
    async with database.connection() as connection:
        await usage.begin(connection, now)
        state = await usage.state(connection)
    assert state == usage.CountingProgress(now, now, None, DAY, None, NOON - 12 * HOUR)


async def test_what_waits_is_counted_along_the_key_however_much_it_is(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            """INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at)
               SELECT $1, md5(number::text)::uuid, 0, 'example.org', now() FROM generate_series(1, 2000) number""",
            uuid4(),
        )
    async with database.connection() as connection:
        await connection.execute("ANALYZE delivery_schedule")
        async with connection.transaction():
            await connection.execute(backlog._DISABLE_BITMAP_SCANS)
            await connection.execute(f"PREPARE shown AS {backlog._WAITING}")
            rows = await connection.fetch(f"EXPLAIN EXECUTE shown('{uuid4()}')")
            await connection.execute("DEALLOCATE shown")
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using delivery_schedule_pkey" in plan, plan
    assert "Sort" not in plan, plan
