"""The monitoring port of a process: metrics of real mail, and whether the process is alive and ready."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from posthouse import metrics
from posthouse.compose.monitoring import DRAINING, monitored
from posthouse.compose.process import CannotListen
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import make_older_than_1_0
from tests.support.service import service_settings, settings_for, settings_from
from tools.private_postgres import free_port

NOWHERE = "postgresql://me@127.0.0.1:1/nowhere"


@asynccontextmanager
async def monitoring(
    database_url: str, stop: asyncio.Event, *parts: str, port: int | None = None
) -> AsyncIterator[tuple[int, aiohttp.ClientSession]]:
    """The monitoring of a process with these parts, at a free port, and a client for it."""
    chosen = port or free_port()
    settings = settings_from(settings_for(database_url, MONITORING__PORT=str(chosen), DATABASE__TIMEOUT_FACTOR="1"))
    async with monitored(settings, parts, stop.is_set), aiohttp.ClientSession(f"http://127.0.0.1:{chosen}") as client:
        yield chosen, client


async def answer(client: aiohttp.ClientSession, path: str) -> tuple[int, dict[str, object]]:
    async with client.get(path) as response:
        return response.status, await response.json()


async def samples(client: aiohttp.ClientSession) -> dict[tuple[str, str], float]:
    """All samples, by name and, if there are any, the comma-separated values of the labels."""
    async with client.get("/metrics") as response:
        assert response.status == 200
        families = list(text_string_to_metric_families(await response.text()))
    found = [sample for family in families for sample in family.samples]
    return {(sample.name, ",".join(sample.labels.values())): sample.value for sample in found}


async def test_a_process_is_alive_and_ready_and_shows_its_parts(database_url: str) -> None:
    async with monitoring(database_url, asyncio.Event(), "http", "dispatch") as (_, client):
        assert await answer(client, "/livez") == (200, {"status": "alive"})
        assert await answer(client, "/readyz") == (200, {"status": "ready"})
        found = await samples(client)
    parts = [found["posthouse_process_info", part] for part in ("http", "dispatch")]
    assert [*parts, found["posthouse_ready", ""]] == [1, 1, 1]
    assert ("posthouse_process_info", "delivery") not in found


async def test_a_draining_process_is_alive_and_not_ready(database_url: str) -> None:
    stop = asyncio.Event()
    async with monitoring(database_url, stop) as (_, client):
        stop.set()
        assert await answer(client, "/readyz") == (503, {"status": "not ready", "reasons": [DRAINING]})
        assert (await answer(client, "/livez"))[0] == 200
        assert (await samples(client))["posthouse_ready", ""] == 0


async def test_without_postgresql_a_process_is_alive_and_not_ready() -> None:
    async with monitoring(NOWHERE, asyncio.Event(), "dispatch", "maintenance") as (_, client):
        status, content = await answer(client, "/readyz")
        assert (status, content["status"]) == (503, "not ready")
        assert "PostgreSQL can't be used" in str(content["reasons"])
        assert (await answer(client, "/livez"))[0] == 200
        found = await samples(client)
    assert found["posthouse_database_refusals_total", "service_unavailable"] > 0
    assert ("posthouse_queue_oldest_due_seconds", "") not in found, "an old figure is no figure"


async def test_a_postgresql_that_hangs_is_a_reason_within_seconds() -> None:
    hanging = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    url = f"postgresql://me@127.0.0.1:{hanging.sockets[0].getsockname()[1]}/nowhere"
    async with asyncio.timeout(HANG_SECONDS), monitoring(url, asyncio.Event()) as (_, client):
        assert (await answer(client, "/readyz"))[0] == 503
    hanging.close()


async def test_old_tables_are_a_reason_not_to_be_ready(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("UPDATE schema_revision SET version_num = '0000'")
        async with monitoring(database_url, asyncio.Event()) as (_, client):
            status, content = await answer(client, "/readyz")
        assert status == 503
        assert "run `posthouse migrate`" in str(content["reasons"])
    finally:
        await connection.close()


async def test_tables_of_a_version_before_1_0_are_a_reason_not_to_be_ready(database_url: str) -> None:
    await make_older_than_1_0(database_url)
    async with monitoring(database_url, asyncio.Event()) as (_, client):
        status, content = await answer(client, "/readyz")
    assert status == 503
    assert "made by a version before 1.0" in str(content["reasons"])


async def test_figures_of_the_queue_and_of_the_storage_are_measured(database_url: str) -> None:
    async with monitoring(database_url, asyncio.Event(), "dispatch", "maintenance") as (_, client):

        async def measured() -> dict[tuple[str, str], float]:
            return await samples(client)

        found = await eventually(measured, lambda found: ("posthouse_partitions_days_ahead", "") in found)
        found = await eventually(measured, lambda found: ("posthouse_queue_recipients", "due") in found)
    assert found["posthouse_queue_recipients", "due"] == found["posthouse_queue_oldest_due_seconds", ""] == 0
    assert found["posthouse_partitions_days_ahead", ""] >= 0
    assert found["posthouse_partitions", "messages"] > 0


async def test_each_process_of_a_machine_takes_the_next_free_port(database_url: str) -> None:
    port = free_port()
    async with (
        monitoring(database_url, asyncio.Event(), port=port),
        monitoring(database_url, asyncio.Event(), port=port),
        aiohttp.ClientSession() as client,
    ):
        async with client.get(f"http://127.0.0.1:{port}/livez") as first:
            assert first.status == 200
        async with client.get(f"http://127.0.0.1:{port + 1}/livez") as second:
            assert second.status == 200


async def test_without_a_port_nothing_is_served(database_url: str) -> None:
    metrics.PART.clear()
    async with monitored(service_settings(database_url), {"http"}, asyncio.Event().is_set):
        assert metrics.PART.values == {}


async def test_an_address_of_another_machine_is_refused_with_what_to_do(database_url: str) -> None:
    settings = settings_from(settings_for(database_url, MONITORING__PORT="9825", MONITORING__HOST="192.0.2.1"))
    with pytest.raises(CannotListen, match=r"monitoring\.host and monitoring\.port"):
        async with monitored(settings, {"http"}, asyncio.Event().is_set):
            pass


async def test_any_request_gets_an_answer() -> None:
    requests = [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"GET /livez?verbose HTTP/1.1\r\n\r\n", b"200"),
        (b"HEAD /livez HTTP/1.1\r\n\r\n", b"200"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"\r\n\r\n", b"400"),
        (b"\xff\xfe\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"400"),
    ]
    async with monitoring(NOWHERE, asyncio.Event()) as (port, _):
        for request, status in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert head.startswith(b"HTTP/1.1 " + status), request
            assert bool(body) is not request.startswith(b"HEAD")
