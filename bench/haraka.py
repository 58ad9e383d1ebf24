"""Haraka as a relay or a submission server: installed by npm into a directory of its own, its queue there too."""

import json
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
from bench.harness import Run
from bench.load import LoadError
from bench.reception import Reception, Terms, greets
from bench.relay import Process, answers, ends_with_parent
from tools.private_postgres import free_port

# How smtp.ini says: no workers, but one process that does it all. That was faster on two cores than two workers.
ALONE: Final = 0
INSTALL_SECONDS_MAX: Final = 600
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 10.0

_PEER: Final = Path(__file__).parent / "peers" / "haraka"
_SUBMISSION: Final = Path(__file__).parent / "peers" / "haraka-submission"


def missing() -> str | None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "npm is missing, which installs Haraka: install it (Debian, Ubuntu: `apt install npm`)"
    return None


def installed(run: Run) -> Path:
    """The directory that Haraka is in: the one of --haraka, or a temporary one; installed there if it is not yet."""
    directory: Path = run.options.haraka.resolve() if run.options.haraka else run.workplace / "installed-haraka"
    if not (directory / "node_modules" / "Haraka").exists():
        with run.status("installing Haraka"):
            _install(directory)
    return directory


def _install(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(_PEER / "package.json", directory)
    done = subprocess.run(
        ["npm", "install", "--omit=dev", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS_MAX,
    )
    if done.returncode != 0:
        raise LoadError(f"npm could not install Haraka: {done.stderr[-2000:]}")


def version(installed: Path) -> str:
    package = json.loads((installed / "node_modules" / "Haraka" / "package.json").read_text())
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{package['version']} (Node.js {node.removeprefix('v')})"


@contextmanager
def running(workplace: Path, installed: Path, sink_port: int, *, workers: int = ALONE) -> Iterator[tuple[int, Process]]:
    """Its port, and the process whose family it is."""
    directory = workplace / "haraka"
    port = free_port()
    _lay(directory, _PEER, {"port": str(port), "sink_port": str(sink_port), "workers": str(workers)})
    with _started(directory, installed, lambda: answers(port)) as process:
        yield port, process


@contextmanager
def taking(workplace: Path, installed: Path, terms: Terms, *, workers: int) -> Iterator[Reception]:
    """As a submission server."""
    directory = workplace / "haraka"
    port = free_port()
    users = "\n".join(f"{caller.username}={caller.password}" for caller in terms.callers)
    _lay(directory, _SUBMISSION, {"port": str(port), "workers": str(workers), "users": users})
    shutil.copy(terms.key_file, directory / "config" / "key.pem")
    shutil.copy(terms.certificate_file, directory / "config" / "certificate.pem")
    with _started(directory, installed, lambda: greets(port)) as process:
        yield Reception(
            port=port,
            families={"Haraka": [process.pid]},
            require_kept=lambda replies: _require_kept(directory / "queue", replies),
        )


def _require_kept(queue: Path, replies: Sequence[str]) -> None:
    """Its answers don't name the files of its queue, so they are counted, but for those that have only begun."""
    kept = sum(not file.name.startswith((".", "__tmp__")) and file.stat().st_size > 0 for file in queue.iterdir())
    if kept != len(replies) or len(set(replies)) != len(replies):
        raise BooksError(f"Haraka took {len(replies):,} mails, and its queue has {kept:,}")


@contextmanager
def _started(directory: Path, installed: Path, answers_now: Callable[[], bool]) -> Iterator[Process]:
    program = installed / "node_modules" / "Haraka" / "bin" / "haraka"
    log = directory / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*ends_with_parent(), "node", program, "-c", directory],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not answers_now():
            if process.poll() is not None or time.monotonic() > deadline:
                raise LoadError(f"Haraka did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield process
    finally:
        # Its workers are of its process group; it waits for connections to end, which need not be.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _lay(directory: Path, peer: Path, filled: Mapping[str, str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "config").mkdir(parents=True)
    (directory / "queue").mkdir()
    for file in (peer / "config").iterdir():
        (directory / "config" / file.name).write_text(Template(file.read_text()).substitute(filled))
