"""The SMTP server over real sockets: deadlines, limits, faults and drain."""

import asyncio
import contextlib
import resource
import socket
from dataclasses import replace

import aiosmtplib
import pytest

from posthouse.entrypoints.smtp.connection import WAITING_BYTES_MAX, Bounds, ServerDeadlines
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.smtp_service import INBOUND, RecordingService, SmtpConnection, run_smtp_server
from tests.support.steady_loop import ON_STEADY_LOOP

SHORT = ServerDeadlines(check_seconds=0.02, closing_seconds=0.02)
OPEN = ("EHLO client.example.com", "MAIL FROM:<ada@example.com>", "RCPT TO:<bob@example.com>")


async def test_aiosmtplib_can_send() -> None:
    service = RecordingService()
    async with (
        run_smtp_server(service) as server,
        aiosmtplib.SMTP(hostname="127.0.0.1", port=server.ports[0], start_tls=False, timeout=HANG_SECONDS) as client,
    ):
        await client.sendmail("ada@example.com", ["bob@example.com"], "Subject: x\r\n\r\n.dot\r\n")
        with pytest.raises(aiosmtplib.SMTPRecipientsRefused):
            await client.sendmail("ada@example.com", ["unknown@example.com"], "x")
        await client.sendmail("", ["bob@example.com"], "y")
    assert service.contents == [b"Subject: x\r\n\r\n.dot\r\n", b"y\r\n"]


async def test_a_large_message_is_received_whole() -> None:
    service = RecordingService()
    content = (b"." + b"x" * 76 + b"\r\n") * 100_000
    async with run_smtp_server(service) as server, SmtpConnection.to(server.ports[0]) as line:
        await line.say(*OPEN, "DATA")
        line.writer.write(content.replace(b"\r\n.", b"\r\n..").replace(b".", b"..", 1) + b".\r\n")
        assert (await line.reply())[:3] == "250"
        assert server.held_bytes == 0
    assert service.contents == [content]


async def test_a_fault_is_a_temporary_refusal_without_details() -> None:
    service = RecordingService(fault=RuntimeError("secret detail"))
    async with run_smtp_server(service) as server, SmtpConnection.to(server.ports[0]) as line:
        replies = await line.say(*OPEN, "DATA", b"hi\r\n.\r\n")
        assert replies[-1].startswith("451 4.3.0")
        assert "secret" not in replies[-1]
        service.fault = None
        assert (await line.say(*OPEN[1:], "DATA", b"hi\r\n.\r\n"))[-1][:3] == "250"


async def test_others_are_served_while_a_message_is_being_accepted() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    async with (
        run_smtp_server(service) as server,
        SmtpConnection.to(server.ports[0]) as line,
        SmtpConnection.to(server.ports[0]) as other,
    ):
        await line.say(*OPEN, "DATA")
        line.writer.write(b"hi\r\n.\r\nNOOP\r\nNOOP x\r\n")
        assert (await other.say("EHLO other", "NOOP"))[-1] == "250 2.0.0 OK"
        service.gate.set()
        assert [(await line.reply())[:3] for _ in range(3)] == ["250"] * 3


async def test_reading_pauses_at_a_limit_while_a_message_is_accepted() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    async with run_smtp_server(service) as server, SmtpConnection.to(server.ports[0]) as line:
        await line.say(*OPEN, "DATA")
        line.writer.write(b"hi\r\n.\r\n" + b"RSET\r\n" * 1_000 + b"NOOP " + b"x" * 300 * WAITING_BYTES_MAX)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line.writer.drain(), 0.2)
        service.gate.set()
        assert [(await line.reply())[:3] for _ in range(1_001)] == ["250"] * 1_001
        assert (await line.reply())[:9] == "500 5.5.2"


@ON_STEADY_LOOP
async def test_a_client_that_does_not_read_is_cut_off() -> None:
    deadlines = replace(SHORT, reading_seconds=0.1)
    async with run_smtp_server(RecordingService(), deadlines=deadlines) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.ports[0]))
            # Messages reset the count of commands, so that replies never end on their own.
            mail = b"EHLO x\r\n" + b"EHLO x\r\n" * 1_000 + b"MAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\n.\r\n"
            loop = asyncio.get_running_loop()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    while server.connection_count:
                        await asyncio.wait_for(loop.sock_sendall(client, mail), 0.3)
            await eventually(lambda: server.connection_count == 0)


# Deadlines


@ON_STEADY_LOOP
async def test_an_idle_client_gets_421() -> None:
    async with (
        run_smtp_server(RecordingService(), deadlines=replace(SHORT, command_seconds=0.15)) as server,
        SmtpConnection.to(server.ports[0]) as line,
    ):
        await line.say(*OPEN)
        assert (await line.rest()).startswith("421 4.4.2")


@ON_STEADY_LOOP
async def test_single_bytes_do_not_extend_the_deadline() -> None:
    async with (
        run_smtp_server(RecordingService(), deadlines=replace(SHORT, command_seconds=0.2)) as server,
        SmtpConnection.to(server.ports[0]) as line,
    ):
        await line.say("EHLO x")
        drip = asyncio.create_task(_drip(line, b"N"))
        assert (await line.rest()).startswith("421 4.4.2")
        await drip


@ON_STEADY_LOOP
async def test_a_message_that_is_sent_too_slowly_is_cut_off() -> None:
    service = RecordingService()
    async with run_smtp_server(service, deadlines=replace(SHORT, content_seconds=0.2)) as server:
        async with SmtpConnection.to(server.ports[0]) as line:
            await line.say(*OPEN, "DATA")
            drip = asyncio.create_task(_drip(line, b"x\r\n"))
            assert (await line.rest()).startswith("421 4.4.2")
            await drip
        assert server.held_bytes == 0
    assert service.accepted == []


@ON_STEADY_LOOP
async def test_a_slow_message_within_the_rate_is_received() -> None:
    service = RecordingService()
    deadlines = replace(SHORT, content_seconds=0.5, content_bytes_per_second=2_000, command_seconds=0.1)
    async with run_smtp_server(service, deadlines=deadlines) as server, SmtpConnection.to(server.ports[0]) as line:
        await line.say(*OPEN, "DATA")
        for _ in range(40):
            line.writer.write(b"x" * 998 + b"\r\n")
            await asyncio.sleep(0.025)  # a slow client
        assert (await line.say(b".\r\n"))[0][:3] == "250"


@ON_STEADY_LOOP
@pytest.mark.parametrize("words", [["DATA"], ["BDAT 100000"]], ids=["data", "between chunks"])
async def test_a_message_that_begins_fast_and_then_stalls_is_cut_off(words: list[str]) -> None:
    service = RecordingService()
    deadlines = replace(SHORT, content_seconds=0.2, content_bytes_per_second=1_000, command_seconds=60.0)
    async with run_smtp_server(service, deadlines=deadlines) as server:
        async with SmtpConnection.to(server.ports[0]) as line:
            await line.say(*OPEN)
            line.writer.write(words[0].encode() + b"\r\n" + b"x" * 100_000)
            await line.reply()
            assert (await line.rest()).startswith("421 4.4.2")
        assert server.held_bytes == 0


@ON_STEADY_LOOP
async def test_a_session_ends_after_its_longest_time() -> None:
    async with (
        run_smtp_server(RecordingService(), deadlines=replace(SHORT, session_seconds=0.2)) as server,
        SmtpConnection.to(server.ports[0]) as line,
    ):
        assert (await line.say_until_refused("NOOP")).startswith("421 4.4.2")


# Limits


async def test_connections_are_limited_by_address_and_in_total() -> None:
    two = (Listener("127.0.0.1", 0), Listener("::1", 0))
    bounds = Bounds(connections_max=3, connections_per_address_max=2)
    async with (
        run_smtp_server(RecordingService(), bounds=bounds, listeners=two) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        first = await stack.enter_async_context(SmtpConnection.to(server.ports[0]))
        await stack.enter_async_context(SmtpConnection.to(server.ports[0]))
        refused = await stack.enter_async_context(SmtpConnection.to(server.ports[0], greeted=False))
        assert (await refused.rest()).startswith("421 4.7.0")
        other = await asyncio.open_connection("::1", server.ports[1])
        assert (await other[0].readline())[:3] == b"220"
        more = await asyncio.open_connection("::1", server.ports[1])
        assert (await more[0].readline())[:9] == b"421 4.7.0"
        assert (await first.say("QUIT"))[0][:3] == "221"
        assert await first.rest() == ""
        again = await stack.enter_async_context(SmtpConnection.to(server.ports[0]))
        assert (await again.say("NOOP"))[0][:3] == "250"
        for _, writer in (other, more):
            writer.close()


async def test_a_full_server_has_a_place_for_a_prefix_with_few_connections() -> None:
    bounds = Bounds(connections_max=4, connections_per_address_max=3)
    async with (
        run_smtp_server(RecordingService(), bounds=bounds) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        noisy = [
            await stack.enter_async_context(SmtpConnection.to(server.ports[0], source=f"127.0.1.{number}"))
            for number in range(1, 5)
        ]
        more = await stack.enter_async_context(SmtpConnection.to(server.ports[0], source="127.0.1.9", greeted=False))
        assert (await more.rest()).startswith("421 4.7.0")
        await noisy[0].say(*OPEN, "DATA")
        other = await stack.enter_async_context(SmtpConnection.to(server.ports[0], source="127.0.2.1"))
        assert await noisy[0].rest() == ""
        assert (await other.say("NOOP"))[0][:3] == "250"
        assert (await noisy[1].say("NOOP"))[0][:3] == "250"
        assert server.connection_count == 4
        assert server.held_bytes == 0


async def test_a_prefix_has_the_connections_of_four_addresses() -> None:
    bounds = Bounds(connections_per_address_max=1)
    async with (
        run_smtp_server(RecordingService(), bounds=bounds) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        for number in range(1, 5):
            await stack.enter_async_context(SmtpConnection.to(server.ports[0], source=f"127.0.1.{number}"))
        more = await stack.enter_async_context(SmtpConnection.to(server.ports[0], source="127.0.1.9", greeted=False))
        assert (await more.rest()).startswith("421 4.7.0")
        await stack.enter_async_context(SmtpConnection.to(server.ports[0], source="127.0.2.1"))


async def test_messages_share_a_memory_limit() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    bounds = Bounds(content_bytes_max=100_000)
    async with (
        run_smtp_server(service, bounds=bounds) as server,
        SmtpConnection.to(server.ports[0]) as line,
        SmtpConnection.to(server.ports[0]) as other,
    ):
        await line.say(*OPEN, "DATA")
        line.writer.write(b"x" * 80_000 + b"\r\n.\r\n")
        await other.say(*OPEN, "DATA")
        assert (await other.say(b"y" * 30_000 + b"\r\n.\r\n"))[0][:9] == "452 4.3.1"
        assert server.held_bytes == 80_005
        service.gate.set()
        assert (await line.reply())[:3] == "250"
        assert server.held_bytes == 0
        assert (await other.say(*OPEN[1:], "DATA", b"y" * 30_000 + b"\r\n.\r\n"))[-1][:3] == "250"


async def test_an_unterminated_line_of_48_mib_is_not_buffered() -> None:
    """In a command and in a message: peak memory hardly grows."""
    policy = replace(INBOUND, message_bytes_max=1 << 20)
    piece = b"x" * (1 << 20)
    async with run_smtp_server(RecordingService(policy)) as server:
        async with SmtpConnection.to(server.ports[0]) as line:
            line.writer.write(piece)
            await line.writer.drain()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(47):
                line.writer.write(piece)
                await line.writer.drain()
            assert (await line.reply())[:9] == "500 5.5.2"
            assert (await line.say("", "NOOP", replies=1))[0][:3] == "250"
        async with SmtpConnection.to(server.ports[0]) as line:
            await line.say(*OPEN, "DATA")
            for _ in range(48):
                line.writer.write(piece)
                await line.writer.drain()
            assert (await line.say(b"\r\n.\r\n"))[0][:9] == "552 5.3.4"
            assert (await line.say("NOOP"))[0][:3] == "250"
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 12 * 1024


# Clients that disconnect


async def test_a_complete_message_is_accepted_after_a_disconnect() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    async with run_smtp_server(service) as server:
        async with SmtpConnection.to(server.ports[0]) as line:
            await line.say(*OPEN, "DATA")
            line.writer.write(b"hi\r\n.\r\n")
            await eventually(lambda: service.begun == 1)
            line.writer.transport.abort()
        assert server.held_bytes > 0
        service.gate.set()
        await eventually(lambda: server.held_bytes == 0)
    assert service.contents == [b"hi\r\n"]


async def test_an_incomplete_message_is_not_accepted() -> None:
    service = RecordingService()
    async with run_smtp_server(service) as server:
        async with SmtpConnection.to(server.ports[0]) as line:
            await line.say(*OPEN, "DATA")
            line.writer.write(b"hi\r\n.\r")
        await eventually(lambda: server.connection_count == 0)
        assert server.held_bytes == 0
    assert service.accepted == []


async def test_a_half_closed_client_still_gets_the_reply() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    async with run_smtp_server(service) as server, SmtpConnection.to(server.ports[0]) as line:
        await line.say(*OPEN, "DATA")
        line.writer.write(b"hi\r\n.\r\n")
        line.writer.write_eof()
        await eventually(lambda: service.begun == 1)
        service.gate.set()
        assert (await line.rest()).startswith("250 2.0.0")


# Drain


async def test_an_idle_client_gets_421_at_a_drain() -> None:
    service = RecordingService()
    server = SmtpServer(service)
    await server.listen([Listener("127.0.0.1", 0)])
    port = server.ports[0]
    async with SmtpConnection.to(port) as line:
        await line.say(*OPEN)
        await asyncio.wait_for(server.drain(10 * HANG_SECONDS), HANG_SECONDS)
        assert (await line.rest()).startswith("421 4.3.2")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_drain_finishes_receiving_and_accepting() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    server = SmtpServer(service)
    await server.listen([Listener("127.0.0.1", 0)])
    async with SmtpConnection.to(server.ports[0]) as receiving, SmtpConnection.to(server.ports[0]) as accepting:
        await receiving.say(*OPEN, "DATA")
        await accepting.say(*OPEN, "DATA")
        accepting.writer.write(b"hi\r\n.\r\n")
        receiving.writer.write(b"slow")
        await eventually(lambda: service.begun == 1)
        draining = asyncio.create_task(server.drain(10 * HANG_SECONDS))
        await asyncio.sleep(0.05)  # the rest of the message comes while draining
        receiving.writer.write(b"ly\r\n.\r\nMAIL FROM:<>\r\n")
        await eventually(lambda: service.begun == 2)
        service.gate.set()
        for line in (accepting, receiving):
            replies = await line.rest()
            assert replies.startswith("250 2.0.0 queued")
            assert replies.splitlines()[1].startswith("421 4.3.2")
        await asyncio.wait_for(draining, HANG_SECONDS)
    assert sorted(service.contents) == [b"hi\r\n", b"slowly\r\n"]


@ON_STEADY_LOOP
async def test_a_drain_ends_in_time_and_confirms_no_message_it_cuts() -> None:
    service = RecordingService(gate=asyncio.Event())
    server = SmtpServer(service)
    await server.listen([Listener("127.0.0.1", 0)])
    async with SmtpConnection.to(server.ports[0]) as receiving, SmtpConnection.to(server.ports[0]) as accepting:
        await receiving.say(*OPEN, "DATA")
        await accepting.say(*OPEN, "DATA")
        accepting.writer.write(b"hi\r\n.\r\n")
        await eventually(lambda: service.begun == 1)
        await asyncio.wait_for(server.drain(0.4), HANG_SECONDS)
        assert (await receiving.rest()).startswith("421 4.3.2")
        assert await accepting.rest() == ""
    assert service.accepted == []
    assert server.held_bytes == 0


async def _drip(line: SmtpConnection, piece: bytes) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # uvloop raises the latter
        for _ in range(25):
            line.writer.write(piece)
            await asyncio.sleep(0.02)  # a slow client
