"""An empty migrated database with its partitions, on a private PostgreSQL: for tests and for runs outside pytest."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import asyncpg

from posthouse.clock import DatabaseClock
from posthouse.store import schema
from posthouse.store.postgres import Database
from posthouse.store.schema import migrate
from tests.support.maintenance import new_maintenance
from tools.private_postgres import PrivatePostgres

# A machine that stands still for seconds is no reason to fail: tests with real processes show how long the service
# itself waits for PostgreSQL.
PATIENCE: Final = 10.0


def create(cluster: PrivatePostgres, name: str) -> str:
    """Its URL."""
    cluster.create_database(name)
    url = cluster.url(name)
    prepare(url)
    return url


def prepare(url: str) -> None:
    """Migrate an empty database, and make its partitions."""
    migrate(url)
    asyncio.run(_make_partitions(url))


async def make_older_than_1_0(url: str) -> None:
    """Enough for a process to notice: the revision is stored where versions before 1.0 stored it."""
    connection = await asyncpg.connect(url)
    await connection.execute(f"ALTER TABLE {schema.TABLE} RENAME TO alembic_version")
    await connection.execute("UPDATE alembic_version SET version_num = '0056'")
    await connection.close()


@contextmanager
def fresh_database(name: str, settings: Mapping[str, str] | None = None) -> Iterator[tuple[PrivatePostgres, str]]:
    """A private cluster with these settings, and the URL of the database in it."""
    with PrivatePostgres.start(settings=dict(settings or {})) as cluster:
        yield cluster, create(cluster, name)


@contextmanager
def stoppable_cluster(name: str) -> Iterator[PrivatePostgres]:
    """A private cluster with this database, in a directory that outlives a stop."""
    directory = Path(mkdtemp(prefix=f"posthouse-{name}-"))
    cluster = PrivatePostgres.start(directory)
    try:
        create(cluster, name)
        yield cluster
    finally:
        cluster.stop("immediate")
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def open_database(url: str, **how: Any) -> AsyncIterator[Database]:
    """A pool of connections; by default with the service's own timeouts."""
    database = await Database.open(url, **how)
    try:
        yield database
    finally:
        await database.close()


async def _make_partitions(url: str) -> None:
    async with open_database(url, connections_max=1, timeout_factor=PATIENCE) as database:
        await new_maintenance(database, DatabaseClock()).partitions.make()
