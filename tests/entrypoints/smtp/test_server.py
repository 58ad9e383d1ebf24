"""The SMTP server over real sockets: deadlines, bounds, faults, and how it ends."""

import asyncio
import contextlib
import resource
import smtplib
import socket
from collections.abc import Callable
from dataclasses import replace

import aiosmtplib
import pytest

from posthouse.entrypoints.smtp.connection import WAITING_BYTES_MAX, Bounds, ServerDeadlines
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from tests.support.smtp_service import INBOUND, RecordingService, SmtpConnection, run_smtp_server

HASTY = ServerDeadlines(look_seconds=0.02, parting_seconds=0.02)
OPEN = ("EHLO client.example.com", "MAIL FROM:<ada@example.com>", "RCPT TO:<bob@example.com>")


async def test_mail_comes_in_by_aiosmtplib() -> None:
    service = RecordingService()
    async with (
        run_smtp_server(service) as server,
        aiosmtplib.SMTP(hostname="127.0.0.1", port=server.ports[0], start_tls=False, timeout=5) as client,
    ):
        await client.sendmail("ada@example.com", ["bob@example.com"], "Subject: x\r\n\r\n.dot\r\n")
        with pytest.raises(aiosmtplib.SMTPRecipientsRefused):
            await client.sendmail("ada@example.com", ["unknown@example.com"], "x")
        await client.sendmail("", ["bob@example.com"], "y")
    assert service.contents == [b"Subject: x\r\n\r\n.dot\r\n", b"y\r\n"]


async def test_mail_comes_in_by_smtplib() -> None:
    service = RecordingService()

    def send(port: int) -> None:
        with smtplib.SMTP("127.0.0.1", port, timeout=5) as client:
            client.sendmail("ada@example.com", ["bob@example.com"], "Subject: x\n\n.dot\n", ["BODY=8BITMIME"])

    async with run_smtp_server(service) as server:
        await asyncio.to_thread(send, server.ports[0])
    assert service.contents == [b"Subject: x\r\n\r\n.dot\r\n"]


async def test_a_large_message_comes_in_whole() -> None:
    service = RecordingService()
    content = (b"." + b"x" * 76 + b"\r\n") * 100_000
    async with run_smtp_server(service) as server, SmtpConnection.to(server.ports[0]) as line:
        await line.say(*OPEN, "DATA")
        line.writer.write(content.replace(b"\r\n.", b"\r\n..").replace(b".", b"..", 1) + b".\r\n")
        assert (await line.reply())[:3] == "250"
        assert server.held_bytes == 0
    assert service.contents == [content]


async def test_a_fault_shows_nothing_and_is_not_final() -> None:
    service = RecordingService(fault=RuntimeError("secret of the house"))
    async with run_smtp_server(service) as server, SmtpConnection.to(server.ports[0]) as line:
        replies = await line.say(*OPEN, "DATA", b"hi\r\n.\r\n")
        assert replies[-1].startswith("451 4.3.0")
        assert "secret" not in replies[-1]
        service.fault = None
        assert (await line.say(*OPEN[1:], "DATA", b"hi\r\n.\r\n"))[-1][:3] == "250"


async def test_others_are_served_while_a_message_is_being_taken() -> None:
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


async def test_no_more_is_read_than_fits_while_a_message_is_being_taken() -> None:
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


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    deadlines = replace(HASTY, reading_seconds=0.1)
    async with run_smtp_server(RecordingService(), deadlines=deadlines) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(("127.0.0.1", server.ports[0]))
            await asyncio.sleep(0.05)
            # Messages begin the count of commands anew, so that replies never end by themselves.
            mail = b"EHLO x\r\n" + b"EHLO x\r\n" * 1_000 + b"MAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\n.\r\n"
            loop = asyncio.get_running_loop()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    while server.connection_count:
                        await asyncio.wait_for(loop.sock_sendall(client, mail), 0.3)
            await _until(lambda: server.connection_count == 0)


# Deadlines


async def test_an_idle_client_is_told_and_left() -> None:
    async with (
        run_smtp_server(RecordingService(), deadlines=replace(HASTY, command_seconds=0.15)) as server,
        SmtpConnection.to(server.ports[0]) as line,
    ):
        await line.say(*OPEN)
        assert (await line.rest()).startswith("421 4.4.2")


async def test_a_byte_now_and_then_keeps_nothing_open() -> None:
    async with (
        run_smtp_server(RecordingService(), deadlines=replace(HASTY, command_seconds=0.2)) as server,
        SmtpConnection.to(server.ports[0]) as line,
    ):
        await line.say("EHLO x")
        drip = asyncio.create_task(_drip(line, b"N"))
        assert (await line.rest()).startswith("421 4.4.2")
        await drip


async def test_a_message_that_hardly_comes_is_not_waited_for() -> None:
    service = RecordingService()
    async with run_smtp_server(service, deadlines=replace(HASTY, content_seconds=0.2)) as server:
        async with SmtpConnection.to(server.ports[0]) as line:
            await line.say(*OPEN, "DATA")
            drip = asyncio.create_task(_drip(line, b"x\r\n"))
            assert (await line.rest()).startswith("421 4.4.2")
            await drip
        assert server.held_bytes == 0
    assert service.taken == []


async def test_a_message_that_keeps_coming_is_waited_for() -> None:
    service = RecordingService()
    deadlines = replace(HASTY, content_seconds=0.1, content_bytes_per_second=10_000, command_seconds=0.1)
    async with run_smtp_server(service, deadlines=deadlines) as server, SmtpConnection.to(server.ports[0]) as line:
        await line.say(*OPEN, "DATA")
        for _ in range(20):
            line.writer.write(b"x" * 998 + b"\r\n")
            await asyncio.sleep(0.025)
        assert (await line.say(b".\r\n"))[0][:3] == "250"


async def test_no_session_lasts_for_ever() -> None:
    async with (
        run_smtp_server(RecordingService(), deadlines=replace(HASTY, session_seconds=0.2)) as server,
        SmtpConnection.to(server.ports[0]) as line,
    ):
        said = ""
        while said[:3] in ("", "250"):
            (said,) = await line.say("NOOP")
            await asyncio.sleep(0.02)
        assert said.startswith("421 4.4.2")


# Bounds


async def test_connections_are_counted_by_address_and_in_all() -> None:
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


async def test_messages_share_one_bound_of_memory() -> None:
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


async def test_an_unterminated_line_of_48_mib_is_not_kept() -> None:
    """In a command and in a message: the memory in use at its peak grows by little."""
    terms = replace(INBOUND, message_bytes_max=1 << 20)
    piece = b"x" * (1 << 20)
    async with run_smtp_server(RecordingService(terms)) as server:
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


# Clients that leave


async def test_a_message_that_is_complete_is_taken_though_its_client_has_gone() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    async with run_smtp_server(service) as server:
        async with SmtpConnection.to(server.ports[0]) as line:
            await line.say(*OPEN, "DATA")
            line.writer.write(b"hi\r\n.\r\n")
            await _until(lambda: service.begun == 1)
            line.writer.transport.abort()
        assert server.held_bytes > 0
        service.gate.set()
        await _until(lambda: server.held_bytes == 0)
    assert service.contents == [b"hi\r\n"]


async def test_a_message_without_its_end_is_not_taken() -> None:
    service = RecordingService()
    async with run_smtp_server(service) as server:
        async with SmtpConnection.to(server.ports[0]) as line:
            await line.say(*OPEN, "DATA")
            line.writer.write(b"hi\r\n.\r")
        await _until(lambda: server.connection_count == 0)
        assert server.held_bytes == 0
    assert service.taken == []


async def test_a_client_that_only_writes_still_hears_the_answer() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    async with run_smtp_server(service) as server, SmtpConnection.to(server.ports[0]) as line:
        await line.say(*OPEN, "DATA")
        line.writer.write(b"hi\r\n.\r\n")
        line.writer.write_eof()
        await asyncio.sleep(0.05)
        service.gate.set()
        assert (await line.rest()).startswith("250 2.0.0")


# The end


async def test_an_idle_client_is_told_that_the_server_closes() -> None:
    service = RecordingService()
    server = SmtpServer(service)
    await server.listen([Listener("127.0.0.1", 0)])
    port = server.ports[0]
    async with SmtpConnection.to(port) as line:
        await line.say(*OPEN)
        await asyncio.wait_for(server.drain(5), 1)
        assert (await line.rest()).startswith("421 4.3.2")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_message_on_its_way_is_received_and_taken_before_the_end() -> None:
    service = RecordingService(gate=asyncio.Event())
    assert service.gate is not None
    server = SmtpServer(service)
    await server.listen([Listener("127.0.0.1", 0)])
    async with SmtpConnection.to(server.ports[0]) as receiving, SmtpConnection.to(server.ports[0]) as taking:
        await receiving.say(*OPEN, "DATA")
        await taking.say(*OPEN, "DATA")
        taking.writer.write(b"hi\r\n.\r\n")
        receiving.writer.write(b"slow")
        await _until(lambda: service.begun == 1)
        draining = asyncio.create_task(server.drain(5))
        await asyncio.sleep(0.05)
        receiving.writer.write(b"ly\r\n.\r\nMAIL FROM:<>\r\n")
        await _until(lambda: service.begun == 2)
        service.gate.set()
        for line in (taking, receiving):
            heard = await line.rest()
            assert heard.startswith("250 2.0.0 queued")
            assert heard.splitlines()[1].startswith("421 4.3.2")
        await asyncio.wait_for(draining, 1)
    assert sorted(service.contents) == [b"hi\r\n", b"slowly\r\n"]


async def test_a_drain_ends_in_time_and_a_cut_message_was_neither_taken_nor_confirmed() -> None:
    service = RecordingService(gate=asyncio.Event())
    server = SmtpServer(service)
    await server.listen([Listener("127.0.0.1", 0)])
    async with SmtpConnection.to(server.ports[0]) as receiving, SmtpConnection.to(server.ports[0]) as taking:
        await receiving.say(*OPEN, "DATA")
        await taking.say(*OPEN, "DATA")
        taking.writer.write(b"hi\r\n.\r\n")
        await _until(lambda: service.begun == 1)
        await asyncio.wait_for(server.drain(0.4), 1)
        assert (await receiving.rest()).startswith("421 4.3.2")
        assert await taking.rest() == ""
    assert service.taken == []
    assert server.held_bytes == 0


async def _drip(line: SmtpConnection, piece: bytes) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # as uvloop has it
        for _ in range(25):
            line.writer.write(piece)
            await asyncio.sleep(0.02)


async def _until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():  # noqa: ASYNC110 (what is awaited has no event)
            await asyncio.sleep(0.01)
