"""The webhook benchmark works: a quick run fills the table, the page and the plot."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.rare
def test_a_quick_run_measures_both_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nAnother benchmark's section.\n")

    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "webhooks.py"), "--quick", "--output", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    written = page.read_text()
    assert "Another benchmark's section." in written
    rows = [line for line in written.splitlines() if line.startswith(("| bare loop", "| Posthouse: claim"))]
    assert [row.count("|") for row in rows] == [8, 8], written
    assert "one of 10 endpoints hangs" in written
    assert (tmp_path / "webhooks.png").read_bytes().startswith(b"\x89PNG")
