"""Maintenance, day by day on a clock that the tests turn: partitions, keys, domains."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from posthouse.flows.operate.maintenance import KEYS_A_BATCH, Maintenance
from posthouse.flows.operate.partitions import DAYS_DROPPED_BATCH_MAX, Retention
from posthouse.rules import domain, limits
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Refusal
from posthouse.store import endpoints, logins, partitions
from posthouse.store.partitions import Partition
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.support.accept_flow import AcceptFlow, Sender, new_sender, open_accept_flow
from tests.support.clock import SettableClock
from tests.support.database_checks import database_faults
from tests.support.eventually import HANG_SECONDS
from tests.support.fresh_database import PATIENCE, open_database
from tests.support.maintenance import new_maintenance
from tests.support.nameserver import Nameserver
from tests.support.operator_client import MadeAccount, Operator
from tests.support.service import SEAL_KEY
from tests.support.webhook_steps import save_webhook

MESSAGES_DAYS = 10
BODIES_DAYS = 3
TABLES = len(partitions.TABLES)
# Yesterday, today and the days ahead.
DAYS_MADE = limits.PARTITION_DAYS_AHEAD + 2


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


def maintenance_on(database: Database, clock: SettableClock, nameserver: Nameserver, **given: Any) -> Maintenance:
    return new_maintenance(
        database,
        clock,
        resolver=Resolver([nameserver.endpoint], lookup_seconds_max=2),
        sealer=Sealer({"first": SEAL_KEY.encode()[:32]}, "first"),
        retention=Retention(MESSAGES_DAYS, BODIES_DAYS),
        **given,
    )


@pytest.fixture
def maintenance(database: Database, clock: SettableClock, nameserver: Nameserver) -> Maintenance:
    return maintenance_on(database, clock, nameserver)


@pytest_asyncio.fixture
async def accept_flow(database_url: str, clock: SettableClock) -> AsyncIterator[AcceptFlow]:
    async with open_accept_flow(database_url, clock) as opened:
        yield opened


@pytest_asyncio.fixture
async def sender(operator: Operator) -> Sender:
    return await new_sender(operator, "acme", credits=1_000)


async def attached(database: Database) -> set[Partition]:
    async with database.connection() as connection:
        return set(await partitions.attached(connection))


async def count(database: Database, query: str, *arguments: object) -> int:
    async with database.connection() as connection:
        number: int = await connection.fetchval(query, *arguments)
        return number


async def finish(database: Database, message_id: UUID, kind: str = "settle") -> None:
    """Everyone's final result, as delivery will write it."""
    status, time = ("delivered", "delivered_at") if kind == "settle" else ("bounced", "bounced_at")
    async with database.transaction() as tx:
        await tx.execute(
            f"UPDATE recipients SET status = $2, billing_status = $3, {time} = now() WHERE message_id = $1",
            message_id, status, f"{kind}d" if kind == "release" else "settled",
        )  # fmt: skip
        row = await tx.fetchrow(
            """
            UPDATE messages SET open_count = 0,
                delivered_count = CASE WHEN $2 = 'settle' THEN recipient_count ELSE 0 END,
                released_count = CASE WHEN $2 = 'settle' THEN 0 ELSE recipient_count END,
                status = CASE WHEN $2 = 'settle' THEN 'delivered' ELSE 'failed' END,
                billing_status = CASE WHEN $2 = 'settle' THEN 'settled' ELSE 'released' END
            WHERE id = $1 RETURNING account_id, recipient_count
            """,
            message_id, kind,
        )  # fmt: skip
        await tx.execute(
            """
            INSERT INTO ledger (account_id, message_id, position, kind, amount, at)
            SELECT account_id, message_id, position, $2, 1, now() FROM recipients WHERE message_id = $1
            """,
            message_id, kind,
        )  # fmt: skip
        if kind == "release":
            assert row is not None
            await tx.execute("UPDATE accounts SET available = available + $2 WHERE id = $1", *row)
        await tx.execute("DELETE FROM delivery_schedule WHERE message_id = $1", message_id)


async def test_partitions_are_made_ahead_and_only_once(
    database: Database, maintenance: Maintenance, clock: SettableClock
) -> None:
    clock.advance(days=100)
    assert await maintenance.partitions.make() == DAYS_MADE * TABLES
    assert await maintenance.partitions.make() == 0
    clock.advance(days=1)
    assert await maintenance.partitions.make() == TABLES
    today = clock.now().date()
    wanted = {
        Partition(today + timedelta(days=ahead), table)
        for ahead in range(-1, limits.PARTITION_DAYS_AHEAD + 1)
        for table in partitions.TABLES
    }
    assert wanted <= await attached(database)


async def test_two_processes_at_once_make_and_drop_each_partition_once(
    database_url: str, clock: SettableClock, nameserver: Nameserver
) -> None:
    async with (
        open_database(database_url, timeout_factor=PATIENCE) as first,
        open_database(database_url, timeout_factor=PATIENCE) as second,
    ):
        processes = [maintenance_on(database, clock, nameserver) for database in (first, second) for _ in range(2)]
        before = await attached(first)
        clock.advance(days=100)
        made = await asyncio.gather(*(process.partitions.make() for process in processes))
        assert sum(made) + await processes[0].partitions.make() == DAYS_MADE * TABLES
        there = await attached(first)
        assert len(there) == len(before) + DAYS_MADE * TABLES
        clock.advance(days=100)
        dropped = await asyncio.gather(*(process.partitions.drop(days_max=None) for process in processes))
        assert sum(dropped) + await processes[-1].partitions.drop(days_max=None) == len(there)
        assert await attached(first) == set()


async def test_bodies_and_webhook_logs_go_before_messages_and_events_and_the_sums_stay(
    database: Database,
    maintenance: Maintenance,
    clock: SettableClock,
    accept_flow: AcceptFlow,
    sender: Sender,
    database_url: str,
) -> None:
    first_day = clock.now().date()
    delivered = await accept_flow.accept(sender, "delivered", sender.draft(3))
    bounced = await accept_flow.accept(sender, "bounced", sender.draft(2))
    await finish(database, delivered.message_id)
    await finish(database, bounced.message_id, "release")
    gone: dict[str, int] = {}
    tables = ("bodies", "webhook_deliveries", "events", "messages")
    for day in range(MESSAGES_DAYS + 3):
        await maintenance.partitions.make()
        await maintenance.partitions.drop(days_max=None)
        there = {row.table for row in await attached(database) if row.day == first_day}
        for table in {*tables} - there:
            gone.setdefault(table, day)
        for table, rows in (("bodies", 2), ("messages", 2), ("recipients", 5)):
            assert await count(database, f"SELECT count(*) FROM {table}") == (rows if table in there else 0)
        clock.advance(days=1)
    assert [gone[table] for table in tables] == [BODIES_DAYS + 1, 8, MESSAGES_DAYS + 1, MESSAGES_DAYS + 1]
    async with database.connection() as connection:
        (row,) = await connection.fetch("SELECT account_id, day, reserved, settled, released FROM ledger_days")
    assert tuple(row) == (sender.account_id, first_day, 5, 3, 2)
    broken = await database_faults(database_url)
    assert "available is what was granted, less what is reserved, plus what was released" not in broken
    assert {row.day for row in await attached(database)} >= {clock.now().date() - timedelta(days=1)}


def test_events_stay_while_replays_need_them() -> None:
    assert Retention(2, 1, 9).days("events") == Retention(9, 1, 2).days("events") == 9
    assert [Retention(30, 3, 7).days(table) for table in ("messages", "bodies", "webhook_deliveries")] == [30, 3, 7]


async def test_an_interrupted_detach_is_finished_by_the_next_run(
    database: Database,
    maintenance: Maintenance,
    clock: SettableClock,
    nameserver: Nameserver,
    accept_flow: AcceptFlow,
    sender: Sender,
    database_url: str,
) -> None:
    accepted = await accept_flow.accept(sender, "key")
    await finish(database, accepted.message_id)
    clock.advance(days=100)
    async with open_database(database_url) as impatient, database.transaction() as reader:
        await reader.fetch("SELECT FROM bodies LIMIT 1")
        with contextlib.suppress(Refusal):
            await maintenance_on(impatient, clock, nameserver).partitions.drop(days_max=None)
        async with database.connection() as connection:
            assert await partitions.detaching(connection) != []
    await maintenance.partitions.drop(days_max=None)
    async with database.connection() as connection:
        assert await partitions.detaching(connection) == []
        assert await partitions.detached(connection) == []
        assert await partitions.attached(connection) == []
    assert await count(database, "SELECT count(*) FROM ledger_days") == 1


async def test_a_detached_day_is_dropped_by_the_next_run(
    database: Database, maintenance: Maintenance, clock: SettableClock, accept_flow: AcceptFlow, sender: Sender
) -> None:
    day = clock.now().date()
    accepted = await accept_flow.accept(sender, "key", sender.draft(4))
    await finish(database, accepted.message_id)
    async with database.connection() as connection:
        await partitions.detach(connection, Partition(day, "ledger"))
    # A day is kept for its full time, whichever process detached it.
    assert await maintenance.partitions.drop(days_max=None) == 0
    clock.advance(days=MESSAGES_DAYS + 1)
    assert await maintenance.partitions.drop(days_max=None) > 0
    async with database.connection() as connection:
        assert await partitions.detached(connection) == []
    assert await count(database, "SELECT reserved FROM ledger_days WHERE account_id = $1", sender.account_id) == 4


async def test_mail_is_accepted_while_old_days_are_dropped(
    database: Database, maintenance: Maintenance, clock: SettableClock, accept_flow: AcceptFlow, sender: Sender
) -> None:
    clock.advance(days=50)
    await maintenance.partitions.make()

    async def send() -> None:
        for number in range(100):
            await accept_flow.accept(sender, f"key {number}")

    _, dropped = await asyncio.gather(send(), maintenance.partitions.drop(days_max=None))
    assert dropped > 0
    assert await count(database, "SELECT count(*) FROM messages") == 100


async def test_expired_keys_go_in_batches_and_live_ones_stay(
    database: Database, maintenance: Maintenance, clock: SettableClock
) -> None:
    expired, live = 2 * KEYS_A_BATCH + 17, 10
    insert = """
        INSERT INTO idempotency (account_id, credential_id, key, body_hash, message_id, expires_at)
        SELECT $1, $1, $2 || number, '', $1, $3 FROM generate_series(1, $4) number
    """
    async with database.transaction() as tx:
        await tx.execute(insert, uuid4(), "old ", clock.now(), expired)
        await tx.execute(insert, uuid4(), "live ", clock.now() + timedelta(seconds=1), live)
    assert await maintenance.forget_expired() == expired
    assert await count(database, "SELECT count(*) FROM idempotency") == live
    clock.advance(seconds=1)
    assert await maintenance.forget_expired() == live


async def test_failed_logins_of_yesterday_go_in_batches_and_without_waiting_for_anyone(
    database: Database, maintenance: Maintenance, clock: SettableClock
) -> None:
    insert = "INSERT INTO login_failures SELECT $1 || number, 1, $2 FROM generate_series(1, $3) number"
    async with database.transaction() as tx:
        await tx.execute(insert, "old ", clock.now() - timedelta(hours=25), 2 * KEYS_A_BATCH + 17)
        await tx.execute(insert, "young ", clock.now() - timedelta(hours=23), 10)
        first = await logins.forget_old_failures(tx, clock.now(), KEYS_A_BATCH)
    assert first == KEYS_A_BATCH
    async with database.transaction() as tx:
        await tx.fetch("SELECT FROM login_failures WHERE starts_with(subject, 'old ') LIMIT 1 FOR UPDATE")
        await asyncio.wait_for(maintenance.forget_expired(), HANG_SECONDS)
    assert await count(database, "SELECT count(*) FROM login_failures") == 10 + 1
    await maintenance.forget_expired()
    assert await count(database, "SELECT count(*) FROM login_failures WHERE starts_with(subject, 'young ')") == 10


@pytest.mark.rule("KEY-16")
async def test_api_keys_are_deleted_ninety_days_after_their_end(
    database: Database, maintenance: Maintenance, clock: SettableClock, operator: Operator
) -> None:
    account = await operator.create_account("Acme")
    keys = [await operator.create_key(account.id, account.credential.id) for _ in range(3)]
    async with database.transaction() as tx:
        set_end = "UPDATE api_keys SET revoked_at = $2 WHERE id = $1"
        await tx.execute(set_end, keys[0].id, clock.now() - timedelta(days=90, seconds=1))
        await tx.execute(set_end, keys[1].id, clock.now() - timedelta(days=89))
    await maintenance.forget_expired()
    assert await count(database, "SELECT count(*) FROM api_keys") == 2
    assert await count(database, "SELECT count(*) FROM credentials") == 1


async def test_locked_expired_keys_are_deleted_by_the_next_run(
    database: Database, maintenance: Maintenance, clock: SettableClock
) -> None:
    async with database.transaction() as tx:
        await tx.execute("INSERT INTO idempotency VALUES ($1, $1, 'key', '', $1, $2)", uuid4(), clock.now())
    async with database.transaction() as tx:
        await tx.fetch("SELECT FROM idempotency FOR UPDATE")
        assert await asyncio.wait_for(maintenance.forget_expired(), HANG_SECONDS) == 0
    assert await maintenance.forget_expired() == 1


async def proved_domain(
    operator: Operator, database: Database, nameserver: Nameserver, clock: SettableClock
) -> tuple[MadeAccount, Any]:
    """A domain that was verified by its records an hour ago, and whose records are published."""
    account = await operator.create_account("proved")
    await operator.add_verified_domain(account.id, "proved.example.com")
    async with database.transaction() as tx:
        row = await tx.fetchrow(
            """
            UPDATE domains SET checked_at = $1, verified_at = $1
            RETURNING name, token, selector, dkim_public, ed25519_selector, ed25519_public
            """,
            clock.now() - timedelta(hours=1),
        )
    assert row is not None
    wanted = domain.records(*row)
    nameserver.zone |= {record.name: [record.value] for record in wanted.all}
    return account, wanted


async def domain_row(database: Database) -> Any:
    async with database.connection() as connection:
        return await connection.fetchrow(
            "SELECT verified_at, missing_since, checked_at, ed25519_published FROM domains"
        )


async def test_a_verified_domain_is_checked_once_a_day(
    database: Database, maintenance: Maintenance, clock: SettableClock, nameserver: Nameserver, operator: Operator
) -> None:
    await proved_domain(operator, database, nameserver, clock)
    clock.advance(hours=22, minutes=59)
    assert await maintenance.recheck_domains() == (0, 0)
    clock.advance(minutes=1, seconds=1)
    assert await maintenance.recheck_domains() == (1, 0)
    assert await maintenance.recheck_domains() == (0, 0)
    assert len(nameserver.asked) == 3
    row = await domain_row(database)
    assert (row["missing_since"], row["checked_at"]) == (None, clock.now())


async def test_a_domain_falls_back_after_seven_days_without_its_records(
    database: Database, maintenance: Maintenance, clock: SettableClock, nameserver: Nameserver, operator: Operator
) -> None:
    account, wanted = await proved_domain(operator, database, nameserver, clock)
    clock.advance(days=1)
    del nameserver.zone[wanted.dkim.name]
    for _ in range(7):
        clock.advance(days=1, seconds=1)
        assert await maintenance.recheck_domains() == (1, 0)
        assert (await domain_row(database))["verified_at"] is not None
    changed_at = "SELECT floor(extract(epoch FROM changed_at))::bigint FROM accounts WHERE id = $1"
    before = await count(database, changed_at, account.id)
    clock.advance(days=1, seconds=1)
    assert await maintenance.recheck_domains() == (1, 1)
    assert tuple(await domain_row(database))[:2] == (None, None)
    assert await count(database, changed_at, account.id) > before, "the caches were not invalidated"
    clock.advance(days=1, seconds=1)
    assert await maintenance.recheck_domains() == (0, 0)


async def test_a_vouched_domain_is_never_checked(
    maintenance: Maintenance, clock: SettableClock, nameserver: Nameserver, sender: Sender
) -> None:
    clock.advance(days=100)
    assert await maintenance.recheck_domains() == (0, 0)
    assert nameserver.asked == []


async def test_a_run_does_every_task(
    database: Database, maintenance: Maintenance, clock: SettableClock, nameserver: Nameserver, operator: Operator
) -> None:
    await proved_domain(operator, database, nameserver, clock)
    clock.advance(days=100)
    done = await maintenance.run()
    assert done.partitions_made == DAYS_MADE * TABLES
    assert done.partitions_dropped == DAYS_DROPPED_BATCH_MAX * TABLES
    assert (done.domains_checked, done.domains_lost) == (1, 0)


async def test_a_run_drops_few_days_and_the_next_runs_the_others(
    database: Database, maintenance: Maintenance, clock: SettableClock
) -> None:
    await maintenance.partitions.make()
    before = await attached(database)
    clock.advance(days=100)
    await maintenance.partitions.make()
    oldest = sorted({partition.day for partition in before})
    assert await maintenance.partitions.drop() == DAYS_DROPPED_BATCH_MAX * TABLES
    days = {partition.day for partition in await attached(database)}
    assert not days & set(oldest[:DAYS_DROPPED_BATCH_MAX])
    assert set(oldest[DAYS_DROPPED_BATCH_MAX:]) <= days
    while await maintenance.partitions.drop():
        pass
    assert not set(before) & set(await attached(database))


async def test_nothing_is_deleted_while_the_databases_clock_is_not_believed(
    database: Database, clock: SettableClock, nameserver: Nameserver
) -> None:
    step: list[timedelta] = [timedelta(days=40)]
    maintenance = maintenance_on(database, clock, nameserver, clock_step=lambda: step[0] if step else None)
    await maintenance.partitions.make()
    clock.advance(days=100)
    assert (await maintenance.run()).partitions_dropped == 0
    step.clear()
    assert (await maintenance.run()).partitions_dropped > 0


async def test_secrets_of_webhooks_are_sealed_again_when_the_key_is_rotated(
    database: Database, clock: SettableClock, operator: Operator
) -> None:
    old, new = SEAL_KEY.encode()[:32], bytes(32)
    made = await operator.create_account("hooked")
    account_id = AccountId(made.id)
    purpose = endpoints.secret_purpose(account_id, account_id)
    sealed = Sealer({"first": old}, "first").seal(b"whsec_secret", purpose)
    async with database.transaction() as tx:
        await save_webhook(tx, account_id, "https://example.com/", ["email.failed"], True, sealed, clock.now())
    maintenance = new_maintenance(database, clock, sealer=Sealer({"first": old, "second": new}, "second"))
    assert [await maintenance.reseal(), await maintenance.reseal()] == [1, 0]
    async with database.connection() as connection:
        row = await endpoints.find(connection, account_id, account_id)
    assert row is not None
    assert Sealer({"second": new}, "second").open(row.secret_sealed, purpose) == b"whsec_secret"


# Tiers


@pytest.mark.parametrize(
    ("days", "delivered", "days_ago", "changes", "raised"),
    [
        (14, 1_000, 0, "", 1),
        (13, 1_000, 0, "", 0),
        (14, 999, 0, "", 0),
        (20, 1_000, 0, "reputation_warned_at = now() - interval '14 days', tier = 'watched'", 1),
        (20, 1_000, 0, "reputation_warned_at = now() - interval '13 days', tier = 'watched'", 0),
        (20, 1_000, 0, "reputation_since = now() - interval '13 days', tier = 'watched'", 0),
        (20, 1_000, 0, "suspended_at = now(), suspended_reason = 'a test'", 0),
        (20, 1_000, 0, "tier = 'good'", 0),
        # Mail before the warning makes no account good.
        (60, 1_000, 0, "reputation_warned_at = now() - interval '20 days', tier = 'watched'", 1),
        (60, 1_000, 30, "reputation_warned_at = now() - interval '20 days', tier = 'watched'", 0),
    ],
)
async def test_an_account_is_good_after_a_fortnight_and_a_thousand_messages_without_a_warning(
    database: Database, clock: SettableClock, maintenance: Maintenance, sender: Sender, days: int, delivered: int,
    days_ago: int, changes: str, raised: int,
) -> None:  # fmt: skip
    clock.advance(seconds=60)
    async with database.transaction() as tx:
        set_ = f"created_at = now() - interval '{days} days'{', ' if changes else ''}{changes}"
        await tx.execute(f"UPDATE accounts SET {set_} WHERE id = $1", sender.account_id)
        day = f"(now() AT TIME ZONE 'UTC')::date - {days_ago}"
        usage = f"INSERT INTO usage_days (account_id, day, delivered) VALUES ($1, {day}, $2)"
        await tx.execute(usage, sender.account_id, delivered)
    assert await maintenance.raise_accounts() == raised
    is_good = await count(database, "SELECT (tier = 'good')::int FROM accounts WHERE id = $1", sender.account_id)
    assert is_good == (raised or "good" in changes)
