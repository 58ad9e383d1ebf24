"""Some of the crash points, each once; `make crash` runs all of them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from posthouse import crash
from tests.crash.crash_points import CI, PART_OF, PASSES, run_points
from tests.support.audit_report import is_failed, show
from tests.support.bad_input import new_seed


def test_every_crash_point_belongs_to_a_part() -> None:
    assert {point.partition(".")[0] for point in crash.POINTS} == set(PART_OF)
    assert set(CI) <= crash.POINTS
    assert {point for point in PASSES if "." in point} <= crash.POINTS


@pytest.mark.long
async def test_a_death_at_a_crash_point_loses_and_duplicates_nothing_unexplained(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    seed = new_seed()
    console = Console(width=160)
    url = await asyncio.to_thread(new_database)
    report = await run_points(CI, url, tmp_path, seed, console, per_second=20)
    show(report, console)
    assert not is_failed(report), report["findings"]
    # Every promise was checked.
    assert all(promise["checked"] for promise in report["promises"])
    assert report["messages"] > 100
    # Workers died while busy, and what they had in flight was counted.
    assert report["copies"]["deaths"] == sum(PART_OF[point.partition(".")[0]] == "delivery" for point in CI)
    assert report["copies"]["in_flight_at_deaths"] > 0
