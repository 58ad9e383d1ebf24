"""Which shard has a lane, and what happens to a ticket that arrived in a shard."""

from collections import Counter
from uuid import UUID

import pytest

from posthouse.rules.ids import MessageId
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.lane_shard import Elsewhere, LaneShards, first_lane, shard_for
from posthouse.rules.ticket import shard_of


def of(per_second: float, *, shards: int = 16, burst: int = 10_000, connections: int = 100) -> LaneShards:
    return LaneShards(LaneLimits(Limits(per_second, burst, 1, connections)), shards)


@pytest.mark.parametrize(
    ("lanes", "parts"),
    [
        (of(0.1), 1),
        (of(200), 1),
        (of(200.1), 2),
        (of(1_000), 5),
        (of(1_000_000), 16),
        (of(1_000, shards=1), 1),
        (of(1_000, connections=3), 3),
        (of(1_000, burst=2), 2),
        (LaneShards(LaneLimits(), 16), 1),
    ],
)
def test_a_lane_has_a_part_for_each_200_a_second(lanes: LaneShards, parts: int) -> None:
    assert lanes.parts("google") == parts


def test_the_parts_are_in_consecutive_shards_and_messages_are_spread_over_them() -> None:
    lanes = of(1_000)
    homes = Counter(lanes.home("google", MessageId(UUID(int=number << 6))) for number in range(5_000))
    first = shard_of("google", 16)
    assert set(homes) == {(first + part) % 16 for part in range(5)}
    assert min(homes.values()) > 900


def test_a_lane_of_one_part_is_in_the_shard_of_its_name() -> None:
    assert {of(50).home("google", MessageId(UUID(int=number))) for number in range(100)} == {shard_of("google", 16)}


def test_limits_in_the_shards_are_the_lanes_together() -> None:
    lanes = of(1_000, connections=23)
    first = shard_of("google", 16)
    parts = [lanes.limits_in("google", (first + part) % 16) for part in range(5)]
    assert sum(part.per_second for part in parts) == 1_000
    assert sum(part.connections_max for part in parts) == 23
    assert sum(part.burst for part in parts) == 10_000
    assert lanes.limits_in("google", (first + 5) % 16) == Limits(200, 1, 1, 1, parts=5)


@pytest.mark.parametrize(
    ("destination", "lane"), [("gmail.com", "google"), ("customer.example", "customer.example"), ("me.com", "apple")]
)
def test_a_ticket_finds_its_shard_by_the_lane_known_by_name_or_by_its_domain(destination: str, lane: str) -> None:
    assert first_lane(destination) == lane


@pytest.mark.parametrize(
    ("home", "shard", "held", "is_forwarded", "placed"),
    [
        (3, 3, {3}, False, 3),
        (3, 3, {3}, True, 3),
        # Its lane is in another shard of this worker, or of another.
        (3, 5, {3, 5}, False, 3),
        (3, 5, {3, 5}, True, 3),
        (3, 5, {5}, False, Elsewhere.FORWARD),
        # Lost meanwhile.
        (3, 3, {5}, False, Elsewhere.GIVE_BACK),
        (3, 3, set(), True, Elsewhere.GIVE_BACK),
        (3, 5, set(), False, Elsewhere.FORWARD),
        (3, 5, set(), True, Elsewhere.GIVE_BACK),
        # Forwarded here by a worker with other settings: not once more.
        (3, 5, {5}, True, 5),
    ],
)
def test_a_ticket_waits_at_its_home_or_is_forwarded_once(
    home: int, shard: int, held: set[int], *, is_forwarded: bool, placed: int | Elsewhere
) -> None:
    assert shard_for(home, shard, frozenset(held), is_forwarded=is_forwarded) == placed
