"""Good requests and sessions, cut, mixed and damaged, against a real server's three ports: HTTP, submission, inbound.

The result of a single input is unknown; but every answer must be valid, no fault may be logged, and afterwards there
must be as many messages as were accepted, in a consistent database.
"""

# ruff: noqa: E501 (a table of bytes reads better unbroken)

import asyncio
import contextlib
import io
import itertools
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.faults.http_probe import HttpProbe, Tally, _read, declared_statuses, is_parsers_own
from tests.support.bad_input import bad_input, spoiled
from tests.support.database_checks import database_faults
from tests.support.eventually import HANG_SECONDS
from tests.support.inbound_reports import bounce
from tests.support.server_process import ServerProcess
from tests.support.service import Service, Tenant
from tests.support.service_processes import HOSTNAME, RETURN_PATH_DOMAIN
from tests.support.smtp_listeners import FEEDBACK_ADDRESS, HOST, NAME, SmtpListeners, plain, raw_mail

# After this long without an answer, the server is taken to wait for more.
QUIET_SECONDS: Final = 0.3
CONCURRENT_MAX: Final = 8
CREDITS: Final = 1_000_000
# Well-formed, with an invalid signature.
RETURN_PATH: Final = f"bounces+{'a' * 48}@{RETURN_PATH_DOMAIN}"

_is_reply: Final = re.compile(r"[2-5][0-9]{2}[ -][!-~ ]*\Z").match
_queued: Final = re.compile(r"^250 2\.0\.0 queued as em_", re.MULTILINE).findall


@dataclass(slots=True)
class Bench:
    """A process with three ports, an account for each sender, and what was seen."""

    server: ServerProcess
    service: Service
    listeners: SmtpListeners
    by_json: Tenant
    by_http: Tenant
    by_smtp: Tenant
    loop: asyncio.AbstractEventLoop
    tally: Tally = field(default_factory=Tally)
    queued: int = 0
    # Sessions that were left while the server still waited, or perhaps worked.
    left: int = 0
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def count(self, table: str, tenant: Tenant) -> int:
        query = f"SELECT count(*) FROM {table} WHERE account_id = $1"
        found: int = self.loop.run_until_complete(self.service.value(query, tenant.id))
        return found


@pytest.fixture(scope="module")
def bench(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("spoiled")
    listeners = SmtpListeners.make(directory)
    settings = {
        **listeners.settings,
        "STREAM__SERVERS": "memory",
        "SERVICE__HOSTNAME": HOSTNAME,
        "INBOUND__RETURN_PATH_DOMAIN": RETURN_PATH_DOMAIN,
    }
    words = ("http", "submission", "inbound")
    server = ServerProcess(new_database(), directory / "server.log", settings, words=words)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(server.start())
        loop.run_until_complete(listeners.open(server, listeners.port, listeners.tls_port, listeners.inbound_port))
        made = loop.run_until_complete(prepared(server, listeners, loop))
        yield made
        loop.run_until_complete(made.service.close())
    finally:
        server.kill()
        loop.close()


async def prepared(server: ServerProcess, listeners: SmtpListeners, loop: asyncio.AbstractEventLoop) -> Bench:
    service = await server.open_client()
    by_json, by_http, by_smtp = [await service.account(credits=CREDITS) for _ in range(3)]
    return Bench(server, service, listeners, by_json, by_http, by_smtp, loop)


# JSON

JSON_PIECES: Final = [
    b"NaN", b"-Infinity", b"1e999", b"9" * 400, b'"\\ud800"', b"\\udfff", b"\\u0000", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"[" * 300, b"{",
    b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b'"to":"x@y.example",', b'"to":', b'"from":{}', b'"headers":{"Bcc":"a@b.example"},',
    b'"attachments":[{"filename":"a","content":"!"}],', b'"template":"t",', b'"variables":{"a":[]},', b"\r\n", b"{{a}}", b"=?utf-8?q?a=0D=0ABcc:_x@y?=",
]  # fmt: skip


@bad_input("Sending: POST /emails", 400)
@given(some.data())
def test_messages_that_are_hardly_json(bench: Bench, data: some.DataObject) -> None:
    full = bench.by_json.mail(
        cc=["Bob <bob@example.org>"],
        html="<p>é</p>",
        headers={"X-A": "b"},
        tags=["a", "list:news"],
        attachments=[{"filename": "a.txt", "content": "aGVsbG8=", "content_id": "a@b"}],
    )
    samples = [json.dumps(sample, ensure_ascii=False).encode() for sample in (bench.by_json.mail(), full)]
    body = data.draw(spoiled(samples, JSON_PIECES))
    headers: dict[str, str | bytes] = {
        "Authorization": bench.by_json.basic,
        "Content-Type": "application/json",
        "Idempotency-Key": f"spoiled {next(bench.numbers)}",
    }
    probe = HttpProbe(bench.server.port, bench.tally)
    try:
        probe.send("spoiled", "spoiled", "POST", "/emails", headers, body)
    finally:
        probe.close()


# Raw HTTP

HTTP_PIECES: Final = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b":", b" ", b"\t", b"\0", b"\xff", b"%00", b"%", b"/", b"?", b"#", b"HTTP/1.0", b"HTTP/2.0", b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"0\r\n\r\n",
    b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"Host: x\r\n", b"fffffffff\r\n", b"ff;a=b\r\n",
    b"Content-Type: text/plain\r\n", b"Content-Encoding: gzip\r\n", b" folded\r\n", b"X-" + b"a" * 300 + b": b\r\n", b"Authorization: Basic \r\n", b"PUT", b"../",
]  # fmt: skip


def requests(tenant: Tenant, number: int) -> list[bytes]:
    body = json.dumps(tenant.mail()).encode()
    head = f"Host: x\r\nAuthorization: {tenant.basic}\r\nIdempotency-Key: raw {number:09}\r\nContent-Type: application/json\r\n"
    post = b"POST /emails HTTP/1.1\r\n" + head.encode()
    get_request = b"GET /emails/em_00000000000000000000000000?a=b HTTP/1.1\r\n" + head.encode() + b"\r\n"
    whole = post + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return [
        whole,
        post + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
        get_request,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + whole,
        b"GET /v1/templates?limit=5&cursor=a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a.b.c\r\n\r\n",
        b"POST /unsubscribe/abc HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 26\r\n\r\nList-Unsubscribe=One-Click",
    ]  # fmt: skip


def said_to(port: int, sent: bytes) -> tuple[bytes, float]:
    """All that the server answers; then the client ends its side, and the server must close."""
    began = time.monotonic()
    received = b""
    with (
        socket.create_connection((HOST, port), timeout=HANG_SECONDS) as connection,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
    ):
        connection.sendall(sent)
        connection.settimeout(QUIET_SECONDS)
        with contextlib.suppress(TimeoutError):
            received = connection.recv(65_536)
        connection.settimeout(HANG_SECONDS)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65_536):
            received += piece
    return received, time.monotonic() - began


@bad_input("Raw HTTP", 30, each=CONCURRENT_MAX)
@given(some.data())
def test_requests_that_are_hardly_http(bench: Bench, data: some.DataObject) -> None:
    samples = requests(bench.by_http, next(bench.numbers))
    sent = data.draw(some.lists(spoiled(samples, HTTP_PIECES), min_size=CONCURRENT_MAX, max_size=CONCURRENT_MAX))
    with ThreadPoolExecutor(CONCURRENT_MAX) as threads:
        answers = list(threads.map(lambda sample: said_to(bench.server.port, sample), sent))
    for sample, (received, seconds) in zip(sent, answers, strict=True):
        reader = io.BytesIO(received)
        while (answer := _read(reader, "raw", is_head=False)) is not None:
            if answer.status < 200 or is_parsers_own(answer):
                continue
            assert answer.status in declared_statuses("", "") | {202, 402, 415, 431}, f"{answer.status}: {sample!r}"
            if answer.status >= 400 or "json" in answer.headers.get("Content-Type", ""):
                HttpProbe(bench.server.port, bench.tally).check("raw", repr(sample), "", "", answer, seconds)
            if answer.status == 202:
                bench.tally.accepted.add(answer.body["id"])


# SMTP

SMTP_PIECES: Final = [
    b"\r\n", b"\n", b"\r", b"\r\n.\r\n", b"\n.\n", b"\r.\r", b".", b"\0", b"\xff", b" ", b":", b"<", b">", b"@", b"MAIL FROM:<>\r\n", b"RCPT TO:<a@b.example>\r\n", b"DATA\r\n",
    b"BDAT 5\r\n", b"BDAT 0 LAST\r\n", b"BDAT 99999999999999999999\r\n", b"BDAT -1\r\n", b"RSET\r\n", b"NOOP\r\n", b"EHLO x\r\n", b"HELO \r\n", b"STARTTLS\r\n", b"VRFY a\r\n",
    b"AUTH LOGIN\r\n", b"*\r\n", b" SIZE=99999999999", b" BODY=8BITMIME", b" SMTPUTF8", b"x" * 1_100, b"\xc3\xa9", b"Bcc: b@x.example\r\n", b"From: a@b.example\r\n",
]  # fmt: skip


def sessions(tenant: Tenant) -> list[bytes]:
    content = raw_mail(tenant, "spoiled", "Bcc: secret@example.net", body=".one\r\n..two")
    open_ = f"MAIL FROM:<news@{tenant.domain}> BODY=8BITMIME\r\nRCPT TO:<ada@example.org>\r\nRCPT TO:<bob@example.org>\r\n".encode()
    dotted = (b"\r\n" + content).replace(b"\r\n.", b"\r\n..")[2:] + b".\r\n"
    chunks = b"BDAT 20\r\n" + content[:20] + b"BDAT %d LAST\r\n" % len(content[20:]) + content[20:]
    return [open_ + b"DATA\r\n" + dotted + b"NOOP\r\n", open_ + chunks, 2 * (open_ + b"DATA\r\n" + dotted)]


def reports() -> list[bytes]:
    raw = bounce("ada@example.org", to=RETURN_PATH)
    open_ = f"EHLO mx.example.org\r\nMAIL FROM:<>\r\nRCPT TO:<{FEEDBACK_ADDRESS}>\r\n".encode()
    forged = f"RCPT TO:<{RETURN_PATH}>\r\n".encode()
    return [open_ + forged + b"DATA\r\n" + raw + b"\r\n.\r\n", open_ + b"BDAT %d LAST\r\n" % len(raw) + raw]


def talked(connection: socket.socket, sent: bytes) -> tuple[str, bool]:
    """Everything that the server said, and whether it ended the session."""
    received = b""
    connection.settimeout(QUIET_SECONDS)
    try:
        connection.sendall(sent + b"\r\n.\r\nQUIT\r\n")
        while piece := connection.recv(65_536):
            received += piece
    except TimeoutError:
        return received.decode("latin-1"), False
    except OSError:
        pass
    return received.decode("latin-1"), True


def talked_to(port: int, sent: Sequence[bytes], tls: ssl.SSLContext | None = None) -> list[tuple[str, bool]]:
    """A session for each at once, with TLS from the start if there is a context."""

    def talk(sample: bytes) -> tuple[str, bool]:
        with socket.create_connection((HOST, port), timeout=HANG_SECONDS) as bare:
            if tls is None:
                return talked(bare, sample)
            with tls.wrap_socket(bare, server_hostname=NAME) as connection:
                return talked(connection, sample)

    with ThreadPoolExecutor(CONCURRENT_MAX) as threads:
        return list(threads.map(talk, sent))


def check_replies(said: str, sent: Sequence[bytes]) -> None:
    *lines, rest = said.split("\r\n")
    assert rest == ""
    for line in lines:
        assert _is_reply(line), f"{line!r} after {sent!r}"


@bad_input("SMTP submission", 20, each=CONCURRENT_MAX)
@given(some.data())
def test_sessions_that_are_hardly_smtp(bench: Bench, data: some.DataObject) -> None:
    sent = data.draw(
        some.lists(spoiled(sessions(bench.by_smtp), SMTP_PIECES), min_size=CONCURRENT_MAX, max_size=CONCURRENT_MAX)
    )
    opening = f"EHLO x\r\n{plain(bench.by_smtp.username, bench.by_smtp.password)}\r\n".encode()
    sessions_sent = [opening + sample for sample in sent]
    for said, is_over in talked_to(bench.listeners.tls_port, sessions_sent, bench.listeners.trusting()):
        check_replies(said, sent)
        bench.queued += len(_queued(said))
        bench.left += 0 if is_over else 2


@bad_input("SMTP submission", 8, each=CONCURRENT_MAX)
@given(some.data())
def test_nothing_is_accepted_in_cleartext(bench: Bench, data: some.DataObject) -> None:
    """What is sent before TLS, or right behind STARTTLS, is never a message."""
    samples = [b"EHLO x\r\nSTARTTLS\r\n" + sample for sample in sessions(bench.by_smtp)]
    sent = data.draw(some.lists(spoiled(samples, SMTP_PIECES), min_size=CONCURRENT_MAX, max_size=CONCURRENT_MAX))
    for said, _ in talked_to(bench.listeners.port, sent):
        # Behind a 220 the server speaks TLS, if anything.
        check_replies(re.split(r"(?<=\r\n)220 (?!.*ESMTP).*\r\n", said)[0], sent)
        assert not _queued(said)


@bad_input("Returned reports", 15, each=CONCURRENT_MAX)
@given(some.lists(spoiled(reports(), SMTP_PIECES), min_size=CONCURRENT_MAX, max_size=CONCURRENT_MAX))
def test_reports_that_are_hardly_smtp(bench: Bench, sent: list[bytes]) -> None:
    for said, _ in talked_to(bench.listeners.inbound_port, sent):
        check_replies(said, sent)


@pytest.mark.fuzz("Spoiled requests and sessions, afterwards")
def test_afterwards_there_is_what_was_accepted_and_nothing_was_a_fault(bench: Bench) -> None:
    """Runs last: it checks what all other tests did to the server."""
    assert bench.server.running.poll() is None
    by_json = bench.tally.accepted
    written = bench.count("messages", bench.by_json) + bench.count("messages", bench.by_http)
    # A request whose sender had gone may have been accepted without the sender's knowledge.
    assert bench.count("messages", bench.by_json) <= len(by_json) <= written
    assert bench.queued <= bench.count("messages", bench.by_smtp) <= bench.queued + bench.left
    for tenant in (bench.by_json, bench.by_http, bench.by_smtp):
        assert bench.count("suppressions", tenant) == 0
    assert asyncio.run(database_faults(bench.service.database_url)) == {}
    log = bench.server.log.read_text(errors="replace")
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4_000]
    assert not re.search(r"\b(fault|inbound_failed|step_failed)\b", log), bench.server.said()
    print(f"{len(by_json)} accepted over HTTP, {bench.queued} over SMTP; {dict(bench.tally.statuses)}")
