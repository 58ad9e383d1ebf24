"""Crash points: a process dies at the armed point, and nowhere when none is armed."""

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
    "from posthouse import crash; crash.arm({given!r})\nfor _ in range(5): crash.point('claim.before'); print('on')"
)


def ended(given: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-u", "-c", SCRIPT.format(given=given)], capture_output=True, check=False)
    return done.returncode, done.stdout.decode()


def test_the_list_has_exactly_the_points_in_the_code() -> None:
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


def test_a_process_dies_at_the_chosen_pass() -> None:
    assert ended("claim.before:3") == (-signal.SIGKILL, "on\non\n")
    assert ended("claim.before") == (-signal.SIGKILL, "")


def test_a_process_that_passes_less_often_lives() -> None:
    assert ended("claim.before:6") == (0, "on\n" * 5)
    assert ended("record.before:1") == (0, "on\n" * 5)


@pytest.mark.parametrize("given", ["nowhere", "claim.before:0", "claim.before:x", "claim.before:-1"])
def test_an_unknown_point_is_refused(given: str) -> None:
    with pytest.raises(crash.UnknownPoint, match=crash.ENVIRONMENT):
        crash.arm(given)


def test_an_unknown_point_stops_the_command() -> None:
    environment = {**os.environ, crash.ENVIRONMENT: "nowhere"}
    command = [sys.executable, "-m", "posthouse", "--version"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.returncode == 1
    assert crash.ENVIRONMENT in done.stderr.decode()


def test_a_point_costs_next_to_nothing_when_none_is_armed() -> None:
    crash.arm(None)

    def passed() -> None:
        for _ in range(100_000):
            crash.point("accept.before_commit")

    # A hundred nanoseconds each, on a machine ten times as slow as an ordinary one.
    assert processor_seconds(passed) < 0.1
