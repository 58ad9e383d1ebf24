"""Databases on a private cluster: a migrated one, copies of it, and one with a thousand accounts that can send."""

import asyncio
import json
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg

from bench.processes import BenchError, posthouse_command
from posthouse.rules import credential
from posthouse.rules.claim import WORKER_LEASE
from posthouse.rules.retry import DELIVERY
from tests.support.server_process import USUAL_PATIENCE, environment
from tests.support.service import PEPPER, basic
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tools.private_postgres import PrivatePostgres

ACCOUNTS: Final = 1_000
CREDITS: Final = 1_000_000_000
DELIVERED_SECONDS_MAX: Final = 120.0
DATABASE: Final = "bench"
MIGRATE_SECONDS_MAX: Final = 120
REAPED_SECONDS: Final = 0.2

# Ids end in a number of six digits, so that pgbench, which can only count, can name them.
NUMBER_MIN: Final = 100_000
ACCOUNT_PREFIX: Final = "01980000000070008000000000"
CREDENTIAL_PREFIX: Final = "01980000000070008000000001"

CLUSTER_SETTINGS: Final = {
    # A checkpoint falls between the phases, where the script asks for it, not into one of them at random.
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "1GB",
}
# The service's own defaults, where the tests that share these processes hurry.
_DEFAULTS: Final = {
    "DELIVERY__RETRY_MINUTES": json.dumps([wait.total_seconds() / 60 for wait in DELIVERY.waits]),
    "WORKERS__LEASE_SECONDS": str(WORKER_LEASE.total_seconds()),
    "WORKERS__TICKET_LEASE_SECONDS": "60",
}
# Raised so that only the machine is the limit.
_LIMITS: Final = {
    "LIMITS__RATE_PER_SECOND": "1000000",
    "LIMITS__RATE_BURST": "1000000",
    "LIMITS__WARMUP_LIMITS": "1000000000",
}

_TABLES: Final = ("messages", "recipients", "bodies", "ledger", "delivery_schedule", "idempotency")

# A batch request has its own key besides those of its messages.
_COUNTS: Final = f"""
SELECT {", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in _TABLES[:-1])},
       (SELECT count(DISTINCT message_id) FROM idempotency) AS keys,
       (SELECT sum({CREDITS} - available)::bigint FROM accounts) AS spent
"""

_UNBALANCED: Final = """
SELECT count(*) FROM accounts
WHERE available <> (SELECT sum(amount) FROM credit_grants WHERE account_id = accounts.id)
    - (SELECT coalesce(sum(amount), 0) FROM ledger WHERE account_id = accounts.id AND kind = 'reserve')
"""

_OTHERS: Final = """
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""

_REFILL: Final = """
UPDATE accounts SET available = $1, rate_full_at = 'epoch', warmup_started_on = NULL, warmup_day = NULL,
    warmup_used = 0
"""

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Sender:
    """An account that sends: its number, its verified domain, and its credential."""

    number: int
    domain: str
    username: str
    password: str

    @property
    def account_id(self) -> UUID:
        return UUID(f"{ACCOUNT_PREFIX}{NUMBER_MIN + self.number}")

    @property
    def credential_id(self) -> UUID:
        return UUID(f"{CREDENTIAL_PREFIX}{NUMBER_MIN + self.number}")

    @property
    def basic(self) -> str:
        return basic(self.username, self.password)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A database with accounts, and the environment of processes that use it."""

    cluster: PrivatePostgres
    environment: Mapping[str, str]
    senders: tuple[Sender, ...]
    workplace: Path
    database: str = DATABASE

    @property
    def url(self) -> str:
        return self.cluster.url(self.database)

    def with_settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        return {**self.environment, **{f"POSTHOUSE_{name}": value for name, value in settings.items()}}

    def clear(self) -> None:
        """Every phase starts alike: no messages, full accounts, everything flushed."""

        async def clear(connection: Any) -> None:
            await connection.execute(f"TRUNCATE {', '.join(_TABLES)}")
            await connection.execute(_REFILL, CREDITS)
            await connection.execute("VACUUM FULL accounts")
            await connection.execute("VACUUM ANALYZE accounts")
            await connection.execute("CHECKPOINT")

        with_connection(self.url, clear)

    def wait_until_alone(self) -> None:
        """Until all other connections have ended."""

        async def others(connection: Any) -> int:
            number: int = await connection.fetchval(_OTHERS)
            return number

        while with_connection(self.url, others):
            time.sleep(0.05)
        time.sleep(REAPED_SECONDS)

    def wal_bytes(self) -> int:
        """How much write-ahead log the cluster has written."""

        async def read(connection: Any) -> int:
            return int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

        return with_connection(self.url, read)

    def require_messages(self, least: int, most: int | None = None) -> None:
        """Raises unless this many messages are stored, each with all that belongs to it and paid for."""

        async def read(connection: Any) -> tuple[dict[str, int], int]:
            return dict(await connection.fetchrow(_COUNTS)), await connection.fetchval(_UNBALANCED)

        counts, unbalanced = with_connection(self.url, read)
        messages = counts["messages"]
        if set(counts.values()) != {messages}:
            raise BenchError(f"not every message has all that belongs to it: {counts}")
        if not least <= messages <= (most or least):
            raise BenchError(f"{messages} messages are stored, {least} to {most or least} were expected")
        if unbalanced:
            raise BenchError(f"the ledger of {unbalanced} accounts doesn't balance")


def wait_until_delivered(url: str) -> None:
    """Until nothing is scheduled any more."""

    async def left(connection: Any) -> int:
        number: int = await connection.fetchval("SELECT count(*) FROM delivery_schedule")
        return number

    deadline = time.monotonic() + DELIVERED_SECONDS_MAX
    while with_connection(url, left):
        if time.monotonic() > deadline:
            raise BenchError("not all mail was delivered in time")
        time.sleep(0.2)


def with_connection(url: str, act: Callable[[Any], Awaitable[Read]], **settings: str) -> Read:
    async def run() -> Read:
        connection = await asyncpg.connect(url, server_settings=settings)
        try:
            return await act(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def environment_of(cluster: PrivatePostgres, database: str = DATABASE, modules: Path | None = None) -> dict[str, str]:
    return {**environment(cluster.url(database), **USUAL_PATIENCE, **_LIMITS), **with_modules(modules)}


def with_modules(directory: Path | None) -> dict[str, str]:
    """For the environment of a process: this directory's modules come before its own."""
    return {} if directory is None else {"PYTHONPATH": str(directory)}


def migrate(cluster: PrivatePostgres, workplace: Path, database: str = DATABASE, modules: Path | None = None) -> None:
    """The cluster has a migrated database, which others can be copied from."""
    cluster.create_database(database)
    subprocess.run(
        posthouse_command("migrate"),
        env=environment_of(cluster, database, modules),
        cwd=workplace,  # away from any posthouse.toml
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=MIGRATE_SECONDS_MAX,
    )


def make(
    cluster: PrivatePostgres,
    workplace: Path,
    database: str = DATABASE,
    modules: Path | None = None,
    accounts: int = ACCOUNTS,
) -> Dataset:
    """A migrated database with its accounts; `modules` may be another version's."""
    migrate(cluster, workplace, database, modules)
    senders = tuple(
        Sender(number, f"shop{number}.example", f"smtp_bench{number}", secrets.token_hex(20))
        for number in range(accounts)
    )
    with_connection(cluster.url(database), lambda connection: _insert_accounts(connection, senders))
    return Dataset(cluster, environment_of(cluster, database, modules), senders, workplace, database)


async def _insert_accounts(connection: Any, senders: tuple[Sender, ...]) -> None:
    # Long ago: a server drops an account that changed lately from its cache.
    now = datetime.now(UTC)
    then = now - timedelta(hours=1)
    tables = {
        "accounts": "id name created_at changed_at available",
        "credit_grants": "account_id id amount reason at",
        "credentials": "account_id id username secret_hash name is_default created_at",
        "domains": "account_id id name token selector dkim_public dkim_sealed created_at verified_at checked_at",
    }
    records: dict[str, list[tuple[object, ...]]] = {table: [] for table in tables}
    for sender in senders:
        account, domain = sender.account_id, sender.domain
        secret_hash = credential.secret_hash(sender.password, PEPPER.encode())
        records["accounts"].append((account, domain, then, then, CREDITS))
        records["credit_grants"].append((account, account, CREDITS, "benchmark", then))
        records["credentials"].append(
            (account, sender.credential_id, sender.username, secret_hash, "benchmark", True, then)
        )
        records["domains"].append((account, account, domain, "token", "selector", "", b"", then, then, now))
    for table, columns in tables.items():
        await connection.copy_records_to_table(table, columns=columns.split(), records=records[table])
    await connection.execute("ANALYZE")


@dataclass(slots=True)
class EmptyServices:
    """Services of the tests' kind: each has an empty database, NATS, DNS and a directory, on a migrated cluster."""

    cluster: PrivatePostgres
    workplace: Path
    _count: int = 0

    @asynccontextmanager
    async def prepared(self, settings: Mapping[str, Any], stream: str = "nats") -> AsyncIterator[ServiceProcesses]:
        """No process has been started yet."""
        self._count += 1
        name = f"phase_{self._count}"
        directory = self.workplace / name
        directory.mkdir()
        await asyncio.to_thread(self.cluster.create_database, name, DATABASE)
        chosen = {**_DEFAULTS, **settings}
        async with prepare_processes(
            self.cluster.url(name), directory, stream=stream, keeps_mail=False, **chosen
        ) as processes:
            yield processes
