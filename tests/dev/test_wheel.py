"""The built wheel in an empty environment: three commands from nothing to a message that can be read (`make test-dev`).

PATH has neither PostgreSQL nor NATS, and `posthouse dev` uses the PostgreSQL of the package. The time is that of the
second and third command, after the download and installation.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.dev.dev_command import DevCommand, snippet
from tests.support.eventually import eventually

pytestmark = pytest.mark.nightly

ROOT: Final = Path(__file__).parents[2]
SECONDS_MAX: Final = 60.0
# What the snippets need, without PostgreSQL and NATS; setpriv is for root.
TOOLS: Final = ("sh", "curl", "date", "setpriv", "test", "env")
WANTED_PYTHON: Final = "import sys; sys.exit(sys.version_info < (3, 11))"
ORDINARY: Final = "nobody"


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="posthouse-wheel-") as directory:
        run(uv(), "build", "--quiet", "--wheel", "--out-dir", directory, str(ROOT))
        (built,) = Path(directory).glob("*.whl")
        yield built


@pytest.fixture(params=[None, ORDINARY])
def dev(wheel: Path, request: pytest.FixtureRequest) -> Iterator[DevCommand]:
    """A user's home directory with a virtual environment of the wheel, and few programs on PATH."""
    user: str | None = request.param
    if user and os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    with tempfile.TemporaryDirectory(prefix="posthouse-home-") as name:
        home = Path(name)
        install(wheel, home / "venv")
        tools = home / "bin"
        tools.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (tools / tool).symlink_to(found)
        if user:
            # Its own environment, in which Python may keep what it compiled.
            run("chown", "-R", user, name)
        # The machine's PostgreSQL is found without PATH too.
        environment = {"PATH": str(tools), "HOME": name, "POSTGRES_VERSION": "18"}
        command = DevCommand([str(home / "venv" / "bin" / "posthouse")], home, environment, user=user)
        yield command
        command.end_if_running()


def install(wheel: Path, venv: Path) -> None:
    run(uv(), "venv", "--quiet", "--python", python_of_all(), str(venv))
    began_at = time.monotonic()
    run(uv(), "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), f"{wheel}[dev]")
    print(f"\ninstalled in {time.monotonic() - began_at:.1f} s")


def uv() -> str:
    found = shutil.which("uv")
    assert found, "install uv (`pipx install uv`)"
    return found


def python_of_all() -> str:
    """An interpreter that ordinary users may run too: that of the tests may be below /root."""
    for python in (sys.executable, "/usr/bin/python3"):
        user = ORDINARY if os.geteuid() == 0 else None
        try:
            if subprocess.run([python, "-c", WANTED_PYTHON], user=user, check=False).returncode == 0:
                return python
        except OSError:
            continue
    raise AssertionError("install Python 3.11 or newer where ordinary users may run it (Debian: apt install python3)")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_three_commands_lead_to_a_message_that_can_be_read(dev: DevCommand) -> None:
    began_at = time.monotonic()
    panel = dev.start()
    sent = dev.shell(["sh", "-c", snippet(panel, "Send an email with curl")])
    found = re.search(r"em_[a-z0-9]+", sent.stdout)
    assert found, sent
    assert dev.message(found[0])["status"] == "delivered"
    opened = dev.run("message", "open", found[0], "--print")
    assert opened.returncode == 0, opened
    assert "It works." in dev.read(opened.stdout.strip(), f"/captured/{found[0]}")
    seconds = time.monotonic() - began_at
    print(f"\nas {dev.user or 'root'}: `posthouse dev`, a POST and `posthouse message open` took {seconds:.1f} s")
    assert seconds <= SECONDS_MAX
    postgres = dev.directory / ".posthouse" / "postgres" / "data"
    assert "pginstall18" in (postgres / "postmaster.opts").read_text()
    assert dev.shell(["curl", "-sf", f"{dev.demo()['DEMO_URL']}/docs"]).returncode == 0

    # Killed, it continues; killed in the middle of its first start, it begins again.
    assert dev.end(signal.SIGKILL) == -signal.SIGKILL
    dev.start()
    assert dev.message(found[0])["status"] == "delivered"
    assert dev.end() == 0
    dev.spawn("--reset")
    asyncio.run(eventually(lambda: list(postgres.parent.glob("data.partial-*"))))
    assert dev.end(signal.SIGKILL) == -signal.SIGKILL
    dev.start()
    assert dev.end() == 0
