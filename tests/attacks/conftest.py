"""Shared by the tests of attacks: a running HTTP process with its ordinary settings, and a client of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import faster
from tests.support.server_process import ServerProcess
from tests.support.service import Service


@pytest.fixture(autouse=True)
def _real_password_hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where attacks are measured, an attacker's logins cost what they do in real processes."""
    if request.node.get_closest_marker("nightly"):
        monkeypatch.setenv(faster.REAL_HASHES, "1")


@pytest.fixture
def http_process_settings() -> dict[str, str]:
    """POSTHOUSE_* without the prefix; a module may have its own."""
    return {}


@pytest.fixture
async def http_process(
    database_url: str, tmp_path: Path, http_process_settings: dict[str, str]
) -> AsyncIterator[ServerProcess]:
    process = ServerProcess(database_url, tmp_path / "server.log", http_process_settings)
    try:
        await process.start()
        yield process
    finally:
        process.kill()


@pytest.fixture
async def service(http_process: ServerProcess) -> AsyncIterator[Service]:
    client = await http_process.open_client()
    yield client
    await client.close()
