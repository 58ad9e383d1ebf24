"""What tests that touch the outside world use: one private PostgreSQL, and fresh databases in it."""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from posthouse.store.postgres import Database
from tests.support import faster, fresh_database, steady_loop
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps
from tests.support.kept_databases import TEMPLATE, Databases, KeptPools
from tests.support.nameserver import Nameserver
from tests.support.operator_client import Operator
from tests.support.service import service_settings
from tests.support.webhook_steps import WebhookSteps
from tools.private_postgres import PrivatePostgres

# Tests start the real command many times, and pytest rewrites 200 test files: both keep their bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
faster.use_cheap_secrets()
steady_loop.repair_tls()

# A directory in memory, as Linux has one, and the space that it must have left.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 1024**3
# No autovacuum while tests run: after it, no database is as the template was, and none is used again.
IN_MEMORY = {"max_wal_size": "256MB", "shared_buffers": "32MB", "autovacuum_naptime": "1d"}


pytest_plugins = ["tests.support.bad_input", "tests.support.files_in_turn", "tests.support.measured_times"]


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


@pytest.fixture(scope="session")
def pools() -> KeptPools:
    return KeptPools()


@pytest.fixture(scope="session")
def databases(postgres: PrivatePostgres, pools: KeptPools) -> Iterator[Databases]:
    made = Databases(postgres, pools)
    yield made
    made.close()


@pytest.fixture(scope="session")
def new_database(databases: Databases) -> Callable[[], str]:
    """Makes an empty migrated database, with its partitions, and returns its URL."""
    return databases.make


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    url = databases.make()
    yield url
    databases.release(url)


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
def webhooks(steps: DeliverySteps) -> WebhookSteps:
    return WebhookSteps(steps)


@pytest.fixture
async def nameserver() -> AsyncIterator[Nameserver]:
    async with Nameserver() as running:
        yield running
