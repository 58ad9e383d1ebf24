"""The lanes' queues without PostgreSQL and without a network: what starts, and what is postponed."""

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from posthouse.chance import SeededChance
from posthouse.flows.deliver.lane_queues import Bundle, LaneQueue, LaneQueues
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.tickets import Item
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import LaneLimits, Limits, Served, Slot
from posthouse.rules.route import Route
from posthouse.rules.standing import Refused
from posthouse.rules.ticket import DeliveryTicket
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Leases
from posthouse.wire.stream.memory import AllShards
from tests.support.clock import SettableClock
from tests.support.nameserver import Nameserver

ONE, TWO, THREE = (AccountId(UUID(int=number)) for number in (1, 2, 3))
WIDE: Final = Limits(per_second=1e6, burst=1_000_000, connections_start=20, connections_max=20)
WIDE_UNDIVIDED: Final = Limits(per_second=200, burst=1_000, connections_start=20, connections_max=20)
SHARDS: Final = 16


@dataclass(frozen=True, slots=True)
class Message:
    """A stream message whose answers do not matter."""

    payload: bytes = b""
    shard: int = 0

    async def ack(self) -> None: ...

    async def working(self) -> None: ...

    async def release(self, delay_seconds: float = 0.0) -> None: ...


@dataclass
class Turn:
    queue: LaneQueue
    slot: Slot
    bundle: Bundle


@dataclass
class Lanes:
    """The queues, what they started and what they postponed. A bundle keeps its turn until `finish`."""

    names: Nameserver
    limits: LaneLimits
    sessions_max: int = 500
    clock: SettableClock = field(default_factory=SettableClock)
    turns: list[Turn] = field(default_factory=list)
    postponed: list[tuple[Item[DeliveryTicket], float]] = field(default_factory=list)
    leases: Leases = field(default_factory=lambda: AllShards(1))
    given_back: list[Item[DeliveryTicket]] = field(default_factory=list)
    forwarded: list[tuple[Item[DeliveryTicket], str, int]] = field(default_factory=list)
    # By which the mail of every account leaves.
    routes: tuple[Route, ...] | None = ()

    tasks: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self.queues = LaneQueues(
            clock=self.clock,
            chance=SeededChance(1),
            resolver=Resolver([self.names.endpoint], lookup_seconds_max=1.0, monotonic=self.clock.monotonic),
            lane_limits=self.limits,
            sessions_max=self.sessions_max,
            own_lane="simulator.invalid",
            own_limits=WIDE,
            leases=self.leases,
            start=self._start,
            tasks=self.tasks,
            postpone=self.postponed.extend,
            give_back=self.given_back.extend,
            forward=self._forward,
            routes_of=lambda _: (self.routes,) if self.routes else None if self.routes is None else (),
        )

    def _forward(self, items: list[Item[DeliveryTicket]], lane: str, shard: int) -> None:
        self.forwarded += [(item, lane, shard) for item in items]

    async def _start(self, queue: LaneQueue, slot: Slot, bundle: Bundle) -> None:
        self.turns.append(Turn(queue, slot, bundle))

    async def sort(self, *items: Item[DeliveryTicket] | list[Item[DeliveryTicket]]) -> None:
        """Sort tickets, and wait until every look-up is done."""
        given: list[Item[DeliveryTicket]] = []
        for item in items:
            given += item if isinstance(item, list) else [item]
        self.queues.sort(given)
        await self.settle()

    async def settle(self) -> None:
        await self.tasks.settle()

    async def finish(self, turn: Turn, served: Served = Served.WELL, refused: Refused | None = None) -> None:
        self.turns.remove(turn)
        self.queues.release_slot(turn.queue, turn.slot, turn.bundle, served, refused)
        self.queues.end_session(turn.bundle)
        await self.settle()

    def lane(self, name: str) -> LaneQueue:
        (queue,) = [queue for queue in self.queues.queues if queue.name == name and queue.branch is None]
        return queue

    @property
    def waits(self) -> list[float]:
        """The seconds by which each ticket was postponed."""
        return [seconds for _, seconds in self.postponed]


_serial = iter(range(64, 1 << 40, 64))


def ticket(
    destination: str, account: AccountId = ONE, *, message: int = 0, position: int = 0, lane: str | None = None
) -> Item[DeliveryTicket]:
    """For a message of its own, unless one is given. With its lane, no name is looked up."""
    message_id = MessageId(UUID(int=message or next(_serial)))
    return Item(DeliveryTicket(account, message_id, position, 0, destination, lane=lane), Message())


def tickets(count: int, destination: str, account: AccountId = ONE) -> list[Item[DeliveryTicket]]:
    return [ticket(destination, account) for _ in range(count)]


def names_of_lanes(names: Nameserver) -> None:
    """Three domains with servers of their own, and two whose mail Google takes."""
    for domain in ("one.example", "two.example", "three.example"):
        names.records[domain, "MX"] = [f"10 mx.{domain}."]
    for domain in ("gmail.com", "customer.example"):
        names.records[domain, "MX"] = ["20 alt1.aspmx.l.google.com.", "10 aspmx.l.google.com."]
