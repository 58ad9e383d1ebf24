"""What tests that touch the outside world use: one private PostgreSQL, and fresh databases in it."""

import asyncio
import itertools
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from posthouse.store.postgres import Database
from tests.support import faster, fresh_database
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps
from tests.support.nameserver import Nameserver
from tests.support.operator_client import Operator
from tests.support.service import service_settings
from tests.support.webhook_steps import WebhookSteps
from tools.private_postgres import PrivatePostgres

# Tests start the real command many times, and pytest rewrites 200 test files: both keep their bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
faster.use_cheap_secrets()

TEMPLATE = "posthouse_template"
# A directory in memory, as Linux has one, and the space that it must have left.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 1024**3
IN_MEMORY = {"max_wal_size": "256MB", "shared_buffers": "32MB"}


pytest_plugins = ["tests.support.bad_input", "tests.support.measured_times"]


@pytest.fixture(scope="session")
def memory() -> Path | None:
    """Where the cluster lives, if the machine has the memory, because a disk's pace takes most of the time otherwise.

    Nothing shown here depends on it: only a power cut would show a difference, and what a killed program had
    written is there in both. `tests/faults/test_postgres_away.py` has its own cluster, on the disk.
    """
    has_capacity = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    return MEMORY if has_capacity else None


@pytest.fixture(scope="session")
def postgres(memory: Path | None) -> Iterator[PrivatePostgres]:
    """A private cluster, with a migrated database in it that others are copied from."""
    with PrivatePostgres.start(settings=IN_MEMORY if memory else {}, below=memory) as cluster:
        fresh_database.create(cluster, TEMPLATE)
        yield cluster


class Databases:
    """Copies of the template, made and dropped over one connection on its own thread.

    CPU per copy of 12 MB in memory: 24 ms with FILE_COPY and 8 ms to drop, 46 and 14 ms with WAL_LOG; a `psql`
    for each statement adds 20 ms. With 256 MB of shared buffers, which DROP searches, it is half as much again.
    """

    def __init__(self, cluster: PrivatePostgres) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._thread = ThreadPoolExecutor(1, "databases")
        self._runner = asyncio.Runner()
        self._connection: asyncpg.Connection | None = None

    def make(self) -> str:
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
        return self._cluster.url(name)

    def drop(self, url: str) -> None:
        self._execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def close(self) -> None:
        if self._connection is not None:
            self._thread.submit(self._runner.run, self._connection.close()).result()
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _execute(self, statement: str) -> None:
        self._thread.submit(self._runner.run, self._run(statement)).result()

    async def _run(self, statement: str) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._cluster.url())
        await self._connection.execute(statement)


@pytest.fixture(scope="session")
def databases(postgres: PrivatePostgres) -> Iterator[Databases]:
    made = Databases(postgres)
    yield made
    made.close()


@pytest.fixture(scope="session")
def new_database(databases: Databases) -> Callable[[], str]:
    """Makes an empty migrated database, with its partitions, and returns its URL."""
    return databases.make


@pytest.fixture
def database_url(databases: Databases, memory: Path | None) -> Iterator[str]:
    url = databases.make()
    yield url
    # Memory is given back; on a disk a database costs nothing until all go at the end, and much to remove.
    if memory is not None:
        databases.drop(url)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with fresh_database.open_database(database_url, timeout_factor=fresh_database.PATIENCE) as opened:
        yield opened


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Operator]:
    opened = await Operator.open(service_settings(database_url))
    yield opened
    await opened.close()


@pytest.fixture
async def steps(database_url: str) -> AsyncIterator[DeliverySteps]:
    async with open_delivery_steps(database_url) as opened:
        yield opened


@pytest.fixture
def webhook_steps(steps: DeliverySteps) -> WebhookSteps:
    return WebhookSteps(steps)


@pytest.fixture
async def nameserver() -> AsyncIterator[Nameserver]:
    async with Nameserver() as running:
        yield running
