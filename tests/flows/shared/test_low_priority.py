"""Low-priority work has its own threads: only they are nice."""

import asyncio
import os
import sys
import threading

import pytest

from posthouse.flows.shared.background_tasks import NICENESS, in_low_priority


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux has each thread its own priority")
async def test_its_threads_are_nicer_than_all_others() -> None:
    before = niceness()
    assert await in_low_priority(niceness) == max(before, NICENESS)
    assert niceness() == before
    assert await asyncio.to_thread(niceness) == before


async def test_results_and_faults_come_back() -> None:
    assert await in_low_priority(int, "ff", base=16) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        await in_low_priority(int, "x")
