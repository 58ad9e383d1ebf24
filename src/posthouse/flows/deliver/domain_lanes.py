"""What providers said about the mail of single From domains: such mail waits, and no other.

A domain has a lane at a provider, inside the provider's, only once refusals were about it (`rules.evidence`).
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from posthouse.rules.evidence import Evidence, Extent
from posthouse.rules.ids import MessageId
from posthouse.rules.lane import Lane, Later, Limits, Served, Slot
from posthouse.rules.pace import Moment
from posthouse.rules.standing import Branch, Lesson, Place, Refused, Standing, place_of_domain

# Of domains about which something was said that is not believed yet, the oldest are forgotten.
EVIDENCE_MAX: Final = 1_000
POSTPONE_SECONDS_MIN: Final = 1.0
POSTPONE_SECONDS_MAX: Final = 3600.0
# A lane's part in a shard, and the domain.
_Key = tuple[str, int, str]


@dataclass(slots=True)
class _DomainLane:
    lane: Lane
    place: Place
    # The time up to which room is promised to postponed mail.
    horizon: float = float("-inf")


@dataclass(frozen=True, slots=True)
class DomainSlot:
    """Permission for one mail of a domain that has a lane."""

    lane: Lane
    slot: Slot


class DomainLanes:
    def __init__(
        self,
        *,
        limits_of: Callable[[str, int], Limits],
        standing_of: Callable[[Place], Standing | None],
        moment: Callable[[], Moment],
    ) -> None:
        self._limits_of = limits_of
        self._standing_of = standing_of
        self._moment = moment
        self._lanes: dict[_Key, _DomainLane] = {}
        self._evidence: OrderedDict[_Key, Evidence] = OrderedDict()

    def take(self, lane: str, shard: int, domain: str | None) -> DomainSlot | float | None:
        """A slot, or in how many seconds to ask again; None of a domain that nothing was said about."""
        found = self._find(lane, shard, domain)
        if found is None:
            return None
        now = self._moment().seconds
        slot = found.lane.take(now)
        if not isinstance(slot, Later):
            return DomainSlot(found.lane, slot)
        wait = max(slot.seconds or 0.0, POSTPONE_SECONDS_MIN)
        at = max(found.horizon + 1 / found.lane.per_second, now + wait)
        found.horizon = min(at, now + max(POSTPONE_SECONDS_MAX, wait))
        return found.horizon - now

    def believes(
        self, lane: str, shard: int, domain: str | None, branch: Branch, message_id: MessageId, served: Served
    ) -> bool:
        """Whether enough was refused that this is about all mail of the From domain to the provider."""
        if not domain:
            return False
        evidence = self._evidence.setdefault((lane, shard, domain), Evidence(lane))
        if len(self._evidence) > EVIDENCE_MAX:
            self._evidence.popitem(last=False)
        return evidence.refused(branch, message_id, served, self._moment().seconds) is not Extent.BRANCH

    def release(
        self,
        lane: str,
        shard: int,
        domain: str | None,
        taken: DomainSlot | None,
        served: Served,
        refused: Refused | None,
    ) -> Lesson | None:
        """The mail's turn is over. What was learnt about its domain, if anything."""
        if taken is None and domain and served in (Served.SLOW, Served.BLOCKED):
            found = self._find(lane, shard, domain) or self._make(lane, shard, domain)
            slot = found.lane.take(self._moment().seconds)
            # If there is none, another mail has just taught it.
            taken = None if isinstance(slot, Later) else DomainSlot(found.lane, slot)
        return None if taken is None else taken.lane.give_back(taken.slot, served, self._moment(), refused)

    def give_back(self, taken: DomainSlot) -> None:
        """Nothing was sent."""
        taken.lane.untake()

    def adopt(self, place: Place, standing: Standing) -> None:
        for found in self._lanes.values():
            if found.place == place and found.lane.standing != standing:
                found.lane.adopt(standing, self._moment())

    def forget(self, shards: frozenset[int]) -> None:
        """These shards have moved: what holds is in the standings."""
        self._lanes = {key: found for key, found in self._lanes.items() if key[1] not in shards}
        self._evidence = OrderedDict((key, found) for key, found in self._evidence.items() if key[1] not in shards)

    def _find(self, lane: str, shard: int, domain: str | None) -> _DomainLane | None:
        if not domain:
            return None
        found = self._lanes.get((lane, shard, domain))
        if found is None:
            standing = self._standing_of(place_of_domain(domain, lane))
            if standing is not None:
                found = self._make(lane, shard, domain)
                found.lane.adopt(standing, self._moment())
        return found

    def _make(self, lane: str, shard: int, domain: str) -> _DomainLane:
        place = place_of_domain(domain, lane)
        made = self._lanes[lane, shard, domain] = _DomainLane(Lane(self._limits_of(lane, shard), place), place)
        return made
