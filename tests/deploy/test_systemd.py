"""The systemd units are as closed as they say."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE_MAX = 2.0


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


def test_the_units_differ_in_their_command_alone() -> None:
    first, second = ([line for line in unit.read_text().splitlines() if _is_shared(line)] for unit in UNITS)
    assert first == second


def _is_shared(line: str) -> bool:
    return not line.startswith(("#", "Description=", "After=", "ExecStart="))
