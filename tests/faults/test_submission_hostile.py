"""Clients that mean harm, against the real submission server: smuggling, endless lines, guessed passwords."""

import asyncio
import contextlib
import ssl
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.faults.lenient_smtp_server import LenientSmtpServer
from tests.faults.smuggling import END, Form, forms, smuggled
from tests.support.server_process import ServerProcess
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import SmtpListeners, plain, queued_id, raw_mail
from tests.support.smtp_service import SmtpConnection

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

LENIENT_ADDRESS: Final = "127.0.0.6"
LENIENT: Final = "lenient.example.net"
VICTIM: Final = f"victim@{LENIENT}"
# By DATA, in one chunk, and in two.
WAYS: Final = ("data", "bdat", "cut")

LINE_BYTES: Final = 48 * 1024 * 1024
# How much more memory the service may take than before: a message is kept until it is found to be too large.
GROWTH_BYTES_MAX: Final = 32 * 1024 * 1024

GUESSES: Final = 10_000
ATTACKER, ELSEWHERE = "127.0.0.7", "127.0.0.8"
ATTACKERS: Final = 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(
    listeners: SmtpListeners, new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    """Submission has a process to itself, so that its memory and its pace are its own."""
    url = await asyncio.to_thread(new_database)
    async with prepare_processes(
        url, tmp_path_factory.mktemp("hostile"), stream="memory", **listeners.settings
    ) as processes:
        processes.destination(LENIENT, LENIENT_ADDRESS)
        submission = processes.start("submission")
        await processes.start_http("dispatch", "delivery")
        await listeners.open(submission)
        yield processes


@pytest.fixture
def server(processes: ServiceProcesses) -> ServerProcess:
    (part,) = [part for part in processes.parts if part.words == ("submission",)]
    return part


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(processes: ServiceProcesses) -> Tenant:
    return await processes.service.account(credits=100_000)


# One transaction, one message


async def test_the_lenient_server_takes_what_it_should_not() -> None:
    """Otherwise the next test would prove nothing."""
    every = forms()
    async with LenientSmtpServer() as lenient:
        reader, writer = await asyncio.open_connection(lenient.host, lenient.port)
        for form in every:
            writer.write(b"MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\nSubject: one\r\n\r\nx")
            writer.write(form.end + smuggled(form, VICTIM) + b".\r\n")
        writer.write(b"QUIT\r\n")
        await reader.readuntil(b"221 bye\r\n")
        writer.close()
    fooled = {
        mail.content.split(b"smuggled by ")[1].split(b"\n")[0].decode()
        for mail in lenient.messages
        if mail.recipients == [VICTIM]
    }
    assert len(fooled) >= 60
    assert len(lenient.messages) == len(every) + len(fooled)


def _content(tenant: Tenant, form: Form, way: str) -> bytes:
    whole = raw_mail(tenant, f"{form.name} {way}", "MIME-Version: 1.0", body="x").removesuffix(b"\r\n")
    return whole + form.end + smuggled(form, VICTIM)


async def _submitted(line: SmtpConnection, tenant: Tenant, form: Form, way: str) -> tuple[str, list[str]]:
    """In one transaction: the reply to it, and everything else that was said."""
    recipient = f"{way}.{form.name}@{LENIENT}"
    await line.say("MAIL FROM:<a@example.com> BODY=8BITMIME", f"RCPT TO:<{recipient}>")
    content = _content(tenant, form, way)
    if way == "data":
        await line.say("DATA")
        written = content + b".\r\n"
    elif way == "bdat":
        written = f"BDAT {len(content)} LAST\r\n".encode() + content
    else:
        # The chunk ends within the form, between any two of its bytes.
        cut = content.index(form.end) + len(form.end) // 2
        first, rest = content[:cut], content[cut:]
        written = f"BDAT {cut}\r\n".encode() + first + f"BDAT {len(rest)} LAST\r\n".encode() + rest
    replies = await line.say(written, "NOOP", replies=3 if way == "cut" else 2)
    return replies[-2], [*replies[:-2], replies[-1]]


async def test_one_transaction_is_at_most_one_message_at_a_lenient_server(
    listeners: SmtpListeners, processes: ServiceProcesses, tenant: Tenant
) -> None:
    every = [(form, way) for form in forms() for way in WAYS if way != "data" or not form.is_true_end]
    answers: dict[str, str] = {}
    async with LenientSmtpServer(LENIENT_ADDRESS, processes.receiver.port) as lenient:
        async with listeners.session(tenant) as line:
            for form, way in every:
                reply, others = await _submitted(line, tenant, form, way)
                answers[f"{form.name} {way}"] = reply
                # The session is where it was: nothing of the content was taken for a command.
                assert [other[:4] for other in others] == ["250 "] * len(others), (form, way, others)
        accepted = {name: queued_id(reply) for name, reply in answers.items() if reply.startswith("250 ")}
        codes = Counter(reply[:9] for reply in answers.values())
        assert set(codes) == {"250 2.0.0", "550 5.6.0"}, codes
        await processes.wait_until_final(tenant, list(accepted.values()))
        messages = list(lenient.messages)
    print(f"{len(every)} transactions: {dict(codes)}; {len(messages)} arrived")
    assert len(every) >= 180
    # Correct line ends and a dot are ordinary text in a chunk; bare ones are refused, however they came.
    assert {"crlf-dot-crlf bdat", "crlf-dot-crlf cut", "two-dots data", "dot-space data"} <= set(accepted)
    assert not {f"{form.name} {way}" for form, way in every if _has_bare(form.end)} & set(accepted)
    rows = await processes.service.sql("SELECT subject, recipient_count FROM messages WHERE account_id = $1", tenant.id)
    assert sorted(tuple(row) for row in rows) == sorted((name, 1) for name in accepted)
    assert [mail for mail in messages if mail.recipients == [VICTIM] or "mallory" in mail.sender] == []
    assert sorted(mail.recipients[0] for mail in messages) == sorted(
        f"{name.split()[1]}.{name.split()[0]}@{LENIENT}" for name in accepted
    )


def _has_bare(end: bytes) -> bool:
    left = end.replace(b"\r\n", b"")
    return b"\r" in left or b"\n" in left


async def test_a_true_end_of_data_ends_the_message_and_the_next_transaction_follows(
    listeners: SmtpListeners, processes: ServiceProcesses, tenant: Tenant
) -> None:
    """From a client that may send: a second message with its own sender, which must be verified like any other."""
    async with listeners.session(tenant) as line:
        await line.say("MAIL FROM:<a@example.com>", "RCPT TO:<delivered@simulator.invalid>", "DATA")
        first = raw_mail(tenant, "first").removesuffix(b"\r\n") + END
        replies = await line.say(first + smuggled(Form("crlf", END), VICTIM) + b".\r\n", replies=5)
    assert [reply[:9] for reply in replies] == ["250 2.0.0", "250 2.1.0", "250 2.1.5", "354 End d", "550 5.7.1"]


# Lines that never end


def _peak_bytes(part: ServerProcess) -> int:
    for line in Path(f"/proc/{part.running.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no peak in /proc/<pid>/status")


def _forget_peak(part: ServerProcess) -> None:
    Path(f"/proc/{part.running.pid}/clear_refs").write_text("5")


async def _endless(line: SmtpConnection, beginning: bytes) -> str:
    """Bytes without a line end, as many as the server accepts; returns what it says then."""
    piece = b"x" * 65_536
    with contextlib.suppress(ConnectionError):
        line.writer.write(beginning)
        for _ in range(LINE_BYTES // len(piece)):
            line.writer.write(piece)
            await line.writer.drain()
        line.writer.write(b"\r\n.\r\nNOOP\r\n")
    return await line.reply()


async def test_a_line_of_48_mib_costs_no_memory(
    listeners: SmtpListeners, server: ServerProcess, tenant: Tenant
) -> None:
    before = server.resident_bytes()
    grown: dict[str, int] = {}
    replies: dict[str, str] = {}

    async def measure(name: str, line: SmtpConnection, beginning: bytes) -> None:
        _forget_peak(server)
        replies[name] = await _endless(line, beginning)
        grown[name] = _peak_bytes(server) - before

    # Before any login, with TLS and without; as a password; and as a message.
    async with listeners.line(is_secure=False) as line:
        await measure("command", line, b"EHLO ")
    async with listeners.line() as line:
        await line.say("EHLO client.example")
        await measure("password", line, b"AUTH PLAIN ")
    for name, beginning in (("data", b"DATA\r\nSubject: x\r\n\r\n"), ("chunk", f"BDAT {LINE_BYTES} LAST\r\n".encode())):
        async with listeners.session(tenant) as line:
            await line.say("MAIL FROM:<>", "RCPT TO:<delivered@simulator.invalid>")
            if name == "data":
                await line.say(b"DATA\r\n", replies=1)
                beginning = b"Subject: x\r\n\r\n"
            await measure(name, line, beginning)
    print(
        f"{before >> 20} MiB before; more at the most: { {name: f'{size >> 20} MiB' for name, size in grown.items()} }"
    )
    assert {name: reply[:9] for name, reply in replies.items()} == {
        "command": "500 5.5.2",
        "password": "500 5.5.2",
        "data": "552 5.3.4",
        "chunk": "552 5.3.4",
    }
    assert max(grown.values()) < GROWTH_BYTES_MAX
    async with listeners.session(tenant) as line:
        (reply,) = await line.say("NOOP")
        assert reply.startswith("250 ")


# Guessed passwords


class Attack:
    """From one address, over many connections, each saying one wrong password after the other without a pause."""

    def __init__(self, listeners: SmtpListeners, username: str) -> None:
        self._doors = listeners
        self._username = username
        self.said = 0
        self.answers: Counter[str] = Counter()
        self._connections = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(ATTACKERS):
                group.create_task(self._guess(number))

    async def _guess(self, number: int) -> None:
        while self.said < GUESSES:
            try:
                async with self._doors.line(source=ATTACKER) as line:
                    self._connections += 1
                    await line.say("EHLO attacker.example")
                    await self._guess_on(line, number)
            except (OSError, ssl.SSLError, AssertionError):
                await asyncio.sleep(0.05)  # a client that comes again

    async def _guess_on(self, line: SmtpConnection, number: int) -> None:
        while self.said < GUESSES:
            self.said += 1
            line.writer.write(f"{plain(self._username, f'guess {number} {self.said}')}\r\n".encode())
            answer = await line.reader.readline()
            self.answers[answer[:3].decode() or "none"] += 1
            if answer[:3] not in (b"454", b"535"):
                return


async def _login_seconds(listeners: SmtpListeners, tenant: Tenant, source: str) -> float:
    began = time.monotonic()
    async with listeners.session(tenant, source=source) as line:
        (reply,) = await line.say("NOOP")
        assert reply.startswith("250 ")
    return time.monotonic() - began


async def test_ten_thousand_wrong_passwords_slow_down_only_the_guesser(
    listeners: SmtpListeners, processes: ServiceProcesses, tenant: Tenant
) -> None:
    # A client at the attacker's address that has authenticated there before.
    neighbour = await processes.service.account()
    await _login_seconds(listeners, neighbour, ATTACKER)
    attack = Attack(listeners, tenant.username)
    seconds: list[float] = []
    started = time.monotonic()
    guessing = asyncio.create_task(attack.run())
    while attack.said < GUESSES:
        # The very user whose password is guessed, with the right one, from elsewhere.
        seconds.append(await _login_seconds(listeners, tenant, ELSEWHERE))
        seconds.append(await _login_seconds(listeners, neighbour, ATTACKER))
        await asyncio.sleep(0.05)  # a login at a time, no flood
    lasted = time.monotonic() - started
    guessing.cancel()
    await asyncio.gather(guessing, return_exceptions=True)
    judged = attack.answers["535"] + attack.answers["421"]
    print(
        f"{attack.said} guesses in {lasted:.1f} s: {dict(attack.answers)}, so {judged / lasted:.1f} judged a second; "
        f"{len(seconds)} right logins in {statistics.median(seconds):.3f} s, the slowest {max(seconds):.3f} s"
    )
    assert len(seconds) >= 20
    assert judged < 200, "the attacker can continue all day"
