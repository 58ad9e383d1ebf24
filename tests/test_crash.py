"""Crash points: a process dies where it was told to, and nowhere when it was told nothing."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posthouse import crash
from tests.support.processor_time import processor_seconds

SOURCE = Path(crash.__file__).parent
SCRIPT = (
    "from posthouse import crash; crash.arm({asked!r})\nfor _ in range(5): crash.point('claim.before'); print('on')"
)


def ended(asked: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-u", "-c", SCRIPT.format(asked=asked)], capture_output=True, check=False)
    return done.returncode, done.stdout.decode()


def test_every_point_of_the_list_stands_in_the_code_and_no_other() -> None:
    families = {name.partition(".")[0] for name in crash.POINTS}
    named = re.compile(rf"""["']((?:{"|".join(sorted(families))})\.[a-z_]+)["']""")
    found = {
        name
        for path in SOURCE.rglob("*.py")
        if path != Path(crash.__file__) and re.search(r"crash\.point\(|CrashPoints\(", path.read_text())
        for name in named.findall(path.read_text())
    }
    assert found == crash.POINTS
    assert len(crash.POINTS) >= 40


def test_a_process_dies_at_the_pass_it_was_told() -> None:
    assert ended("claim.before:3") == (-signal.SIGKILL, "on\non\n")
    assert ended("claim.before") == (-signal.SIGKILL, "")


def test_a_process_that_passes_less_often_lives() -> None:
    assert ended("claim.before:6") == (0, "on\n" * 5)
    assert ended("record.before:1") == (0, "on\n" * 5)


@pytest.mark.parametrize("asked", ["nowhere", "claim.before:0", "claim.before:x", "claim.before:-1"])
def test_what_is_no_point_stops_the_command_and_says_which_there_are(asked: str) -> None:
    environment = {**os.environ, crash.ENVIRONMENT: asked}
    command = [sys.executable, "-m", "posthouse", "--version"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.returncode == 1
    assert crash.ENVIRONMENT in done.stderr.decode()


def test_a_point_costs_next_to_nothing_when_nobody_asked() -> None:
    crash.arm(None)

    def passed() -> None:
        for _ in range(100_000):
            crash.point("accept.before_commit")

    # A hundred nanoseconds each, on a machine ten times as slow as an ordinary one.
    assert processor_seconds(passed) < 0.1
