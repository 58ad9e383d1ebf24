"""The lanes of this worker: their queues, their limits, and the space in which tickets wait.

A lane, or a part of it, lives in a shard of the stream. A lane that is full or paused takes only its own share of the
space.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from posthouse.flows.deliver.lane_queue import ALL_WAITING_MAX, Bundle, Item, LaneKey, LaneQueue, source_of
from posthouse.flows.deliver.learned_limits import LearnedLimitsSync
from posthouse.flows.shared.context import Context
from posthouse.flows.shared.shares import FairShare
from posthouse.rules.address_warm_up import VOLUMES, Volumes
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import PAUSE_SECONDS_MIN, Lane, LaneLimits, Limits
from posthouse.rules.lane_shard import LaneShards
from posthouse.rules.learned_limits import Branch, LaneScope, is_stricter, lane_scope_of_branch
from posthouse.rules.pace import Moment
from posthouse.rules.route import Relay, Route
from posthouse.rules.ticket import DeliveryTicket
from posthouse.wire.carrier import LaneConnections
from posthouse.wire.stream import Leases

# The simulator has no server.
SIMULATOR_LIMITS: Final = Limits(per_second=10_000.0, burst=10_000, connections_start=50, connections_max=50)
# How many branches of a lane may have their own learned limits.
BRANCHES_MAX: Final = 1_000
# When lanes are placed over a different number of shards, workers find out at their next renewals. Until then nothing
# is sent, because a lane would have two homes.
REPLACED_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class LaneSettings:
    limits: LaneLimits
    # Its mail has its own lane.
    simulator_domain: str
    sessions_max: int = 500
    warm_up_volumes: Volumes = VOLUMES


class LaneTable:
    def __init__(
        self, settings: LaneSettings, context: Context, *, leases: Leases, learned_limits: LearnedLimitsSync
    ) -> None:
        self._clock = context.clock
        self._randomness = context.randomness
        self._simulator_domain = settings.simulator_domain
        self._leases = leases
        self._learned_limits = learned_limits
        self.queues: dict[LaneKey, LaneQueue] = {}
        self.shards = LaneShards(settings.limits, leases.places)
        # The shards held here, as of the last `note_shards`.
        self.held = leases.held()
        self._replaced_at = float("-inf")
        # For each lane, the branches that have learned something, here or elsewhere.
        self._branches_known: dict[LaneScope, set[Branch]] = {}
        self._waiting: FairShare[AccountId] = FairShare(ALL_WAITING_MAX)

    def moment(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.now(), self._randomness.fraction())

    # Shards.

    def note_shards(self) -> frozenset[int]:
        """Find out which shards are held here; returns those that were gained or lost since the last time."""
        held, places = self._leases.held(), self._leases.places
        if held == self.held and places == self.shards.shards:
            return frozenset()
        changed, self.held = held ^ self.held, held
        if places != self.shards.shards:
            self.shards = replace(self.shards, shards=places)
            self._replaced_at = self._clock.monotonic() + REPLACED_SECONDS
            changed = frozenset(queue.shard for queue in self.queues.values())
        return changed

    def move(self, queue: LaneQueue) -> list[Item]:
        """Adjust a lane that moved to this worker, or away from it; returns the tickets that waited in it."""
        items = self.empty(queue)
        # The new holder may open as many connections.
        if queue.whole is None:
            queue.connections.close()
            queue.connections = LaneConnections(queue.connections_max)
        else:
            queue.connections = queue.whole.connections
        queue.wait = None
        if queue.lane.in_use:
            # Its running sessions must still count when the shard comes back.
            self._take_over(queue)
        else:
            self.drop(queue)
        return items

    # Queues.

    def queue(self, name: str, shard: int, route: Route | None = None, relay: Relay | None = None) -> LaneQueue:
        """The lane's queue for this route or relay; a new one if there is none."""
        queue = self.queues.get((name, shard, source_of(route), None))
        if queue is None:
            lane = Lane(self._limits_of(name, shard, relay), LaneScope(source_of(route), name))
            queue = LaneQueue(name, shard, lane, route, relay)
            self.queues[queue.key] = queue
            self._take_over(queue)
            for branch in self._branches_known.get(queue.scope, ()):
                self.make_known_branch(queue, branch)
        # The name that it greets with may have changed.
        queue.route = route
        if queue.relay != relay:
            for each in (queue, *queue.branches.values()):
                each.relay = relay
                each.lane.limit(self._limits_of(name, shard, relay))
        return queue

    def narrowed(self, queue: LaneQueue, ticket: DeliveryTicket) -> LaneQueue:
        """The queue of the branch to which the ticket belongs, if something was learned about it."""
        branch = queue.branches.get(Branch(ticket.account_id, ticket.destination)) if queue.branches else None
        if branch is None:
            return queue
        branch.route = queue.route
        return branch

    def make_branch(self, whole: LaneQueue, branch: Branch) -> LaneQueue:
        if len(whole.branches) >= BRANCHES_MAX:
            idle = next((each for each in whole.branches.values() if not each.waiting and not each.lane.in_use), None)
            if idle is not None:
                self.drop(idle)
        scope = lane_scope_of_branch(whole.scope, branch)
        lane = whole.lane.branch(scope)
        made = LaneQueue(whole.name, whole.shard, lane, whole.route, whole.relay, whole, branch)
        learned = self._learned_limits.limits_of(scope)
        if learned is not None and is_stricter(learned, whole.lane.learned):
            made.lane.adopt(learned, self.moment())
        self.queues[made.key] = whole.branches[branch] = made
        return made

    def note_branch(self, whole: LaneScope, branch: Branch) -> None:
        """The branch has learned something, here or elsewhere."""
        self._branches_known.setdefault(whole, set()).add(branch)

    def make_known_branch(self, whole: LaneQueue, branch: Branch) -> bool:
        """Make the branch if its learned limits are stricter than the lane's."""
        learned = self._learned_limits.limits_of(lane_scope_of_branch(whole.scope, branch))
        if branch in whole.branches or learned is None or not is_stricter(learned, whole.lane.learned):
            return False
        self.make_branch(whole, branch)
        return True

    def is_needed(self, branch: LaneQueue, whole: LaneQueue, now: float) -> bool:
        """Whether a branch has learned something that its lane has not."""
        # A pause that the lane took over from it may end a moment sooner or later.
        pauses = branch.lane.pause_left(now) > whole.lane.pause_left(now) + PAUSE_SECONDS_MIN / 2
        return pauses or is_stricter(branch.lane.learned, whole.lane.learned)

    def drop(self, queue: LaneQueue) -> None:
        self.queues.pop(queue.key, None)
        if queue.whole is not None and queue.branch is not None:
            queue.whole.branches.pop(queue.branch, None)
            queue.wait = None

    # Limits.

    def _limits_of(self, name: str, shard: int, relay: Relay | None) -> Limits:
        if relay is not None:
            return relay.limits
        return SIMULATOR_LIMITS if name == self._simulator_domain else self.shards.limits_in(name, shard)

    def _take_over(self, queue: LaneQueue) -> None:
        queue.lane.limit(self._limits_of(queue.name, queue.shard, queue.relay))
        learned = self._learned_limits.limits_of(queue.lane.scope)
        if learned is not None:
            queue.lane.adopt(learned, self.moment())
        queue.lane.use_up_burst(max(self._leases.held_since(queue.shard), self._replaced_at))

    # Space.

    def has_capacity(self, queue: LaneQueue, account_id: AccountId, *, is_list: bool) -> bool:
        """Whether one more recipient of the account may wait in the lane."""
        free = ALL_WAITING_MAX - self._waiting.taken
        return self._waiting.has_capacity(account_id) and queue.has_capacity(account_id, free, is_list=is_list)

    def add(self, queue: LaneQueue, item: Item, *, is_apart: bool = False) -> None:
        """Let the ticket wait, with others of its message unless it `is_apart`."""
        ticket = item.ticket
        key = ticket.message_id, ticket.destination
        bundle = None if is_apart else queue.open_bundles.get(key)
        if bundle is None:
            bundle = Bundle(ticket.account_id, ticket.message_id, ticket.destination, [])
            queue.bundles.push(ticket.account_id, bundle, is_list=ticket.is_list)
            if not is_apart:
                queue.open_bundles[key] = bundle
        bundle.items.append(item)
        queue.count(ticket.account_id, 1, is_list=bundle.is_list)
        self._waiting.take_units(ticket.account_id)

    def add_rest(self, queue: LaneQueue, bundle: Bundle, rest: list[Item]) -> bool:
        """Let tickets of a bundle that was taken wait again, if there is still space for them."""
        if not self._waiting.take_units(bundle.account_id, len(rest)):
            return False
        later = Bundle(bundle.account_id, bundle.message_id, bundle.destination, rest)
        queue.bundles.push(bundle.account_id, later, is_list=later.is_list)
        queue.count(bundle.account_id, len(rest), is_list=later.is_list)
        return True

    def take(self, queue: LaneQueue, account_id: AccountId) -> Bundle:
        """The account's next bundle, which waits no longer."""
        bundle = queue.bundles.pop(account_id)
        queue.open_bundles.pop((bundle.message_id, bundle.destination), None)
        self._remove(queue, bundle)
        return bundle

    def take_all_of(self, queue: LaneQueue, account_id: AccountId) -> list[Item]:
        """The account's waiting tickets, which wait no longer."""
        items: list[Item] = []
        while queue.bundles.waiting(account_id):
            items += self.take(queue, account_id).items
        return items

    def empty(self, queue: LaneQueue) -> list[Item]:
        """All waiting tickets of the lane, which wait no longer."""
        bundles = [queue.bundles.pop() for _ in range(len(queue.bundles))]
        queue.open_bundles.clear()
        for bundle in bundles:
            self._remove(queue, bundle)
        return [item for bundle in bundles for item in bundle.items]

    def empty_all(self, queues: Iterable[LaneQueue]) -> list[Item]:
        return [item for queue in queues for item in self.empty(queue)]

    def _remove(self, queue: LaneQueue, bundle: Bundle) -> None:
        recipients = len(bundle.items)
        queue.count(bundle.account_id, -recipients, is_list=bundle.is_list)
        self._waiting.release_units(bundle.account_id, recipients)
