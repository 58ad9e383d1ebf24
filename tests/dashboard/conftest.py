"""Shared by the dashboard's tests: one browser, a service for each module, and pages under watch.

Chromium is Debian's, found on PATH. The service serves what `make dashboard` built into src/posthouse/dashboard/; CI
builds it before the tests. Without either, the tests fail and say what to do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from posthouse.entrypoints.http.static_content import is_dashboard_built
from tests.support.dashboard_browser import HANG_MILLISECONDS, Pages, chromium, running_browser
from tests.support.dashboard_service import DashboardService, run_dashboard_service
from tests.support.service import Tenant

# A busy machine answers late.
expect.set_options(timeout=HANG_MILLISECONDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A single event loop for all of these tests, which share a browser."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    assert chromium(), "Chromium is missing: apt-get install chromium"
    async with running_browser() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def dashboard(
    request: pytest.FixtureRequest, new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[DashboardService]:
    """The running service, shared by a module's tests, with what the module's `settings_in` this directory returns."""
    assert is_dashboard_built(), "The dashboard is not built: make dashboard"
    database_url, directory = await asyncio.to_thread(new_database), tmp_path_factory.mktemp("dashboard")
    settings_in = getattr(request.module, "settings_in", None)
    settings = settings_in(directory) if settings_in else {}
    async with run_dashboard_service(database_url, directory, **settings) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def pages(browser: Browser, dashboard: DashboardService) -> AsyncIterator[Pages]:
    """Opens pages; afterwards the test fails for what the watch found."""
    pages = Pages(browser, dashboard.url)
    yield pages
    await pages.close()
    assert pages.faults() == []


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(dashboard: DashboardService) -> Tenant:
    """An account of this test, with 1,000 credits and a verified domain."""
    return await dashboard.account()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def full_account(dashboard: DashboardService) -> Tenant:
    """An account with something on every page, for tests that only look."""
    return await dashboard.full_account()
