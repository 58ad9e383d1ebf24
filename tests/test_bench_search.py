"""The benchmark of the list of messages works: a small archive is made, searched in, and its section written."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.rare
def test_the_comparison_can_be_made_by_itself_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "search.py"), "--rows", "20000", "--quick", "--compare-only"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("GET /emails/{id}", "GET /v1/messages/{id}", "GET /v1/messages, first page"):
        assert f"│ {name} " in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == []


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
    lists, reads = written.split("### The same reads on 10,000 messages and on 20,000")
    rows = [line for line in lists.splitlines() if line.startswith("| ") and not line.startswith("| Search")]
    assert {row.count("|") for row in rows} == {9}, written
    for name in ("no filter", "time", "status", "recipient", "sender", "subject", "tag", "template", "source"):
        assert any(row.startswith(f"| {name}") for row in rows), name
    for name in ("GET /emails/{id}", "GET /v1/messages/{id}", "GET /v1/messages, first page"):
        assert sum(line.startswith(f"| {name} |") and line.count("|") == 9 for line in reads.splitlines()) == 1, name
    assert reads.count("× the processor time on the small archive or less") == 4
    # A message's id gives its day.
    assert "| GET /emails/{id} | messages | 1 / 1 | 1 / 1 | 3 / 3 |" in reads, reads
    assert "Subplans Removed" in reads
    assert "Index Cond: ((account_id = $1) AND (id = $2))" in reads
