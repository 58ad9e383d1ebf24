"""`delivery.outbound = "capture"`: no mail leaves, with any key, and each can be read."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.accept_flow import SIMULATOR
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess, environment
from tests.support.service import Tenant
from tests.support.service_processes import LONG_LEASE, ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import SmtpListeners, queued_id, raw_mail, submit

CAPTURE: Final = {"DELIVERY__OUTBOUND": "capture"}
PARTS: Final = ("http", "submission", "dispatch", "delivery")
DESTINATION: Final = "one.example.net"
HELD: Final = "SELECT count(held_since) FROM delivery_schedule WHERE account_id = $1"
# Reserved for documentation (RFC 5737): a query sent there is seen, and never answered.
OUTSIDE: Final = "192.0.2.53"
MESSAGES: Final = 1_000
CLIENTS: Final = 10


@pytest.mark.rule("DLV-20")
async def test_captured_mail_never_leaves_and_mail_from_before_is_held(
    listeners: SmtpListeners, new_database: Callable[[], str], tmp_path: Path
) -> None:
    database_url = await asyncio.to_thread(new_database)
    async with prepare_processes(
        database_url, tmp_path, stream="memory", **listeners.settings, **LONG_LEASE
    ) as processes:
        processes.destination(DESTINATION)
        delivering = await processes.start_http()
        tenant = await processes.service.account()
        before = await tenant.accepts(tenant.mail(to=f"before@{DESTINATION}"))
        assert "Posthouse-Outbound" not in (await tenant.get(before["id"])).headers
        await delivering.terminate()
        processes.parts.remove(delivering)  # uvicorn alone ends with the signal, and not with 0

        processes.settings |= CAPTURE
        capturing = await processes.start_http(*PARTS[1:])
        tenant.service = processes.clients[-1]
        await listeners.open(capturing)
        sent = await send_three(tenant, listeners)
        bounced = await tenant.accepts(tenant.mail(to=f"bounced@{SIMULATOR}"))
        found = await processes.wait_until_final(tenant, [*sent, bounced["id"]])
        await eventually(lambda: processes.service.value(HELD, tenant.id), lambda number: number == 1)
        assert [(message["source"], message["status"], message["credits_reserved"]) for message in found] == [
            ("api", "delivered", 1),
            ("test", "delivered", 0),
            ("smtp", "delivered", 1),
            ("api", "failed", 1),
        ]
        for message in found[:3]:
            assert "nothing was sent" in message["recipients"][0]["last_smtp_response"]
            assert (await tenant.stored(message["id"]))["Subject"] == "Captured"
        assert (await tenant.get(before["id"])).headers["Posthouse-Outbound"] == "capture"
        dry_run = await tenant.call("POST", "/v1/emails/dry-run", tenant.mail(to=f"ada@{DESTINATION}"))
        assert [recipient["simulator"] for recipient in dry_run.body["recipients"]] == [True], dry_run.raw
        assert (processes.nameserver.asked, processes.receiver.accepted) == ([], [])
        # The mail from before, and what was captured with a live key and over SMTP; a bounce is free.
        assert await tenant.available() == 1_000 - 3
        assert "outbound_captured" in capturing.log.read_text()
        await capturing.terminate()

        processes.settings |= {"DELIVERY__OUTBOUND": "deliver"}
        await processes.start_http("dispatch", "delivery")
        tenant.service = processes.clients[-1]
        await processes.service.sql("UPDATE delivery_schedule SET next_at = now() WHERE account_id = $1", tenant.id)
        await processes.wait_until_final(tenant, [before["id"]])
        assert [copy.recipient for copy in processes.receiver.accepted] == [f"before@{DESTINATION}"]


async def send_three(tenant: Tenant, listeners: SmtpListeners) -> list[str]:
    """A message with a live key, with a test key, and over SMTP."""
    mail = tenant.mail(to=f"ada@{DESTINATION}", subject="Captured")
    sent = [(await tenant.accepts(mail, authorization=await tenant.key(mode)))["id"] for mode in ("live", "test")]
    return [*sent, *await send_by_smtp(tenant, listeners, [f"ada@{DESTINATION}"])]


async def send_by_smtp(tenant: Tenant, listeners: SmtpListeners, addresses: list[str]) -> list[str]:
    async with listeners.session(tenant) as line:
        replies = [
            await submit(line, raw_mail(tenant, "Captured", to=address), [address], sender=f"news@{tenant.domain}")
            for address in addresses
        ]
    return [queued_id(reply) for reply in replies]


@pytest.mark.rule("DLV-20")
@pytest.mark.nightly
async def test_a_thousand_captured_messages_reach_only_loopback(
    listeners: SmtpListeners, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """strace sees every address that the process connects or sends to, from its start to its end."""
    database_url = await asyncio.to_thread(new_database)
    settings = {**listeners.settings, "SERVICE__RESOLVERS": OUTSIDE}
    async with prepare_processes(database_url, tmp_path, stream="memory", **settings, **LONG_LEASE) as processes:
        processes.settings |= CAPTURE
        async with watched(processes, tmp_path / "capture.strace") as tenant:
            await listeners.open(processes.parts[-1])
            keys = [await tenant.key(mode) for mode in ("live", "test")]
            share = MESSAGES // CLIENTS

            async def by_http(client: int) -> list[str]:
                messages = [tenant.mail(to=f"r{client}-{number}@d{number}.example.net") for number in range(share)]
                return [(await tenant.accepts(mail, authorization=keys[client % 2]))["id"] for mail in messages]

            async def by_smtp(client: int) -> list[str]:
                return await send_by_smtp(
                    tenant, listeners, [f"r{client}-{number}@d{number}.example.net" for number in range(share)]
                )

            clients = [by_smtp(client) if client >= 6 else by_http(client) for client in range(CLIENTS)]
            sent = [message_id for part in await asyncio.gather(*clients) for message_id in part]
            assert len(set(sent)) == MESSAGES
            await processes.wait_until_all_final()
            for message_id in sent:
                page = await tenant.call("GET", f"/v1/messages/{message_id}/content")
                assert page.status == 200, page.raw
                assert (await tenant.get(message_id)).body["status"] == "delivered"
        assert set(addresses_in(tmp_path / "capture.strace")) == {"127.0.0.1"}

        # The same watch sees a single message that is to be delivered.
        processes.settings |= {"DELIVERY__OUTBOUND": "deliver"}
        async with watched(processes, tmp_path / "deliver.strace") as tenant:
            await tenant.accepts(tenant.mail(to=f"ada@{DESTINATION}"))
            await eventually(lambda: OUTSIDE in set(addresses_in(tmp_path / "deliver.strace")))


@asynccontextmanager
async def watched(processes: ServiceProcesses, log: Path) -> AsyncIterator[Tenant]:
    """All parts in a process under strace, and an account of the service."""
    part = spawn_under_strace(processes, log)
    await part.ready()
    client = await part.open_client()
    processes.clients.insert(0, client)
    yield await client.account(credits=10_000)
    stop_under_strace(part)
    await part.ended()


def spawn_under_strace(processes: ServiceProcesses, log: Path) -> ServerProcess:
    strace = shutil.which("strace")
    assert strace, "install strace (Debian: apt install strace)"
    part = ServerProcess(processes.database_url, log.with_suffix(".log"), dict(processes.settings), words=PARTS)
    command = [strace, "-f", "-qq", "-e", "signal=none", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(log)]
    command += [sys.executable, "-m", "posthouse", "run", *part.words]
    with part.log.open("ab") as written:
        part.process = subprocess.Popen(
            command,
            env=environment(part.database_url, HTTP__PORT=str(part.port), **part.settings),
            cwd=part.log.parent,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    processes.parts.append(part)
    return part


def stop_under_strace(part: ServerProcess) -> None:
    """strace ignores the signal; the service ends, and strace with it."""
    children = Path(f"/proc/{part.running.pid}/task/{part.running.pid}/children").read_text()
    for child in children.split():
        os.kill(int(child), signal.SIGTERM)


def addresses_in(log: Path) -> Iterator[str]:
    """The network addresses in strace's lines; sockets of the machine itself (AF_UNIX, netlink) have none."""
    for match in re.finditer(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"', log.read_text()):
        yield match[1] or match[2]
