"""The benchmark of idle SMTP sessions works: a small run refuses clients over the limit, and writes its section."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.rare
def test_a_small_run_is_bounded_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nAnother benchmark's section.\n")

    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "idle_sessions.py"),
            *("--sessions", "200"),
            *("--seconds", "1"),
            *("--visits", "5"),
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
    rows = written.splitlines()
    assert sum(row.startswith("| 200 ") and row.count("|") == 11 for row in rows) == 2, written
    for when in ("before", "beside", "after"):
        assert sum(row.startswith(f"| {when} 200 idle") and row.count("|") == 7 for row in rows) == 2, written
    assert "reached: no client over the limit of 210 was let in: 100 × 421 4.7.0 Too many connections" in written
    assert "reached: no client over the limit of 210 was let in: 100 × hung up" in written
