"""The lanes' queues: which tickets wait in which lane, and which of them goes next.

Recipients of one message at one destination go together, in one SMTP transaction. No ticket waits here for the DNS
or the database on behalf of another destination's mail. A lane that is full or paused takes only its own share of
the room.

What one account sends to one domain has a queue and a lane inside the lane once a refusal was about no more than that
(`rules.evidence`): such mail needs a slot of both.

A lane, or a part of it, lives in a shard of the stream. A ticket of a lane that lives in a shard of another worker is
forwarded; when a shard is lost, what waits in its lanes is given back at once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.deliver.allowances import Allowances
from posthouse.flows.deliver.domain_lanes import DomainLanes, DomainSlot
from posthouse.flows.deliver.lane_lookup import LaneLookup
from posthouse.flows.deliver.session_shares import SessionShares
from posthouse.flows.shared import tickets
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.rules.evidence import Evidence, Extent
from posthouse.rules.fair_share import FairShare
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import (
    PAUSE_SECONDS_MIN,
    REFUSALS,
    FairQueue,
    Lane,
    LaneLimits,
    Later,
    Limits,
    Served,
    Slot,
    is_provider,
)
from posthouse.rules.lane_shard import Elsewhere, LaneShards, place
from posthouse.rules.pace import Moment
from posthouse.rules.refusal import Refusal
from posthouse.rules.relay import Relay, is_relay_lane
from posthouse.rules.rescue import HourCount
from posthouse.rules.route import Room, Route, choose, ranked
from posthouse.rules.standing import (
    Branch,
    LaneState,
    Lesson,
    LessonKind,
    Place,
    Refused,
    Standing,
    is_stricter,
    place_of_branch,
    stricter,
)
from posthouse.rules.ticket import DeliveryTicket
from posthouse.wire.carrier import LaneConnections
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Leases

Item = tickets.Item[DeliveryTicket]
# A lane's name, the shard in which it lives, our address that its mail leaves from; and which branch of it, if not all.
LaneKey = tuple[str, int, str, Branch | None]

# A ticket that waits longer than its lease is published again: what can't go within this time is postponed.
WAIT_SECONDS_MAX: Final = 30.0
WAITING_MIN: Final = 100
WAITING_MAX: Final = 5_000
# Of all lanes together; less than the stream and the worker can hold. The less of it is free, the less a lane gets,
# by the power of SCARCITY: a hundred full lanes still spare an eighth of it for others.
ALL_WAITING_MAX: Final = 15_000
SCARCITY: Final = 3
# Never reached: `has_room` refuses long before.
BUNDLES_MAX: Final = 1_000_000
# A full lane still takes so many recipients of an account that has fewer waiting, up to as much again in all.
SMALL_SHARE: Final = 10
POSTPONE_SECONDS_MIN: Final = 1.0
POSTPONE_SECONDS_MAX: Final = 3600.0
# During a pause up to this, tickets wait; before a longer pause they are postponed, so that they take no room.
PAUSE_SECONDS_WAITED: Final = 5.0
# A ticket that would wait for its lane for longer is looked at first: is its address suppressed?
UNASKED_SECONDS: Final = 1.0
IDLE_LANES_MAX: Final = 10_000
# The address of an installation that has only one.
SOLE_ADDRESS: Final = ""
# A sender's mail takes its next address while more than this waits for the one before.
ADDRESS_SECONDS_MAX: Final = 1.0
# While no address of a pool may send, its mail is postponed by this.
NO_ADDRESS_SECONDS: Final = 60.0
# What waits for the next hour's allowance comes back within so many seconds of its beginning.
NEXT_HOUR_SECONDS: Final = 300.0
# Branches of a lane that have learnt something more than it has.
BRANCHES_MAX: Final = 1_000
# When a session ends, lanes of each account above its share are tried again, until so many could not go on.
FAILURES_MAX: Final = 5
# When lanes are placed over another number of shards, workers learn of it at their next renewals. For so long nothing
# is sent, or a lane would have two homes.
REPLACED_SECONDS: Final = 2.0


@dataclass(slots=True)
class Bundle:
    """Recipients of one message at one destination: one SMTP transaction."""

    account_id: AccountId
    message_id: MessageId
    destination: str
    items: list[Item]
    # Whether its session began while its lane had not answered yet.
    is_unproven: bool = False
    domain_slot: DomainSlot | None = None
    # What a reply said about its From domain, when that is not believed yet.
    unbelieved: tuple[Served, Refused] | None = None

    @property
    def sender(self) -> str | None:
        """The domain in From."""
        return self.items[0].ticket.sender

    @property
    def is_list(self) -> bool:
        return self.items[0].ticket.is_list

    @property
    def branch(self) -> Branch:
        """Which branch of its lane it belongs to."""
        return Branch(self.account_id, self.destination)


@dataclass(slots=True)
class LaneCounts:
    """The outcomes in a lane since the process started."""

    delivered: int = 0
    # Of these, in the last hour.
    hour: HourCount = field(default_factory=HourCount)
    deferred: int = 0
    last_reply: str | None = None


@dataclass(slots=True)
class LaneQueue:
    """A lane, or its part that lives in this shard, and the bundles that wait for it, all to leave by one route.

    Without a route they leave as the machine sends by itself; those of a relay's lane go to the relay.
    """

    name: str
    shard: int
    lane: Lane
    bundles: FairQueue[Bundle]
    route: Route | None = None
    relay: Relay | None = None
    # Of a branch, the lane's queue, and which branch it is.
    whole: "LaneQueue | None" = None
    branch: Branch | None = None
    branches: dict[Branch, "LaneQueue"] = field(default_factory=dict)
    evidence: Evidence = field(init=False)
    # The bundles that further recipients can join.
    open_bundles: dict[tuple[MessageId, str], Bundle] = field(default_factory=dict)
    # Everything that bounds a lane counts recipients, that is tickets, because these take the room in the worker and in
    # the stream. Bundles would let an account wait with fifty times as much.
    waiting: int = 0
    waiting_by_account: Counter[AccountId] = field(default_factory=Counter)
    # Of these, mail of lists.
    lists_by_account: Counter[AccountId] = field(default_factory=Counter)
    # For each account, the time up to which room is promised to postponed tickets.
    horizons: dict[AccountId, float] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    # More of its allowance is being asked for.
    is_reserving: bool = False
    # Every account that waits here has its share of sessions: none can begin before a session has ended.
    waits_for_share: bool = False
    counts: LaneCounts = field(default_factory=LaneCounts)
    connections: LaneConnections = field(init=False)
    key: LaneKey = field(init=False)
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        source = _source(self.route)
        self.evidence = Evidence(self.name)
        self.connections = LaneConnections(self.connections_max) if self.whole is None else self.whole.connections
        self.key = self.name, self.shard, source, self.branch
        self.place = Place(source, self.name)

    def connections_max(self) -> int:
        """How many connections may be open, idle ones among them."""
        return self.lane.connections

    def pause_left(self, now: float) -> float:
        """For how many seconds nothing is sent, of the branch or of the whole lane."""
        left = self.lane.pause_left(now)
        return left if self.whole is None else max(left, self.whole.lane.pause_left(now))

    def take(self, now: float) -> Slot | Later:
        slot = self.lane.take(now)
        if self.whole is None or isinstance(slot, Later):
            return slot
        of_whole = self.whole.lane.take(now)
        if isinstance(of_whole, Later):
            self.lane.untake()
            return of_whole
        return replace(slot, whole=of_whole)

    def untake(self) -> None:
        self.lane.untake()
        if self.whole is not None:
            self.whole.lane.untake()

    @property
    def per_connection_max(self) -> int:
        most = self.lane.per_connection_max
        return most if self.whole is None else min(most, self.whole.lane.per_connection_max)

    @property
    def waiting_max(self) -> int:
        return int(min(max(self.lane.per_second * WAIT_SECONDS_MAX, WAITING_MIN), WAITING_MAX))

    def count(self, account_id: AccountId, change: int, *, is_list: bool) -> None:
        """Change the number of the account's waiting recipients."""
        self.waiting += change
        for counted in (self.waiting_by_account, self.lists_by_account) if is_list else (self.waiting_by_account,):
            counted[account_id] += change
            if not counted[account_id]:
                del counted[account_id]

    def has_room(self, account_id: AccountId, free: int, *, is_list: bool) -> bool:
        """Whether one more recipient of the account may wait, if `free` more may in all lanes together."""
        if free <= 0:
            return False
        room = min(self.waiting_max, int(WAITING_MAX * (free / ALL_WAITING_MAX) ** SCARCITY))
        waiting = self.waiting_by_account[account_id]
        # A list leaves room for its own account's other mail.
        if waiting - (0 if is_list else self.lists_by_account[account_id]) < SMALL_SHARE:
            return self.waiting < 2 * room + SMALL_SHARE
        # A fifth of the room is always for the others.
        return waiting < room * 4 // 5 and self.waiting < room


_KINDS: Final = {
    Served.BLOCKED: LessonKind.BLOCK,
    Served.CONNECTIONS: LessonKind.CONNECTIONS,
    Served.PER_CONNECTION: LessonKind.PER_CONNECTION,
}

# A lane's queue here; its lane and the shard of that, elsewhere; or the seconds to wait.
_Target = LaneQueue | tuple[str, int] | Literal[Elsewhere.GIVE_BACK] | float


class LaneQueues:
    """`start` delivers a bundle; it calls `release_slot` after the SMTP session and `end_session` once recorded.

    `postpone` postpones tickets that find no room, each by its seconds; `give_back` returns tickets to the stream, and
    `forward` sends those of a lane to the shard where it lives. `routes_of` says by which routes an account's mail
    leaves, those of its overflow after its own: empty, as the machine sends by itself; None, not now. What no route
    may send takes the relay of `relay_of`, if any. `allowances` bound what some routes and relays may send.
    `hold` keeps back the tickets of a lane that an operator paused; `hurry` says that mail waits for what is being
    claimed. `ask` gets tickets that would wait: it ends those whose address is suppressed, and sorts the others again,
    as `is_asked`.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        chance: Chance,
        resolver: Resolver,
        lane_limits: LaneLimits,
        sessions_max: int,
        own_lane: str,
        own_limits: Limits,
        leases: Leases,
        tasks: BackgroundTasks,
        start: Callable[[LaneQueue, Slot, Bundle], Coroutine[object, object, None]],
        postpone: Callable[[list[tuple[Item, float]]], None],
        give_back: Callable[[list[Item]], None],
        forward: Callable[[list[Item], str, int], None],
        routes_of: Callable[[AccountId], tuple[tuple[Route, ...], ...] | None] = lambda _: (),
        relay_of: Callable[[AccountId], Relay | None] = lambda _: None,
        allowances: Allowances | None = None,
        standing_of: Callable[[Place], Standing | None] = lambda _: None,
        learnt: Callable[[Lesson], None] = lambda _: None,
        hold: Callable[[list[Item], str], None] = lambda _items, _lane: None,
        hurry: Callable[[], None] = lambda: None,
        ask: Callable[[list[Item]], None] | None = None,
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._standing_of = standing_of
        self._learnt = learnt
        self._hold = hold
        self._hurry = hurry
        self._ask = ask
        self._paused: Set[str] = frozenset()
        self._shards = LaneShards(lane_limits, leases.places)
        self._own_lane = own_lane
        self._own_limits = own_limits
        self._leases = leases
        self._held = leases.held()
        self._replaced_at = float("-inf")
        self._sessions = SessionShares(sessions_max)
        self._tasks = tasks
        self._start = start
        self._postpone = postpone
        self._give_back = give_back
        self._forward = forward
        self._routes_of = routes_of
        self._relay_of = relay_of
        self._allowances = allowances
        self._lookup = LaneLookup(clock=clock, resolver=resolver, own_lane=own_lane, tasks=tasks, resolved=self.sort)
        self._domains = DomainLanes(
            limits_of=lambda name, shard: self._limits_of(name, shard, None),
            standing_of=standing_of,
            moment=self._moment,
        )
        self._queues: dict[LaneKey, LaneQueue] = {}
        # Of each lane, the branches that have learnt something, here or elsewhere.
        self._branches_known: dict[Place, set[Branch]] = {}
        self._waiting: FairShare[AccountId] = FairShare(ALL_WAITING_MAX)
        # Lanes that wait only for the process's limit of sessions, in the order in which they reached it.
        self._starved: dict[LaneKey, None] = {}
        # For each account above its share of sessions, the lanes in which only such accounts wait.
        self._over_share: dict[AccountId, dict[LaneKey, None]] = {}
        self._closed = False
        self._late: list[tuple[Item, float]] = []

    @property
    def queues(self) -> Iterable[LaneQueue]:
        return self._queues.values()

    def note_shards(self) -> frozenset[int]:
        """The shards held here. What waits in the lanes of those that were lost is given back."""
        held, places = self._leases.held(), self._leases.places
        if held == self._held and places == self._shards.shards:
            return held
        changed, self._held = held ^ self._held, held
        if places != self._shards.shards:
            self._shards = replace(self._shards, shards=places)
            self._replaced_at = self._clock.monotonic() + REPLACED_SECONDS
            changed = frozenset(queue.shard for queue in self._queues.values())
        self._domains.forget(changed)
        self._move([queue for queue in self._queues.values() if queue.shard in changed])
        return held

    def _move(self, queues: Iterable[LaneQueue]) -> None:
        """These lanes were another worker's, or are from now on."""
        waiting: list[Item] = []
        for queue in queues:
            waiting += self._emptied(queue)
            # The new holder may open as many.
            if queue.whole is None:
                queue.connections.close()
                queue.connections = LaneConnections(queue.connections_max)
            else:
                queue.connections = queue.whole.connections
            self._starved.pop(queue.key, None)
            if queue.timer is not None:
                queue.timer.cancel()
                queue.timer = None
            if queue.lane.in_use:
                # Its running sessions still count when the shard comes back.
                self._take_over(queue)
            else:
                self._drop(queue)
        if waiting:
            self._give_back(waiting)

    def _drop(self, queue: LaneQueue) -> None:
        self._queues.pop(queue.key, None)
        if queue.whole is not None and queue.branch is not None:
            queue.whole.branches.pop(queue.branch, None)
            if queue.timer is not None:
                queue.timer.cancel()
                queue.timer = None

    def sort(self, items: Iterable[Item], *, is_asked: bool = False) -> None:
        """Put tickets into their lanes; tickets of an unknown destination wait for its look-up."""
        now = self._clock.monotonic()
        held = self.note_shards()
        touched: dict[LaneKey, LaneQueue] = {}
        returned: list[Item] = []
        forwarded: dict[tuple[str, int], list[Item]] = {}
        held_back: dict[str, list[Item]] = {}
        unasked: list[Item] = []
        for item in items:
            ticket = item.ticket
            name = ticket.lane or self._lookup.lane_of(ticket)
            if name is None:
                if not self._lookup.wait(item):
                    self._late.append((item, POSTPONE_SECONDS_MIN))
                continue
            paused = self._paused_by(name, ticket.destination)
            if paused is not None:
                held_back.setdefault(paused, []).append(item)
                continue
            match self._target(name, item, held, now):
                case float() as seconds:
                    self._late.append((item, seconds))
                case Elsewhere.GIVE_BACK:
                    returned.append(item)
                case (lane, home):
                    forwarded.setdefault((lane, home), []).append(item)
                case LaneQueue() as lane_queue:
                    queue = self._narrowed(lane_queue, ticket)
                    self._enter(queue, item, now, unasked=None if is_asked or self._ask is None else unasked)
                    touched[queue.key] = queue
        for queue in touched.values():
            self.advance(queue)
        for (name, home), group in forwarded.items():
            self._forward(group, name, home)
        for name, group in held_back.items():
            self._hold(group, name)
        if returned:
            self._give_back(returned)
        if unasked and self._ask is not None:
            self._ask(unasked)
        self._postpone_late()

    def sort_apart(self, queue: LaneQueue, items: list[Item]) -> None:
        """Put tickets of one bundle back into their lane, where each waits for a turn of its own."""
        if queue.shard not in self.note_shards():
            self._give_back(items)
            return
        paused = next((self._paused_by(queue.name, item.ticket.destination) for item in items), None)
        if paused is not None:
            self._hold(items, paused)
            return
        now = self._clock.monotonic()
        for item in items:
            queue = self._narrowed(queue.whole or queue, item.ticket)
            self._enter(queue, item, now, is_apart=True)
        self.advance(queue)
        self._postpone_late()

    def release_slot(
        self, queue: LaneQueue, slot: Slot, bundle: Bundle, served: Served, refused: Refused | None = None
    ) -> LaneQueue:
        """A bundle's turn in its lane is over: the next may go, after lanes that wait for a session.

        Returns the queue of what the reply is about: of the lane, or of the bundle's branch of it.
        """
        moment = self._moment()
        whole, about = queue.whole or queue, queue
        if served is not Served.NOT_SENT:
            whole.evidence.sent(bundle.account_id, moment.seconds)
        if served in REFUSALS:
            extent = whole.evidence.refused(bundle.branch, bundle.message_id, served, moment.seconds)
            about = self._heed(queue, slot, bundle, served, refused or Refused(), extent, moment)
        elif bundle.unbelieved is not None:
            about = self._heed(queue, slot, bundle, *bundle.unbelieved, Extent.BRANCH, moment)
        else:
            self._note(queue.lane.give_back(slot, served, moment, refused))
            if slot.whole is not None:
                self._note(whole.lane.give_back(slot.whole, served, moment, refused))
        if not queue.waiting:
            self._forget_if_idle(queue)
        # A branch waits for the connections of the whole lane as well.
        waiting = [
            each for each in (queue, whole, *whole.branches.values()) if each.waiting and not each.waits_for_share
        ]
        for each in waiting:
            self._starved.setdefault(each.key)
        if waiting:
            self._advance_starved()
        return about

    def _heed(
        self,
        queue: LaneQueue,
        slot: Slot,
        bundle: Bundle,
        served: Served,
        refused: Refused,
        extent: Extent,
        moment: Moment,
    ) -> LaneQueue:
        """The lane learns from a refusal that is about the lane; the bundle's branch of it from any other."""
        whole = queue.whole or queue
        if slot.whole is not None:
            queue.lane.end_turn_unheeded()
        # In a provider's lane, a wait is for the domain that asked.
        asks = is_provider(whole.name) and refused.asked_seconds > 0
        if extent is Extent.LANE and not asks:
            self._note(whole.lane.give_back(slot.whole or slot, served, moment, refused))
            return whole
        branch = whole.branches.get(bundle.branch)
        # Mails in flight together are refused together: only the first counts.
        lane, given = (whole.lane, slot.whole or slot) if branch is None else (branch.lane, slot)
        is_first = (branch is None or branch is queue) and lane.is_current(given)
        if branch is None:
            branch = self._make_branch(whole, bundle.branch)
        lesson = branch.lane.heed(served, moment, refused, others=whole.lane.in_use - 1, is_first=is_first)
        self._note(lesson)
        if extent is Extent.LANE or (extent is Extent.LANE_OF_BRANCH and (asks or served is Served.PUSHED_BACK)):
            of_lane = replace(refused, asked_seconds=0.0)
            self._note(whole.lane.give_back(slot.whole or slot, served, moment, of_lane))
        else:
            whole.lane.end_turn_unheeded()
            if extent is Extent.LANE_OF_BRANCH and is_stricter(branch.lane.standing, whole.lane.standing):
                # Nothing but the branch has been refused: what it learnt is what the lane would have.
                kind = _KINDS.get(served, LessonKind.SLOW) if lesson is None else lesson.kind
                before = whole.lane.standing
                after = stricter(before, branch.lane.standing)
                self._note(Lesson(moment.at, whole.place, kind, before, after, refused))
        self._sort_again(whole, bundle.account_id)
        return branch if extent is Extent.BRANCH else whole

    def _narrowed(self, queue: LaneQueue, ticket: DeliveryTicket) -> LaneQueue:
        """The queue of the branch to which the ticket belongs, if something was learnt about that."""
        branch = queue.branches.get(Branch(ticket.account_id, ticket.destination)) if queue.branches else None
        if branch is None:
            return queue
        branch.route = queue.route
        return branch

    def _make_branch(self, whole: LaneQueue, branch: Branch) -> LaneQueue:
        if len(whole.branches) >= BRANCHES_MAX:
            idle = next((each for each in whole.branches.values() if not each.waiting and not each.lane.in_use), None)
            if idle is not None:
                self._drop(idle)
        place = place_of_branch(whole.place, branch)
        made = LaneQueue(
            whole.name,
            whole.shard,
            whole.lane.branch(place),
            FairQueue(BUNDLES_MAX, BUNDLES_MAX),
            whole.route,
            whole.relay,
            whole,
            branch,
        )
        standing = self._standing_of(place)
        if standing is not None and is_stricter(standing, whole.lane.standing):
            made.lane.adopt(standing, self._moment())
        self._queues[made.key] = whole.branches[branch] = made
        return made

    def _sort_again(self, queue: LaneQueue, account_id: AccountId) -> None:
        """What waits of the account belongs to a branch now, or no longer."""
        items: list[Item] = []
        while queue.bundles.waiting(account_id):
            bundle = queue.bundles.pop(account_id)
            queue.open_bundles.pop((bundle.message_id, bundle.destination), None)
            self._remove(queue, bundle)
            items += bundle.items
        if items:
            self.sort(items)

    def _is_needed(self, branch: LaneQueue, whole: LaneQueue, now: float) -> bool:
        """Whether a branch has learnt something that its lane has not."""
        # What the lane took over from it ends a moment sooner or later.
        pauses = branch.lane.pause_left(now) > whole.lane.pause_left(now) + PAUSE_SECONDS_MIN / 2
        return pauses or is_stricter(branch.lane.standing, whole.lane.standing)

    def release_domain(self, queue: LaneQueue, bundle: Bundle, served: Served, refused: Refused | None = None) -> None:
        """A provider has answered, and perhaps said something about the mail of the bundle's From domain."""
        taken, bundle.domain_slot = bundle.domain_slot, None
        name, shard, sender = queue.name, queue.shard, bundle.sender
        if served in REFUSALS and not self._domains.believes(
            name, shard, sender, bundle.branch, bundle.message_id, served
        ):
            bundle.unbelieved = served, refused or Refused()
            served = Served.OTHERWISE
        self._note(self._domains.release(name, shard, sender, taken, served, refused))

    def _note(self, lesson: Lesson | None) -> None:
        if lesson is not None:
            self._learnt(lesson)
            self.adopt(lesson.place, lesson.after)

    def adopt(self, place: Place, standing: Standing) -> None:
        """This is learnt, here or elsewhere: all parts of the lane go by it."""
        moment = self._moment()
        self._domains.adopt(place, standing)
        if place.branch is not None:
            self._branches_known.setdefault(place.whole, set()).add(place.branch)
            for queue in list(self._queues.values()):
                if queue.branch is None and queue.place == place.whole:
                    self._make_known_branches(queue, [place.branch])
        for queue in list(self._queues.values()):
            if queue.lane.place != place:
                continue
            if queue.lane.standing != standing:
                queue.lane.adopt(standing, moment)
                self.advance(queue)
            for branch in list(queue.branches.values()):
                if not self._is_needed(branch, queue, moment.seconds):
                    self._drop(branch)
                    self._go_elsewhere(self._emptied(branch))

    def _make_known_branches(self, whole: LaneQueue, branches: Iterable[Branch]) -> None:
        """Those that know more than the lane does."""
        for branch in branches:
            standing = self._standing_of(place_of_branch(whole.place, branch))
            is_new = branch not in whole.branches and standing is not None
            if is_new and standing is not None and is_stricter(standing, whole.lane.standing):
                self._make_branch(whole, branch)
                self._sort_again(whole, branch.account_id)

    def pause(self, lanes: Set[str]) -> None:
        """Exactly these lanes are paused: what waits in them is kept back, and sessions that run come to their end."""
        begun, self._paused = lanes - self._paused, lanes
        if begun and not self._closed:
            self.sort([item for queue in list(self._queues.values()) for item in self._emptied(queue)])

    def _paused_by(self, lane: str, destination: str) -> str | None:
        """A domain can be paused by itself, also in the lane of its provider."""
        if not self._paused:
            return None
        return next((name for name in (lane, destination) if name in self._paused), None)

    def end_session(self, bundle: Bundle) -> None:
        """A bundle's outcomes are recorded."""
        if bundle.domain_slot is not None:
            self._domains.give_back(bundle.domain_slot)
        self._sessions.end(bundle.account_id, is_unproven=bundle.is_unproven)
        self._advance_starved()
        self._advance_over_share()

    def _advance_starved(self) -> None:
        while self._starved and not self._sessions.is_full:
            key = next(iter(self._starved))
            del self._starved[key]
            if key in self._queues:
                self.advance(self._queues[key])

    def _advance_over_share(self) -> None:
        if not self._over_share:
            return
        for account_id in list(self._sessions.with_room(self._over_share, is_unproven=False)):
            # One before it may have taken the room.
            if not self._sessions.has_room(account_id, is_unproven=False):
                continue
            # An account that goes on waiting has its next turn after the others, as has each of its lanes.
            lanes = self._over_share.pop(account_id)
            failures = 0
            while lanes and failures < FAILURES_MAX and self._sessions.has_room(account_id, is_unproven=False):
                sessions = self._sessions.taken
                key = next(iter(lanes))
                del lanes[key]
                if key in self._queues:
                    self.advance(self._queues[key])
                failures += self._sessions.taken == sessions
            if lanes:
                self._over_share[account_id] = lanes | self._over_share.get(account_id, {})

    def advance(self, queue: LaneQueue) -> None:
        """Start every bundle that may go now."""
        if self._closed or queue.shard not in self.note_shards():
            return
        queue.waits_for_share = False
        while queue.waiting:
            if self._sessions.is_full:
                self._starved.setdefault(queue.key)
                return
            if not self._has_allowance(queue):
                return
            now = self._clock.monotonic()
            slot = queue.take(now)
            if isinstance(slot, Later):
                self._wait(queue, slot, now)
                return
            account_id = self._next_account(queue)
            if account_id is None:
                queue.untake()
                # A lane that answers for the first time has more room.
                queue.waits_for_share = queue.lane.answers
                for waiting in queue.bundles.accounts():
                    self._over_share.setdefault(waiting, {})[queue.key] = None
                return
            self._begin(queue, slot, account_id)
        self._forget_if_idle(queue)

    def _next_account(self, queue: LaneQueue) -> AccountId | None:
        """Whose turn it is among the accounts that may have another session."""
        is_unproven = not queue.lane.answers
        return next(self._sessions.with_room(queue.bundles.accounts(), is_unproven=is_unproven), None)

    def _has_allowance(self, queue: LaneQueue) -> bool:
        """Whether a mail may go now; if not, more is asked for, or what waits goes another way."""
        allowances = self._allowances
        if allowances is None or not allowances.is_bounded(queue.place):
            return True
        if allowances.may_take(queue.place):
            return True
        if allowances.is_spent(queue.place):
            self._go_elsewhere(self._emptied(queue))
        elif not queue.is_reserving:
            queue.is_reserving = True
            self._tasks.spawn(self._reserve(queue, allowances))
        return False

    async def _reserve(self, queue: LaneQueue, allowances: Allowances) -> None:
        try:
            await allowances.reserve(queue.place, queue.waiting)
        except Refusal:
            # PostgreSQL is away. Without it nothing could be claimed either.
            self._give_back(self._emptied(queue))
            return
        finally:
            queue.is_reserving = False
        self.advance(queue)

    def _go_elsewhere(self, items: list[Item]) -> None:
        if items:
            self.sort(items)

    def _within_allowance(self, queue: LaneQueue, bundle: Bundle) -> bool:
        """Whether the bundle may go, with as many of its recipients as the allowance has room for."""
        if self._allowances is None or not self._allowances.is_bounded(queue.place):
            return True
        granted = self._allowances.take(queue.place, len(bundle.items), is_list=bundle.is_list)
        rest = bundle.items[granted:]
        bundle.items = bundle.items[:granted]
        if rest and granted and self._waiting.take(bundle.account_id, len(rest)):
            later = Bundle(bundle.account_id, bundle.message_id, bundle.destination, rest)
            queue.bundles.push(bundle.account_id, later, is_list=later.is_list)
            queue.count(bundle.account_id, len(rest), is_list=later.is_list)
        else:
            self._go_elsewhere(rest)
        return granted > 0

    def _begin(self, queue: LaneQueue, slot: Slot, account_id: AccountId) -> None:
        bundle = queue.bundles.pop(account_id)
        queue.open_bundles.pop((bundle.message_id, bundle.destination), None)
        self._remove(queue, bundle)
        if is_provider(queue.name):
            taken = self._domains.take(queue.name, queue.shard, bundle.sender)
            if isinstance(taken, float):
                queue.untake()
                self._late += [(item, taken) for item in bundle.items]
                self._postpone_late()
                return
            bundle.domain_slot = taken
        if not self._within_allowance(queue, bundle):
            queue.untake()
            if bundle.domain_slot is not None:
                self._domains.give_back(bundle.domain_slot)
            return
        bundle.is_unproven = not queue.lane.answers
        self._sessions.begin(account_id, is_unproven=bundle.is_unproven)
        self._tasks.spawn(self._start(queue, slot, bundle))

    def close(self) -> list[Item]:
        """Start nothing more; return the tickets that waited."""
        self._closed = True
        items = self._lookup.close()
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()
            items += self._emptied(queue)
        return items

    def _target(self, name: str, item: Item, held: frozenset[int], now: float) -> _Target:
        """Where a ticket of this lane goes from here."""
        ticket = item.ticket
        home = self._shards.home(name, ticket.message_id)
        at = place(home, item.message.shard, held, is_forwarded=ticket.lane == name)
        if at is Elsewhere.FORWARD:
            return name, home
        if not isinstance(at, int):
            return at
        if is_relay_lane(name):
            relay = self._relay_of(ticket.account_id)
            # The operator may have changed it meanwhile.
            if relay is None or relay.lane != name:
                return self._no_address_seconds()
            if self._is_spent(Place(SOLE_ADDRESS, name), is_list=ticket.is_list):
                return self._next_hour_seconds()
            return self._queue(name, at, relay=relay)
        if ticket.bounce_at is not None and ticket.source is not None and is_relay_lane(ticket.source):
            relay = self._relay_of(ticket.account_id)
            is_there = relay is not None and relay.lane == ticket.source
            return self._target(ticket.source, item, held, now) if is_there else self._no_address_seconds()
        queue = self._queue_of(name, at, ticket, now)
        may_take_relay = isinstance(queue, float) and not _is_bound(ticket)
        if may_take_relay and (relay := self._relay_of(ticket.account_id)) is not None:
            # A ticket that goes on to a relay never comes back from it.
            return self._target(relay.lane, item, held, now)
        return queue

    def _queue_of(self, name: str, shard: int, ticket: DeliveryTicket, now: float) -> LaneQueue | float:
        """That of the route which the ticket's sender prefers among those with room, the overflow's last.

        While no route may send, the seconds until one may.
        """
        levels = () if name == self._own_lane else self._routes_of(ticket.account_id)
        if levels and _is_bound(ticket):
            bound = tuple([route for routes in levels for route in routes if str(route.source) == ticket.source])
            levels = (bound,) if bound else None
        if not levels:
            return self._no_address_seconds() if levels is None else self._queue(name, shard)

        def room_of(route: Route) -> Room:
            at = Place(_source(route), name)
            if self._is_spent(at, is_list=ticket.is_list):
                return Room.SPENT
            queue = self._queues.get((name, shard, at.ip, None))
            if queue is not None:
                return self._room(self._narrowed(queue, ticket), ticket.account_id, now, is_list=ticket.is_list)
            # A worker that just took over the shard has no lane yet, and knows what others learnt.
            branch = place_of_branch(at, Branch(ticket.account_id, ticket.destination))
            return Room.NONE if self._rests(at) or self._rests(branch) else Room.FREE

        sender = ticket.sender or ticket.account_id.hex
        for routes in levels:
            route = choose(sender, routes, room_of, ticket.source)
            if route is not None and room_of(route) is not Room.SPENT:
                return self._queue(name, shard, route)
        return self._next_hour_seconds()

    def _rests(self, at: Place) -> bool:
        standing = self._standing_of(at)
        if standing is None or standing.paused_until is None:
            return False
        return (standing.paused_until - self._clock.now()).total_seconds() > PAUSE_SECONDS_WAITED

    def _is_spent(self, place: Place, *, is_list: bool) -> bool:
        return self._allowances is not None and self._allowances.is_spent(place, is_list=is_list)

    def _no_address_seconds(self) -> float:
        return NO_ADDRESS_SECONDS * (1 + self._chance.fraction())

    def _next_hour_seconds(self) -> float:
        left = 0.0 if self._allowances is None else self._allowances.seconds_left()
        return left + NEXT_HOUR_SECONDS * self._chance.fraction()

    def others_with_room(self, queue: LaneQueue, account_id: AccountId, sender: str) -> list[LaneQueue]:
        """The lane from others of the account's addresses, if it is open there and has room, in the sender's order."""
        now = self._clock.monotonic()
        found = []
        for route in [route for routes in self._routes_of(account_id) or () for route in ranked(sender, routes)]:
            other = self._queues.get((queue.name, queue.shard, _source(route), None))
            if other is None or other.place == queue.place or self._is_spent(other.place, is_list=False):
                continue
            is_open = other.lane.standing.state is LaneState.OPEN
            if is_open and self._room(other, account_id, now, is_list=True) is Room.FREE:
                found.append(other)
        return found

    def _room(self, queue: LaneQueue, account_id: AccountId, now: float, *, is_list: bool) -> Room:
        pause = queue.pause_left(now)
        if not pause and queue.waiting <= queue.lane.per_second * ADDRESS_SECONDS_MAX:
            return Room.FREE
        can_wait = pause <= PAUSE_SECONDS_WAITED and self._has_room(queue, account_id, is_list=is_list)
        return Room.SOME if can_wait else Room.NONE

    def _queue(self, name: str, shard: int, route: Route | None = None, relay: Relay | None = None) -> LaneQueue:
        queue = self._queues.get((name, shard, _source(route), None))
        if queue is None:
            lane = Lane(self._limits_of(name, shard, relay), Place(_source(route), name))
            queue = LaneQueue(name, shard, lane, FairQueue(BUNDLES_MAX, BUNDLES_MAX), route, relay)
            self._queues[queue.key] = queue
            self._take_over(queue)
            self._make_known_branches(queue, self._branches_known.get(queue.place, ()))
        # The name that it greets with may be another than before.
        queue.route = route
        if queue.relay != relay:
            for each in (queue, *queue.branches.values()):
                each.relay = relay
                each.lane.limit(self._limits_of(name, shard, relay))
        return queue

    def _take_over(self, queue: LaneQueue) -> None:
        queue.lane.limit(self._limits_of(queue.name, queue.shard, queue.relay))
        standing = self._standing_of(queue.lane.place)
        if standing is not None:
            queue.lane.adopt(standing, self._moment())
        queue.lane.use_up_burst(max(self._leases.held_since(queue.shard), self._replaced_at))

    def _moment(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.now(), self._chance.fraction())

    def _limits_of(self, name: str, shard: int, relay: Relay | None) -> Limits:
        if relay is not None:
            return relay.limits
        return self._own_limits if name == self._own_lane else self._shards.limits_in(name, shard)

    def _enter(
        self, queue: LaneQueue, item: Item, now: float, *, is_apart: bool = False, unasked: list[Item] | None = None
    ) -> None:
        ticket = item.ticket
        pause = queue.pause_left(now)
        if pause > PAUSE_SECONDS_WAITED or not self._has_room(queue, ticket.account_id, is_list=ticket.is_list):
            self._late.append((item, self._postpone_seconds(queue, ticket.account_id, now)))
            return
        if unasked is not None and (pause or queue.waiting > queue.lane.per_second * UNASKED_SECONDS):
            unasked.append(item)
            return
        key = ticket.message_id, ticket.destination
        bundle = None if is_apart else queue.open_bundles.get(key)
        if bundle is None:
            bundle = Bundle(ticket.account_id, ticket.message_id, ticket.destination, [])
            queue.bundles.push(ticket.account_id, bundle, is_list=ticket.is_list)
            if not is_apart:
                queue.open_bundles[key] = bundle
        bundle.items.append(item)
        queue.count(ticket.account_id, 1, is_list=bundle.is_list)
        self._waiting.take(ticket.account_id)

    def _has_room(self, queue: LaneQueue, account_id: AccountId, *, is_list: bool) -> bool:
        free = ALL_WAITING_MAX - self._waiting.taken
        return self._waiting.has_room(account_id) and queue.has_room(account_id, free, is_list=is_list)

    def _remove(self, queue: LaneQueue, bundle: Bundle) -> None:
        queue.count(bundle.account_id, -len(bundle.items), is_list=bundle.is_list)
        self._waiting.give_back(bundle.account_id, len(bundle.items))

    def _wait(self, queue: LaneQueue, later: Later, now: float) -> None:
        if later.seconds is None:
            # All its connections are in use, some perhaps by mail that is still being claimed.
            self._hurry()
            return
        if queue.timer is not None:
            return
        if queue.route is not None and queue.pause_left(now) > PAUSE_SECONDS_WAITED:
            # Another address may have room; what finds none is postponed on entering.
            self._go_elsewhere(self._emptied(queue))
            return
        if later.seconds > PAUSE_SECONDS_WAITED:
            items = self._emptied(queue)
            self._late += [(item, self._postpone_seconds(queue, item.ticket.account_id, now)) for item in items]
            self._postpone_late()
            return

        def resume() -> None:
            queue.timer = None
            self.advance(queue)

        queue.timer = asyncio.get_running_loop().call_later(later.seconds, resume)

    def _postpone_seconds(self, queue: LaneQueue, account_id: AccountId, now: float) -> float:
        """When there should be room: after the pause, and after what waits and what was postponed before."""
        interval = 1 / queue.lane.per_second
        begin = now + max(queue.pause_left(now), queue.waiting * interval / 2, POSTPONE_SECONDS_MIN)
        if len(queue.horizons) > WAITING_MIN:
            queue.horizons = {account: horizon for account, horizon in queue.horizons.items() if horizon > now}
        at = max(queue.horizons.get(account_id, now) + interval, begin)
        queue.horizons[account_id] = min(at, now + POSTPONE_SECONDS_MAX)
        return queue.horizons[account_id] - now

    def _postpone_late(self) -> None:
        late, self._late = self._late, []
        if late:
            self._postpone(late)

    def _emptied(self, queue: LaneQueue) -> list[Item]:
        bundles = [queue.bundles.pop() for _ in range(len(queue.bundles))]
        queue.open_bundles.clear()
        for bundle in bundles:
            self._remove(queue, bundle)
        return [item for bundle in bundles for item in bundle.items]

    def _forget_if_idle(self, queue: LaneQueue) -> None:
        """Drop the state of an idle lane when there are too many."""
        now = self._clock.monotonic()
        is_idle = (
            not queue.lane.in_use and queue.timer is None and queue.key not in self._starved and not queue.branches
        )
        if is_idle and queue.shard not in self._held:
            self._drop(queue)
        elif is_idle and queue.whole is not None:
            if not queue.waiting and not self._is_needed(queue, queue.whole, now):
                self._drop(queue)
        elif is_idle and not queue.lane.pause_left(now) and len(self._queues) > IDLE_LANES_MAX:
            self._drop(queue)


def _is_bound(ticket: DeliveryTicket) -> bool:
    """Whether a block holds it, and it may leave from its address alone."""
    return ticket.bounce_at is not None and ticket.source is not None


def _source(route: Route | None) -> str:
    return SOLE_ADDRESS if route is None else str(route.source)
