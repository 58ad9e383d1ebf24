"""The delivery benchmark works: a quick run fills the table, the page and the plot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(shutil.which("smtp-sink", path="/usr/sbin:/usr/bin") is None, reason="needs smtp-sink"),
    pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk"),
]

# Haraka has to be fetched first, and without signatures it is the same once more: left to a real run.
NAMES = {"bare": "bare", "postfix": "Postfix", "posthouse": "Posthouse, with"}


def test_a_quick_run_measures_each_relay_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nAnother benchmark's section.\n")
    chosen = [key for key in NAMES if key != "postfix" or os.geteuid() == 0]

    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "deliver.py"),
            "--quick",
            *("--only", ",".join(chosen)),
            *("--output", str(tmp_path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    written = page.read_text()
    assert "Another benchmark's section." in written
    rows = [line for line in written.splitlines() if line.startswith(tuple(f"| {NAMES[key]}" for key in chosen))]
    assert len(rows) == len(chosen), written
    assert all(row.count("|") == 10 for row in rows), written
    assert (tmp_path / "deliver.png").read_bytes().startswith(b"\x89PNG")


def test_a_relay_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "deliver.py"), "--only", "bare,sendmail", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "bare,postfix,haraka,posthouse,unsigned" in done.stderr
