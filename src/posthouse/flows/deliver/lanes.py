"""The lanes: when each ticket is sent, and from which address.

No ticket waits here because another destination's mail needs DNS or the database: nothing in this module waits. Every
call returns what the lanes decided, which the caller carries out.

A lane, or a part of it, lives in a shard of the stream. A ticket of a lane that lives in another worker's shard is
forwarded. When a shard is lost, the tickets that wait in its lanes are given back immediately.
"""

from collections.abc import Iterable, Set
from typing import Final

from posthouse.flows.deliver.address_quotas import AddressQuotas
from posthouse.flows.deliver.lane_learning import LaneLearning, Learnt
from posthouse.flows.deliver.lane_lookup import LaneLookup
from posthouse.flows.deliver.lane_queue import (
    WAITING_MIN,
    Bundle,
    Decision,
    Forwarded,
    HeldBack,
    Hurry,
    Item,
    LaneKey,
    LaneQueue,
    Postponed,
    Reserve,
    Returned,
    Turn,
    Unasked,
    Wait,
)
from posthouse.flows.deliver.lane_routing import PAUSE_SECONDS_WAITED, LaneRouting
from posthouse.flows.deliver.lane_table import LaneSettings, LaneTable
from posthouse.flows.deliver.learned_limits import LearnedLimitsSync
from posthouse.flows.deliver.routes import Routes
from posthouse.flows.deliver.session_shares import SessionShares
from posthouse.flows.shared.context import Context
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import DeliveryFeedback, Later, Slot, is_provider
from posthouse.rules.lane_shard import Elsewhere
from posthouse.rules.learned_limits import LaneScope, LearnedLimits, Refused
from posthouse.wire.stream import Leases

POSTPONE_SECONDS_MIN: Final = 1.0
POSTPONE_SECONDS_MAX: Final = 3600.0
# For a ticket that would wait longer for its lane, it is first checked whether its address is suppressed.
UNASKED_SECONDS: Final = 1.0
IDLE_LANES_MAX: Final = 10_000


class Lanes:
    """A `Turn` that was decided ends by `release_slot` after the SMTP session, and `end_session` once it is recorded.

    Mail leaves by the routes of its account, within `address_quotas`. `lookup` finds the lanes of destinations;
    `learned_limits` are those of all workers.
    """

    def __init__(
        self,
        settings: LaneSettings,
        context: Context,
        *,
        leases: Leases,
        routes: Routes,
        address_quotas: AddressQuotas,
        learned_limits: LearnedLimitsSync,
        lookup: LaneLookup,
    ) -> None:
        self._clock = context.clock
        self._address_quotas = address_quotas
        self._lookup = lookup
        self._table = LaneTable(settings, context, leases=leases, learned_limits=learned_limits)
        self._routing = LaneRouting(
            self._table,
            context,
            routes=routes,
            address_quotas=address_quotas,
            learned_limits=learned_limits,
            simulator_domain=settings.simulator_domain,
        )
        self._learning = LaneLearning(self._table, learned_limits)
        self._sessions = SessionShares(settings.sessions_max)
        self._paused: Set[str] = frozenset()
        self._closed = False
        self._late: list[tuple[Item, float]] = []
        self._decided: list[Decision] = []

    @property
    def queues(self) -> Iterable[LaneQueue]:
        return self._table.queues.values()

    def note_shards(self) -> list[Decision]:
        """Tickets that wait in lanes of lost shards are given back."""
        self._note_shards()
        return self._decisions()

    def sort(self, items: Iterable[Item], *, is_asked: bool = False) -> list[Decision]:
        """Put tickets into their lanes; tickets of an unknown destination wait for its look-up.

        Those of which a decision said that they are `Unasked` are sorted again, as `is_asked`.
        """
        self._sort(items, is_asked=is_asked)
        return self._decisions()

    def sort_apart(self, queue: LaneQueue, items: list[Item]) -> list[Decision]:
        """Put tickets of one bundle back into their lane, where each waits for its own turn."""
        self._note_shards()
        if queue.shard not in self._table.held:
            self._return(items)
            return self._decisions()
        paused = next((self._paused_by(queue.name, item.ticket.destination) for item in items), None)
        if paused is not None:
            self._decided.append(HeldBack(items, paused))
            return self._decisions()
        now = self._clock.monotonic()
        for item in items:
            queue = self._table.narrowed(queue.whole or queue, item.ticket)
            self._enter(queue, item, now, is_apart=True)
        self._advance(queue)
        self._postpone_late()
        return self._decisions()

    def advance(self, queue: LaneQueue) -> list[Decision]:
        """Start every bundle that may be sent now."""
        self._advance(queue)
        return self._decisions()

    def resume(self, wait: Wait) -> list[Decision]:
        """The time that a queue had to wait has passed."""
        if wait.queue.wait is wait:
            wait.queue.wait = None
            self._advance(wait.queue)
        return self._decisions()

    def give_back(self, queue: LaneQueue) -> list[Decision]:
        """Return the waiting tickets of a queue to the stream."""
        self._return(self._table.empty(queue))
        return self._decisions()

    def release_domain(
        self, queue: LaneQueue, bundle: Bundle, served: DeliveryFeedback, refused: Refused | None = None
    ) -> list[Decision]:
        """A provider has answered, and perhaps said something about the mail of the bundle's From domain."""
        self._apply(self._learning.release_domain(queue, bundle, served, refused))
        return self._decisions()

    def release_slot(
        self, turn: Turn, served: DeliveryFeedback, refused: Refused | None = None
    ) -> tuple[LaneQueue, list[Decision]]:
        """End a bundle's turn in its lane: the next may start, after lanes that wait for a session.

        Returns the queue that the reply is about: that of the lane, or of the bundle's branch of it.
        """
        about, learnt = self._learning.release_slot(turn, served, refused)
        self._apply(learnt)
        queue = turn.queue
        whole = queue.whole or queue
        if not queue.waiting:
            self._forget_if_idle(queue)
        # A branch waits for the connections of the whole lane as well.
        waiting = [
            each for each in (queue, whole, *whole.branches.values()) if each.waiting and not each.waits_for_share
        ]
        for each in waiting:
            self._sessions.wait(each.key)
        if waiting:
            self._advance_each(self._sessions.starved())
        return about, self._decisions()

    def end_session(self, bundle: Bundle) -> list[Decision]:
        """End a bundle's session, once its outcomes are recorded."""
        if bundle.domain_slot is not None:
            # Nothing was sent.
            bundle.domain_slot.lane.undo_take()
        self._sessions.end(bundle.account_id, is_unproven=bundle.is_unproven)
        self._advance_each(self._sessions.starved())
        self._advance_each(self._sessions.over_share())
        return self._decisions()

    def adopt(self, scope: LaneScope, learned: LearnedLimits) -> list[Decision]:
        """Apply limits that other workers learned."""
        self._apply(self._learning.adopt(scope, learned))
        return self._decisions()

    def pause(self, lanes: Set[str]) -> list[Decision]:
        """Pause exactly these lanes: tickets that wait in them are kept back, and running sessions finish."""
        begun, self._paused = lanes - self._paused, lanes
        if begun and not self._closed:
            self._sort(self._table.empty_all(self._table.queues.values()))
        return self._decisions()

    def others_with_capacity(self, queue: LaneQueue, account_id: AccountId, sender: str) -> list[LaneQueue]:
        """The lane's open queues from the account's other addresses that have capacity, in the sender's order."""
        return self._routing.others_with_capacity(queue, account_id, sender)

    def close(self) -> list[Item]:
        """Start nothing more; return the waiting tickets."""
        self._closed = True
        return self._lookup.close() + self._table.empty_all(self._table.queues.values())

    def _decisions(self) -> list[Decision]:
        decided, self._decided = self._decided, []
        return decided

    def _return(self, items: list[Item]) -> None:
        if items:
            self._decided.append(Returned(items))

    def _apply(self, learnt: Learnt) -> None:
        self._decided += learnt.limit_changes
        for queue in learnt.advanced:
            if self._table.queues.get(queue.key) is queue:
                self._advance(queue)
        if learnt.moved:
            self._sort(learnt.moved)

    # Which lane.

    def _note_shards(self) -> None:
        changed = self._table.note_shards()
        if not changed:
            return
        self._learning.domains.forget(changed)
        returned: list[Item] = []
        for queue in [queue for queue in self.queues if queue.shard in changed]:
            returned += self._table.move(queue)
            self._sessions.forget(queue.key)
        self._return(returned)

    def _sort(self, items: Iterable[Item], *, is_asked: bool = False) -> None:
        now = self._clock.monotonic()
        self._note_shards()
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
            match self._routing.target(name, item, now):
                case float() as seconds:
                    self._late.append((item, seconds))
                case Elsewhere.GIVE_BACK:
                    returned.append(item)
                case (lane, home):
                    forwarded.setdefault((lane, home), []).append(item)
                case LaneQueue() as lane_queue:
                    queue = self._table.narrowed(lane_queue, ticket)
                    touched[queue.key] = queue
                    if not self._enter(queue, item, now, is_asked=is_asked):
                        unasked.append(item)
        if self._lookup.wanted:
            self._decided += self._lookup.wanted
            self._lookup.wanted.clear()
        for queue in touched.values():
            self._advance(queue)
        self._decided += [Forwarded(group, name, home) for (name, home), group in forwarded.items()]
        self._decided += [HeldBack(group, name) for name, group in held_back.items()]
        self._return(returned)
        if unasked:
            self._decided.append(Unasked(unasked))
        self._postpone_late()

    def _enter(
        self, queue: LaneQueue, item: Item, now: float, *, is_asked: bool = True, is_apart: bool = False
    ) -> bool:
        """Let the ticket wait in its lane, or postpone it; False if it is first to be asked about."""
        account_id, is_list = item.ticket.account_id, item.ticket.is_list
        pause = queue.pause_left(now)
        if pause > PAUSE_SECONDS_WAITED or not self._table.has_capacity(queue, account_id, is_list=is_list):
            self._late.append((item, self._postpone_seconds(queue, account_id, now)))
            return True
        if not is_asked and (pause or queue.waiting > queue.lane.per_second * UNASKED_SECONDS):
            return False
        self._table.add(queue, item, is_apart=is_apart)
        return True

    def _paused_by(self, lane: str, destination: str) -> str | None:
        """The paused name: the lane's or the domain's, since a domain can be paused inside its provider's lane."""
        if not self._paused:
            return None
        return next((name for name in (lane, destination) if name in self._paused), None)

    # Whose turn.

    def _advance_each(self, keys: Iterable[LaneKey]) -> None:
        for key in keys:
            queue = self._table.queues.get(key)
            if queue is not None:
                self._advance(queue)

    def _advance(self, queue: LaneQueue) -> None:
        if self._closed:
            return
        self._note_shards()
        if queue.shard not in self._table.held:
            return
        queue.waits_for_share = False
        while queue.waiting:
            is_unproven = not queue.lane.answers
            if not self._sessions.is_free(queue.key, is_unproven=is_unproven):
                return
            if not self._has_quota(queue):
                return
            now = self._clock.monotonic()
            slot = queue.take_slot(now)
            if isinstance(slot, Later):
                self._wait(queue, slot, now)
                return
            account_id = self._sessions.next_account(queue.key, queue.bundles.accounts(), is_unproven=is_unproven)
            if account_id is None:
                queue.undo_take()
                # A lane that hasn't answered yet may get more sessions once it does.
                queue.waits_for_share = queue.lane.answers
                return
            self._begin(queue, slot, account_id)
        self._forget_if_idle(queue)

    def _has_quota(self, queue: LaneQueue) -> bool:
        """Whether a message may be sent now; if not, more is reserved, or waiting tickets are routed differently."""
        address_quotas = self._address_quotas
        if address_quotas.bound_of(queue.scope) is None or address_quotas.may_take(queue.scope):
            return True
        if address_quotas.is_spent(queue.scope):
            self._sort_again(queue)
        elif not queue.is_reserving:
            queue.is_reserving = True
            self._decided.append(Reserve(queue))
        return False

    def _sort_again(self, queue: LaneQueue) -> None:
        items = self._table.empty(queue)
        if items:
            self._sort(items)

    def _within_quota(self, queue: LaneQueue, bundle: Bundle) -> bool:
        """Whether the bundle may be sent, with the recipients that the quota allows."""
        if self._address_quotas.bound_of(queue.scope) is None:
            return True
        granted = self._address_quotas.take_permits(queue.scope, len(bundle.items), is_list=bundle.is_list)
        rest = bundle.items[granted:]
        bundle.items = bundle.items[:granted]
        if rest and not (granted and self._table.add_rest(queue, bundle, rest)):
            self._sort(rest)
        return granted > 0

    def _begin(self, queue: LaneQueue, slot: Slot, account_id: AccountId) -> None:
        bundle = self._table.take(queue, account_id)
        if is_provider(queue.name):
            taken = self._learning.domains.take_slot(queue, bundle, self._clock.monotonic())
            if isinstance(taken, float):
                queue.undo_take()
                self._late += [(item, taken) for item in bundle.items]
                self._postpone_late()
                return
            bundle.domain_slot = taken
        if not self._within_quota(queue, bundle):
            queue.undo_take()
            if bundle.domain_slot is not None:
                bundle.domain_slot.lane.undo_take()
            return
        bundle.is_unproven = not queue.lane.answers
        self._sessions.begin(account_id, is_unproven=bundle.is_unproven)
        self._decided.append(Turn(queue, slot, bundle))

    def _wait(self, queue: LaneQueue, later: Later, now: float) -> None:
        if later.seconds is None:
            # All its connections are in use, some perhaps by mail that is still being claimed.
            self._decided.append(Hurry())
            return
        if queue.wait is not None:
            return
        if queue.route is not None and queue.pause_left(now) > PAUSE_SECONDS_WAITED:
            # Another address may have capacity; a ticket that finds none is postponed when it enters.
            self._sort_again(queue)
            return
        if later.seconds > PAUSE_SECONDS_WAITED:
            items = self._table.empty(queue)
            self._late += [(item, self._postpone_seconds(queue, item.ticket.account_id, now)) for item in items]
            self._postpone_late()
            return
        queue.wait = Wait(queue, later.seconds)
        self._decided.append(queue.wait)

    def _postpone_seconds(self, queue: LaneQueue, account_id: AccountId, now: float) -> float:
        """When there should be space: after the pause, and after what waits and what was postponed before."""
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
            self._decided.append(Postponed(late))

    def _forget_if_idle(self, queue: LaneQueue) -> None:
        """Drop the state of an idle lane when there are too many."""
        now = self._clock.monotonic()
        if queue.lane.in_use or queue.wait is not None or queue.branches or self._sessions.is_waiting(queue.key):
            return
        if queue.shard not in self._table.held:
            self._table.drop(queue)
        elif queue.whole is not None:
            if not queue.waiting and not self._table.is_needed(queue, queue.whole, now):
                self._table.drop(queue)
        elif not queue.lane.pause_left(now) and len(self._table.queues) > IDLE_LANES_MAX:
            self._table.drop(queue)
