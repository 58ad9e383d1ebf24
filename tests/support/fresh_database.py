"""An empty migrated database with its partitions, on a private PostgreSQL: for tests and for runs outside pytest."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.flows.operate.upkeep import Retention, Upkeep
from posthouse.store.postgres import Database
from posthouse.store.schema import migrate
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.support.accept_flow import PATIENCE
from tools.private_postgres import PrivatePostgres


def create(cluster: PrivatePostgres, name: str) -> str:
    """Its URL."""
    cluster.create_database(name)
    url = cluster.url(name)
    migrate(url)
    asyncio.run(_make_partitions(url))
    return url


@contextmanager
def fresh_database(name: str, settings: Mapping[str, str] | None = None) -> Iterator[tuple[PrivatePostgres, str]]:
    """A private cluster with these settings, and the URL of the database in it."""
    with PrivatePostgres.start(settings=dict(settings or {})) as cluster:
        yield cluster, create(cluster, name)


async def _make_partitions(url: str) -> None:
    database = await Database.open(url, connections_max=1, patience=PATIENCE)
    upkeep = Upkeep(
        database=database,
        clock=DatabaseClock(),
        chance=SystemChance(),
        resolver=Resolver(),
        sealer=Sealer({"1": bytes(32)}, "1"),
        retention=Retention(30, 3),
    )
    await upkeep.make_partitions()
    await database.close()
