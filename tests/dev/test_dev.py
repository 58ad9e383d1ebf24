"""`posthouse dev` from the working tree, on the machine's PostgreSQL."""

import asyncio
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from posthouse.dev import ports
from posthouse.dev.home import Home
from posthouse.dev.postgres import stop_left_server
from posthouse.entrypoints.http import static_content
from tests.dev.dev_command import DevCommand, link_in, plain_environment, snippet
from tests.support import preloaded
from tests.support.fresh_database import make_older_than_1_0

pytestmark = pytest.mark.long


class PreloadedCommand(DevCommand):
    """The working tree's command, forked from a process that has imported it: importing takes 1.6 s of CPU."""

    def popen(self, words: Sequence[str], written: IO[bytes]) -> subprocess.Popen[bytes]:
        return preloaded.start(
            *words, environment=self.environment, directory=self.directory, output=written, new_session=True
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return preloaded.run(*words, environment=self.environment, directory=self.directory)


@pytest.fixture
def dev() -> Iterator[DevCommand]:
    # Not below pytest's directory: as root, PostgreSQL's user enters directories that are open to all.
    with tempfile.TemporaryDirectory(prefix="posthouse-dev-") as directory:
        command = PreloadedCommand([], Path(directory), plain_environment())
        yield command
        command.end_if_running()


def test_every_snippet_works_a_killed_start_continues_and_old_data_are_reset(dev: DevCommand) -> None:
    with socket.create_server(("127.0.0.1", dev.port)):
        panel = dev.start()
    assert f"port {dev.port} is taken, {dev.port + 1} is used instead" in panel
    curl = dev.shell(["sh", "-c", snippet(panel, "Send an email with curl")])
    python = dev.shell([sys.executable, "-c", snippet(panel, "with Python")])
    smtp = dev.shell(["sh", "-c", snippet(panel, "over SMTP").replace("curl ", "curl -v ")])
    sent = [re.findall(r"em_[a-z0-9]+", done.stdout + done.stderr) for done in (curl, python, smtp)]
    messages = [dev.message(found[0]) for found in sent]
    assert [(message["source"], message["status"]) for message in messages] == [
        ("api", "delivered"),
        ("api", "delivered"),
        ("smtp", "delivered"),
    ]
    if static_content.is_dashboard_built():
        assert dev.login(link_in(panel)) == dev.demo()["DEMO_ACCOUNT"]
    else:
        assert dev.read(link_in(panel), "/captured").count("ada@example.org") >= 3

    second = dev.run("dev")
    assert second.returncode == 1
    assert f"already running at http://127.0.0.1:{dev.port + 1}" in second.stderr

    demo = dev.demo()
    assert dev.end(signal.SIGKILL) == -signal.SIGKILL
    dev.start()
    assert dev.demo()["DEMO_LIVE_KEY"] == demo["DEMO_LIVE_KEY"]
    assert dev.message(sent[0][0])["status"] == "delivered"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (dev.directory / ".posthouse").iterdir()}
    assert {name for name, mode in modes.items() if mode & 0o077} == {"certificate.pem"}
    # Data of a version before 1.0 are refused until a reset.
    config = tomllib.loads((dev.directory / ".posthouse" / "posthouse.toml").read_text())
    asyncio.run(make_older_than_1_0(config["database"]["url"]))
    assert dev.end() == 0
    assert not (dev.directory / ".posthouse" / "postgres" / "data" / "postmaster.pid").exists()
    refused = dev.run("dev")
    assert refused.returncode == 1
    assert "made by a version before 1.0" in refused.stderr
    assert "restart `posthouse dev` with --reset, which deletes its data" in refused.stderr
    assert refused.stderr.count("\n") == 1
    dev.start("--reset")


def test_taken_ports_are_skipped_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = ports.choose("127.0.0.1", port, port)
    assert chosen.http > port
    assert len({chosen.http, chosen.submission, chosen.submission_tls, chosen.inbound}) == 4
    assert chosen.skipped[:2] == ((port, chosen.http), (port, chosen.submission))


def test_a_reset_deletes_what_dev_made_and_nothing_else(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.locked():
        home.write_config(
            "postgresql://postgres:secret@127.0.0.1:1/posthouse", ports.Ports(1, 2, 3, 4), "127.0.0.1", ""
        )
        home.make_certificate()
        home.write_demo({"DEMO_ACCOUNT": "it's"})
        assert (home.database_password(), home.read_demo()) == ("secret", {"DEMO_ACCOUNT": "it's"})
        (home.postgres / "data").mkdir(parents=True)
        (tmp_path / "notes.txt").write_text("mine")
        home.reset()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "notes.txt"]


def test_a_stale_process_id_of_another_program_is_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    file = data / "postmaster.pid"
    file.write_text(f"{os.getpid()}\n{data}\n")
    stop_left_server(tmp_path)
    assert not file.exists()
