"""The lanes' queues: which tickets wait in which lane, and which of them goes next.

Recipients of one message at one destination go together, in one SMTP transaction. No ticket waits here for the DNS
or the database on behalf of another destination's mail. A lane that is full or paused takes only its own share of
the room.

A lane, or a part of it, lives in a shard of the stream. A ticket of a lane that lives in a shard of another worker is
forwarded; when a shard is lost, what waits in its lanes is given back at once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.deliver.lane_lookup import LaneLookup
from posthouse.flows.deliver.session_shares import SessionShares
from posthouse.flows.shared import tickets
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.rules.fair_share import FairShare
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import FairQueue, Lane, LaneLimits, Later, Limits, Served, Slot
from posthouse.rules.lane_shard import Elsewhere, LaneShards, place
from posthouse.rules.pace import Moment
from posthouse.rules.route import Room, Route, choose
from posthouse.rules.standing import Lesson, Place, Refused, Standing
from posthouse.rules.ticket import DeliveryTicket
from posthouse.wire.carrier import LaneConnections
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Leases

Item = tickets.Item[DeliveryTicket]
# A lane's name, the shard in which it or its part lives, and our address that its mail leaves from.
LaneKey = tuple[str, int, str]

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
IDLE_LANES_MAX: Final = 10_000
# The address of an installation that has only one.
SOLE_ADDRESS: Final = ""
# A sender's mail takes its next address while more than this waits for the one before.
ADDRESS_SECONDS_MAX: Final = 1.0
# While no address of a pool may send, its mail is postponed by this.
NO_ADDRESS_SECONDS: Final = 60.0
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


@dataclass(slots=True)
class LaneCounts:
    """The outcomes in a lane since the process started."""

    delivered: int = 0
    deferred: int = 0
    last_reply: str | None = None


@dataclass(slots=True)
class LaneQueue:
    """A lane, or its part that lives in this shard, and the bundles that wait for it, all to leave by one route.

    Without a route they leave as the machine sends by itself.
    """

    name: str
    shard: int
    lane: Lane
    bundles: FairQueue[Bundle]
    route: Route | None = None
    # The bundles that further recipients can join.
    open_bundles: dict[tuple[MessageId, str], Bundle] = field(default_factory=dict)
    # Everything that bounds a lane counts recipients, that is tickets, because these take the room in the worker and in
    # the stream. Bundles would let an account wait with fifty times as much.
    waiting: int = 0
    waiting_by_account: Counter[AccountId] = field(default_factory=Counter)
    # For each account, the time up to which room is promised to postponed tickets.
    horizons: dict[AccountId, float] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    counts: LaneCounts = field(default_factory=LaneCounts)
    connections: LaneConnections = field(init=False)

    def __post_init__(self) -> None:
        self.connections = LaneConnections(self.idle_max)

    def idle_max(self) -> int:
        """How many connections may be idle beside those in use."""
        return self.lane.connections - self.lane.in_use

    @property
    def key(self) -> LaneKey:
        return self.name, self.shard, _source(self.route)

    @property
    def place(self) -> Place:
        return Place(_source(self.route), self.name)

    @property
    def waiting_max(self) -> int:
        return int(min(max(self.lane.per_second * WAIT_SECONDS_MAX, WAITING_MIN), WAITING_MAX))

    def count(self, account_id: AccountId, change: int) -> None:
        """Change the number of the account's waiting recipients."""
        self.waiting += change
        self.waiting_by_account[account_id] += change
        if not self.waiting_by_account[account_id]:
            del self.waiting_by_account[account_id]

    def has_room(self, account_id: AccountId, free: int) -> bool:
        """Whether one more recipient of the account may wait, if `free` more may in all lanes together."""
        if free <= 0:
            return False
        room = min(self.waiting_max, int(WAITING_MAX * (free / ALL_WAITING_MAX) ** SCARCITY))
        waiting = self.waiting_by_account[account_id]
        if waiting < SMALL_SHARE:
            return self.waiting < 2 * room + SMALL_SHARE
        # A fifth of the room is always for the others.
        return waiting < room * 4 // 5 and self.waiting < room


class LaneQueues:
    """`start` delivers a bundle; it calls `release_slot` after the SMTP session and `end_session` once recorded.

    `postpone` postpones tickets that find no room, each by its seconds; `give_back` returns tickets to the stream, and
    `forward` sends those of a lane to the shard where it lives. `routes_of` says by which routes an account's mail
    leaves: empty, as the machine sends by itself; None, not now.
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
        routes_of: Callable[[AccountId], tuple[Route, ...] | None] = lambda _: (),
        standing_of: Callable[[Place], Standing | None] = lambda _: None,
        learnt: Callable[[Lesson], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._standing_of = standing_of
        self._learnt = learnt
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
        self._lookup = LaneLookup(clock=clock, resolver=resolver, own_lane=own_lane, tasks=tasks, resolved=self.sort)
        self._queues: dict[LaneKey, LaneQueue] = {}
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
        self._move([queue for queue in self._queues.values() if queue.shard in changed])
        return held

    def _move(self, queues: Iterable[LaneQueue]) -> None:
        """These lanes were another worker's, or are from now on."""
        waiting: list[Item] = []
        for queue in queues:
            waiting += self._emptied(queue)
            # The new holder may open as many.
            queue.connections.close()
            queue.connections = LaneConnections(queue.idle_max)
            self._starved.pop(queue.key, None)
            if queue.timer is not None:
                queue.timer.cancel()
                queue.timer = None
            if queue.lane.in_use:
                # Its running sessions still count when the shard comes back.
                self._take_over(queue)
            else:
                del self._queues[queue.key]
        if waiting:
            self._give_back(waiting)

    def sort(self, items: Iterable[Item]) -> None:
        """Put tickets into their lanes; tickets of an unknown destination wait for its look-up."""
        now = self._clock.monotonic()
        held = self.note_shards()
        touched: dict[LaneKey, LaneQueue] = {}
        returned: list[Item] = []
        forwarded: dict[tuple[str, int], list[Item]] = {}
        for item in items:
            ticket = item.ticket
            name = ticket.lane or self._lookup.lane_of(ticket.destination)
            if name is None:
                if not self._lookup.wait(item):
                    self._late.append((item, POSTPONE_SECONDS_MIN))
                continue
            home = self._shards.home(name, ticket.message_id)
            match place(home, item.message.shard, held, is_forwarded=ticket.lane is not None):
                case Elsewhere.FORWARD:
                    forwarded.setdefault((name, home), []).append(item)
                case Elsewhere.GIVE_BACK:
                    returned.append(item)
                case int() as shard:
                    queue = self._queue_of(name, shard, ticket, now)
                    if queue is None:
                        self._late.append((item, NO_ADDRESS_SECONDS * (1 + self._chance.fraction())))
                        continue
                    self._enter(queue, item, now)
                    touched[queue.key] = queue
        for queue in touched.values():
            self.advance(queue)
        for (name, home), group in forwarded.items():
            self._forward(group, name, home)
        if returned:
            self._give_back(returned)
        self._postpone_late()

    def sort_apart(self, queue: LaneQueue, items: Iterable[Item]) -> None:
        """Put tickets back into their lane, where each waits for a turn of its own."""
        if queue.shard not in self.note_shards():
            self._give_back(list(items))
            return
        now = self._clock.monotonic()
        for item in items:
            self._enter(queue, item, now, is_apart=True)
        self.advance(queue)
        self._postpone_late()

    def release_slot(self, queue: LaneQueue, slot: Slot, served: Served, refused: Refused | None = None) -> None:
        """A bundle's turn in its lane is over: the next may go, after lanes that wait for a session."""
        lesson = queue.lane.give_back(slot, served, self._moment(), refused)
        if lesson is not None:
            self._learnt(lesson)
            self.adopt(lesson.place, lesson.after)
        if queue.waiting:
            self._starved.setdefault(queue.key)
            self._advance_starved()
        else:
            self._forget_if_idle(queue)

    def adopt(self, place: Place, standing: Standing) -> None:
        """This is learnt, here or elsewhere: all parts of the lane go by it."""
        moment = self._moment()
        for queue in list(self._queues.values()):
            if queue.place == place and queue.lane.standing != standing:
                queue.lane.adopt(standing, moment)
                self.advance(queue)

    def end_session(self, bundle: Bundle) -> None:
        """A bundle's outcomes are recorded."""
        self._sessions.end(bundle.account_id, is_unproven=bundle.is_unproven)
        self._advance_starved()
        self._advance_over_share()

    def _advance_starved(self) -> None:
        while self._starved and not self._sessions.is_full:
            key = next(iter(self._starved))
            del self._starved[key]
            self.advance(self._queues[key])

    def _advance_over_share(self) -> None:
        for account_id in list(self._over_share):
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
        while queue.waiting:
            if self._sessions.is_full:
                self._starved.setdefault(queue.key)
                return
            now = self._clock.monotonic()
            slot = queue.lane.take(now)
            if isinstance(slot, Later):
                self._wait(queue, slot, now)
                return
            account_id = self._next_account(queue)
            if account_id is None:
                queue.lane.give_back(slot, Served.NOT_SENT, self._moment())
                for waiting in queue.bundles.accounts():
                    self._over_share.setdefault(waiting, {})[queue.key] = None
                return
            self._begin(queue, slot, account_id)
        self._forget_if_idle(queue)

    def _next_account(self, queue: LaneQueue) -> AccountId | None:
        """Whose turn it is among the accounts that may have another session."""
        is_unproven = not queue.lane.answers
        for account_id in queue.bundles.accounts():
            if self._sessions.has_room(account_id, is_unproven=is_unproven):
                return account_id
        return None

    def _begin(self, queue: LaneQueue, slot: Slot, account_id: AccountId) -> None:
        bundle = queue.bundles.pop(account_id)
        queue.open_bundles.pop((bundle.message_id, bundle.destination), None)
        self._remove(queue, bundle)
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

    def _queue_of(self, name: str, shard: int, ticket: DeliveryTicket, now: float) -> LaneQueue | None:
        """That of the route which the ticket's sender prefers among those with room; None while there is no route."""
        routes = () if name == self._own_lane else self._routes_of(ticket.account_id)
        if not routes:
            return None if routes is None else self._queue(name, shard)

        def room_of(route: Route) -> Room:
            queue = self._queues.get((name, shard, _source(route)))
            return Room.FREE if queue is None else self._room(queue, ticket.account_id, now)

        return self._queue(name, shard, choose(ticket.sender or ticket.account_id.hex, routes, room_of, ticket.source))

    def _room(self, queue: LaneQueue, account_id: AccountId, now: float) -> Room:
        pause = queue.lane.pause_left(now)
        if not pause and queue.waiting <= queue.lane.per_second * ADDRESS_SECONDS_MAX:
            return Room.FREE
        can_wait = pause <= PAUSE_SECONDS_WAITED and self._has_room(queue, account_id)
        return Room.SOME if can_wait else Room.NONE

    def _queue(self, name: str, shard: int, route: Route | None = None) -> LaneQueue:
        queue = self._queues.get((name, shard, _source(route)))
        if queue is None:
            lane = Lane(self._limits_of(name, shard), Place(_source(route), name))
            queue = LaneQueue(name, shard, lane, FairQueue(BUNDLES_MAX, BUNDLES_MAX), route)
            self._take_over(queue)
            self._queues[queue.key] = queue
        # The name that it greets with may be another than before.
        queue.route = route
        return queue

    def _take_over(self, queue: LaneQueue) -> None:
        queue.lane.limit(self._limits_of(queue.name, queue.shard))
        standing = self._standing_of(queue.place)
        if standing is not None:
            queue.lane.adopt(standing, self._moment())
        queue.lane.use_up_burst(max(self._leases.held_since(queue.shard), self._replaced_at))

    def _moment(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.now(), self._chance.fraction())

    def _limits_of(self, name: str, shard: int) -> Limits:
        return self._own_limits if name == self._own_lane else self._shards.limits_in(name, shard)

    def _enter(self, queue: LaneQueue, item: Item, now: float, *, is_apart: bool = False) -> None:
        ticket = item.ticket
        if queue.lane.pause_left(now) > PAUSE_SECONDS_WAITED or not self._has_room(queue, ticket.account_id):
            self._late.append((item, self._postpone_seconds(queue, ticket.account_id, now)))
            return
        key = ticket.message_id, ticket.destination
        bundle = None if is_apart else queue.open_bundles.get(key)
        if bundle is None:
            bundle = Bundle(ticket.account_id, ticket.message_id, ticket.destination, [])
            queue.bundles.push(ticket.account_id, bundle)
            if not is_apart:
                queue.open_bundles[key] = bundle
        bundle.items.append(item)
        queue.count(ticket.account_id, 1)
        self._waiting.take(ticket.account_id)

    def _has_room(self, queue: LaneQueue, account_id: AccountId) -> bool:
        free = ALL_WAITING_MAX - self._waiting.taken
        return self._waiting.has_room(account_id) and queue.has_room(account_id, free)

    def _remove(self, queue: LaneQueue, bundle: Bundle) -> None:
        queue.count(bundle.account_id, -len(bundle.items))
        self._waiting.give_back(bundle.account_id, len(bundle.items))

    def _wait(self, queue: LaneQueue, later: Later, now: float) -> None:
        if later.seconds is None or queue.timer is not None:
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
        begin = now + max(queue.lane.pause_left(now), queue.waiting * interval / 2, POSTPONE_SECONDS_MIN)
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
        is_idle = not queue.lane.in_use and queue.timer is None and queue.key not in self._starved
        if is_idle and queue.shard not in self._held:
            self._queues.pop(queue.key, None)
        is_idle = is_idle and not queue.lane.pause_left(self._clock.monotonic())
        if is_idle and len(self._queues) > IDLE_LANES_MAX:
            self._queues.pop(queue.key, None)


def _source(route: Route | None) -> str:
    return SOLE_ADDRESS if route is None else str(route.source)
