"""The SMTP load: smtp-source, which sends one file again and again over connections that it keeps."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench import sink
from bench.deliver_letter import RECIPIENT, SENDER, written
from bench.load import LoadError
from bench.relay import Process, Relay, ended_well, ends_with_parent


def program() -> str | None:
    return shutil.which("smtp-source") or shutil.which("smtp-source", path="/usr/sbin")


def missing() -> str | None:
    if program() is None or sink.program() is None:
        return "smtp-source or smtp-sink is missing: they come with Postfix (Debian, Ubuntu: `apt install postfix`)"
    return None


def relay(letter: Path, *, port: int, sessions: int, processes: Mapping[str, Process]) -> Relay:
    """A relay that takes its load over SMTP, on that port, and says nothing of when it is done."""

    def require_well() -> None:
        for name, process in processes.items():
            if process.poll() is not None:
                raise LoadError(f"{name} ended ({process.returncode}) before the sink had every mail")

    return Relay(
        families={name: process.pid for name, process in processes.items()},
        start_load=lambda mails: start(letter, port=port, mails=mails, sessions=sessions),
        end_load=ended_well,
        require_well=require_well,
        finish=lambda _: None,
    )


def write_letter(file: Path) -> None:
    file.write_bytes(written().replace(b"\r\n", b"\n"))  # smtp-source ends the lines itself


def start(file: Path, *, port: int, mails: int, sessions: int) -> Process:
    """It ends when every mail has been taken by whom it speaks to, or with an error."""
    return subprocess.Popen(
        [
            *ends_with_parent(),
            str(program()),
            "-d",  # the next mail over the same connection
            *("-s", str(min(sessions, mails))),
            *("-m", str(mails)),
            *("-M", "source.example"),
            *("-f", SENDER),
            *("-t", RECIPIENT),
            *("-F", str(file)),
            f"127.0.0.1:{port}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
