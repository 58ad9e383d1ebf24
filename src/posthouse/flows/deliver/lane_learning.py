"""What the lanes learn: takes the replies to bundles, and limits that other workers learned.

Every reply teaches its lane, or no more than the branch that was refused, as `rules.evidence` decides.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Final

from posthouse.flows.deliver.lane_queue import Bundle, DomainSlot, Item, LaneQueue, Turn
from posthouse.flows.deliver.lane_table import LaneTable
from posthouse.flows.deliver.learned_limits import LearnedLimitsSync
from posthouse.rules.evidence import Evidence, Extent
from posthouse.rules.lane import REFUSALS, DeliveryFeedback, Lane, Later, is_provider
from posthouse.rules.learned_limits import (
    LaneScope,
    LearnedLimits,
    LimitChange,
    LimitChangeKind,
    Refused,
    is_stricter,
    lane_scope_of_domain,
    stricter,
)
from posthouse.rules.pace import Moment

# What providers said about the mail of single From domains: only such mail waits.
#
# A domain gets its own lane inside a provider's lane only once refusals were about that domain (`rules.evidence`).


# A bound on domains with refusals that are not enough evidence yet; the oldest are forgotten.
EVIDENCE_MAX: Final = 1_000
POSTPONE_SECONDS_MIN: Final = 1.0
POSTPONE_SECONDS_MAX: Final = 3600.0
# A lane, its shard, and the domain.
_Key = tuple[str, int, str]


@dataclass(slots=True)
class _DomainLane:
    lane: Lane
    scope: LaneScope
    # The time up to which slots are promised to postponed mail.
    horizon: float = float("-inf")


class DomainLanes:
    def __init__(self, table: LaneTable, learned_limits: LearnedLimitsSync) -> None:
        self._table = table
        self._learned_limits = learned_limits
        self._lanes: dict[_Key, _DomainLane] = {}
        self._evidence: OrderedDict[_Key, Evidence] = OrderedDict()

    def take_slot(self, queue: LaneQueue, bundle: Bundle, now: float) -> DomainSlot | float | None:
        """A slot, or in how many seconds to ask again; None for a domain about which nothing was said."""
        found = self._find(_key(queue, bundle))
        if found is None:
            return None
        slot = found.lane.take_slot(now)
        if not isinstance(slot, Later):
            return DomainSlot(found.lane, slot)
        wait = max(slot.seconds or 0.0, POSTPONE_SECONDS_MIN)
        at = max(found.horizon + 1 / found.lane.per_second, now + wait)
        found.horizon = min(at, now + max(POSTPONE_SECONDS_MAX, wait))
        return found.horizon - now

    def release(
        self, queue: LaneQueue, bundle: Bundle, served: DeliveryFeedback, moment: Moment, refused: Refused | None
    ) -> LimitChange | None:
        """A provider has answered the bundle. Returns what was learned about its From domain, if anything."""
        taken, bundle.domain_slot = bundle.domain_slot, None
        key = _key(queue, bundle)
        if served in REFUSALS and not self._has_evidence(key, bundle, served, moment):
            bundle.domain_refusal = served, refused or Refused()
            served = DeliveryFeedback.OTHERWISE
        if taken is None and key is not None and served in (DeliveryFeedback.SLOW, DeliveryFeedback.BLOCKED):
            found = self._find(key) or self._make(key)
            slot = found.lane.take_slot(moment.seconds)
            # If there is none, the lane has just learned it from another message.
            taken = None if isinstance(slot, Later) else DomainSlot(found.lane, slot)
        return None if taken is None else taken.lane.release_slot(taken.slot, served, moment, refused)

    def adopt(self, scope: LaneScope, learned: LearnedLimits) -> None:
        for found in self._lanes.values():
            if found.scope == scope and found.lane.learned != learned:
                found.lane.adopt(learned, self._table.moment())

    def forget(self, shards: frozenset[int]) -> None:
        """Forget these shards, which have moved: what still holds is in the learned limits."""
        self._lanes = {key: found for key, found in self._lanes.items() if key[1] not in shards}
        self._evidence = OrderedDict((key, found) for key, found in self._evidence.items() if key[1] not in shards)

    def _has_evidence(self, key: _Key | None, bundle: Bundle, served: DeliveryFeedback, moment: Moment) -> bool:
        """Whether there is enough evidence that refusals are about all mail of the From domain to the provider."""
        if key is None:
            return False
        evidence = self._evidence.setdefault(key, Evidence(key[0]))
        if len(self._evidence) > EVIDENCE_MAX:
            self._evidence.popitem(last=False)
        return evidence.refused(bundle.branch, bundle.message_id, served, moment.seconds) is not Extent.BRANCH

    def _find(self, key: _Key | None) -> _DomainLane | None:
        if key is None:
            return None
        found = self._lanes.get(key)
        if found is None:
            learned = self._learned_limits.limits_of(lane_scope_of_domain(key[2], key[0]))
            if learned is not None:
                found = self._make(key)
                found.lane.adopt(learned, self._table.moment())
        return found

    def _make(self, key: _Key) -> _DomainLane:
        lane, shard, domain = key
        scope = lane_scope_of_domain(domain, lane)
        made = self._lanes[key] = _DomainLane(Lane(self._table.shards.limits_in(lane, shard), scope), scope)
        return made


def _key(queue: LaneQueue, bundle: Bundle) -> _Key | None:
    """None for mail whose From domain is not known."""
    return (queue.name, queue.shard, bundle.sender) if bundle.sender else None


_KINDS: Final = {
    DeliveryFeedback.BLOCKED: LimitChangeKind.BLOCK,
    DeliveryFeedback.CONNECTIONS: LimitChangeKind.CONNECTIONS,
    DeliveryFeedback.PER_CONNECTION: LimitChangeKind.PER_CONNECTION,
}


@dataclass(slots=True)
class Learnt:
    """What was learned, and what it means for waiting tickets."""

    limit_changes: list[LimitChange] = field(default_factory=list)
    # Other parts of the lanes, which may send more now.
    advanced: list[LaneQueue] = field(default_factory=list)
    # Tickets that belong to another queue now.
    moved: list[Item] = field(default_factory=list)


class LaneLearning:
    def __init__(self, table: LaneTable, learned_limits: LearnedLimitsSync) -> None:
        self._table = table
        self._learned_limits = learned_limits
        self.domains = DomainLanes(table, learned_limits)

    def release_slot(self, turn: Turn, served: DeliveryFeedback, refused: Refused | None) -> tuple[LaneQueue, Learnt]:
        """End a bundle's turn in its lane, and learn from the reply.

        Returns the queue that the reply is about: that of the lane, or of the bundle's branch of it.
        """
        queue, slot, bundle = turn
        moment, learnt = self._table.moment(), Learnt()
        whole = queue.whole or queue
        if served is not DeliveryFeedback.NOT_SENT:
            whole.evidence.sent(bundle.account_id, moment.seconds)
        if served in REFUSALS:
            extent = whole.evidence.refused(bundle.branch, bundle.message_id, served, moment.seconds)
            return self._learn_from(turn, served, refused or Refused(), extent, moment, learnt), learnt
        if bundle.domain_refusal is not None:
            return self._learn_from(turn, *bundle.domain_refusal, Extent.BRANCH, moment, learnt), learnt
        self._note(queue.lane.release_slot(slot, served, moment, refused), learnt)
        if slot.whole is not None:
            self._note(whole.lane.release_slot(slot.whole, served, moment, refused), learnt)
        return queue, learnt

    def release_domain(
        self, queue: LaneQueue, bundle: Bundle, served: DeliveryFeedback, refused: Refused | None
    ) -> Learnt:
        """Learn what a provider's answer says about the mail of the bundle's From domain."""
        learnt = Learnt()
        self._note(self.domains.release(queue, bundle, served, self._table.moment(), refused), learnt)
        return learnt

    def adopt(self, scope: LaneScope, learned: LearnedLimits) -> Learnt:
        """Apply limits that were learned elsewhere."""
        learnt = Learnt()
        self._adopt(scope, learned, learnt)
        return learnt

    def _learn_from(
        self,
        turn: Turn,
        served: DeliveryFeedback,
        refused: Refused,
        extent: Extent,
        moment: Moment,
        learnt: Learnt,
    ) -> LaneQueue:
        """Let the lane learn from a refusal that is about the lane, and the bundle's branch from any other."""
        queue, slot, bundle = turn
        whole = queue.whole or queue
        if slot.whole is not None:
            queue.lane.end_turn_without_learning()
        # In a provider's lane, only the domain whose server asked for a wait gets it.
        asks = is_provider(whole.name) and refused.asked_seconds > 0
        if extent is Extent.LANE and not asks:
            self._note(whole.lane.release_slot(slot.whole or slot, served, moment, refused), learnt)
            return whole
        branch = whole.branches.get(bundle.branch)
        # Messages in flight together are refused together: only the first refusal counts.
        lane, given = (whole.lane, slot.whole or slot) if branch is None else (branch.lane, slot)
        is_first = (branch is None or branch is queue) and lane.is_current(given)
        if branch is None:
            branch = self._table.make_branch(whole, bundle.branch)
        limit_change = branch.lane.heed(served, moment, refused, others=whole.lane.in_use - 1, is_first=is_first)
        self._note(limit_change, learnt)
        if extent is Extent.LANE or (
            extent is Extent.LANE_OF_BRANCH and (asks or served is DeliveryFeedback.PUSHED_BACK)
        ):
            of_lane = replace(refused, asked_seconds=0.0)
            self._note(whole.lane.release_slot(slot.whole or slot, served, moment, of_lane), learnt)
        else:
            whole.lane.end_turn_without_learning()
            if extent is Extent.LANE_OF_BRANCH and is_stricter(branch.lane.learned, whole.lane.learned):
                # Only the branch has been refused: what it learned is what the lane would have learned.
                kind = _KINDS.get(served, LimitChangeKind.SLOW) if limit_change is None else limit_change.kind
                before = whole.lane.learned
                after = stricter(before, branch.lane.learned)
                self._note(LimitChange(moment.at, whole.scope, kind, before, after, refused), learnt)
        learnt.moved += self._table.take_all_of(whole, bundle.account_id)
        return branch if extent is Extent.BRANCH else whole

    def _note(self, limit_change: LimitChange | None, learnt: Learnt) -> None:
        if limit_change is not None:
            self._learned_limits.learn(limit_change)
            learnt.limit_changes.append(limit_change)
            self._adopt(limit_change.scope, limit_change.after, learnt)

    def _adopt(self, scope: LaneScope, learned: LearnedLimits, learnt: Learnt) -> None:
        """Apply learned limits, from here or elsewhere, to all parts of the lane."""
        moment, table = self._table.moment(), self._table
        self.domains.adopt(scope, learned)
        if scope.branch is not None:
            table.note_branch(scope.whole, scope.branch)
            for whole in list(table.queues.values()):
                is_part = whole.branch is None and whole.scope == scope.whole
                if is_part and table.make_known_branch(whole, scope.branch):
                    learnt.moved += table.take_all_of(whole, scope.branch.account_id)
        for queue in list(table.queues.values()):
            if queue.lane.scope != scope:
                continue
            if queue.lane.learned != learned:
                queue.lane.adopt(learned, moment)
                learnt.advanced.append(queue)
            for branch in list(queue.branches.values()):
                if not table.is_needed(branch, queue, moment.seconds):
                    table.drop(branch)
                    learnt.moved += table.empty(branch)
