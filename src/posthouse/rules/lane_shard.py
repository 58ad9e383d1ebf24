"""Which shards of the stream a lane belongs to, and which part of its limits applies in each.

A shard is held by one worker at a time, so a limit within a shard needs no counter that workers share. A lane with a
high rate has several parts, in consecutive shards; a message's id determines its part. A ticket that arrived in another
shard is forwarded once, with the name of its lane.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Final

from posthouse.rules.ids import MessageId
from posthouse.rules.lane import LaneLimits, Limits, lane_by_name
from posthouse.rules.route import is_relay_lane
from posthouse.rules.ticket import message_number, shard_of

# About as many messages a second as one process can send.
PART_PER_SECOND_MAX: Final = 200.0


@dataclass(frozen=True, slots=True)
class LaneShards:
    """The shards of lanes. With only one shard, no lane has parts."""

    limits: LaneLimits
    shards: int = 1

    def parts(self, lane: str) -> int:
        if is_relay_lane(lane):
            return 1
        limits = self.limits.limits_of(lane)
        wanted = ceil(limits.per_second / PART_PER_SECOND_MAX)
        return min(wanted, self.shards, limits.burst, limits.connections_max)

    def home(self, lane: str, message_id: MessageId) -> int:
        """The shard to which this message's tickets go."""
        return (shard_of(lane, self.shards) + message_number(message_id, self.parts(lane))) % self.shards

    def limits_in(self, lane: str, shard: int) -> Limits:
        """The limits of the lane's part in this shard."""
        parts = self.parts(lane)
        part = (shard - shard_of(lane, self.shards)) % self.shards
        if part < parts:
            return self.limits.limits_of(lane).part(part, parts)
        # Tickets arrive here while processes run with different settings: a trickle, so that none of them is stuck.
        whole = self.limits.limits_of(lane)
        return replace(
            whole, parts=parts, per_second=whole.per_second / parts, burst=1, connections_start=1, connections_max=1
        )


def first_lane(destination: str) -> str:
    """The lane that selects a ticket's first shard, before DNS was asked."""
    return lane_by_name(destination) or destination


class Elsewhere(StrEnum):
    """What happens to a ticket that can't wait here."""

    FORWARD = "forward"
    GIVE_BACK = "give_back"


def shard_for(home: int, shard: int, held: frozenset[int], *, is_forwarded: bool) -> int | Elsewhere:
    """The held shard in whose lane a ticket that arrived in `shard` waits; otherwise what happens to it.

    It is forwarded once at most: processes that disagree about its home would send it back and forth.
    """
    if home in held:
        return home
    if home == shard:
        return Elsewhere.GIVE_BACK  # the shard was lost meanwhile
    if not is_forwarded:
        return Elsewhere.FORWARD
    return shard if shard in held else Elsewhere.GIVE_BACK
