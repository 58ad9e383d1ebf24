"""Alembic's entry: runs the migrations over asyncpg, on the address that `store.schema` passes in."""

import asyncio
import time

import asyncpg
from alembic import context
from sqlalchemy import Connection, pool
from sqlalchemy.ext.asyncio import create_async_engine

from posthouse.store.hosts import WritableHost

LOCK_SECONDS_MAX = 10
TURN_SECONDS = 0.5


def _run(connection: Connection) -> None:
    # Two at once take turns; the lock ends with the connection. Whoever waited within a statement would hold up an
    # index that the other builds while the service runs.
    while not connection.exec_driver_sql("SELECT pg_try_advisory_lock(hashtext('posthouse.migrations'))").scalar():
        connection.commit()
        time.sleep(TURN_SECONDS)
    # Everybody else waits behind a migration that waits for a table: better to fail, and to be run again.
    connection.exec_driver_sql(f"SET lock_timeout = '{LOCK_SECONDS_MAX}s'")
    connection.commit()
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


async def _main() -> None:
    url: str = context.config.attributes["url"]

    async def connect() -> asyncpg.Connection:
        # As the service connects, which understands more addresses (sslmode, several hosts).
        return await WritableHost(url).connect()

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=pool.NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(_run)
        await connection.commit()
    await engine.dispose()


asyncio.run(_main())
