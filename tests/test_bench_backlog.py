"""The benchmark of dispatch under a backlog works: small calendars are made and handed out, and its section written."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.rare
def test_a_small_run_measures_every_act_shows_the_plans_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nAnother benchmark's section.\n")

    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "backlog.py"), "--quick", "--output", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    written = page.read_text()
    assert "Another benchmark's section." in written
    rows = [line.split(" | ") for line in written.splitlines() if line.count("|") == 9 and "/s" not in line]
    acts = [row[1] for row in rows if len(row) == 8]
    assert {act: acts.count(act) for act in acts} == {"dispatch": 12, "claim": 12, "postpone": 2}, written
    for statement in (
        "delivery_schedule.LEASE",
        "delivery_schedule.LOCK",
        "delivery_claims._MESSAGES",
        "delivery_claims._CLAIM",
        "delivery_schedule.POSTPONE",
    ):
        assert f"\n{statement}" in written, written
    assert "Index Scan using schedule_next_at on schedule" in written
