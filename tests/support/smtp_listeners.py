"""The service's SMTP ports and certificate, and clients of them: smtplib, curl, swaks, and raw bytes."""

import asyncio
import base64
import contextlib
import re
import smtplib
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from posthouse.rules.ids import AccountId
from tests.support.certificates import Authority
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.server_process import ServerProcess
from tests.support.service import Tenant
from tests.support.service_processes import RETURN_PATH_DOMAIN, ServiceProcesses
from tests.support.smtp_service import SmtpConnection
from tools.private_postgres import free_port

HOST: Final = "127.0.0.1"
# In the certificate.
NAME: Final = "localhost"
FEEDBACK_ADDRESS: Final = f"complaints@{RETURN_PATH_DOMAIN}"

_queued: Final = re.compile(r"250[ -]2\.0\.0 queued as (em_[a-z0-9]+)").search


@dataclass(frozen=True, slots=True)
class SmtpListeners:
    """`port` offers STARTTLS, `tls_port` has TLS from the start."""

    authority: Authority
    port: int
    tls_port: int
    inbound_port: int

    @classmethod
    def make(cls, directory: Path) -> Self:
        return cls(Authority.make(directory, NAME, HOST), free_port(), free_port(), free_port())

    @property
    def settings(self) -> dict[str, Any]:
        """For the service's processes."""
        return {
            "SMTP__TLS_CERTIFICATE_FILE": str(self.authority.certificate_file),
            "SMTP__TLS_KEY_FILE": str(self.authority.key_file),
            "SUBMISSION__PORT": str(self.port),
            "SUBMISSION__TLS_PORT": str(self.tls_port),
            "INBOUND__PORT": str(self.inbound_port),
            "INBOUND__FEEDBACK_ADDRESS": FEEDBACK_ADDRESS,
        }

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority.authority_file)

    async def open(self, part: ServerProcess, *ports: int) -> None:
        """Waits until the process listens at these ports; by default at both submission ports."""

        async def listens(port: int) -> bool:
            assert part.running.poll() is None, f"{part.words} ended:\n{part.said()}"
            return await is_listening(port)

        for port in ports or (self.port, self.tls_port):
            await eventually(partial(listens, port), or_say=part.said)

    # A client that writes raw bytes

    def line(
        self, *, is_secure: bool = True, source: str = HOST, port: int | None = None
    ) -> AbstractAsyncContextManager[SmtpConnection]:
        """A connection after its greeting."""
        if is_secure:
            return SmtpConnection.to(port or self.tls_port, source=source, tls=self.trusting(), server_name=NAME)
        return SmtpConnection.to(port or self.port, source=source)

    @contextlib.asynccontextmanager
    async def session(self, tenant: Tenant, *, source: str = HOST) -> AsyncIterator[SmtpConnection]:
        """An authenticated connection."""
        async with self.line(source=source) as line:
            replies = await line.say("EHLO client.example", plain(tenant.username, tenant.password))
            if not replies[1]:
                raise ConnectionResetError("the server closed the connection")
            assert replies[1].startswith("235 "), replies
            yield line

    # Common clients

    def by_smtplib(
        self, tenant: Tenant, raw: bytes, to: Sequence[str], *, sender: str | None = None, at_once: bool = False
    ) -> str:
        """TLS `at_once` or by STARTTLS; the reply to the message, or the first refusal."""
        context = self.trusting()
        client = (
            smtplib.SMTP_SSL(NAME, self.tls_port, timeout=HANG_SECONDS, context=context)
            if at_once
            else smtplib.SMTP(NAME, self.port, timeout=HANG_SECONDS)
        )
        with client:
            if not at_once:
                client.starttls(context=context)
            client.login(tenant.username, tenant.password)
            code, text = client.mail(f"news@{tenant.domain}" if sender is None else sender, ["BODY=8BITMIME"])
            for recipient in to:
                assert code == 250, text
                code, text = client.rcpt(recipient)
            if code == 250:
                code, text = client.data(raw)
            return f"{code} {text.decode()}"

    def by_curl(self, tenant: Tenant, raw: bytes, to: Sequence[str], *, at_once: bool = False) -> str:
        """The whole dialogue."""
        file = self.authority.directory / "curl.eml"
        file.write_bytes(raw)
        scheme, port = ("smtps", self.tls_port) if at_once else ("smtp", self.port)
        command = ["curl", "-sSv", "--url", f"{scheme}://{NAME}:{port}/client.example", "--ssl-reqd"]
        command += ["--cacert", str(self.authority.authority_file), "--user", f"{tenant.username}:{tenant.password}"]
        command += ["--mail-from", f"news@{tenant.domain}", "--upload-file", str(file)]
        for recipient in to:
            command += ["--mail-rcpt", recipient]
        return _output_of(command)

    def by_swaks(self, tenant: Tenant, to: Sequence[str], *options: str) -> str:
        """The whole dialogue."""
        command = ["swaks", "--server", NAME, "--ehlo", "client.example", "--tls-verify"]
        command += ["--tls-ca-path", str(self.authority.authority_file)]
        command += ["--from", f"news@{tenant.domain}", "--to", ",".join(to)]
        command += ["--auth-user", tenant.username, "--auth-password", tenant.password, "--suppress-data", *options]
        return _output_of(command)


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def plain(username: str, password: str) -> str:
    return "AUTH PLAIN " + base64.b64encode(f"\0{username}\0{password}".encode()).decode()


def queued_id(reply: str) -> str:
    """The message id in the reply to an accepted message."""
    found = _queued(reply)
    assert found, reply
    return found[1]


def raw_mail(
    tenant: Tenant, subject: str, *fields: str, to: str = "ada@example.org", body: str = "Good morning."
) -> bytes:
    """A message without a date, an id or a version, as careless programs write it."""
    head = [f"From: News <news@{tenant.domain}>", f"To: {to}", f"Subject: {subject}", *fields]
    return "\r\n".join([*head, "", body, ""]).encode()


def dotted(content: bytes) -> bytes:
    """Dot-stuffed for DATA, with the final dot on its own line."""
    ended = content if not content or content.endswith(b"\r\n") else content + b"\r\n"
    return (b"\r\n" + ended).replace(b"\r\n.", b"\r\n..")[2:] + b".\r\n"


async def submit(line: SmtpConnection, content: bytes, to: Sequence[str], *, sender: str) -> str:
    """The reply to the message, or the first refusal."""
    replies = await line.say(f"MAIL FROM:<{sender}>", *(f"RCPT TO:<{recipient}>" for recipient in to), "DATA")
    if not replies[-1].startswith("354"):
        return next((reply for reply in replies if not reply.startswith("250 ")), replies[-1])
    (reply,) = await line.say(dotted(content), replies=1)
    return reply


async def keys_published_by(processes: ServiceProcesses, tenant: Tenant) -> dict[bytes, bytes]:
    """The DNS records that the service asks the domain's owner to publish, by name."""
    views = await processes.service.operator.domains.all(AccountId(tenant.id))
    return {f"{record.name}.".encode(): record.value.encode() for view in views for record in view.records.all}


def _output_of(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG_SECONDS, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")
