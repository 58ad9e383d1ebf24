"""A dead destination or a backlog does not delay other mail: small versions of `make bench-isolation`."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from posthouse.flows.deliver.lane_queue import ALL_WAITING_MAX, SMALL_SHARE, LaneQueue
from posthouse.flows.shared.tickets import HELD_MAX
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import Lane, Limits
from posthouse.wire.stream import StreamSettings
from tests.support.delivery_isolation import SLOW, Experiment
from tests.support.eventually import HANG_SECONDS
from tests.support.service_processes import run_processes

# At the lane's pace the backlog takes far longer than the test may.
BACKLOG = 2_000
LANE_PER_SECOND = 5

FINISHED = "SELECT count(*) FROM recipients WHERE email LIKE 'backlog+%' AND status = 'delivered'"

FAST = Limits(per_second=100_000.0, burst=100)


def test_full_lanes_fill_neither_their_shard_of_the_stream_nor_the_worker() -> None:
    assert ALL_WAITING_MAX < HELD_MAX <= StreamSettings().unacknowledged_max


def test_a_hundred_full_lanes_leave_capacity_for_others() -> None:
    queues = [LaneQueue(f"d{number}.example.net", 0, Lane(FAST)) for number in range(100)]
    accounts = [AccountId(UUID(int=number)) for number in range(3)]
    left = ALL_WAITING_MAX
    for queue in queues:
        for account in accounts:
            while queue.has_capacity(account, left, is_list=False):
                queue.count(account, 1, is_list=False)
                left -= 1
    assert queues[0].waiting > 2_000
    assert all(queue.waiting >= SMALL_SHARE for queue in queues)
    assert left > 1_000


def test_an_accounts_list_leaves_capacity_in_a_lane_for_its_other_mail() -> None:
    queue = LaneQueue("d.example.net", 0, Lane(FAST))
    account = AccountId(UUID(int=1))
    while queue.has_capacity(account, ALL_WAITING_MAX, is_list=True):
        queue.count(account, 1, is_list=True)
    for _ in range(SMALL_SHARE):
        assert queue.has_capacity(account, ALL_WAITING_MAX, is_list=False)
        queue.count(account, 1, is_list=False)
    assert not queue.has_capacity(account, ALL_WAITING_MAX, is_list=False)
    queue.count(account, -queue.lists_by_account[account], is_list=True)
    assert (queue.waiting, queue.lists_by_account[account]) == (SMALL_SHARE, 0)


@pytest.mark.long
async def test_a_message_does_not_wait_behind_another_accounts_backlog(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    url = await asyncio.to_thread(new_database)
    lanes = json.dumps({SLOW: {"per_second": LANE_PER_SECOND}})
    async with run_processes(
        url, tmp_path, keeps_mail=False, LANES__BY_NAME=lanes, WORKERS__TICKET_LEASE_SECONDS="60"
    ) as processes:
        experiment = await Experiment.prepared(processes, senders=2)
        turns = await experiment.fair_turns(backlog=BACKLOG, seconds=4, late_seconds_max=HANG_SECONDS)
        finished = await processes.service.value(FINISHED)
        print(
            f"the backlog came in {turns.backlog_posted_seconds:.1f} s; the small sender's messages: "
            f"p50 {turns.percentile(0.5):.2f} s, most {turns.percentile(1):.2f} s; "
            f"the lane carried {turns.lane_per_second:.1f} a second"
        )
        assert finished < BACKLOG
