"""Alembic's entry point: runs the migrations over asyncpg, at the address that `store.schema` passes in."""

import asyncio
import time

import asyncpg
from alembic import context
from sqlalchemy import Connection, pool
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from posthouse.store import schema
from posthouse.store.hosts import WritableHost
from posthouse.store.migration_locks import SET_LOCK_TIMEOUT

LOCK_NOT_AVAILABLE = "55P03"
TRY_SECONDS_MAX = 600
TURN_SECONDS = 0.5


def _run(connection: Connection) -> None:
    # Simultaneous migrations run one after another; the lock ends with the connection. A process that waited within a
    # statement would hold up an index that the other one builds while the service runs.
    while not connection.exec_driver_sql("SELECT pg_try_advisory_lock(hashtext('posthouse.migrations'))").scalar():
        connection.commit()
        time.sleep(TURN_SECONDS)
    connection.exec_driver_sql(SET_LOCK_TIMEOUT)
    connection.commit()
    until = time.monotonic() + TRY_SECONDS_MAX
    while not _migrated(connection, until):
        time.sleep(TURN_SECONDS)


def _migrated(connection: Connection, until: float) -> bool:
    """False if a table was in use; migrations before that one stay applied."""
    try:
        context.configure(connection=connection, transaction_per_migration=True, version_table=schema.TABLE)
        with context.begin_transaction():
            context.run_migrations()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE or time.monotonic() > until:
            raise
        connection.rollback()
        return False
    return True


async def _main() -> None:
    url: str = context.config.attributes["url"]

    async def connect() -> asyncpg.Connection:
        # The same way as the service, which understands more addresses (sslmode, several hosts).
        return await WritableHost(url).connect()

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=pool.NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(_run)
        await connection.commit()
    await engine.dispose()


asyncio.run(_main())
