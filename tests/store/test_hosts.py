"""Several hosts of a database: the writable one is used, whatever the others do."""

import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import asyncpg
import pytest

from posthouse.rules.refusal import Refusal
from posthouse.store.hosts import OldPrimary, WritableHost
from posthouse.store.postgres import Database, standbys_awaited
from tests.support.eventually import eventually
from tests.support.fresh_database import open_database
from tests.support.tcp_proxy import DatabaseProxy
from tools.private_postgres import free_port


def with_other_hosts(url: str, *ports: int) -> str:
    """The URL with these ports of the loopback before its own host."""
    others = ",".join(f"127.0.0.1:{port}" for port in ports)
    return url.replace("@", f"@{others},", 1)


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


@contextmanager
def silent_port() -> Iterator[int]:
    """The kernel accepts connections, and no server answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


async def test_a_host_that_hangs_before_the_writable_one_costs_a_moment(database_url: str) -> None:
    with silent_port() as port:
        async with open_database(with_other_hosts(database_url, port)) as database:
            with patient(1.4):  # less than the time-out of one host
                async with database.connection() as connection:
                    assert await connection.fetchval("SELECT 1") == 1


async def test_a_host_that_refuses_connections_is_skipped(database_url: str) -> None:
    async with (
        open_database(with_other_hosts(database_url, free_port())) as database,
        database.connection() as connection,
    ):
        assert await connection.fetchval("SELECT 1") == 1


async def test_hosts_that_take_no_writes_are_no_database(database_url: str) -> None:
    read_only = f"{database_url}?default_transaction_read_only=on"
    async with open_database(with_other_hosts(read_only, free_port())) as database:
        with pytest.raises(Refusal) as refused:
            async with database.connection():
                pass
    assert refused.value.code == "service_unavailable"


async def test_a_wrong_password_is_reported_though_another_host_is_away(database_url: str) -> None:
    url = with_other_hosts(database_url.replace("postgres@", "nobody-there@"), free_port())
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        await WritableHost(url).connect()


async def test_the_losers_of_the_race_are_closed(database_url: str) -> None:
    host = WritableHost(with_other_hosts(database_url, int(database_url.rsplit(":", 1)[1].split("/")[0])))
    connection = await host.connect(server_settings={"application_name": "race"})
    try:
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'race'"
        await eventually(lambda: connection.fetchval(count), lambda number: number == 1)
    finally:
        await connection.close()


async def test_a_primary_whose_successor_was_seen_is_refused(database_url: str) -> None:
    host = WritableHost(with_other_hosts(database_url, free_port()))
    host._timeline = 7
    with pytest.raises(OldPrimary):
        await host.connect()


async def test_connections_to_the_former_primary_are_given_up_after_a_promotion(database_url: str) -> None:
    host = WritableHost(with_other_hosts(database_url, free_port()))
    promotions = []

    async def note() -> None:
        promotions.append(host._timeline)

    host.when_promoted = note
    await (await host.connect()).close()
    assert promotions == []
    newest, host._timeline = host._timeline, 0
    await (await host.connect()).close()
    assert promotions == [newest]


async def test_after_one_connection_hung_the_others_are_not_used(database_url: str) -> None:
    """Each would cost another time-out."""
    async with DatabaseProxy(database_url) as proxy, open_database(proxy.url, connections_max=3) as database:

        async def processes() -> set[int]:
            async with AsyncExitStack() as stack:
                held = [await stack.enter_async_context(database.connection()) for _ in range(2)]
                return {await connection.fetchval("SELECT pg_backend_pid()") for connection in held}

        before = await processes()
        proxy.pause()
        with patient(4.0), pytest.raises(Refusal):
            async with database.transaction() as tx:
                await tx.execute("SELECT 1")
        proxy.resume()
        assert not before & await processes()


async def test_a_database_without_the_standbys_that_are_asked_for_is_refused(database_url: str) -> None:
    async with open_database(database_url, standbys=1) as database:
        with pytest.raises(Refusal) as refused:
            async with database.connection():
                pass
    assert (refused.value.code, "standby" in refused.value.text) == ("service_unavailable", True)


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ("", 0),
        (" ", 0),
        ("*", 1),
        ("one, two", 1),
        ("ANY 1 (one, two)", 1),
        ("any 2 (one, two, three)", 2),
        ("FIRST 3 (*)", 3),
        ("2 (one, two)", 2),
        ("first", 1),
    ],
)
def test_the_standbys_of_a_commit_are_counted_from_the_setting(names: str, count: int) -> None:
    assert standbys_awaited(names) == count


async def test_a_primary_is_left_although_a_connection_in_use_was_closed(database: Database) -> None:
    async with database.connection() as closed:
        closed.terminate()
        await database.leave_former_primary()
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT 1") == 1
