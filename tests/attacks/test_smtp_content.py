"""Sessions that fill the memory for content and then send nothing: other accounts and clients are served."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.eventually import HANG_SECONDS
from tests.support.service import Tenant
from tests.support.service_processes import RETURN_PATH_DOMAIN, ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import SmtpListeners, raw_mail, submit
from tests.support.smtp_service import SmtpConnection

pytestmark = pytest.mark.nightly

MIB = 1024 * 1024
SESSIONS = 27
LINE = b"x" * 76 + b"\r\n"
OPERATOR = f"postmaster@{RETURN_PATH_DOMAIN}"


@pytest.fixture
def listeners(tmp_path: Path) -> SmtpListeners:
    return SmtpListeners.make(tmp_path)


@pytest.fixture
async def processes(database_url: str, tmp_path: Path, listeners: SmtpListeners) -> AsyncIterator[ServiceProcesses]:
    async with prepare_processes(database_url, tmp_path, stream="memory", **listeners.settings) as processes:
        part = await processes.start_http("submission", "inbound")
        await listeners.open(part, listeners.port, listeners.tls_port, listeners.inbound_port)
        yield processes


async def begin(line: SmtpConnection, recipient: str, size: int) -> None:
    """A message that never ends."""
    replies = await line.say("EHLO noisy.example", "MAIL FROM:<>", f"RCPT TO:<{recipient}>", "DATA")
    assert replies[-1].startswith("354"), replies
    line.writer.write(LINE * (size // len(LINE)))
    await line.writer.drain()


async def text_from(listeners: SmtpListeners, tenant: Tenant, body: str = "Good morning.") -> str:
    async with listeners.session(tenant) as line:
        mail = raw_mail(tenant, "victim", body=body)
        return await submit(line, mail, ["ada@example.org"], sender=f"news@{tenant.domain}")


async def test_an_account_that_fills_the_memory_leaves_some_for_others(
    processes: ServiceProcesses, listeners: SmtpListeners
) -> None:
    noisy, victim = await processes.service.account(), await processes.service.account()
    async with AsyncExitStack() as stack:
        for _ in range(SESSIONS):
            line = await stack.enter_async_context(listeners.session(noisy))
            await begin(line, "ada@example.org", 10 * MIB - 100)
        for _ in range(5):
            assert (await text_from(listeners, victim)).startswith("250 ")
        large = "\r\n".join(["y" * 76] * (4 * MIB // 78))
        assert (await text_from(listeners, victim, large)).startswith("250 ")
        probe = await stack.enter_async_context(listeners.session(noisy))
        for size in (1, MIB, 10 * MIB):
            reply, _ = await probe.say(f"MAIL FROM:<> SIZE={size}", "RSET")
            assert reply.startswith("250 "), reply
        # The account itself has used up its share.
        replies = await submit(probe, b"From: a\r\n\r\n" + LINE * (9 * MIB // 78), ["ada@example.org"], sender="")
        assert replies.startswith("452 4.3.1")


@pytest.mark.usefixtures("processes")
async def test_a_few_unauthenticated_clients_leave_memory_for_others(listeners: SmtpListeners) -> None:
    async with AsyncExitStack() as stack:
        for number in range(130):
            line = await stack.enter_async_context(
                listeners.line(is_secure=False, source=f"127.0.0.{71 + number // 45}", port=listeners.inbound_port)
            )
            await begin(line, OPERATOR, 2 * MIB - 100)
        for _ in range(3):
            async with listeners.line(is_secure=False, source="127.0.0.90", port=listeners.inbound_port) as line:
                await line.say("EHLO mx.example.org")
                mail = b"Subject: hello\r\n\r\n" + LINE * 1_000
                assert (await submit(line, mail, [OPERATOR], sender="")).startswith("250 ")


async def test_sessions_that_stall_end_within_a_minute(processes: ServiceProcesses, listeners: SmtpListeners) -> None:
    tenant = await processes.service.account()
    async with listeners.session(tenant) as line:
        await begin(line, "ada@example.org", 5 * MIB)
        async with asyncio.timeout(HANG_SECONDS):
            reply = (await line.reader.readline()).decode()
    assert reply.startswith("421 4.4.2")
