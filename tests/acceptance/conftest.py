"""Shared by the acceptance tests: a running service, accounts, and the log on failure."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support import server_process
from tests.support.service import Service, StartService, Tenant
from tests.support.smtp_listeners import SmtpListeners

LOG_CHARACTERS_SHOWN = 4_000
_SERVICES: pytest.StashKey[list[Service]] = pytest.StashKey()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A single event loop for all of these tests, which share a service and its connections."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for service in item.config.stash.get(_SERVICES, []):
            said = service.log.read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:]
            report.sections.append((f"log of the server at port {service.port}", said))
    return report


@asynccontextmanager
async def _running(config: pytest.Config, database_url: str, log: Path, **settings: str) -> AsyncIterator[Service]:
    """A process that ends with the block; its log is shown when a test fails."""
    service = await server_process.start_service(database_url, log, **settings)
    services = config.stash.setdefault(_SERVICES, [])
    services.append(service)
    try:
        yield service
    finally:
        services.remove(service)
        await service.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> AsyncIterator[Service]:
    """The service with its ordinary settings, on its own database."""
    database_url = await asyncio.to_thread(new_database)
    async with _running(pytestconfig, database_url, tmp_path_factory.mktemp("service") / "server.log") as running:
        await running.prepare_sender()
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def another(
    service: Service, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> AsyncIterator[Service]:
    """A second process with the same settings on the database of `service`."""
    log = tmp_path_factory.mktemp("another") / "server.log"
    async with _running(pytestconfig, service.database_url, log) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def start_service(service: Service, tmp_path: Path, pytestconfig: pytest.Config) -> AsyncIterator[StartService]:
    """Starts further processes, by default on the database of `service`; all end with the test."""
    numbers = itertools.count(1)
    async with AsyncExitStack() as stack:

        async def start(database_url: str | None = None, **settings: str) -> Service:
            log = tmp_path / f"server-{next(numbers)}.log"
            return await stack.enter_async_context(
                _running(pytestconfig, database_url or service.database_url, log, **settings)
            )

        yield start


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> SmtpListeners:
    """Ports and a certificate for a module's submission and inbound servers."""
    return SmtpListeners.make(tmp_path_factory.mktemp("listeners"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def regular(service: Service) -> Tenant:
    """An account for all tests that need any account: many credits, a high rate, no warm-up."""
    return await service.account(credits=1_000_000)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def other_tenant(service: Service) -> Tenant:
    """A second account like `regular`, for tests of the separation of accounts."""
    return await service.account(credits=1_000_000)


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(service: Service) -> Tenant:
    """An account of this test, with 1,000 credits."""
    return await service.account()
