"""The scripted receiver itself, and sessions with independent peers: aiosmtplib as oracle, Postfix's own sink."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiosmtplib
import pytest

from posthouse.rules.outcome import Stage
from posthouse.wire.smtp import SmtpAccepted, SmtpFailure, SmtpSession
from posthouse.wire.tls import TlsPolicy, TlsUse
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.smtp_receiver import SmtpReceiver
from tests.wire.smtp_sessions import (
    CONTENT,
    LARGE,
    MESSAGE,
    SENDER,
    deliver,
    failure_of,
    open_to,
    session_with,
)

ROOT = Path(__file__).parents[2]

# The receiver itself


async def test_behaviour_is_set_by_domain_or_listening_address() -> None:
    async with SmtpReceiver(
        behaviours={"127.0.0.2": "554-connect", "127.0.0.3": "no-pipelining--450-mail"}
    ) as receiver:
        async with session_with(receiver) as session:
            (result,) = await deliver(session, "someone@552-dot.example.com")
            assert failure_of(result) == (Stage.DOT, 552, False)
        for address, expected in (("127.0.0.2", (Stage.GREETING, 554)), ("127.0.0.3", (Stage.MAIL, 450))):
            opened = await open_to(receiver.port, host=address)
            result = opened if isinstance(opened, SmtpFailure) else (await deliver(opened))[0]
            assert failure_of(result)[:2] == expected
            if isinstance(opened, SmtpSession):
                opened.quit()


def test_an_unknown_behaviour_raises() -> None:
    with pytest.raises(ValueError, match="unknown behaviour 'no-pipelinning'"):
        SmtpReceiver("no-pipelinning")


async def test_each_accepted_recipient_is_a_line_in_the_log_before_the_reply(tmp_path: Path) -> None:
    log = tmp_path / "accepted.jsonl"
    async with SmtpReceiver(log=log, logs_messages=True) as receiver, session_with(receiver) as session:
        await deliver(session, "a@example.com", "550-rcpt@example.com", "b@example.com")
        lines = lines_of(log)
        assert [line["recipient"] for line in lines] == ["a@example.com", "b@example.com"]
        assert {line["transaction"] for line in lines} == {1}
        assert base64.b64decode(lines[0]["message"]) == CONTENT
        assert lines[0]["sha256"] == hashlib.sha256(CONTENT).hexdigest()
        assert lines[0]["headers"].startswith("From: a@sender.example.com\r\nSubject:")
        assert (lines[0]["sender"], lines[0]["tls"]) == (SENDER, None)
        assert abs(lines[0]["time"] - time.time()) < 60
        (result,) = await deliver(session, "lose-dot@example.com")
        assert failure_of(result) == (Stage.DOT, None, True)
        assert [line["recipient"] for line in lines_of(log)][2:] == ["lose-dot@example.com"]


async def test_the_receiver_runs_as_a_process(tmp_path: Path) -> None:
    log, authority = tmp_path / "accepted.jsonl", tmp_path / "authority.pem"
    arguments = [
        "--log",
        str(log),
        "--behaviour",
        "starttls",
        "--authority",
        str(authority),
        "--at",
        "127.0.0.2=421-connect",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.smtp_receiver", *arguments, cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int((await asyncio.wait_for(process.stdout.readline(), HANG_SECONDS)).split()[-1])
        tls = TlsPolicy(TlsUse.REQUIRED_VERIFIED, ssl.create_default_context(cafile=authority))
        session = await open_to(port, tls=tls)
        assert isinstance(session, SmtpSession)
        assert isinstance((await deliver(session))[0], SmtpAccepted)
        session.quit()
        assert [line["tls"] for line in lines_of(log)] == ["TLSv1.3"]
    finally:
        process.terminate()
        assert await process.wait() == 0


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


# Independent peers


@pytest.mark.parametrize("words", ["", "no-pipelining", "502-ehlo"])
async def test_the_receiver_accepts_the_same_from_aiosmtplib(words: str) -> None:
    recipients = ["a@example.com", "b+1@example.com"]
    async with SmtpReceiver(words) as receiver:
        client = aiosmtplib.SMTP(
            hostname="127.0.0.1",
            port=receiver.port,
            local_hostname="sender.example.com",
            start_tls=False,
            use_tls=False,
        )
        async with client:
            errors, _ = await client.sendmail(SENDER, recipients, CONTENT)
            assert errors == {}
        async with session_with(receiver) as session:
            results = await deliver(session, *recipients)
            assert all(isinstance(result, SmtpAccepted) for result in results)
    theirs, ours = receiver.accepted[:2], receiver.accepted[2:]
    assert [replace(received, transaction=0) for received in ours] == [
        replace(received, transaction=0) for received in theirs
    ]


@pytest.mark.parametrize("code", [450, 550])
async def test_the_receiver_refuses_aiosmtplib_alike(code: int) -> None:
    async with SmtpReceiver() as receiver:
        client = aiosmtplib.SMTP(hostname="127.0.0.1", port=receiver.port, start_tls=False, use_tls=False)
        async with client:
            with pytest.raises(aiosmtplib.SMTPRecipientsRefused) as refused:
                await client.sendmail(SENDER, [f"{code}-rcpt@example.com"], CONTENT)
        async with session_with(receiver) as session:
            (result,) = await deliver(session, f"{code}-rcpt@example.com")
    assert failure_of(result) == (Stage.RCPT, refused.value.recipients[0].code, False)


SMTP_SINK = shutil.which("smtp-sink", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
needs_smtp_sink = pytest.mark.skipif(SMTP_SINK is None, reason="smtp-sink is missing: install Postfix")


@contextlib.contextmanager
def smtp_sink(directory: Path, *options: str) -> Iterator[int]:
    """Postfix's test server; it writes each message to a file in the directory."""
    assert SMTP_SINK is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory.chmod(0o777)
    as_nobody = ["-u", "nobody"] if os.geteuid() == 0 else []
    command = [SMTP_SINK, *as_nobody, *options, "-d", "mail.%M.", f"127.0.0.1:{port}", "10"]
    process = subprocess.Popen(command, cwd=directory)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)  # until the port answers
        yield port
    finally:
        process.terminate()
        process.wait(5)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """pytest's own temporary directories are below one that other users may not enter."""
    directory = Path(f"/tmp/posthouse-sink-{os.getpid()}-{time.monotonic_ns()}")
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


def contents_of(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.iterdir()]


@needs_smtp_sink
@pytest.mark.parametrize("options", [(), ("-p",), ("-e",)], ids=["pipelining", "no pipelining", "no ESMTP"])
async def test_postfix_reads_the_messages_as_they_were_given(open_directory: Path, options: Sequence[str]) -> None:
    with smtp_sink(open_directory, *options) as port:
        session = await open_to(port)
        assert isinstance(session, SmtpSession)
        assert ("PIPELINING" in session.extensions) == (options == ())
        for message in (MESSAGE, LARGE, MESSAGE):
            results = await deliver(session, "a@example.com", "b@example.com", message=message)
            assert all(isinstance(result, SmtpAccepted) for result in results)
        session.quit()
        messages = await eventually(
            lambda: sorted(contents_of(open_directory), key=len), lambda messages: len(messages) == 3
        )
    for mail, message in zip(messages, (MESSAGE, MESSAGE, LARGE), strict=True):
        assert mail.rstrip(b"\n").endswith(message.content.replace(b"\r\n", b"\n").rstrip(b"\n"))
        assert mail.count(b"X-Rcpt-Args: <") == 2


@needs_smtp_sink
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-f", "rcpt"), (Stage.RCPT, 500, False)),
        (("-r", "rcpt"), (Stage.RCPT, 450, False)),
        (("-f", "mail"), (Stage.MAIL, 500, False)),
        (("-f", "data"), (Stage.DATA, 500, False)),
        (("-r", "."), (Stage.DOT, 450, False)),
        (("-Q", "rcpt"), (Stage.RCPT, 421, False)),
        (("-q", "data"), (Stage.DATA, None, False)),
        (("-q", "."), (Stage.DOT, None, True)),
    ],
)
@pytest.mark.parametrize("pipelining", [(), ("-p",)], ids=["pipelining", "no pipelining"])
async def test_postfix_refuses_and_closes(
    open_directory: Path,
    options: Sequence[str],
    expected: tuple[Stage, int | None, bool],
    pipelining: Sequence[str],
) -> None:
    with smtp_sink(open_directory, *options, *pipelining) as port:
        session = await open_to(port)
        assert isinstance(session, SmtpSession)
        (result,) = await deliver(session)
        assert failure_of(result) == expected
        session.quit()
