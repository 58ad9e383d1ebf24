"""The benchmark works: a quick run fills the table, the page and the plot."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.private_postgres import find_binaries

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk"),
    pytest.mark.skipif(not (find_binaries() / "pgbench").exists(), reason="needs pgbench"),
]


def test_a_quick_run_measures_every_phase_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nAnother benchmark's section.\n")

    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "accept.py"), "--quick", "--output", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    written = page.read_text()
    assert "Another benchmark's section." in written
    rows = [line for line in written.splitlines() if line.startswith(("| bare", "| HTTP"))]
    assert len(rows) == 11, written
    assert all(row.count("|") == 9 for row in rows), written
    assert (tmp_path / "accept.png").read_bytes().startswith(b"\x89PNG")
