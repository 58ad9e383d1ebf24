"""What tests that touch the world stand on: one private PostgreSQL, and fresh databases in it."""

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.flows.operate.upkeep import Retention, Upkeep
from posthouse.store.postgres import Database
from posthouse.store.schema import migrate
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.support.accept_flow import PATIENCE
from tests.support.bad_input import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.support.bad_input import pytest_terminal_summary as pytest_terminal_summary
from tools.private_postgres import PrivatePostgres

# Tests start the real command many times; compiling every library at each start would take most of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine is no reason to fail; a failing example is printed with what reproduces it.
hypothesis_settings.register_profile("posthouse", deadline=None, print_blob=True)
hypothesis_settings.load_profile("posthouse")

TEMPLATE = "posthouse_template"
# A directory in memory, as Linux has one, and the room that it must have left.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 1024**3


@pytest.fixture(scope="session")
def memory() -> Path | None:
    """Where the cluster lives, if the machine has the room, because a disk's pace takes most of the time otherwise.

    Nothing shown here depends on it: it takes a power cut to tell the two apart, and what a killed program had
    written is there in both. `tests/faults/test_postgres_away.py` has a cluster of its own, on the disk.
    """
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    return MEMORY if has_room else None


@pytest.fixture(scope="session")
def postgres(memory: Path | None) -> Iterator[PrivatePostgres]:
    """A cluster of our own, with a migrated database in it that others are copied from."""
    with PrivatePostgres.start(settings={"max_wal_size": "256MB"} if memory else {}, below=memory) as cluster:
        cluster.create_database(TEMPLATE)
        migrate(cluster.url(TEMPLATE))
        asyncio.run(_make_partitions(cluster.url(TEMPLATE)))
        yield cluster


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


@pytest.fixture(scope="session")
def new_database(postgres: PrivatePostgres) -> Callable[[], str]:
    """Makes an empty migrated database, with its partitions, and returns its URL."""
    numbers = itertools.count(1)

    def make() -> str:
        name = f"test_{next(numbers)}"
        postgres.create_database(name, TEMPLATE)
        return postgres.url(name)

    return make


@pytest.fixture
def database_url(postgres: PrivatePostgres, new_database: Callable[[], str], memory: Path | None) -> Iterator[str]:
    url = new_database()
    yield url
    # Memory is given back; on a disk a database costs nothing until all go at the end, and much to remove.
    if memory is not None:
        postgres.drop_database(url.rpartition("/")[2])


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, patience=PATIENCE)
    yield opened
    await opened.close()
