"""Lanes: which lane a destination's mail takes, how much of it is sent at a time, and which account is next.

A lane is a mailbox provider, known by the names of its mail servers, however many domains it hosts; or else a
single domain. Its rate follows its learned limits (`rules.learned_limits`), which the destination's refusals taught.
Its concurrency starts small and adapts: one more connection after each connection, with all of them in use, has
delivered a message; half as many connections when a reply asks us for less; and a growing pause when even a single
connection was too many. Inside a lane, accounts take turns.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Generic, TypeVar, assert_never
from uuid import UUID

from posthouse.rules.ids import AccountId
from posthouse.rules.learned_limits import LaneScope, LaneState, LearnedLimits, LimitChange, Refused
from posthouse.rules.pace import Moment, Pace
from posthouse.rules.reply_signal import ReplySignal, ReplySignalKind, Scope

# The providers and the suffixes of their mail servers' names, long enough to exclude machines that they rent to
# others. A provider's lane has no dot in its name, so it can't be mistaken for a domain.
PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "google": ("google.com", "googlemail.com"),
    "microsoft": ("protection.outlook.com", "mx.microsoft", "hotmail.com"),
    "yahoo": ("yahoodns.net",),
    "yahoo-japan": ("yahoo.co.jp",),
    "apple": ("mail.icloud.com",),
    "barracuda": ("barracudanetworks.com",),
    "broadcom": ("messagelabs.com",),
    "cisco": ("iphmx.com",),
    "cloudflare": ("mx.cloudflare.net",),
    "comcast": ("mxge.comcast.net",),
    "fastmail": ("messagingengine.com",),
    "gmx": ("gmx.net", "web.de"),
    "godaddy": ("smtp.secureserver.net", "mailstore1.secureserver.net"),
    "ionos": ("kundenserver.de", "perfora.net", "ionos.com", "ionos.co.uk", "ionos.de", "ionos.es", "ionos.fr"),
    "mailru": ("mail.ru",),
    "mimecast": ("mimecast.com",),
    "naver": ("naver.com",),
    "netease": ("netease.com", "163.com"),
    "orange": ("smtp-in.orange.fr",),
    "ovh": ("mail.ovh.net", "mail.ovh.ca"),
    "proofpoint": ("pphosted.com", "ppe-hosted.com"),
    "proton": ("protonmail.ch",),
    "rackspace": ("emailsrvr.com",),
    "sophos": ("hydra.sophos.com",),
    "telekom": ("t-online.de",),
    "tencent": ("qq.com",),
    "trendmicro": ("trendmicro.com", "trendmicro.eu"),
    "yandex": ("yandex.net", "yandex.ru"),
    "zoho": ("zoho.com", "zoho.eu", "zoho.in"),
}
_PROVIDER_OF: Final = {suffix: provider for provider, suffixes in PROVIDERS.items() for suffix in suffixes}


def _countries(name: str, ends: str) -> list[str]:
    return [f"{name}.{end}" for end in ends.split()]


# The large mailbox domains of some providers. Their mail finds its lane without DNS, and so goes straight to the
# stream's shard in which that lane lives.
MAILBOX_DOMAINS: Final[Mapping[str, tuple[str, ...]]] = {
    "google": ("gmail.com", "googlemail.com"),
    "microsoft": (
        "hotmail.com",
        "live.com",
        "msn.com",
        "outlook.com",
        "windowslive.com",
        *_countries(
            "hotmail", "be ca ch cl co.jp co.th co.uk com.ar com.br com.tr de dk es fi fr gr hu it nl no se sg"
        ),
        *_countries(
            "live", "at be ca cl cn co.uk co.za com.ar com.au com.mx com.my com.ph com.pt com.sg de dk fi fr hk"
        ),
        *_countries("live", "ie in it jp nl no ru se"),
        *_countries(
            "outlook", "at be cl co.id co.il co.th com.ar com.au com.br com.gr com.tr com.vn cz de dk es fr hu"
        ),
        *_countries("outlook", "ie in it jp kr lv my ph pt sa sg sk"),
    ),
    "yahoo": (
        "aim.com",
        "aol.com",
        "myyahoo.com",
        "rocketmail.com",
        "yahoo.com",
        "ymail.com",
        *_countries("yahoo", "at be bg ca co.id co.in co.nz co.th co.uk co.za com.ar com.au com.br com.co com.hk"),
        *_countries(
            "yahoo", "com.mx com.my com.pe com.ph com.sg com.tr com.tw com.ve com.vn de dk es fi fr gr hu ie in"
        ),
        *_countries("yahoo", "it nl no pl pt ro se"),
    ),
    "yahoo-japan": ("yahoo.co.jp", "ybb.ne.jp"),
    "apple": ("icloud.com", "mac.com", "me.com"),
    "comcast": ("comcast.net",),
    "fastmail": ("fastmail.com", "fastmail.fm"),
    "gmx": ("gmx.at", "gmx.ch", "gmx.com", "gmx.de", "gmx.net", "web.de"),
    "mailru": ("bk.ru", "inbox.ru", "internet.ru", "list.ru", "mail.ru"),
    "naver": ("naver.com",),
    "netease": ("126.com", "163.com", "yeah.net"),
    "orange": ("orange.fr", "wanadoo.fr"),
    "proton": ("pm.me", "proton.me", "protonmail.ch", "protonmail.com"),
    "telekom": ("magenta.de", "t-online.de"),
    "tencent": ("foxmail.com", "qq.com"),
    "yandex": ("ya.ru", "yandex.by", "yandex.com", "yandex.kz", "yandex.ru"),
    "zoho": ("zohomail.com",),
}
_LANE_BY_NAME: Final = {domain: provider for provider, domains in MAILBOX_DOMAINS.items() for domain in domains}

PUSH_BACK_CODE: Final = 421
PAUSE_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
# A destination that was unreachable this often in a row is paused: its waiting mail would only time out as well.
MISSES_MAX: Final = 2
MISS_PAUSE_SECONDS_MIN: Final = 15.0
MISS_PAUSE_SECONDS_MAX: Final = 600.0
# A lane without a rate from the operator begins here, and learns how much its destination takes.
PER_SECOND_START: Final = 20.0
ALONE: Final = LaneScope("", "")
# How many messages that taught a lane something are remembered; the oldest are forgotten.
TAUGHT_MAX: Final = 1_000
# Messages over one connection, however many the destination would take.
PER_CONNECTION_MAX: Final = 100


def lane_by_name(destination: str) -> str | None:
    """The lane of a large mailbox domain; None where DNS must be asked."""
    return _LANE_BY_NAME.get(destination.lower())


def lane_of(destination: str, mx_host_name: str) -> str:
    """The lane of a domain whose most preferred mail server is this one."""
    suffix = mx_host_name.lower().removesuffix(".")
    while suffix:
        provider = _PROVIDER_OF.get(suffix)
        if provider is not None:
            return provider
        suffix = suffix.partition(".")[2]
    return destination.lower()


def lane_by_hosts(destination: str, mx_host_names: Iterable[str]) -> str:
    """The lane of a domain with these mail servers; without servers, it is the domain's own lane."""
    # Any domain can list a provider's server among its own; only a domain with no other server belongs to the provider.
    lanes = {lane_of(destination, host) for host in mx_host_names}
    return lanes.pop() if len(lanes) == 1 else destination


def is_provider(lane: str) -> bool:
    """Whether the lane is shared by many domains."""
    return lane in PROVIDERS


def counts_for(lane: str, destination: str, mx_host_name: str | None) -> bool:
    """Whether the replies of this server of a destination count for the lane.

    The owner of a hosted domain can switch to their own server after the lane was looked up.
    """
    if not is_provider(lane) or lane_by_name(destination) == lane:
        return True
    return mx_host_name is not None and lane_of(destination, mx_host_name) == lane


@dataclass(frozen=True, slots=True)
class Limits:
    """A lane's limits in the whole installation, or in one of its parts: messages per second, connections at a time.

    `per_second_start` always applies to the whole lane; without it, a lane begins at `per_second`.
    """

    per_second: float = 100.0
    burst: int = 100
    connections_start: int = 2
    connections_max: int = 20
    per_second_start: float | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        if self.per_second <= 0 or self.burst < 1 or not 1 <= self.connections_start <= self.connections_max:
            raise ValueError(f"a lane must take at least one message, and be able to grow from its start: {self}")

    @property
    def learned(self) -> LearnedLimits:
        """The learned limits of a lane that has learnt nothing yet."""
        whole = self.per_second * self.parts
        return LearnedLimits(min(self.per_second_start or whole, whole))

    def part(self, number: int, parts: int) -> "Limits":
        """One of the parts, numbered from 0, that together are the whole lane.

        There may be no more parts than messages in a burst, or connections.
        """
        connections_max = _part(self.connections_max, number, parts)
        return replace(
            self,
            parts=parts,
            per_second=self.per_second / parts,
            burst=_part(self.burst, number, parts),
            connections_start=min(max(1, _part(self.connections_start, number, parts)), connections_max),
            connections_max=connections_max,
        )


def _part(whole: int, number: int, parts: int) -> int:
    return whole // parts + (number < whole % parts)


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The operator's limits: for single lanes by name, and the default for all others."""

    default: Limits = field(default_factory=lambda: Limits(per_second_start=PER_SECOND_START))
    by_lane: Mapping[str, Limits] = field(default_factory=dict)

    def limits_of(self, lane: str) -> Limits:
        return self.by_lane.get(lane, self.default)


class DeliveryFeedback(StrEnum):
    """What a delivery attempt says about its lane."""

    WELL = "well"
    # The server is busy, not with us in particular.
    PUSHED_BACK = "pushed_back"
    # Refusals because of us: too much mail, too many connections, too much over one, our address as such.
    SLOW = "slow"
    CONNECTIONS = "connections"
    PER_CONNECTION = "per_connection"
    BLOCKED = "blocked"
    # No server of the destination could be reached.
    UNREACHABLE = "unreachable"
    OTHERWISE = "otherwise"
    # Nothing was sent: the message was held, suppressed or too late.
    NOT_SENT = "not_sent"


# The return path's domain is this service's own, for every sender.
_OF_ALL_SENDERS: Final = frozenset({Scope.ADDRESS, Scope.NETWORK, Scope.SPF_DOMAIN})
_OF_A_DOMAIN: Final = frozenset({Scope.DOMAIN, Scope.DKIM_DOMAIN})


def feedback_by(code: int, reply_signal: ReplySignal | None) -> DeliveryFeedback:
    """What one reply says about its lane. A 421 asks for less, unless it is about one sender's domain."""
    is_of_all = reply_signal is not None and not reply_signal.scopes.isdisjoint(_OF_ALL_SENDERS)
    match reply_signal.kind if reply_signal is not None else None:
        case ReplySignalKind.CONNECTIONS:
            return DeliveryFeedback.CONNECTIONS
        case ReplySignalKind.PER_CONNECTION:
            return DeliveryFeedback.PER_CONNECTION
        case ReplySignalKind.SLOW if is_of_all:
            return DeliveryFeedback.SLOW
        case ReplySignalKind.BLOCK if is_of_all:
            return DeliveryFeedback.BLOCKED
    if domain_feedback_by(reply_signal) is not None:
        return DeliveryFeedback.OTHERWISE
    return DeliveryFeedback.PUSHED_BACK if code == PUSH_BACK_CODE else DeliveryFeedback.WELL


def domain_feedback_by(reply_signal: ReplySignal | None) -> DeliveryFeedback | None:
    """What one reply says about mail of the domain in From; None if it says nothing about it."""
    if reply_signal is None or reply_signal.scopes.isdisjoint(_OF_A_DOMAIN):
        return None
    match reply_signal.kind:
        case ReplySignalKind.SLOW:
            return DeliveryFeedback.SLOW
        case ReplySignalKind.BLOCK:
            return DeliveryFeedback.BLOCKED
    return None


# Feedback that can slow a lane or stop it, and needs evidence.
REFUSALS: Final = frozenset(
    {
        DeliveryFeedback.PUSHED_BACK,
        DeliveryFeedback.SLOW,
        DeliveryFeedback.CONNECTIONS,
        DeliveryFeedback.PER_CONNECTION,
        DeliveryFeedback.BLOCKED,
    }
)


@dataclass(frozen=True, slots=True)
class Slot:
    """Permission to send one message. `era` is how often the lane had been stopped when it was given.

    In a branch of a lane, a message has a slot of the whole lane as well.
    """

    era: int
    whole: "Slot | None" = None


@dataclass(frozen=True, slots=True)
class Later:
    """Not yet: ask again after this many seconds or, if None, when a slot is released."""

    seconds: float | None


class Lane:
    """A lane or one part of it, from one of our addresses; `now` is a monotonic time in seconds."""

    __slots__ = (
        "_connections",
        "_era",
        "_full_at",
        "_is_climbing",
        "_limits",
        "_missed",
        "_misses",
        "_pace",
        "_pause_seconds",
        "_paused_until",
        "_rests_until",
        "_taught",
        "answers",
        "in_use",
    )

    def __init__(self, limits: Limits, scope: LaneScope = ALONE) -> None:
        self._limits = limits
        self._pace = Pace(scope, limits.learned, 1 / limits.parts)
        self._connections = float(limits.connections_start)
        self.in_use = 0
        self._era = 0
        self._misses = 0
        self._missed: UUID | None = None
        # Whether a server of the destination replied to the last message whose result is known.
        self.answers = False
        # The messages whose refusals it has heeded.
        self._taught: OrderedDict[UUID, None] = OrderedDict()
        self._full_at = float("-inf")
        self._pause_seconds = 0.0
        # Until when a busy or unreachable server is left alone, and until when the learned limits make the lane rest.
        self._paused_until = float("-inf")
        self._rests_until = float("-inf")
        # After a rest, each message taken adds a connection.
        self._is_climbing = False

    @property
    def connections(self) -> int:
        """How many connections may be in use now."""
        if self._pace.learned.connections_max is None:
            return int(self._connections)
        return int(min(self._connections, self._connections_max))

    @property
    def learned(self) -> LearnedLimits:
        return self._pace.learned

    @property
    def scope(self) -> LaneScope:
        return self._pace.scope

    def is_current(self, slot: Slot) -> bool:
        """Whether the lane has not been stopped since the slot was given."""
        return slot.era == self._era

    @property
    def per_second(self) -> float:
        return min(self._pace.learned.per_second * self._pace.share, self._limits.per_second)

    @property
    def per_connection_max(self) -> int:
        return self._pace.learned.per_connection_max or PER_CONNECTION_MAX

    @property
    def _connections_max(self) -> float:
        learnt = self._pace.learned.connections_max
        if learnt is None:
            return float(self._limits.connections_max)
        return min(float(self._limits.connections_max), max(1.0, learnt * self._pace.share))

    def _burst(self, per_second: float) -> float:
        """The burst at this rate: it lasts as many seconds as the configured burst does at the configured rate."""
        return max(1.0, self._limits.burst * per_second / self._limits.per_second)

    def pause_left(self, now: float) -> float:
        """For how many more seconds nothing is sent."""
        return max(0.0, self._paused_until - now, self._rests_until - now)

    def limit(self, limits: Limits) -> None:
        """Use other limits from now on."""
        self._limits = limits
        self._pace.share = 1 / limits.parts
        self._connections = min(self._connections, float(limits.connections_max))

    def adopt(self, learned: LearnedLimits, moment: Moment) -> None:
        """Take over the limits that another process learnt or an operator set."""
        before, self._pace.learned = self.learned, learned
        if learned.paused_until != before.paused_until or learned.state is not before.state:
            self._rest(moment)

    def use_up_burst(self, at: float) -> None:
        """Assume that the process which had the lane until `at` sent the whole burst in its last moment."""
        per_second = self.per_second
        self._full_at = max(self._full_at, at + self._burst(per_second) / per_second)

    def take_slot(self, now: float) -> Slot | Later:
        """A slot to send one message, which must be released."""
        if now < self._paused_until or now < self._rests_until:
            return Later(self.pause_left(now))
        if self.in_use >= self.connections:
            return Later(None)
        # GCRA, as in `rate_limit`: the whole burst is available again at `full_at`.
        per_second = self.per_second
        interval = 1 / per_second
        full_at = max(self._full_at, now) + interval
        excess = full_at - now - interval * self._burst(per_second)
        # Sums of floating-point seconds are not exact; a microsecond is not worth a wait.
        if excess > 1e-6:
            self._pace.note_demand()
            return Later(excess)
        self._full_at = full_at
        self.in_use += 1
        return Slot(self._era)

    def undo_take(self) -> None:
        """Return the slot that was just taken, unused."""
        if self.in_use == 0:
            raise ValueError("a slot was released that was not taken")
        self.in_use -= 1
        self._full_at -= 1 / self.per_second

    def release_slot(
        self, slot: Slot, served: DeliveryFeedback, moment: Moment, refused: Refused | None = None
    ) -> LimitChange | None:
        """End the message's turn. Returns the limit change that its result caused, if any."""
        if served is DeliveryFeedback.NOT_SENT:
            self.undo_take()
            return None
        was_full = self.in_use >= self.connections
        self._end_turn()
        is_first = self.is_current(slot)
        if served is DeliveryFeedback.WELL:
            self._misses = 0
            return self._serve(moment, was_full=was_full, is_answer=is_first)
        return self.heed(served, moment, refused or Refused(), others=self.in_use, is_first=is_first)

    def end_turn_without_learning(self) -> None:
        """End the message's turn and learn nothing: its reply was about less than this lane, or about more."""
        self._end_turn()
        self._misses = 0
        self.answers = True

    def _end_turn(self) -> None:
        if self.in_use == 0:
            raise ValueError("a slot was released that was not taken")
        self.in_use -= 1

    def branch(self, scope: LaneScope) -> "Lane":
        """A branch of this lane, which starts with the lane's present state."""
        made = Lane(self._limits, scope)
        made._pace = self._pace.branch(scope)
        made._connections, made.answers, made._full_at = self._connections, self.answers, self._full_at
        made._rests_until, made._is_climbing = self._rests_until, self._is_climbing
        return made

    def heed(
        self, served: DeliveryFeedback, moment: Moment, refused: Refused, *, others: int, is_first: bool = True
    ) -> LimitChange | None:
        """Learn from a message that was not taken, while `others` were under way.

        Messages in flight together are refused together: only the first refusal counts.
        """
        is_repeated_miss = refused.message_id is not None and refused.message_id == self._missed
        self._missed = refused.message_id if served is DeliveryFeedback.UNREACHABLE else None
        if served is not DeliveryFeedback.UNREACHABLE:
            self._misses = 0
        elif not is_repeated_miss:
            self._misses += 1
        if served in REFUSALS:
            self.answers = True
            if not self._may_teach(refused):
                return None
        match served:
            case DeliveryFeedback.PUSHED_BACK:
                if is_first:
                    self._step_back(moment.seconds)
            case DeliveryFeedback.SLOW:
                return self._stopped(self._pace.slowed(refused, moment), moment) if is_first else None
            case DeliveryFeedback.BLOCKED:
                return self._stopped(self._pace.blocked(refused, moment), moment) if is_first else None
            case DeliveryFeedback.CONNECTIONS:
                limit_change = self._pace.refused_connection(refused, others, moment)
                # Even a single one was too many.
                if is_first and not others:
                    self._step_back(moment.seconds)
                return limit_change
            case DeliveryFeedback.PER_CONNECTION:
                limit_change = self._pace.refused_over_connection(refused, moment)
                # Even the first message was too many.
                if is_first and not refused.taken_before:
                    self._step_back(moment.seconds)
                return limit_change
            case DeliveryFeedback.UNREACHABLE:
                self.answers = False
                if self._misses >= MISSES_MAX and is_first:
                    self._pause_unreachable(moment.seconds)
            case DeliveryFeedback.OTHERWISE | DeliveryFeedback.WELL | DeliveryFeedback.NOT_SENT:
                pass
            case _:
                assert_never(served)
        return None

    def _may_teach(self, refused: Refused) -> bool:
        """One message never slows a lane twice. Only after a rest does it say whether the rest was long enough."""
        message_id = refused.message_id
        if message_id is None:
            return True
        if message_id in self._taught:
            return self.learned.state is not LaneState.OPEN
        self._taught[message_id] = None
        if len(self._taught) > TAUGHT_MAX:
            self._taught.popitem(last=False)
        return True

    def _serve(self, moment: Moment, *, was_full: bool, is_answer: bool) -> LimitChange | None:
        self.answers = True
        self._pause_seconds = 0.0
        if self._is_climbing:
            self._connections += is_answer
        elif was_full:
            # Growth while connections are idle would be a guess about what the server accepts.
            self._connections += 1 / self._connections
        self._connections = min(self._connections, self._connections_max)
        self._is_climbing = self._is_climbing and self._connections < self._connections_max
        return self._pace.taken(
            moment,
            is_answer=is_answer,
            per_second_max=self._limits.per_second * self._limits.parts,
            connections_max=self._limits.connections_max * self._limits.parts,
            per_connection_max=PER_CONNECTION_MAX,
        )

    def _stopped(self, limit_change: LimitChange | None, moment: Moment) -> LimitChange | None:
        if limit_change is not None:
            self._rest(moment)
        return limit_change

    def _rest(self, moment: Moment) -> None:
        """Send nothing until the time in the learned limits, then begin with a single connection."""
        paused_until = self.learned.paused_until
        seconds = 0.0 if paused_until is None else (paused_until - moment.at).total_seconds()
        self._rests_until = moment.seconds + max(0.0, seconds)
        self._pace.begin_window(self._rests_until)
        self._era += 1
        if self.learned.state is not LaneState.OPEN:
            self._connections = 1.0
            self._is_climbing = True

    def _step_back(self, now: float) -> None:
        self._era += 1
        if self.connections == 1:
            self._pause_seconds = min(max(PAUSE_SECONDS_MIN, 2 * self._pause_seconds), PAUSE_SECONDS_MAX)
            self._paused_until = now + self._pause_seconds
        self._connections = max(1.0, float(self.connections // 2))

    def _pause_unreachable(self, now: float) -> None:
        self._era += 1
        self._pause_seconds = min(max(MISS_PAUSE_SECONDS_MIN, 2 * self._pause_seconds), MISS_PAUSE_SECONDS_MAX)
        self._paused_until = now + self._pause_seconds
        # After the pause, a single message probes the destination.
        self._connections = 1.0


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items in order within each account. Accounts take turns; within an account, so do lists and other mail.

    Every operation takes constant time. The whole queue and each account's part of it are bounded, so that one
    account's backlog can't keep the others out.
    """

    __slots__ = ("_account_items_max", "_count", "_items_max", "_lists", "_lists_next", "_waiting")

    def __init__(self, items_max: int, account_items_max: int) -> None:
        self._items_max = items_max
        self._account_items_max = account_items_max
        self._count = 0
        # In the order of turns. Not a plain dict, which finds its first key only after scanning all deleted ones.
        self._waiting: OrderedDict[AccountId, deque[Item]] = OrderedDict()
        # Mail of lists waits separately, so that a list does not delay other mail of its account.
        self._lists: dict[AccountId, deque[Item]] = {}
        self._lists_next: set[AccountId] = set()

    def __len__(self) -> int:
        return self._count

    def waiting(self, account_id: AccountId) -> int:
        return len(self._waiting.get(account_id, ())) + len(self._lists.get(account_id, ()))

    def push(self, account_id: AccountId, item: Item, *, is_list: bool = False) -> bool:
        """Add the item; False if the queue is full. An account that had nothing waiting gets its turn last."""
        if self._count >= self._items_max or self.waiting(account_id) >= self._account_items_max:
            return False
        others = self._waiting.setdefault(account_id, deque())
        (self._lists.setdefault(account_id, deque()) if is_list else others).append(item)
        self._count += 1
        return True

    def accounts(self) -> Iterable[AccountId]:
        """The accounts that have something waiting, in the order of their turns."""
        return self._waiting

    def pop(self, account_id: AccountId | None = None) -> Item:
        """The next item of the account, or of the account whose turn it is; IndexError if the queue is empty."""
        if not self._count:
            raise IndexError("the queue is empty")
        if account_id is None:
            account_id = next(iter(self._waiting))
        others = self._waiting.pop(account_id)
        lists = self._lists.get(account_id)
        if lists and (not others or account_id in self._lists_next):
            item = lists.popleft()
            self._lists_next.discard(account_id)
            if not lists:
                del self._lists[account_id]
        else:
            item = others.popleft()
            if lists:
                self._lists_next.add(account_id)
        if others or account_id in self._lists:
            self._waiting[account_id] = others
        self._count -= 1
        return item
