"""A submission server at work, and what one measurement of it came to."""

import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import deliver_letter
from bench.ground import Caller
from bench.load import LoadError
from bench.processes import busy_seconds, cpu_seconds
from bench.relay import Process, ends_with_parent

# What a server still does after its last answer.
SETTLE_SECONDS: Final = 0.3
LOAD_SECONDS_MAX: Final = 300

_SUBMITTER: Final = Path(__file__).parent / "submitter.py"


@dataclass(frozen=True, slots=True)
class Terms:
    """What all servers have in common: one certificate, and who may send."""

    certificate_file: Path
    key_file: Path
    callers: tuple[Caller, ...]


@dataclass(slots=True)
class Reception:
    """`families` are the processes, by id, whose time is the server's, with all their descendants'.

    `require_kept` raises unless exactly the mails that it answered so are in its books or its queue.
    """

    port: int
    families: Mapping[str, Sequence[int]]
    require_kept: Callable[[Sequence[str]], None]
    answers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Taken:
    """Processor time is in microseconds a mail; the milliseconds are from a mail's last dot to its 250."""

    mails: int
    seconds: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: Mapping[str, float]
    load_cpu_us: float
    # Of the processors' time meanwhile: what programs had that are no part of this.
    others_share: float
    protocol: str

    @property
    def per_second(self) -> float:
        return self.mails / self.seconds

    @property
    def cpu_us(self) -> float:
        return sum(self.server_cpu_us.values())


@dataclass(frozen=True, slots=True)
class Load:
    """The letters, as files, each with who sends it; and the processors on which it runs."""

    workplace: Path
    letters: tuple[Mapping[str, str], ...]
    processors: Sequence[int]

    @classmethod
    def written(cls, workplace: Path, callers: Sequence[Caller], processors: Sequence[int]) -> "Load":
        letters = []
        for caller in callers:
            file = workplace / f"letter-{caller.number}"
            file.write_bytes(letter(caller))
            letters.append(
                {
                    "username": caller.username,
                    "password": caller.password,
                    "sender": f"orders@{caller.domain}",
                    "recipient": deliver_letter.RECIPIENT,
                    "file": str(file),
                }
            )
        return cls(workplace, tuple(letters), processors)

    def start(self, port: int, *, mails: int, mails_per_session: int, sessions: int) -> Process:
        """Without mails: sessions that have authenticated and stay until a line comes in."""
        plan = self.workplace / "plan.json"
        plan.write_text(
            json.dumps(
                {
                    "port": port,
                    "mails": mails,
                    "mails_per_session": mails_per_session,
                    "sessions": sessions,
                    "letters": self.letters,
                    "processors": self.processors,
                }
            )
        )
        return subprocess.Popen(
            [*ends_with_parent(), sys.executable, str(_SUBMITTER), str(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def letter(caller: Caller) -> bytes:
    """The letter of the delivery benchmark, as that account's own program would send it."""
    own = deliver_letter.SENDER.partition("@")[2]
    return deliver_letter.written().replace(own.encode(), caller.domain.encode())


def measured(reception: Reception, load: Load, *, mails: int, mails_per_session: int, sessions: int) -> Taken:
    """From the load's first connection to the last 250; raises unless every mail got one, and is kept."""
    before, busy_before, started_at = _reading(reception), busy_seconds(), time.monotonic()
    process = load.start(reception.port, mails=mails, mails_per_session=mails_per_session, sessions=sessions)
    try:
        said, complained = process.communicate(timeout=LOAD_SECONDS_MAX)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise LoadError(f"the load failed: {complained.decode(errors='replace')[-2000:]}")
    found: dict[str, Any] = json.loads(said)
    time.sleep(SETTLE_SECONDS)
    passed = {name: late - before[name] for name, late in _reading(reception).items()}
    others_seconds = busy_seconds() - busy_before - sum(passed.values())
    passed_us = {name: seconds / mails * 1e6 for name, seconds in passed.items()}
    reception.answers += found["answers"]
    reception.require_kept(reception.answers)
    return Taken(
        mails=mails,
        seconds=found["seconds"],
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        server_cpu_us={name: passed_us[name] for name in reception.families},
        load_cpu_us=passed_us[_LOAD],
        others_share=max(0.0, others_seconds / (time.monotonic() - started_at) / (os.cpu_count() or 1)),
        protocol=found["protocol"],
    )


def greets(port: int) -> bool:
    """Whether an SMTP server greets there, within TLS from the first byte on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
            context.wrap_socket(plain) as connection,
        ):
            greeting = connection.recv(512)
            connection.sendall(b"QUIT\r\n")
            return greeting.startswith(b"220")
    except OSError:
        return False


_LOAD: Final = "the load"


def _reading(reception: Reception) -> dict[str, float]:
    """Seconds of processor time so far, by name."""
    # The load is the only child that starts and is waited for between two readings.
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **{name: sum(cpu_seconds(pid) for pid in pids) for name, pids in reception.families.items()},
        _LOAD: children.ru_utime + children.ru_stime,
    }
