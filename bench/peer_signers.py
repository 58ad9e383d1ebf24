"""OpenDKIM and rspamd, which sign what Postfix relays: as its milters, each behind a socket in its own directory.

Their settings are in `bench/peers/`; what stands in braces there is filled in here. The key and the fields to sign are
as ours: RSA with 2048 bits, header and body in relaxed form, the same fields, each listed once more than it occurs.
"""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

import dkim as dkimpy
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from bench import message, peer_servers, smtp_sink
from bench.peer_servers import Peer
from bench.processes import UNPRIVILEGED_USER, BenchError, Process, installed, running, unprivileged
from posthouse.mail import dkim
from tests.support.eventually import eventually
from tests.support.smtp_receiver import SmtpReceiver

SELECTOR: Final = "bench"
SAMPLE_DOMAIN: Final = "sample.example"
SAMPLE_MESSAGES: Final = 5
SAMPLE_SECONDS_MAX: Final = 60.0

_PEERS: Final = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class Signer:
    """A running milter; `record` is what DNS would say of its key."""

    socket: Path
    process: Process
    record: bytes


@dataclass(frozen=True, slots=True)
class SigningRelay:
    postfix: Peer
    signer: Signer


def opendkim_missing() -> str | None:
    return _missing("opendkim", "OpenDKIM")


def rspamd_missing() -> str | None:
    return _missing("rspamd", "rspamd")


def opendkim_version() -> str:
    return f"OpenDKIM {_said('opendkim', '-V').split()[3].removeprefix('v')}"


def rspamd_version() -> str:
    return f"rspamd {_said('rspamd', '--version').split()[-1]}"


@contextmanager
def opendkim(workplace: Path) -> Iterator[Signer]:
    fields = {"fields": ",".join(dkim.OVERSIGNED)}
    with _running(workplace, "opendkim", fields, lambda place: ["-f", "-x", place / "opendkim.conf"]) as signer:
        yield signer


@contextmanager
def rspamd(workplace: Path) -> Iterator[Signer]:
    fields = {"fields": ":".join(f"(o){name.lower()}" for name in dkim.OVERSIGNED)}
    with _running(workplace, "rspamd", fields, lambda place: ["-f", "-c", place / "rspamd.conf"]) as signer:
        yield signer


@asynccontextmanager
async def signing_postfix(
    workplace: Path, sink_port: int, mail_file: Path, signs: Callable[[Path], AbstractContextManager[Signer]]
) -> AsyncIterator[SigningRelay]:
    """Postfix and its milter, once a sample of mail that they relayed was found to be signed."""
    async with SmtpReceiver() as receiver:
        with signs(workplace) as signer:
            sample = f"inline:{{ {{ {SAMPLE_DOMAIN} = smtp:[127.0.0.1]:{receiver.port} }} }}"
            more = {
                "smtpd_milters": f"unix:{signer.socket}",
                "milter_default_action": "tempfail",
                "transport_maps": sample,
            }
            with peer_servers.postfix_relay(workplace, sink_port, more) as postfix:
                await _require_signed_sample(receiver, postfix, signer, mail_file)
                yield SigningRelay(postfix, signer)


async def _require_signed_sample(receiver: SmtpReceiver, postfix: Peer, signer: Signer, mail_file: Path) -> None:
    source = smtp_sink.start_source(
        mail_file, port=postfix.port, messages=SAMPLE_MESSAGES, sessions=1, recipient=f"ada@{SAMPLE_DOMAIN}"
    )
    try:
        _, errors = await asyncio.to_thread(source.communicate, timeout=SAMPLE_SECONDS_MAX)
    finally:
        source.kill()
    if source.returncode != 0:
        raise BenchError(f"the sample was refused: {errors.decode(errors='replace')[-2000:]}")
    await eventually(lambda: len(receiver.accepted) == SAMPLE_MESSAGES, within=SAMPLE_SECONDS_MAX)
    name = f"{SELECTOR}._domainkey.{message.SENDER_DOMAIN}.".encode()
    for mail in (delivered.message for delivered in receiver.accepted):
        if not dkimpy.verify(mail, dnsfunc=lambda asked, **_: signer.record if asked == name else None):
            head = mail.partition(b"\r\n\r\n")[0].decode(errors="replace")
            raise BenchError(f"a message of the sample has no valid signature:\n{head}")


@contextmanager
def _running(
    workplace: Path, name: str, values: Mapping[str, str], words: Callable[[Path], list[str | Path]]
) -> Iterator[Signer]:
    directory = workplace / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    pair = dkim.new_key_pair()
    key_file, place = directory / "key.pem", directory / "socket"
    key_file.write_bytes(
        load_der_private_key(pair.private_der, None).private_bytes(
            Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
        )
    )
    places = {"directory": str(directory), "socket": str(place), "key_file": str(key_file)}
    names = {"domain": message.SENDER_DOMAIN, "selector": SELECTOR}
    for file in (_PEERS / name).iterdir():
        (directory / file.name).write_text(Template(file.read_text()).substitute(values, **places, **names))
    if os.geteuid() == 0:
        for owned in (directory, *directory.iterdir()):
            shutil.chown(owned, UNPRIVILEGED_USER)
    command = [*unprivileged(), str(installed(name)), *words(directory)]
    with running(command, directory / "log", lambda: _answers(place), ends_group=True) as process:
        yield Signer(place, process, dkim.record_text(pair.public).encode())


def _answers(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(place)) == 0


def _missing(program: str, name: str) -> str | None:
    if installed(program) is None:
        return f"{name} is missing: install it (Debian, Ubuntu: `apt install {program}`)"
    return peer_servers.postfix_missing()


def _said(program: str, word: str) -> str:
    found = subprocess.run([str(installed(program)), word], capture_output=True, text=True, check=True)
    return found.stdout.splitlines()[0]
