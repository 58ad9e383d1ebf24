"""Postfix as a relay: its own directories and its own port on the loopback, ended with its parent."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Final

from bench.load import LoadError
from bench.relay import Process, answers, ends_with_parent
from tools.private_postgres import free_port

START_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 20.0

_CONFIGURATION: Final = Path(__file__).parent / "peers" / "postfix"


def missing() -> str | None:
    if shutil.which("postfix", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        return "Postfix is missing: install it (Debian, Ubuntu: `apt install postfix`)"
    if os.geteuid() != 0:
        return "Postfix must be started by root: run this as root, or leave it out with --only"
    return None


def version() -> str:
    return _postconf("-d", "mail_version")


@contextmanager
def running(workplace: Path, sink_port: int, *, is_tuned: bool) -> Iterator[tuple[int, Process]]:
    """Its port, and the process whose family it is."""
    directory = workplace / "postfix"
    shutil.rmtree(directory, ignore_errors=True)
    port = free_port()
    _lay(directory, port, sink_port, is_tuned)
    # SIGTERM to the master ends all of them: it passes it on to its process group, so it must lead one.
    with (directory / "log").open("wb") as log:
        master = subprocess.Popen(
            [*ends_with_parent(), f"{_postconf('daemon_directory')}/master", "-c", str(directory), "-s"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not answers(port):
            if master.poll() is not None or time.monotonic() > deadline:
                raise LoadError(f"Postfix did not start: {(directory / 'log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield port, master
    finally:
        if master.poll() is None:
            master.send_signal(signal.SIGTERM)
        try:
            master.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(master.pid, signal.SIGKILL)
            master.wait()


def _lay(directory: Path, port: int, sink_port: int, is_tuned: bool) -> None:
    directory.mkdir()
    for name in ("queue", "data"):
        (directory / name).mkdir()
    shutil.chown(directory / "data", "postfix")
    files = {"main.cf": ["main.cf", "tuned.cf"] if is_tuned else ["main.cf"], "master.cf": ["master.cf"]}
    for file, parts in files.items():
        template = Template("".join((_CONFIGURATION / part).read_text() for part in parts))
        (directory / file).write_text(template.substitute(directory=directory, port=port, sink_port=sink_port))
    # Makes what the queue directory holds, each with its owner.
    made = subprocess.run(["postfix", "-c", str(directory), "check"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise LoadError(f"Postfix refuses its configuration: {made.stderr[-2000:]}")


def _postconf(*words: str) -> str:
    said = subprocess.run(["postconf", "-h", *words], capture_output=True, text=True, check=True)
    return said.stdout.strip()
