"""Fixtures that a directory's conftest imports whose tests use one event loop, and connections one after another.

Tests that need the loop or the connections for themselves open their own: what is left running ends with the test.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.kept_databases import KeptPools, no_task_left

__all__ = ["_function_scoped_runner", "closed_pools", "ended_tasks", "kept_pools"]


@pytest.fixture
def _function_scoped_runner(_session_scoped_runner: asyncio.Runner) -> asyncio.Runner:
    """pytest-asyncio runs a test, and its fixtures, in what the fixture of this name returns."""
    return _session_scoped_runner


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def closed_pools(pools: KeptPools) -> AsyncIterator[None]:
    yield
    await pools.close()


@pytest.fixture(scope="module", autouse=True)
def kept_pools(pools: KeptPools, closed_pools: None, _session_scoped_runner: asyncio.Runner) -> Iterator[None]:
    with pools.keep(_session_scoped_runner.get_loop()):
        yield


@pytest.fixture(autouse=True)
async def ended_tasks() -> AsyncIterator[None]:
    async with no_task_left():
        yield
