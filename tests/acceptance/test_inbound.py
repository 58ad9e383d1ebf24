"""Inbound mail through the real process: bounces, complaints, and mail that is refused."""

import asyncio
import re
import smtplib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.support import preloaded
from tests.support.eventually import HANG_SECONDS
from tests.support.feedback_loop import FeedbackLoop
from tests.support.inbound_reports import bounce, complaint
from tests.support.server_process import environment
from tests.support.service import Tenant
from tests.support.service_processes import (
    LONG_LEASE,
    RETURN_PATH_DOMAIN,
    ServiceProcesses,
    prepare_processes,
)
from tests.support.smtp_conversation import Delivered
from tests.support.smtp_listeners import FEEDBACK_ADDRESS, HOST, SmtpListeners

ONE, TWO = "one.example.net", "two.example.net"
# On the list by default.
YAHOO: Final = FeedbackLoop("arf.mail.yahoo.com")


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
        for name in (ONE, TWO):
            processes.destination(name)
        processes.nameserver.zone |= YAHOO.zone
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


async def came_back(listeners: SmtpListeners, raw: bytes, to: str, source: str = HOST) -> None:
    """As any mail server would send it; by default from the address of the server that took the mail."""

    def bring() -> None:
        with smtplib.SMTP(HOST, listeners.inbound_port, timeout=HANG_SECONDS, source_address=(source, 0)) as client:
            assert client.sendmail("", [to], raw) == {}

    await asyncio.to_thread(bring)


def reported(head: str, recipient: str) -> bytes:
    """A provider's report about a message with this header field."""
    return complaint(head, recipient=recipient, author=f"feedback@{YAHOO.domain}", to=FEEDBACK_ADDRESS)


async def suppressed(processes: ServiceProcesses, sender: Tenant) -> list[tuple[str, str]]:
    rows = await processes.service.sql(
        "SELECT email, reason FROM suppressions WHERE account_id = $1 ORDER BY email", sender.id
    )
    return [tuple(row) for row in rows]


async def everything(processes: ServiceProcesses) -> dict[str, int]:
    """The rows of all tables that a report or mail could change."""
    tables = ("suppressions", "reports", "postmaster_mail", "messages", "events")
    return {table: await processes.service.value(f"SELECT count(*) FROM {table}") for table in tables}


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


@pytest.mark.rule("INB-03", "INB-04")
async def test_a_complaint_is_trusted_by_its_token_and_its_providers_signature(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    address = f"angry@{ONE}"
    message, (copy,) = await delivered(processes, sender, address)
    head = copy.message.partition(b"\r\n\r\n")[0].decode()
    found = re.search(r"^CFBL-Feedback-ID: *(\S+)$", head.replace("\r\n\t", " ").replace("\r\n", "\n"), re.MULTILINE)
    assert found, head
    # Providers return most of the header, without the recipients.
    report = reported(f"CFBL-Feedback-ID: {found[1]}", recipient=address)
    await came_back(listeners, report, FEEDBACK_ADDRESS)
    await came_back(listeners, complaint(recipient=address), copy.sender)
    assert await suppressed(processes, sender) == []
    assert f"a complaint (abuse, unverified, from {HOST})" in await timeline(processes, message)
    await came_back(listeners, YAHOO.signed(report), FEEDBACK_ADDRESS)
    assert await suppressed(processes, sender) == [(address, "complaint")]
    assert "a complaint (abuse)" in await timeline(processes, message)
    assert (await sender.get(message["id"])).body["status"] == "delivered"

    innocent = f"content@{ONE}"
    _, (theirs,) = await delivered(processes, sender, innocent)
    before = await everything(processes)
    forged = found[1][:-1] + ("a" if found[1][-1] != "a" else "b")
    for head in (f"CFBL-Feedback-ID: {forged}", f"Return-Path: <bounces+x@{RETURN_PATH_DOMAIN}>"):
        await came_back(listeners, YAHOO.signed(reported(head, recipient=innocent)), FEEDBACK_ADDRESS)
    await came_back(listeners, bounce(innocent, original=f"Return-Path: <{theirs.sender}>\n"), FEEDBACK_ADDRESS)
    assert await everything(processes) == before
