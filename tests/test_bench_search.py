"""The benchmark of the list of messages works: a small archive is made, searched in, and its section written."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.rare
def test_a_small_run_measures_every_search_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nAnother benchmark's section.\n")

    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "search.py"), "--rows", "20000", "--quick", "--output", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    written = page.read_text()
    assert "Another benchmark's section." in written
    rows = [line for line in written.splitlines() if line.startswith("| ") and not line.startswith("| Search")]
    assert {row.count("|") for row in rows} == {8}, written
    for name in ("no filter", "time", "status", "recipient", "sender", "subject", "tag", "template", "source"):
        assert any(row.startswith(f"| {name}") for row in rows), name
