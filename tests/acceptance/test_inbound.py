"""A bounce that comes back later, through the real process."""

import asyncio
import smtplib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.support import preloaded
from tests.support.eventually import HANG_SECONDS
from tests.support.inbound_reports import bounce
from tests.support.server_process import environment
from tests.support.service import Tenant
from tests.support.service_processes import (
    LONG_LEASE,
    ServiceProcesses,
    prepare_processes,
)
from tests.support.smtp_conversation import Delivered
from tests.support.smtp_listeners import HOST, SmtpListeners

ONE: Final = "one.example.net"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def processes(
    listeners: SmtpListeners, new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    """All parts in one process, without NATS."""
    database_url = await asyncio.to_thread(new_database)
    directory = tmp_path_factory.mktemp("inbound")
    async with prepare_processes(
        database_url, directory, stream="memory", **listeners.settings, **LONG_LEASE
    ) as processes:
        processes.destination(ONE)
        part = await processes.start_http("dispatch", "delivery", "inbound")
        await listeners.open(part, listeners.inbound_port)
        yield processes


@pytest_asyncio.fixture(loop_scope="session")
async def sender(processes: ServiceProcesses) -> Tenant:
    """An account of this test, with 1,000 credits."""
    return await processes.service.account()


async def final(processes: ServiceProcesses, sender: Tenant, *to: str) -> dict[str, Any]:
    sent = await sender.accepts(sender.mail(to=list(to)))
    (message,) = await processes.wait_until_final(sender, [sent["id"]])
    return message


async def delivered(processes: ServiceProcesses, sender: Tenant, *to: str) -> tuple[dict[str, Any], list[Delivered]]:
    """The message, and its copies in the order of their recipients."""
    before = len(processes.receiver.accepted)
    message = await final(processes, sender, *to)
    assert message["status"] == "delivered"
    copies = [copy for copy in processes.receiver.accepted[before:] if copy.recipient in to]
    return message, sorted(copies, key=lambda copy: to.index(copy.recipient))


async def came_back(listeners: SmtpListeners, raw: bytes, to: str) -> None:
    """As any mail server would send it; from the address of the server that took the mail."""

    def bring() -> None:
        with smtplib.SMTP(HOST, listeners.inbound_port, timeout=HANG_SECONDS, source_address=(HOST, 0)) as client:
            assert client.sendmail("", [to], raw) == {}

    await asyncio.to_thread(bring)


async def suppressed(processes: ServiceProcesses, sender: Tenant) -> list[tuple[str, str]]:
    rows = await processes.service.sql(
        "SELECT email, reason FROM suppressions WHERE account_id = $1 ORDER BY email", sender.id
    )
    return [tuple(row) for row in rows]


async def timeline(processes: ServiceProcesses, message: dict[str, Any]) -> str:
    """As shown by the operator's command."""
    done = await asyncio.to_thread(
        preloaded.run,
        "message",
        "show",
        message["id"],
        environment={**environment(processes.database_url, **processes.settings), "COLUMNS": "200"},
        directory=processes.directory,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.rule("INB-01", "INB-02", "INB-04")
async def test_a_bounce_suppresses_for_its_account_and_changes_no_result(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    address = f"gone@{ONE}"
    message, (copy,) = await delivered(processes, sender, address)
    available = await sender.available()
    events = await processes.service.value("SELECT count(*) FROM events")
    # Providers change the case of return paths.
    await came_back(listeners, bounce(address, to=copy.sender), copy.sender.upper().replace("BOUNCES", "Bounces"))

    assert await suppressed(processes, sender) == [(address, "bounce")]
    shown = await timeline(processes, message)
    assert "came back later" in shown
    assert "5.1.1" in shown
    after = (await sender.get(message["id"])).body
    assert after | {"request_id": ""} == message | {"request_id": ""}
    assert (await sender.available(), await processes.service.value("SELECT count(*) FROM events")) == (
        available,
        events,
    )

    connections = processes.receiver.connections
    later = await final(processes, sender, address)
    (recipient,) = later["recipients"]
    assert (later["status"], recipient["status"], recipient["last_smtp_code"]) == ("failed", "bounced", None)
    assert (later["billing_status"], await sender.available()) == ("released", available)
    assert processes.receiver.connections == connections
    # The same report again changes nothing.
    await came_back(listeners, bounce(address, to=copy.sender), copy.sender)
    assert await processes.service.value("SELECT count(*) FROM reports WHERE account_id = $1", sender.id) == 1

    another = await processes.service.account()
    _, copies = await delivered(processes, another, address)
    assert len(copies) == 1
    assert await suppressed(processes, another) == []
