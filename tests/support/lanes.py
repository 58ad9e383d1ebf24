"""The lanes' queues without PostgreSQL and without a network: what starts, and what is postponed."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import create_autospec
from uuid import UUID

from posthouse.flows.deliver import lanes as deliver_lanes
from posthouse.flows.deliver.address_quotas import AddressQuotas
from posthouse.flows.deliver.lane_lookup import LaneLookup
from posthouse.flows.deliver.lane_queue import (
    Decision,
    Forwarded,
    LaneQueue,
    LookUp,
    Postponed,
    Returned,
    Turn,
    Unasked,
    Wait,
)
from posthouse.flows.deliver.lane_table import LaneSettings
from posthouse.flows.deliver.learned_limits import LearnedLimitsSync
from posthouse.flows.deliver.routes import Routes
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.tickets import Item
from posthouse.randomness import SeededRandomness
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import DeliveryFeedback, LaneLimits, Limits
from posthouse.rules.learned_limits import Refused
from posthouse.rules.route import Route
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store.postgres import Database
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Leases
from posthouse.wire.stream.memory import AllShards
from tests.support.clock import SettableClock
from tests.support.context import context
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


NO_DATABASE: Final = create_autospec(Database)


class FixedRoutes(Routes):
    """Every account's mail leaves from the addresses of these lanes."""

    def __init__(self, lanes: "Lanes") -> None:
        super().__init__(context(NO_DATABASE))
        self._lanes = lanes

    def routes_of(self, _: AccountId) -> tuple[tuple[Route, ...], ...] | None:
        routes = self._lanes.routes
        if routes is None:
            return None
        return (routes,) if routes else ()


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
    # The address that every account's mail leaves from.
    routes: tuple[Route, ...] | None = ()
    lookup_seconds_max: float = 3.0

    tasks: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self._lookup = LaneLookup(
            clock=self.clock,
            resolver=Resolver(
                [self.names.endpoint], lookup_seconds_max=self.lookup_seconds_max, monotonic=self.clock.monotonic
            ),
            simulator_domain="simulator.invalid",
        )
        given, routes = context(NO_DATABASE, self.clock, SeededRandomness(1)), FixedRoutes(self)
        self.flow = deliver_lanes.Lanes(
            LaneSettings(self.limits, "simulator.invalid", self.sessions_max),
            given,
            leases=self.leases,
            routes=routes,
            address_quotas=AddressQuotas(given, bound_of=routes.bound_of),
            learned_limits=LearnedLimitsSync(given),
            lookup=self._lookup,
        )

    def carry_out(self, decisions: Iterable[Decision]) -> None:
        """As delivery does, but no bundle is sent, and no address is suppressed."""
        for decision in decisions:
            match decision:
                case Turn():
                    self.turns.append(decision)
                case Postponed(late):
                    self.postponed += late
                case Returned(items):
                    self.given_back += items
                case Forwarded(items, lane, shard):
                    self.forwarded += [(item, lane, shard) for item in items]
                case Unasked(items):
                    self.carry_out(self.flow.sort(items, is_asked=True))
                case LookUp():
                    self.tasks.spawn(self._look_up(decision))
                case Wait():
                    asyncio.get_running_loop().call_later(decision.seconds, self._resume, decision)
                case _:
                    pass

    async def _look_up(self, wanted: LookUp) -> None:
        self.carry_out(self.flow.sort(await self._lookup.look_up(*wanted)))

    def _resume(self, wait: Wait) -> None:
        self.carry_out(self.flow.resume(wait))

    def sort_now(self, items: list[Item[DeliveryTicket]]) -> None:
        self.carry_out(self.flow.sort(items))

    async def sort(self, *items: Item[DeliveryTicket] | list[Item[DeliveryTicket]]) -> None:
        """Sort tickets, and wait until every look-up is done."""
        given: list[Item[DeliveryTicket]] = []
        for item in items:
            given += item if isinstance(item, list) else [item]
        self.sort_now(given)
        await self.settle()

    async def settle(self) -> None:
        await self.tasks.settle()

    async def finish(
        self, turn: Turn, served: DeliveryFeedback = DeliveryFeedback.WELL, refused: Refused | None = None
    ) -> None:
        self.turns.remove(turn)
        _, decisions = self.flow.release_slot(turn, served, refused)
        self.carry_out(decisions)
        self.carry_out(self.flow.end_session(turn.bundle))
        await self.settle()

    def lane(self, name: str) -> LaneQueue:
        (queue,) = [queue for queue in self.flow.queues if queue.name == name and queue.branch is None]
        return queue

    @property
    def waits(self) -> list[float]:
        """The seconds by which each ticket was postponed."""
        return [seconds for _, seconds in self.postponed]


_serial = iter(range(64, 1 << 40, 64))


def ticket(
    destination: str, account: AccountId = ONE, *, message: int = 0, position: int = 0, lane: str | None = None
) -> Item[DeliveryTicket]:
    """For a new message, unless one is given. With its lane, no name is looked up."""
    message_id = MessageId(UUID(int=message or next(_serial)))
    return Item(DeliveryTicket(account, message_id, position, 0, destination, lane=lane), Message())


def tickets(count: int, destination: str, account: AccountId = ONE) -> list[Item[DeliveryTicket]]:
    return [ticket(destination, account) for _ in range(count)]


def names_of_lanes(names: Nameserver) -> None:
    """Three domains with their own servers, and two whose mail Google accepts."""
    for domain in ("one.example", "two.example", "three.example"):
        names.records[domain, "MX"] = [f"10 mx.{domain}."]
    for domain in ("gmail.com", "customer.example"):
        names.records[domain, "MX"] = ["20 alt1.aspmx.l.google.com.", "10 aspmx.l.google.com."]
