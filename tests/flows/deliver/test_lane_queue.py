"""The bounds of a lane's queue: whoever fills it leaves capacity for others."""

from uuid import UUID

from posthouse.flows.deliver.lane_queue import ALL_WAITING_MAX, SMALL_SHARE, LaneQueue
from posthouse.flows.shared.tickets import HELD_MAX
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import Lane, Limits
from posthouse.wire.stream import StreamSettings

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
