"""The ground that every phase stands on: one cluster with a thousand accounts, and books to check afterwards."""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg

from bench.load import LoadError
from posthouse.config import text as config_text
from posthouse.rules import credential
from tools.private_postgres import PrivatePostgres

ACCOUNTS: Final = 1_000
CREDITS: Final = 1_000_000_000
DATABASE: Final = "bench"
MIGRATE_SECONDS_MAX: Final = 120

# Ids end in a number of six digits, so that pgbench, which can only count, can name them.
NUMBER_MIN: Final = 100_000
ACCOUNT_PREFIX: Final = "01980000000070008000000000"
CREDENTIAL_PREFIX: Final = "01980000000070008000000001"

CLUSTER_SETTINGS: Final = {
    # A checkpoint falls between the phases, where the script asks for it, not into one of them by chance.
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "1GB",
}

_TABLES: Final = ("messages", "recipients", "bodies", "ledger", "schedule", "idempotency")

_BOOKS: Final = f"""
SELECT {", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in _TABLES)},
       (SELECT sum({CREDITS} - available)::bigint FROM accounts) AS spent
"""

_UNBALANCED: Final = """
SELECT count(*) FROM accounts
WHERE available <> (SELECT sum(amount) FROM grants WHERE account_id = accounts.id)
    - (SELECT coalesce(sum(amount), 0) FROM ledger WHERE account_id = accounts.id AND kind = 'reserve')
"""

_REFILL: Final = """
UPDATE accounts SET available = $1, rate_full_at = 'epoch', warmup_started_on = NULL, warmup_day = NULL,
    warmup_used = 0
"""

Read = TypeVar("Read")


class BooksError(LoadError):
    """PostgreSQL does not hold what was accepted: the measurement is worth nothing."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An account that sends: its number, its verified domain, and how it says who it is."""

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


@dataclass(frozen=True, slots=True)
class Ground:
    cluster: PrivatePostgres
    environment: Mapping[str, str]
    callers: tuple[Caller, ...]
    workplace: Path

    @property
    def url(self) -> str:
        return self.cluster.url(DATABASE)

    def clear(self) -> None:
        """Every phase starts alike: no messages, full accounts, everything flushed."""
        _with_connection(self.url, _clear)

    def require_messages(self, least: int, most: int | None = None) -> int:
        """How many messages were kept, each with all that belongs to it and paid for; raises if not as said."""
        kept: int = _with_connection(self.url, lambda connection: _kept(connection, least, most or least))
        return kept

    def version(self) -> str:
        return str(_with_connection(self.url, lambda connection: connection.fetchval("SHOW server_version")))


def lay(cluster: PrivatePostgres, workplace: Path) -> Ground:
    """A migrated database with its accounts, their numbers raised so that only the machine is the limit."""
    cluster.create_database(DATABASE)
    made = config_text.generated()
    settings = {
        "DATABASE__URL": cluster.url(DATABASE),
        "SECRETS__PEPPER": made.pepper,
        "SECRETS__JWT_SECRET": made.jwt_secret,
        "SECRETS__SEAL_KEYS": ",".join(f"{name}:{key}" for name, key in made.seal_keys.items()),
        "SECRETS__SEAL_KEY_ACTIVE": made.seal_key_active,
        "LIMITS__RATE_PER_SECOND": "1000000",
        "LIMITS__RATE_BURST": "1000000",
        "LIMITS__WARMUP_LIMITS": "1000000000",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTHOUSE_")}
    environment |= {f"POSTHOUSE_{name}": value for name, value in settings.items()}
    subprocess.run(
        [sys.executable, "-m", "posthouse", "migrate"],
        env=environment,
        cwd=workplace,  # away from any posthouse.toml
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=MIGRATE_SECONDS_MAX,
    )
    callers = tuple(
        Caller(number, f"shop{number}.example", f"smtp_bench{number}", secrets.token_hex(20))
        for number in range(ACCOUNTS)
    )
    _with_connection(cluster.url(DATABASE), lambda connection: _open_accounts(connection, callers, made.pepper))
    return Ground(cluster, environment, callers, workplace)


def _with_connection(url: str, act: Callable[[Any], Awaitable[Read]]) -> Read:
    async def run() -> Read:
        connection = await asyncpg.connect(url)
        try:
            return await act(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


async def _open_accounts(connection: Any, callers: tuple[Caller, ...], pepper: str) -> None:
    # Long ago: a server forgets what it knew of an account that changed lately.
    then = datetime.now(UTC) - timedelta(hours=1)
    rows: dict[str, tuple[tuple[str, ...], list[tuple[object, ...]]]] = {
        "accounts": (
            ("id", "name", "created_at", "changed_at", "available"),
            [(one.account_id, one.domain, then, then, CREDITS) for one in callers],
        ),
        "grants": (
            ("account_id", "id", "amount", "reason", "at"),
            [(one.account_id, one.account_id, CREDITS, "benchmark", then) for one in callers],
        ),
        "credentials": (
            ("account_id", "id", "username", "secret_hash", "name", "is_default", "created_at"),
            [
                (
                    one.account_id,
                    one.credential_id,
                    one.username,
                    credential.secret_hash(one.password, pepper.encode()),
                    "benchmark",
                    True,
                    then,
                )
                for one in callers
            ],
        ),
        "domains": (
            (
                *("account_id", "id", "name", "token", "selector", "dkim_public", "dkim_sealed"),
                *("created_at", "verified_at", "checked_at"),
            ),
            [
                (
                    one.account_id,
                    one.account_id,
                    one.domain,
                    "token",
                    "selector",
                    "",
                    b"",
                    then,
                    then,
                    datetime.now(UTC),
                )
                for one in callers
            ],
        ),
    }
    for table, (columns, records) in rows.items():
        await connection.copy_records_to_table(table, columns=columns, records=records)
    await connection.execute("ANALYZE")


async def _clear(connection: Any) -> None:
    await connection.execute(f"TRUNCATE {', '.join(_TABLES)}")
    await connection.execute(_REFILL, CREDITS)
    await connection.execute("VACUUM FULL accounts")
    await connection.execute("VACUUM ANALYZE accounts")
    await connection.execute("CHECKPOINT")


async def _kept(connection: Any, least: int, most: int) -> int:
    books = dict(await connection.fetchrow(_BOOKS))
    messages: int = books["messages"]
    if set(books.values()) != {messages}:
        raise BooksError(f"not every message has all that belongs to it: {books}")
    if not least <= messages <= most:
        raise BooksError(f"{messages} messages are kept, {least} to {most} were expected")
    unbalanced = await connection.fetchval(_UNBALANCED)
    if unbalanced:
        raise BooksError(f"the ledger of {unbalanced} accounts doesn't balance")
    return messages
