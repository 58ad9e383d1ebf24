"""The sorting office: which tickets wait in which lane, and which of them goes next.

A ticket's lane is known by its destination's mail servers. What waits for one mail to one destination goes
together, in one transaction with several recipients. Nothing here waits for the network or the database
on behalf of someone else's mail: destinations whose servers are being looked up, lanes that are full and
lanes that are paused hold only what is theirs, and no more than their part of it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Final, assert_never

import structlog

from posthouse.clock import Clock
from posthouse.flows.shared import tickets
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.mail.exchange import NullExchange, exchanges
from posthouse.rules import lane as rules
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import FairQueue, Lane, LaneLimits, Later, Limits, Served, Slot
from posthouse.rules.ticket import DeliveryTicket
from posthouse.wire.dns import MxRecords, NoAnswer, NoName, Resolver

log = structlog.get_logger(__name__)

Item = tickets.Item[DeliveryTicket]

# A ticket that waits for longer than its lease is only written again: what can't go within this is put off.
WAIT_SECONDS_MAX: Final = 30.0
WAITING_MIN: Final = 100
WAITING_MAX: Final = 5_000
# Of all lanes together; the stream and the worker must bear this and some more. The less of it is left, the less
# a lane gets, and much less: a hundred that are full leave an eighth of it to the others.
ALL_WAITING_MAX: Final = 15_000
SCARCITY: Final = 3
# What `has_room` lets in never comes near this.
BUNDLES_MAX: Final = 1_000_000
# When a lane is full, there is still room for a few of whoever has little, up to as much again.
SMALL_SHARE: Final = 10
# Anyone who is put off is put off for so long at least, and at most.
PUT_OFF_SECONDS_MIN: Final = 1.0
PUT_OFF_SECONDS_MAX: Final = 3600.0
# A pause up to this is waited for; before a longer one what waits is put off, so that it takes up no room.
PAUSE_SECONDS_WAITED: Final = 5.0
LOOKUPS_MAX: Final = 100
# A destination whose servers nobody tells by then has a lane of its own: the carrier finds out the rest.
LOOKUP_SECONDS_MAX: Final = 1.0
# Tickets that wait for the first look-up of their destinations.
UNSORTED_MAX: Final = 2_000
DESTINATIONS_KNOWN_SECONDS: Final = 60.0
IDLE_LANES_MAX: Final = 10_000


@dataclass(slots=True)
class Bundle:
    """What goes in one transaction: recipients of one message at one destination."""

    account_id: AccountId
    message_id: MessageId
    destination: str
    items: list[Item]


@dataclass(slots=True)
class LaneCounts:
    """What became of mails in a lane since the process began."""

    delivered: int = 0
    deferred: int = 0
    last_reply: str | None = None


@dataclass(slots=True)
class LaneQueue:
    """A lane with what waits for it."""

    name: str
    lane: Lane
    turns: FairQueue[Bundle]
    bundles: dict[tuple[MessageId, str], Bundle] = field(default_factory=dict)
    # Everything that bounds a lane counts recipients, that is tickets, because these take the room in the worker and in
    # the stream. Bundles would let an account wait with fifty times as much.
    waiting: int = 0
    waiting_by_account: Counter[AccountId] = field(default_factory=Counter)
    # For each account, the moment up to which places are taken by what was put off.
    horizons: dict[AccountId, float] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    counts: LaneCounts = field(default_factory=LaneCounts)

    @property
    def waiting_max(self) -> int:
        return int(min(max(self.lane.per_second * WAIT_SECONDS_MAX, WAITING_MIN), WAITING_MAX))

    def count(self, account_id: AccountId, change: int) -> None:
        """So many more of the account's recipients wait, or fewer."""
        self.waiting += change
        self.waiting_by_account[account_id] += change
        if not self.waiting_by_account[account_id]:
            del self.waiting_by_account[account_id]

    def has_room(self, account_id: AccountId, left: int) -> bool:
        """Whether one more of the account's may wait, when so many more may in all."""
        if left <= 0:
            return False
        room = min(self.waiting_max, int(WAITING_MAX * (left / ALL_WAITING_MAX) ** SCARCITY))
        waiting = self.waiting_by_account[account_id]
        if waiting < SMALL_SHARE:
            return self.waiting < 2 * room + SMALL_SHARE
        # A fifth of the room is always for the others.
        return waiting < room * 4 // 5 and self.waiting < room


class LaneQueues:
    """`start` carries out a bundle, calls `release_slot` when its turn is over, and `end_session` when it is on record.

    `put_off` postpones what has no place now, each by its seconds.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        resolver: Resolver,
        lane_limits: LaneLimits,
        sessions_max: int,
        own_lane: str,
        tasks: BackgroundTasks,
        start: Callable[[LaneQueue, Slot, Bundle], Coroutine[object, object, None]],
        postpone: Callable[[list[tuple[Item, float]]], None],
    ) -> None:
        self._clock = clock
        self._resolver = resolver
        self._limits = lane_limits
        self._sessions_max = sessions_max
        self._own_lane = own_lane
        self._start = start
        self._postpone = postpone
        self._queues: dict[str, LaneQueue] = {}
        self._lane_of: dict[str, tuple[float, str]] = {}
        self._unsorted: dict[str, list[Item]] = {}
        self._unsorted_count = 0
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self._sessions = 0
        self._waiting = 0
        # Lanes that could go on, had the process a session to spare; in the order in which they ran out.
        self._starved: dict[str, None] = {}
        self._parts = 1
        self._closed = False
        self._late: list[tuple[Item, float]] = []
        self._tasks = tasks

    @property
    def queues(self) -> Iterable[LaneQueue]:
        return self._queues.values()

    def share(self, parts: int) -> None:
        """A mailbox provider's lane is shared by as many processes as there are: each has its part of the limits."""
        if parts != self._parts:
            self._parts = parts
            for queue in self._queues.values():
                queue.lane.limit(self._limits_of(queue.name))

    def sort(self, items: Iterable[Item]) -> None:
        """Put tickets into their lanes; those of a destination that isn't known yet wait for its look-up."""
        now = self._clock.monotonic()
        touched: dict[str, LaneQueue] = {}
        for item in items:
            destination = item.ticket.destination
            known = self._lane_of.get(destination)
            if known is None:
                self._look_up(destination, item)
                continue
            if known[0] < now:
                self._look_again(destination, known[1], now)
            queue = self._queue(known[1])
            self._enter(queue, item, now)
            touched[queue.name] = queue
        for queue in touched.values():
            self.advance(queue)
        self._send_late_ones_off()

    def sort_apart(self, queue: LaneQueue, items: Iterable[Item]) -> None:
        """Put tickets back into their lane, where each waits for a turn of its own."""
        now = self._clock.monotonic()
        for item in items:
            self._enter(queue, item, now, is_apart=True)
        self.advance(queue)
        self._send_late_ones_off()

    def release_slot(self, queue: LaneQueue, slot: Slot, served: Served) -> None:
        """A mail's turn in its lane is over: the next ones go, after those that have been waiting for a session."""
        queue.lane.give_back(slot, served, self._clock.monotonic())
        if queue.waiting:
            self._starved.setdefault(queue.name)
            self._advance_starved()
        else:
            self._forget_if_idle(queue)

    def end_session(self) -> None:
        """Nothing of a mail is under way any more."""
        self._sessions -= 1
        self._advance_starved()

    def _advance_starved(self) -> None:
        while self._starved and self._sessions < self._sessions_max:
            name = next(iter(self._starved))
            del self._starved[name]
            self.advance(self._queues[name])

    def advance(self, queue: LaneQueue) -> None:
        """Whatever may go now goes."""
        if self._closed:
            return
        while queue.waiting:
            if self._sessions >= self._sessions_max:
                self._starved.setdefault(queue.name)
                return
            now = self._clock.monotonic()
            leave = queue.lane.take(now)
            if isinstance(leave, Later):
                self._wait(queue, leave, now)
                return
            bundle = queue.turns.pop()
            queue.bundles.pop((bundle.message_id, bundle.destination), None)
            self._count(queue, bundle.account_id, -len(bundle.items))
            self._sessions += 1
            self._tasks.spawn(self._start(queue, leave, bundle))
        self._forget_if_idle(queue)

    def close(self) -> list[Item]:
        """Nothing starts any more; what waited is handed back."""
        self._closed = True
        items = [item for waiting in self._unsorted.values() for item in waiting]
        self._unsorted.clear()
        self._unsorted_count = 0
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()
            items += self._emptied(queue)
        return items

    def _look_up(self, destination: str, item: Item) -> None:
        if self._unsorted_count >= UNSORTED_MAX:
            self._late.append((item, PUT_OFF_SECONDS_MIN))
            return
        if destination not in self._unsorted:
            self._unsorted[destination] = []
            self._tasks.spawn(self._learn_lane(destination))
        self._unsorted[destination].append(item)
        self._unsorted_count += 1

    def _look_again(self, destination: str, lane: str, now: float) -> None:
        """Nobody waits for that: until the answer is there, the lane is what it was."""
        self._lane_of[destination] = now + DESTINATIONS_KNOWN_SECONDS, lane
        self._tasks.spawn(self._learn_lane(destination))

    async def _learn_lane(self, destination: str) -> None:
        try:
            learnt = await self._lane_by_servers(destination)
        except Exception:
            log.exception("lane_not_found", destination=destination)
            learnt = None
        # A failed look-up says nothing: another lane would escape the limits of the provider known so far.
        last_learnt = self._lane_of.get(destination)
        lane = learnt or (destination if last_learnt is None else last_learnt[1])
        now = self._clock.monotonic()
        self._forget_old_destinations(now)
        self._lane_of[destination] = now + DESTINATIONS_KNOWN_SECONDS, lane
        known = self._unsorted.pop(destination, [])
        self._unsorted_count -= len(known)
        self.sort(known)

    async def _lane_by_servers(self, destination: str) -> str | None:
        """None when DNS gave no answer."""
        if destination == self._own_lane:
            return destination
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX), self._lookups:
                answer = await self._resolver.exchanges(destination)
        except TimeoutError:
            return None
        match answer:
            case NoAnswer():
                return None
            case NoName():
                return destination
            case MxRecords(records):
                hosts = exchanges(destination, records, b"")
            case _:
                assert_never(answer)
        if isinstance(hosts, NullExchange):
            return destination
        return rules.lane_by_hosts(destination, [host.host for host in hosts])

    def _forget_old_destinations(self, now: float) -> None:
        if len(self._lane_of) > 10 * IDLE_LANES_MAX:
            self._lane_of = {name: known for name, known in self._lane_of.items() if known[0] > now}

    def _queue(self, name: str) -> LaneQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = LaneQueue(name, Lane(self._limits_of(name)), FairQueue(BUNDLES_MAX, BUNDLES_MAX))
            self._queues[name] = queue
        return queue

    def _limits_of(self, name: str) -> Limits:
        limits = self._limits.of(name)
        # A domain is in one shard, and so in one process at a time; a provider's domains are in all of them.
        return limits.divided(self._parts) if rules.is_provider(name) else limits

    def _enter(self, queue: LaneQueue, item: Item, now: float, *, is_apart: bool = False) -> None:
        ticket = item.ticket
        left = ALL_WAITING_MAX - self._waiting
        if queue.lane.pause_left(now) > PAUSE_SECONDS_WAITED or not queue.has_room(ticket.account_id, left):
            self._late.append((item, self._wait_seconds(queue, ticket.account_id, now)))
            return
        key = ticket.message_id, ticket.destination
        bundle = None if is_apart else queue.bundles.get(key)
        if bundle is None:
            bundle = Bundle(ticket.account_id, ticket.message_id, ticket.destination, [])
            queue.turns.push(ticket.account_id, bundle)
            if not is_apart:
                queue.bundles[key] = bundle
        bundle.items.append(item)
        self._count(queue, ticket.account_id, 1)

    def _count(self, queue: LaneQueue, account_id: AccountId, change: int) -> None:
        queue.count(account_id, change)
        self._waiting += change

    def _wait(self, queue: LaneQueue, later: Later, now: float) -> None:
        if later.seconds is None or queue.timer is not None:
            return
        if later.seconds > PAUSE_SECONDS_WAITED:
            items = self._emptied(queue)
            self._late += [(item, self._wait_seconds(queue, item.ticket.account_id, now)) for item in items]
            self._send_late_ones_off()
            return

        def go_on() -> None:
            queue.timer = None
            self.advance(queue)

        queue.timer = asyncio.get_running_loop().call_later(later.seconds, go_on)

    def _wait_seconds(self, queue: LaneQueue, account_id: AccountId, now: float) -> float:
        """When there should be a place: after the pause, and after what waits and what was put off before."""
        interval = 1 / queue.lane.per_second
        begin = now + max(queue.lane.pause_left(now), queue.waiting * interval / 2, PUT_OFF_SECONDS_MIN)
        if len(queue.horizons) > WAITING_MIN:
            queue.horizons = {account: horizon for account, horizon in queue.horizons.items() if horizon > now}
        at = max(queue.horizons.get(account_id, now) + interval, begin)
        queue.horizons[account_id] = min(at, now + PUT_OFF_SECONDS_MAX)
        return queue.horizons[account_id] - now

    def _send_late_ones_off(self) -> None:
        late, self._late = self._late, []
        if late:
            self._postpone(late)

    def _emptied(self, queue: LaneQueue) -> list[Item]:
        bundles = [queue.turns.pop() for _ in range(len(queue.turns))]
        queue.bundles.clear()
        for bundle in bundles:
            self._count(queue, bundle.account_id, -len(bundle.items))
        return [item for bundle in bundles for item in bundle.items]

    def _forget_if_idle(self, queue: LaneQueue) -> None:
        """A lane remembers what it learnt of its server, but not everything can be remembered for ever."""
        is_idle = not queue.lane.in_use and queue.timer is None and queue.name not in self._starved
        is_idle = is_idle and not queue.lane.pause_left(self._clock.monotonic())
        if is_idle and len(self._queues) > IDLE_LANES_MAX:
            self._queues.pop(queue.name, None)
