"""Postfix as a relay or a submission server: its own directories and port on the loopback, ended with its parent."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Final

from bench.ground import BooksError
from bench.load import LoadError
from bench.reception import Reception, Terms, greets
from bench.relay import Process, answers, ends_with_parent
from tools.private_postgres import free_port

START_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 20.0

_CONFIGURATION: Final = Path(__file__).parent / "peers" / "postfix"
_SUBMISSION: Final = Path(__file__).parent / "peers" / "postfix-submission"
# As main.cf says.
_REALM: Final = "relay.example"


def missing() -> str | None:
    if shutil.which("postfix", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        return "Postfix is missing: install it (Debian, Ubuntu: `apt install postfix`)"
    if os.geteuid() != 0:
        return "Postfix must be started by root: run this as root, or leave it out with --only"
    return None


def missing_for_submission() -> str | None:
    if shutil.which("saslpasswd2", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        return "saslpasswd2 is missing: install it (Debian, Ubuntu: `apt install sasl2-bin libsasl2-modules`)"
    return missing()


def version() -> str:
    return _postconf("-d", "mail_version")


@contextmanager
def running(workplace: Path, sink_port: int, *, is_tuned: bool) -> Iterator[tuple[int, Process]]:
    """Its port, and the process whose family it is."""
    directory = workplace / "postfix"
    port = free_port()
    files = {"main.cf": ["main.cf", "tuned.cf"] if is_tuned else ["main.cf"], "master.cf": ["master.cf"]}
    _lay(directory, _CONFIGURATION, files, {"port": str(port), "sink_port": str(sink_port)})
    with _started(directory, lambda: answers(port)) as master:
        yield port, master


@contextmanager
def taking(workplace: Path, terms: Terms) -> Iterator[Reception]:
    """As a submission server."""
    directory = workplace / "postfix"
    port = free_port()
    files = {"main.cf": ["main.cf"], "master.cf": ["master.cf"], "sasl/smtpd.conf": ["smtpd.conf"]}
    filled = {"port": str(port), "key_file": str(terms.key_file), "certificate_file": str(terms.certificate_file)}
    _lay(directory, _SUBMISSION, files, filled)
    for caller in terms.callers:
        subprocess.run(
            ["saslpasswd2", "-p", "-c", "-f", directory / "sasl" / "passwords", "-u", _REALM, caller.username],
            input=caller.password.encode(),
            check=True,
        )
    shutil.chown(directory / "sasl" / "passwords", "postfix")
    with _started(directory, lambda: greets(port)) as master:
        yield Reception(
            port=port,
            families={"Postfix": [master.pid]},
            require_kept=lambda replies: _require_kept(directory / "queue" / "hold", replies),
        )


def _require_kept(hold: Path, replies: Sequence[str]) -> None:
    """Its queue's files are named as the answers name them."""
    kept = {file.name for file in hold.iterdir()}
    if len(kept) != len(replies) or kept != {answer.rpartition(" ")[2] for answer in replies}:
        raise BooksError(f"Postfix took {len(replies):,} mails, and its queue has {len(kept):,}")


@contextmanager
def _started(directory: Path, answers_now: Callable[[], bool]) -> Iterator[Process]:
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
        while not answers_now():
            if master.poll() is not None or time.monotonic() > deadline:
                raise LoadError(f"Postfix did not start: {(directory / 'log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield master
    finally:
        if master.poll() is None:
            master.send_signal(signal.SIGTERM)
        try:
            master.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(master.pid, signal.SIGKILL)
            master.wait()


def _lay(directory: Path, configuration: Path, files: Mapping[str, Sequence[str]], filled: Mapping[str, str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name in ("queue", "data", "sasl"):
        (directory / name).mkdir()
    shutil.chown(directory / "data", "postfix")
    for file, parts in files.items():
        template = Template("".join((configuration / part).read_text() for part in parts))
        (directory / file).write_text(template.substitute(filled, directory=directory))
    # Makes what the queue directory holds, each with its owner.
    made = subprocess.run(["postfix", "-c", str(directory), "check"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise LoadError(f"Postfix refuses its configuration: {made.stderr[-2000:]}")


def _postconf(*words: str) -> str:
    said = subprocess.run(["postconf", "-h", *words], capture_output=True, text=True, check=True)
    return said.stdout.strip()
