"""The systemd units are as restricted as they say."""

import asyncio
import base64
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posthouse.rules import limits
from tests.deploy.files import DEPLOY
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess, environment
from tests.support.service import Tenant

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE_MAX = 2.0
PARTS = ("http", "dispatch", "delivery", "notification", "maintenance")
# MemoryDenyWriteExecute= of the unit, as the kernel knows it since 6.3 (PR_SET_MDWE); then the service.
WITHOUT_WRITABLE_CODE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "posthouse", "run", *sys.argv[1:]])
"""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_exposed_to_at_most_2(unit: Path) -> None:
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing: apt-get install systemd"
    threshold = f"--threshold={EXPOSURE_MAX * 10:.0f}"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", threshold, unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Overall exposure level" in done.stdout
    assert done.stderr == "", "a setting that systemd doesn't know"


def test_the_units_differ_only_in_their_command() -> None:
    first, second = ([line for line in unit.read_text().splitlines() if _is_shared(line)] for unit in UNITS)
    assert first == second


def _is_shared(line: str) -> bool:
    return not line.startswith(("#", "Description=", "After=", "ExecStart="))


@pytest.mark.nightly
async def test_the_service_makes_only_system_calls_that_the_units_allow(database_url: str, tmp_path: Path) -> None:
    assert shutil.which("strace"), "strace is missing: apt-get install strace"
    server, trace = ServerProcess(database_url, tmp_path / "server.log"), tmp_path / "trace"
    server.process = _traced(server, trace)
    try:
        await server.ready()
        service = await server.open_client()
        tenant = await service.account()
        large = base64.b64encode(os.urandom(6 * 1024 * 1024)).decode()
        for attachments in ([], [{"filename": "large.bin", "content": large}]):
            body = tenant.mail(to=["delivered@simulator.invalid", "a@nowhere.invalid"], attachments=attachments)
            await _until_tried(tenant, (await tenant.accepts(body))["id"])
        await service.close()
        os.kill(_child(server.running.pid), signal.SIGTERM)
        assert await asyncio.to_thread(server.running.wait, limits.STOP_SECONDS_MAX) == 0, server.said()
    finally:
        server.kill()
    used = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(errors="replace"), re.MULTILINE))
    assert len(used) > 50
    assert used - _allowed(UNITS[0].read_text()) == set()


def test_systemd_waits_as_long_as_a_process_may_take_to_stop() -> None:
    waits = [re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.MULTILINE) for unit in UNITS]
    assert waits == [[str(limits.STOP_SECONDS_MAX)]] * 2


def _traced(server: ServerProcess, trace: Path) -> "subprocess.Popen[bytes]":
    with server.log.open("ab") as output:
        return subprocess.Popen(
            ["strace", "-f", "-qq", "-o", trace, sys.executable, "-c", WITHOUT_WRITABLE_CODE, *PARTS],
            env=environment(server.database_url, HTTP__PORT=str(server.port)),
            cwd=server.log.parent,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _child(pid: int) -> int:
    """The traced process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


async def _until_tried(tenant: Tenant, message_id: str) -> None:
    async def is_tried() -> bool:
        recipients = (await tenant.get(message_id)).body["recipients"]
        return all(recipient["status"] != "queued" for recipient in recipients)

    await eventually(is_tried)


def _allowed(unit: str) -> set[str]:
    """The unit's filters in their order: a list is allowed, or with ~ forbidden."""
    allowed = _calls("@default")
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        named = set().union(*map(_calls, line.removeprefix("~").split()))
        allowed = allowed - named if line.startswith("~") else allowed | named
    return allowed


def _calls(name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", name], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1:]
    return set().union(*(_calls(line.strip()) for line in listed if line.strip() and not line.strip().startswith("#")))
