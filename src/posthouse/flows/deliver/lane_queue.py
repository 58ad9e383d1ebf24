"""A lane's queue: the bundles of tickets that wait for a lane, and what the lanes decide about them.

Recipients of one message at one destination are sent together, in one SMTP transaction.

Mail from one account to one domain gets its own queue and lane (a branch) inside the lane once a refusal was about no
more than that (`rules.evidence`). Such mail needs a slot of both.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from posthouse.flows.shared import tickets
from posthouse.rules.evidence import Evidence
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import DeliveryFeedback, FairQueue, Lane, Later, Slot
from posthouse.rules.learned_limits import Branch, LaneScope, LimitChange, Refused
from posthouse.rules.reroute import HourCount
from posthouse.rules.route import Relay, Route
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult
from posthouse.wire.carrier import LaneConnections

Item = tickets.Item[DeliveryTicket]
# A lane's name, the shard in which it lives, our address that its mail leaves from, and the branch, if it is one.
LaneKey = tuple[str, int, str, Branch | None]

# A ticket that waits longer than its lease is published again, so those that can't be sent in this time are postponed.
WAIT_SECONDS_MAX: Final = 30.0
WAITING_MIN: Final = 100
WAITING_MAX: Final = 5_000
# For all lanes together; less than the stream and the worker can hold. The less of it is free, the less a lane gets,
# to the power of SPACE_EXPONENT: a hundred full lanes still leave an eighth of it to others.
ALL_WAITING_MAX: Final = 15_000
SPACE_EXPONENT: Final = 3
# Never reached: `has_capacity` refuses long before.
BUNDLES_MAX: Final = 1_000_000
# A full lane still takes this many recipients of an account that has fewer waiting, until it holds twice its maximum.
SMALL_SHARE: Final = 10
# The address of an installation that has only one.
SOLE_ADDRESS: Final = ""


@dataclass(frozen=True, slots=True)
class DomainSlot:
    """Permission to send one message of a From domain that has a lane inside its provider's lane."""

    lane: Lane
    slot: Slot


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
    # What a reply said about its From domain, while there is not enough evidence for it yet.
    domain_refusal: tuple[DeliveryFeedback, Refused] | None = None

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
    # Those delivered in the last hour.
    hour: HourCount = field(default_factory=HourCount)
    deferred: int = 0
    # It may name recipients.
    last_reply: str | None = None

    def add(self, outcomes: Iterable[DeliveryOutcome], now: float) -> None:
        delivered = 0
        for outcome in outcomes:
            delivered += outcome.result is DeliveryResult.DELIVERED
            self.deferred += outcome.result is DeliveryResult.DEFERRED
            if outcome.response is not None:
                self.last_reply = outcome.response if outcome.code is None else f"{outcome.code} {outcome.response}"
        if delivered:
            self.delivered += delivered
            self.hour.add(delivered, now)


@dataclass(slots=True)
class LaneQueue:
    """A lane, or its part that lives in this shard, and the bundles that wait for it, all to leave by one route.

    Without a route they leave from the machine's default address; those of a relay's lane go to the relay.
    """

    name: str
    shard: int
    lane: Lane
    route: Route | None = None
    relay: Relay | None = None
    # Of a branch: the queue of the whole lane, and which branch it is.
    whole: "LaneQueue | None" = None
    branch: Branch | None = None
    branches: dict[Branch, "LaneQueue"] = field(init=False, default_factory=dict)
    evidence: Evidence = field(init=False)
    bundles: FairQueue[Bundle] = field(init=False)
    # The bundles that further recipients can join.
    open_bundles: dict[tuple[MessageId, str], Bundle] = field(init=False, default_factory=dict)
    # Everything that bounds a lane counts recipients, that is tickets, because these take space in the worker and in
    # the stream. If bundles were counted, an account could take fifty times as much.
    waiting: int = field(init=False, default=0)
    waiting_by_account: Counter[AccountId] = field(init=False, default_factory=Counter)
    # Those of the waiting recipients that are mail to lists.
    lists_by_account: Counter[AccountId] = field(init=False, default_factory=Counter)
    # For each account, the time up to which slots are promised to postponed tickets.
    horizons: dict[AccountId, float] = field(init=False, default_factory=dict)
    # When it continues, if that is only a matter of time.
    wait: "Wait | None" = field(init=False, default=None)
    # More of its quota is being reserved.
    is_reserving: bool = field(init=False, default=False)
    # Every account that waits here uses its share of sessions: none can begin before a session has ended.
    waits_for_share: bool = field(init=False, default=False)
    counts: LaneCounts = field(init=False, default_factory=LaneCounts)
    connections: LaneConnections = field(init=False)
    key: LaneKey = field(init=False)
    scope: LaneScope = field(init=False)

    def __post_init__(self) -> None:
        source = source_of(self.route)
        self.evidence = Evidence(self.name)
        self.bundles = FairQueue(BUNDLES_MAX, BUNDLES_MAX)
        self.connections = LaneConnections(self.connections_max) if self.whole is None else self.whole.connections
        self.key = self.name, self.shard, source, self.branch
        self.scope = LaneScope(source, self.name)

    def connections_max(self) -> int:
        """How many connections may be open, idle ones among them."""
        return self.lane.connections

    def pause_left(self, now: float) -> float:
        """For how many seconds nothing is sent, because the branch or the whole lane pauses."""
        left = self.lane.pause_left(now)
        return left if self.whole is None else max(left, self.whole.lane.pause_left(now))

    def take_slot(self, now: float) -> Slot | Later:
        slot = self.lane.take_slot(now)
        if self.whole is None or isinstance(slot, Later):
            return slot
        of_whole = self.whole.lane.take_slot(now)
        if isinstance(of_whole, Later):
            self.lane.undo_take()
            return of_whole
        return replace(slot, whole=of_whole)

    def undo_take(self) -> None:
        self.lane.undo_take()
        if self.whole is not None:
            self.whole.lane.undo_take()

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

    def has_capacity(self, account_id: AccountId, free: int, *, is_list: bool) -> bool:
        """Whether one more recipient of the account may wait, if `free` more may in all lanes together."""
        if free <= 0:
            return False
        capacity = min(self.waiting_max, int(WAITING_MAX * (free / ALL_WAITING_MAX) ** SPACE_EXPONENT))
        waiting = self.waiting_by_account[account_id]
        # Mail to lists leaves space for its own account's other mail.
        if waiting - (0 if is_list else self.lists_by_account[account_id]) < SMALL_SHARE:
            return self.waiting < 2 * capacity + SMALL_SHARE
        # A fifth of the space is always left to other accounts.
        return waiting < capacity * 4 // 5 and self.waiting < capacity


def source_of(route: Route | None) -> str:
    return SOLE_ADDRESS if route is None else str(route.source)


# What the lanes decide. Whoever called them carries it out.


class Turn(NamedTuple):
    """The bundle is to be claimed and sent now."""

    queue: LaneQueue
    slot: Slot
    bundle: Bundle


class Postponed(NamedTuple):
    """Tickets for which there is no space, each with the seconds by which it is postponed."""

    late: list[tuple[Item, float]]


class Returned(NamedTuple):
    """Tickets that go back to the stream."""

    items: list[Item]


class Forwarded(NamedTuple):
    """Tickets of a lane that lives in another worker's shard."""

    items: list[Item]
    lane: str
    shard: int


class HeldBack(NamedTuple):
    """Tickets of a lane that an operator paused."""

    items: list[Item]
    lane: str


class Unasked(NamedTuple):
    """Tickets that would wait: those whose address is suppressed end first, and the rest is sorted again."""

    items: list[Item]


class LookUp(NamedTuple):
    """A destination whose lane is looked up in DNS; this counts against the account's share."""

    destination: str
    account_id: AccountId


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """The queue continues after these seconds."""

    queue: LaneQueue
    seconds: float


class Reserve(NamedTuple):
    """More of the quota of the queue's address is to be reserved, and then the queue continues."""

    queue: LaneQueue


class Hurry(NamedTuple):
    """Mail waits for connections that tickets which are being claimed use."""


# A limit change is known to this worker's lanes already, and is to be written for the others.
Decision = Turn | Postponed | Returned | Forwarded | HeldBack | Unasked | LookUp | Wait | Reserve | Hurry | LimitChange
