"""Postfix and Haraka, which ours is compared with: as relays and as submission servers.

Each has its own directories and a port on the loopback, and ends with its parent. Their settings are in `bench/peers/`;
what stands in braces there is filled in here.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from bench.dataset import Sender
from bench.harness import Run
from bench.processes import BenchError, Process, installed, running
from tools.private_postgres import free_port

INSTALL_SECONDS_MAX: Final = 600

_PEERS: Final = Path(__file__).parent / "peers"
# As main.cf says.
_REALM: Final = "relay.example"


@dataclass(frozen=True, slots=True)
class Peer:
    port: int
    process: Process
    directory: Path


@dataclass(frozen=True, slots=True)
class SubmissionTerms:
    """What all submission servers have in common: a certificate, and the accounts that may send."""

    certificate_file: Path
    key_file: Path
    senders: tuple[Sender, ...]


def greets(port: int, *, is_secure: bool) -> bool:
    """Whether an SMTP server greets there, within TLS from the first byte on where it is secure."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            connection = context.wrap_socket(plain) if is_secure else plain
            greeting = connection.recv(512)
            connection.sendall(b"QUIT\r\n")
            return greeting.startswith(b"220")
    except OSError:
        return False


# Postfix


def postfix_missing() -> str | None:
    if installed("postfix") is None:
        return "Postfix is missing: install it (Debian, Ubuntu: `apt install postfix`)"
    if os.geteuid() != 0:
        return "Postfix must be started by root: run this as root, or leave it out with --only"
    return None


def postfix_submission_missing() -> str | None:
    if installed("saslpasswd2") is None:
        return "saslpasswd2 is missing: install it (Debian, Ubuntu: `apt install sasl2-bin libsasl2-modules`)"
    return postfix_missing()


def postfix_version() -> str:
    return f"Postfix {_postconf('-d', 'mail_version')}"


@contextmanager
def postfix_relay(workplace: Path, sink_port: int, more: Mapping[str, str] | None = None) -> Iterator[Peer]:
    """`more` are further settings of main.cf."""
    directory, port = workplace / "postfix", free_port()
    lines = "\n".join(f"{name} = {value}" for name, value in (more or {}).items())
    _configure_postfix(directory, "postfix", {"port": str(port), "sink_port": str(sink_port), "more": lines})
    with _running_postfix(directory, port, is_secure=False) as peer:
        yield peer


@contextmanager
def postfix_to_providers(workplace: Path, servers: Mapping[str, str]) -> Iterator[Peer]:
    """`servers` are the host and port of each destination."""
    directory, port = workplace / "postfix", free_port()
    transports = ", ".join(f"{{ {domain} = smtp:{server} }}" for domain, server in servers.items())
    _configure_postfix(directory, "postfix-providers", {"port": str(port), "transports": transports})
    with _running_postfix(directory, port, is_secure=False) as peer:
        yield peer


@contextmanager
def postfix_submission(workplace: Path, terms: SubmissionTerms) -> Iterator[Peer]:
    directory, port = workplace / "postfix", free_port()
    values = {"port": str(port), "key_file": str(terms.key_file), "certificate_file": str(terms.certificate_file)}
    _configure_postfix(directory, "postfix-submission", values)
    passwords = directory / "sasl" / "passwords"
    for sender in terms.senders:
        subprocess.run(
            ["saslpasswd2", "-p", "-c", "-f", passwords, "-u", _REALM, sender.username],
            input=sender.password.encode(),
            check=True,
        )
    shutil.chown(passwords, "postfix")
    with _running_postfix(directory, port, is_secure=True) as peer:
        yield peer


def require_in_postfix(peer: Peer, replies: Sequence[str]) -> None:
    """Its queue's files are named as the replies name them."""
    stored = {file.name for file in (peer.directory / "queue" / "hold").iterdir()}
    if len(stored) != len(replies) or stored != {reply.rpartition(" ")[2] for reply in replies}:
        raise BenchError(f"Postfix accepted {len(replies):,} messages, and its queue has {len(stored):,}")


@contextmanager
def _running_postfix(directory: Path, port: int, *, is_secure: bool) -> Iterator[Peer]:
    command = [f"{_postconf('daemon_directory')}/master", "-c", str(directory), "-s"]
    # SIGTERM to the master ends all of them: it passes it on to its process group, so it must lead one.
    with running(command, directory / "log", lambda: greets(port, is_secure=is_secure), ends_group=True) as master:
        yield Peer(port, master, directory)


def _configure_postfix(directory: Path, peer: str, values: Mapping[str, str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    for name in ("queue", "data", "sasl"):
        (directory / name).mkdir(parents=True)
    shutil.chown(directory / "data", "postfix")
    for file in (_PEERS / peer).iterdir():
        place = directory / ("sasl" if file.name == "smtpd.conf" else "") / file.name
        place.write_text(Template(file.read_text()).substitute(values, directory=directory))
    # Makes what the queue directory holds, each with its owner.
    made = subprocess.run(["postfix", "-c", str(directory), "check"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise BenchError(f"Postfix refuses its configuration: {made.stderr[-2000:]}")


def _postconf(*words: str) -> str:
    return subprocess.run(["postconf", "-h", *words], capture_output=True, text=True, check=True).stdout.strip()


# Haraka


def haraka_missing() -> str | None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "npm is missing, which installs Haraka: install it (Debian, Ubuntu: `apt install npm`)"
    return None


def install_haraka(run: Run) -> Path:
    """Its directory: that of --haraka, or a temporary one; it is installed there if it is not yet."""
    directory: Path = run.options.haraka.resolve() if run.options.haraka else run.workplace / "installed-haraka"
    if (directory / "node_modules" / "Haraka").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(_PEERS / "haraka" / "package.json", directory)
    with run.status("installing Haraka"):
        done = subprocess.run(
            ["npm", "install", "--omit=dev", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS_MAX,
        )
    if done.returncode != 0:
        raise BenchError(f"npm could not install Haraka: {done.stderr[-2000:]}")
    return directory


def haraka_version(installation: Path) -> str:
    package = json.loads((installation / "node_modules" / "Haraka" / "package.json").read_text())
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return f"Haraka {package['version']} (Node.js {node.removeprefix('v')})"


@contextmanager
def haraka_relay(workplace: Path, installation: Path, sink_port: int) -> Iterator[Peer]:
    directory, port = workplace / "haraka", free_port()
    _configure_haraka(directory, "haraka", {"port": str(port), "sink_port": str(sink_port)})
    with _running_haraka(directory, installation, port, is_secure=False) as peer:
        yield peer


@contextmanager
def haraka_submission(workplace: Path, installation: Path, terms: SubmissionTerms) -> Iterator[Peer]:
    directory, port = workplace / "haraka", free_port()
    users = "\n".join(f"{sender.username}={sender.password}" for sender in terms.senders)
    _configure_haraka(directory, "haraka-submission", {"port": str(port), "users": users})
    shutil.copy(terms.key_file, directory / "config" / "key.pem")
    shutil.copy(terms.certificate_file, directory / "config" / "certificate.pem")
    with _running_haraka(directory, installation, port, is_secure=True) as peer:
        yield peer


def require_in_haraka(peer: Peer, replies: Sequence[str]) -> None:
    """Its replies don't name the files of its queue, so they are counted, except for those that have only begun."""
    files = (peer.directory / "queue").iterdir()
    stored = sum(not file.name.startswith((".", "__tmp__")) and file.stat().st_size > 0 for file in files)
    if stored != len(replies) or len(set(replies)) != len(replies):
        raise BenchError(f"Haraka accepted {len(replies):,} messages, and its queue has {stored:,}")


@contextmanager
def _running_haraka(directory: Path, installation: Path, port: int, *, is_secure: bool) -> Iterator[Peer]:
    command: list[str | Path] = ["node", installation / "node_modules" / "Haraka" / "bin" / "haraka", "-c", directory]
    # Its workers are of its process group; it waits for connections to end, which need not be.
    with running(command, directory / "log", lambda: greets(port, is_secure=is_secure), ends_group=True) as process:
        yield Peer(port, process, directory)


def _configure_haraka(directory: Path, peer: str, values: Mapping[str, str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    for name in ("config", "queue"):
        (directory / name).mkdir(parents=True)
    for file in (_PEERS / peer / "config").iterdir():
        (directory / "config" / file.name).write_text(Template(file.read_text()).substitute(values))
