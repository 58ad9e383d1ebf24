"""Which lane's queue a ticket joins, and so which of our addresses, or which relay, its mail leaves from."""

from typing import Final, Literal

from posthouse.flows.deliver.address_quotas import AddressQuotas
from posthouse.flows.deliver.lane_queue import SOLE_ADDRESS, Item, LaneQueue, source_of
from posthouse.flows.deliver.lane_table import LaneTable
from posthouse.flows.deliver.learned_limits import LearnedLimitsSync
from posthouse.flows.deliver.routes import Routes
from posthouse.flows.shared.context import Context
from posthouse.rules.ids import AccountId
from posthouse.rules.lane_shard import Elsewhere, shard_for
from posthouse.rules.learned_limits import Branch, LaneScope, LaneState, lane_scope_of_branch
from posthouse.rules.route import Capacity, Route, choose, is_relay_lane, ranked
from posthouse.rules.ticket import DeliveryTicket

# During a pause of up to this long, tickets wait; during a longer one they are postponed, so that they take no space.
PAUSE_SECONDS_WAITED: Final = 5.0
# A sender's mail takes its next address while more than this waits for the one before.
ADDRESS_SECONDS_MAX: Final = 1.0
# While no address of a pool may send, its mail is postponed by this.
NO_ADDRESS_SECONDS: Final = 60.0
# Tickets that wait for the next hour's quota come back within this many seconds of its beginning.
NEXT_HOUR_SECONDS: Final = 300.0

# A lane's queue in this worker; its lane and shard, if those are elsewhere; or the seconds to wait.
Target = LaneQueue | tuple[str, int] | Literal[Elsewhere.GIVE_BACK] | float


class LaneRouting:
    """Mail that no route may send takes the account's relay, if there is one."""

    def __init__(
        self,
        table: LaneTable,
        context: Context,
        *,
        routes: Routes,
        address_quotas: AddressQuotas,
        learned_limits: LearnedLimitsSync,
        simulator_domain: str,
    ) -> None:
        self._table = table
        self._clock = context.clock
        self._randomness = context.randomness
        self._routes = routes
        self._address_quotas = address_quotas
        self._learned_limits = learned_limits
        self._simulator_domain = simulator_domain

    def target(self, name: str, item: Item, now: float) -> Target:
        """Where a ticket of this lane goes next."""
        ticket = item.ticket
        home = self._table.shards.home(name, ticket.message_id)
        at = shard_for(home, item.message.shard, self._table.held, is_forwarded=ticket.lane == name)
        if at is Elsewhere.FORWARD:
            return name, home
        if not isinstance(at, int):
            return at
        if is_relay_lane(name):
            relay = self._routes.relay_of(ticket.account_id)
            # The operator may have changed it in the meantime.
            if relay is None or relay.lane != name:
                return self._no_address_seconds()
            if self._address_quotas.is_spent(LaneScope(SOLE_ADDRESS, name), is_list=ticket.is_list):
                return self._next_hour_seconds()
            return self._table.queue(name, at, relay=relay)
        if ticket.bounce_at is not None and ticket.source_ip is not None and is_relay_lane(ticket.source_ip):
            relay = self._routes.relay_of(ticket.account_id)
            is_there = relay is not None and relay.lane == ticket.source_ip
            return self.target(ticket.source_ip, item, now) if is_there else self._no_address_seconds()
        queue = self._queue_of(name, at, ticket, now)
        may_take_relay = isinstance(queue, float) and not _is_bound(ticket)
        if may_take_relay and (relay := self._routes.relay_of(ticket.account_id)) is not None:
            # A ticket that was moved to a relay's lane never comes back from it.
            return self.target(relay.lane, item, now)
        return queue

    def _queue_of(self, name: str, shard: int, ticket: DeliveryTicket, now: float) -> LaneQueue | float:
        """The queue of the route that the ticket's sender prefers among those with capacity, the overflow's last.

        If no route may send, the seconds until one may.
        """
        levels = () if name == self._simulator_domain else self._routes.routes_of(ticket.account_id)
        if levels and _is_bound(ticket):
            bound = tuple([route for routes in levels for route in routes if str(route.source) == ticket.source_ip])
            levels = (bound,) if bound else None
        if not levels:
            return self._no_address_seconds() if levels is None else self._table.queue(name, shard)

        def capacity_of(route: Route) -> Capacity:
            at = LaneScope(source_of(route), name)
            if self._address_quotas.is_spent(at, is_list=ticket.is_list):
                return Capacity.SPENT
            queue = self._table.queues.get((name, shard, at.ip, None))
            if queue is not None:
                return self._capacity(
                    self._table.narrowed(queue, ticket), ticket.account_id, now, is_list=ticket.is_list
                )
            # A worker that has just taken over the shard has no lane yet, but knows what others learned.
            branch = lane_scope_of_branch(at, Branch(ticket.account_id, ticket.destination))
            return Capacity.NONE if self._rests(at) or self._rests(branch) else Capacity.FREE

        sender = ticket.sender or ticket.account_id.hex
        for routes in levels:
            route = choose(sender, routes, capacity_of, ticket.source_ip)
            if route is not None and capacity_of(route) is not Capacity.SPENT:
                return self._table.queue(name, shard, route)
        return self._next_hour_seconds()

    def _rests(self, at: LaneScope) -> bool:
        learned = self._learned_limits.limits_of(at)
        if learned is None or learned.paused_until is None:
            return False
        return (learned.paused_until - self._clock.now()).total_seconds() > PAUSE_SECONDS_WAITED

    def _no_address_seconds(self) -> float:
        return NO_ADDRESS_SECONDS * (1 + self._randomness.fraction())

    def _next_hour_seconds(self) -> float:
        return self._address_quotas.seconds_left() + NEXT_HOUR_SECONDS * self._randomness.fraction()

    def others_with_capacity(self, queue: LaneQueue, account_id: AccountId, sender: str) -> list[LaneQueue]:
        """The lane's open queues from the account's other addresses that have capacity, in the sender's order."""
        now = self._clock.monotonic()
        found = []
        for route in [route for routes in self._routes.routes_of(account_id) or () for route in ranked(sender, routes)]:
            other = self._table.queues.get((queue.name, queue.shard, source_of(route), None))
            if other is None or other.scope == queue.scope or self._address_quotas.is_spent(other.scope, is_list=False):
                continue
            is_open = other.lane.learned.state is LaneState.OPEN
            if is_open and self._capacity(other, account_id, now, is_list=True) is Capacity.FREE:
                found.append(other)
        return found

    def _capacity(self, queue: LaneQueue, account_id: AccountId, now: float, *, is_list: bool) -> Capacity:
        pause = queue.pause_left(now)
        if not pause and queue.waiting <= queue.lane.per_second * ADDRESS_SECONDS_MAX:
            return Capacity.FREE
        can_wait = pause <= PAUSE_SECONDS_WAITED and self._table.has_capacity(queue, account_id, is_list=is_list)
        return Capacity.SOME if can_wait else Capacity.NONE


def _is_bound(ticket: DeliveryTicket) -> bool:
    """Whether a block holds it, so that it may leave only from its own address."""
    return ticket.bounce_at is not None and ticket.source_ip is not None
