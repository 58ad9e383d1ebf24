"""Some of the crash points, each once; `make crash` plays all of them."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from posthouse import crash
from tests.crash.crash_points import CI, PART_OF, PASSES, run_points
from tests.support.audit_report import is_failed, show


def test_every_point_has_somebody_who_comes_by() -> None:
    assert {point.partition(".")[0] for point in crash.POINTS} == set(PART_OF)
    assert set(CI) <= crash.POINTS
    assert {point for point in PASSES if "." in point} <= crash.POINTS


@pytest.mark.alone
async def test_whoever_dies_at_a_crash_point_leaves_nothing_lost_and_nothing_unexplained(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    console = Console(width=160)
    console.print(f"seed {seed}")
    url = await asyncio.to_thread(new_database)
    said = await run_points(CI, url, tmp_path, seed, console)
    show(said, console)
    assert not is_failed(said), said["findings"]
    # Each of them was put to the test.
    assert all(promise["checked"] for promise in said["promises"])
    assert said["mails"] > 100
    # Workers died in the midst of it, and what they had under way was counted.
    assert said["copies"]["deaths"] == sum(PART_OF[point.partition(".")[0]] == "delivery" for point in CI)
    assert said["copies"]["under_way_at_deaths"] > 0
