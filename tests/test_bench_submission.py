"""The submission benchmark works: a quick run fills the table, the page and the plot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Haraka has to be fetched first: left to a real run.
NAMES = {"postfix": "Postfix", "posthouse": "Posthouse, one process"}


@pytest.mark.rare
def test_a_quick_run_measures_each_server_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nAnother benchmark's section.\n")
    has_postfix = os.geteuid() == 0 and all(
        shutil.which(program, path="/usr/sbin:/usr/bin") for program in ("postfix", "saslpasswd2")
    )
    chosen = [key for key in NAMES if key != "postfix" or has_postfix]

    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "submission.py"),
            "--quick",
            *("--only", ",".join(chosen)),
            *("--idle", "100"),
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
    assert len(rows) == 2 * len(chosen), written
    assert all(row.count("|") == 11 for row in rows), written
    assert "100 idle sessions of ours, authenticated" in written
    assert (tmp_path / "submission.png").read_bytes().startswith(b"\x89PNG")


def test_a_server_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "submission.py"), "--only", "sendmail", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "postfix,haraka,posthouse" in done.stderr
