"""A customer's Postfix that relays all mail through the service, on the loopback, with its own directories."""

import asyncio
import os
import shutil
import signal
import smtplib
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.service import Tenant
from tests.support.smtp_listeners import HOST, NAME, SmtpListeners, is_listening
from tools.private_postgres import free_port

STOP_SECONDS_MAX: Final = 20.0

# It verifies our certificate, waits a second between attempts, and sends to up to 500 recipients at once.
_MAIN: Final = """\
compatibility_level = 3.6
queue_directory = {directory}/queue
data_directory = {directory}/data
maillog_file = {directory}/maillog
maillog_file_prefixes = {directory}
myhostname = mx.{domain}
myorigin = {domain}
mydestination =
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
local_transport = error:no local mailboxes
alias_maps =
alias_database =
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_peername_lookup = no
relayhost = [{name}]:{port}
smtp_host_lookup = native
smtp_tls_security_level = secure
smtp_tls_CAfile = {authority}
smtp_sasl_auth_enable = yes
smtp_sasl_password_maps = texthash:{directory}/passwords
smtp_sasl_security_options = noanonymous
smtp_sasl_tls_security_options = noanonymous
smtp_destination_recipient_limit = 500
minimal_backoff_time = 1s
maximal_backoff_time = 1s
queue_run_delay = 1s
"""
_MASTER: Final = """\
127.0.0.1:{port} inet n - n - - smtpd
postlog   unix-dgram n  -       n       -       1       postlogd
cleanup   unix  n       -       n       -       0       cleanup
qmgr      unix  n       -       n       1       1       qmgr
rewrite   unix  -       -       n       -       -       trivial-rewrite
bounce    unix  -       -       n       -       0       bounce
defer     unix  -       -       n       -       0       bounce
trace     unix  -       -       n       -       0       bounce
verify    unix  -       -       n       -       1       verify
flush     unix  n       -       n       1000?   0       flush
proxymap  unix  -       -       n       -       -       proxymap
tlsmgr    unix  -       -       n       1000?   1       tlsmgr
smtp      unix  -       -       n       -       -       smtp
error     unix  -       -       n       -       -       error
retry     unix  -       -       n       -       -       error
anvil     unix  -       -       n       -       1       anvil
scache    unix  -       -       n       -       1       scache
"""


@dataclass(frozen=True, slots=True)
class SmartHost:
    directory: Path
    port: int

    def send(self, raw: bytes, to: Sequence[str], sender: str) -> None:
        with smtplib.SMTP(HOST, self.port, timeout=HANG_SECONDS) as client:
            assert client.sendmail(sender, list(to), raw) == {}

    def said(self) -> str:
        log = self.directory / "maillog"
        return log.read_text(errors="replace") if log.exists() else ""

    def waiting(self) -> list[str]:
        """What is still in its queue."""
        queue = self.directory / "queue"
        return [
            file.name
            for part in ("incoming", "active", "deferred")
            for file in (queue / part).rglob("*")
            if file.is_file()
        ]


@asynccontextmanager
async def smart_host(listeners: SmtpListeners, tenant: Tenant) -> AsyncIterator[SmartHost]:
    host = SmartHost(Path(tempfile.mkdtemp(prefix="posthouse-smart-host-")), free_port())
    master: subprocess.Popen[bytes] | None = None
    try:
        master = await asyncio.to_thread(_started, host, listeners, tenant)
        await eventually(lambda: is_listening(host.port), or_say=host.said)
        yield host
    finally:
        if master is not None:
            await asyncio.to_thread(_end, master)
        shutil.rmtree(host.directory, ignore_errors=True)


def _started(host: SmartHost, listeners: SmtpListeners, tenant: Tenant) -> "subprocess.Popen[bytes]":
    _configure(host, listeners, tenant)
    return subprocess.Popen(
        [f"{_daemons()}/master", "-c", str(host.directory), "-s"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it passes SIGTERM on to its process group
    )


def _configure(host: SmartHost, listeners: SmtpListeners, tenant: Tenant) -> None:
    directory = host.directory
    directory.chmod(0o755)  # the postfix user must be able to enter
    for name in ("queue", "data"):
        (directory / name).mkdir()
    shutil.chown(directory / "data", "postfix")
    authority = directory / "authority.pem"
    shutil.copy(listeners.authority.authority_file, authority)
    chosen = {"directory": directory, "domain": tenant.domain, "name": NAME, "authority": authority}
    (directory / "main.cf").write_text(_MAIN.format(port=listeners.port, **chosen))
    (directory / "master.cf").write_text(_MASTER.format(port=host.port))
    (directory / "passwords").write_text(f"[{NAME}]:{listeners.port} {tenant.username}:{tenant.password}\n")
    # Creates the queue directories with their owners.
    made = subprocess.run(["postfix", "-c", str(directory), "check"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def _daemons() -> str:
    said = subprocess.run(["postconf", "-h", "daemon_directory"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def _end(master: "subprocess.Popen[bytes]") -> None:
    if master.poll() is None:
        master.send_signal(signal.SIGTERM)
    try:
        master.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(master.pid, signal.SIGKILL)
        master.wait()
