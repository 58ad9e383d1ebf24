"""Haraka as a relay: installed by npm into a directory of its own, its queue there too."""

import json
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

# How smtp.ini says: no workers, but one process that does it all. That was faster on two cores than two workers.
ALONE: Final = 0
INSTALL_SECONDS_MAX: Final = 600
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 10.0

_PEER: Final = Path(__file__).parent / "peers" / "haraka"


def missing() -> str | None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "npm is missing, which installs Haraka: install it (Debian, Ubuntu: `apt install npm`)"
    return None


def install(directory: Path) -> None:
    """Has Haraka there, with what it needs; nothing is done when it is there already."""
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / "node_modules" / "Haraka").exists():
        return
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
    shutil.rmtree(directory, ignore_errors=True)
    port = free_port()
    _lay(directory, port, sink_port, workers)
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
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LoadError(f"Haraka did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield port, process
    finally:
        # Its workers are of its process group; it waits for connections to end, which need not be.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _lay(directory: Path, port: int, sink_port: int, workers: int) -> None:
    (directory / "config").mkdir(parents=True)
    (directory / "queue").mkdir()
    for file in (_PEER / "config").iterdir():
        filled = Template(file.read_text()).substitute(port=port, sink_port=sink_port, workers=workers)
        (directory / "config" / file.name).write_text(filled)
