"""Lanes: which lane a destination's mail takes, how much of it goes at a time, and which account is next.

A lane is a mailbox provider, known by the names of its mail servers, however many domains it hosts; or else a
single domain. Its rate follows its standing (`rules.standing`): what the destination's refusals taught. Its
concurrency starts small and adapts: another connection after as many mails went well as there are connections, all in
use; half as many when a reply asks us for less, and a growing pause when even a single connection was too many.
Inside a lane, accounts take turns.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Generic, TypeVar, assert_never
from uuid import UUID

from posthouse.rules.ids import AccountId
from posthouse.rules.pace import Moment, Pace
from posthouse.rules.remark import Remark, RemarkKind, Scope
from posthouse.rules.standing import LaneState, Lesson, Place, Refused, Standing

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
# A lane without a rate of the operator's begins here, and learns what its destination takes.
PER_SECOND_START: Final = 20.0
ALONE: Final = Place("", "")
# Of the messages that taught a lane something, the oldest are forgotten.
TAUGHT_MAX: Final = 1_000
# Mails over one connection, whatever the destination would take.
PER_CONNECTION_MAX: Final = 100


def lane_by_name(destination: str) -> str | None:
    """The lane of a large mailbox domain; None where DNS must say."""
    return _LANE_BY_NAME.get(destination.lower())


def lane_of(destination: str, exchange_host: str) -> str:
    """The lane of a domain whose most preferred mail server is this one."""
    suffix = exchange_host.lower().removesuffix(".")
    while suffix:
        provider = _PROVIDER_OF.get(suffix)
        if provider is not None:
            return provider
        suffix = suffix.partition(".")[2]
    return destination.lower()


def lane_by_hosts(destination: str, exchange_hosts: Iterable[str]) -> str:
    """The lane of a domain with these mail servers; without any, it is the domain's own."""
    # Any domain can list a provider's server among its own; only a domain with no other server is the provider's.
    lanes = {lane_of(destination, host) for host in exchange_hosts}
    return lanes.pop() if len(lanes) == 1 else destination


def is_provider(lane: str) -> bool:
    """Whether the lane is shared by many domains."""
    return lane in PROVIDERS


def counts_for(lane: str, destination: str, exchange_host: str | None) -> bool:
    """Whether this server of a destination speaks for the lane.

    The owner of a hosted domain can name a server of their own after the lane was looked up.
    """
    if not is_provider(lane) or lane_by_name(destination) == lane:
        return True
    return exchange_host is not None and lane_of(destination, exchange_host) == lane


@dataclass(frozen=True, slots=True)
class Limits:
    """A lane's limits in the whole installation, or in one of its parts: mails per second, connections at a time.

    `per_second_start` is always the whole lane's; without it, a lane begins at `per_second`.
    """

    per_second: float = 100.0
    burst: int = 100
    connections_start: int = 2
    connections_max: int = 20
    per_second_start: float | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        if self.per_second <= 0 or self.burst < 1 or not 1 <= self.connections_start <= self.connections_max:
            raise ValueError(f"a lane needs room for one mail at least, and to grow from its start: {self}")

    @property
    def standing(self) -> Standing:
        """Of a lane that has learnt nothing yet."""
        whole = self.per_second * self.parts
        return Standing(min(self.per_second_start or whole, whole))

    def part(self, number: int, parts: int) -> "Limits":
        """One of so many parts, numbered from 0, that are the whole together.

        There may be no more parts than mails in a burst, or connections.
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

    def of(self, lane: str) -> Limits:
        return self.by_lane.get(lane, self.default)


class Served(StrEnum):
    """What a mail's attempt says about its lane."""

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
    # Nothing was sent: the mail was held, suppressed or came too late.
    NOT_SENT = "not_sent"


# The return path's domain is this service's own, for every sender.
_OF_ALL_SENDERS: Final = frozenset({Scope.ADDRESS, Scope.NETWORK, Scope.SPF_DOMAIN})
_OF_A_DOMAIN: Final = frozenset({Scope.DOMAIN, Scope.DKIM_DOMAIN})


def served_by(code: int, remark: Remark | None) -> Served:
    """What one reply says about its lane. A 421 asks for less, unless it is about one sender's domain."""
    is_of_all = remark is not None and not remark.scopes.isdisjoint(_OF_ALL_SENDERS)
    match remark.kind if remark is not None else None:
        case RemarkKind.CONNECTIONS:
            return Served.CONNECTIONS
        case RemarkKind.PER_CONNECTION:
            return Served.PER_CONNECTION
        case RemarkKind.SLOW if is_of_all:
            return Served.SLOW
        case RemarkKind.BLOCK if is_of_all:
            return Served.BLOCKED
    if domain_served_by(remark) is not None:
        return Served.OTHERWISE
    return Served.PUSHED_BACK if code == PUSH_BACK_CODE else Served.WELL


def domain_served_by(remark: Remark | None) -> Served | None:
    """What one reply says about mail of the domain in From; None if it says nothing about it."""
    if remark is None or remark.scopes.isdisjoint(_OF_A_DOMAIN):
        return None
    match remark.kind:
        case RemarkKind.SLOW:
            return Served.SLOW
        case RemarkKind.BLOCK:
            return Served.BLOCKED
    return None


# What can slow a lane or stop it, and takes evidence.
REFUSALS: Final = frozenset(
    {Served.PUSHED_BACK, Served.SLOW, Served.CONNECTIONS, Served.PER_CONNECTION, Served.BLOCKED}
)


@dataclass(frozen=True, slots=True)
class Slot:
    """Permission for one mail. `era` is how often the lane had been stopped when it was given.

    In a branch of a lane, a mail has a slot of the whole lane as well.
    """

    era: int
    whole: "Slot | None" = None


@dataclass(frozen=True, slots=True)
class Later:
    """Not yet: ask again in so many seconds or, if None, when a slot is given back."""

    seconds: float | None


class Lane:
    """A lane or one part of it, from one of our addresses; `now` is a monotonic time in seconds."""

    __slots__ = (
        "_answers",
        "_connections",
        "_era",
        "_full_at",
        "_in_use",
        "_is_climbing",
        "_limits",
        "_missed",
        "_misses",
        "_pace",
        "_pause_seconds",
        "_paused_until",
        "_rests_until",
        "_taught",
    )

    def __init__(self, limits: Limits, place: Place = ALONE) -> None:
        self._limits = limits
        self._pace = Pace(place, limits.standing, 1 / limits.parts)
        self._connections = float(limits.connections_start)
        self._in_use = 0
        self._era = 0
        self._misses = 0
        self._missed: UUID | None = None
        self._answers = False
        # The messages whose refusals it has heeded.
        self._taught: OrderedDict[UUID, None] = OrderedDict()
        self._full_at = float("-inf")
        self._pause_seconds = 0.0
        # Of a server that is busy or unreachable; and by the standing.
        self._paused_until = float("-inf")
        self._rests_until = float("-inf")
        # After a rest: each mail taken adds a connection.
        self._is_climbing = False

    @property
    def connections(self) -> int:
        """How many may be in use now."""
        if self._pace.standing.connections_max is None:
            return int(self._connections)
        return int(min(self._connections, self._connections_max))

    @property
    def in_use(self) -> int:
        return self._in_use

    @property
    def answers(self) -> bool:
        """Whether a server of the destination replied to the last mail of which that is known."""
        return self._answers

    @property
    def standing(self) -> Standing:
        return self._pace.standing

    @property
    def place(self) -> Place:
        return self._pace.place

    def is_current(self, slot: Slot) -> bool:
        """Whether the lane has not been stopped since the slot was given."""
        return slot.era == self._era

    @property
    def per_second(self) -> float:
        return min(self._pace.per_second, self._limits.per_second)

    @property
    def per_connection_max(self) -> int:
        return self.standing.per_connection_max or PER_CONNECTION_MAX

    @property
    def _connections_max(self) -> float:
        learnt = self.standing.connections_max
        if learnt is None:
            return float(self._limits.connections_max)
        return min(float(self._limits.connections_max), max(1.0, learnt * self._pace.share))

    def _burst(self, per_second: float) -> float:
        """As many seconds' worth of mail as the limits allow."""
        return max(1.0, self._limits.burst * per_second / self._limits.per_second)

    def pause_left(self, now: float) -> float:
        """For how many seconds nothing is sent."""
        return max(0.0, self._paused_until - now, self._rests_until - now)

    def limit(self, limits: Limits) -> None:
        """Use other limits from now on."""
        self._limits = limits
        self._pace.share = 1 / limits.parts
        self._connections = min(self._connections, float(limits.connections_max))

    def adopt(self, standing: Standing, moment: Moment) -> None:
        """Take over what another process learnt, or an operator decided."""
        before, self._pace.standing = self.standing, standing
        if standing.paused_until != before.paused_until or standing.state is not before.state:
            self._rest(moment)

    def use_up_burst(self, at: float) -> None:
        """Another process had the lane until then, and may have sent the whole burst in its last moment."""
        per_second = self.per_second
        self._full_at = max(self._full_at, at + self._burst(per_second) / per_second)

    def take(self, now: float) -> Slot | Later:
        """A slot to send one mail, which must be given back."""
        if now < self._paused_until or now < self._rests_until:
            return Later(self.pause_left(now))
        if self._in_use >= self.connections:
            return Later(None)
        # GCRA, as in `rate_limit`: the whole burst is available again at `full_at`.
        per_second = self.per_second
        interval = 1 / per_second
        full_at = max(self._full_at, now) + interval
        excess = full_at - now - interval * self._burst(per_second)
        # Sums of floating-point seconds are not exact; a microsecond is not worth a wait.
        if excess > 1e-6:
            self._pace.want_more()
            return Later(excess)
        self._full_at = full_at
        self._in_use += 1
        return Slot(self._era)

    def untake(self) -> None:
        """The slot just taken is not used."""
        if self._in_use == 0:
            raise ValueError("a slot was given back that was not taken")
        self._in_use -= 1
        self._full_at -= 1 / self.per_second

    def give_back(self, slot: Slot, served: Served, moment: Moment, refused: Refused | None = None) -> Lesson | None:
        """The mail's turn is over. What was learnt by it, if anything."""
        if served is Served.NOT_SENT:
            self.untake()
            return None
        was_full = self._in_use >= self.connections
        self._end_turn()
        is_first = self.is_current(slot)
        if served is Served.WELL:
            self._misses = 0
            return self._serve(moment, was_full=was_full, is_answer=is_first)
        return self.heed(served, moment, refused or Refused(), others=self._in_use, is_first=is_first)

    def end_turn_unheeded(self) -> None:
        """The mail's turn is over; what its reply said is about less than this lane, or about more."""
        self._end_turn()
        self._misses = 0
        self._answers = True

    def _end_turn(self) -> None:
        if self._in_use == 0:
            raise ValueError("a slot was given back that was not taken")
        self._in_use -= 1

    def branch(self, place: Place) -> "Lane":
        """A branch of this lane, which begins as it is."""
        made = Lane(self._limits, place)
        made._pace = self._pace.branch(place)
        made._connections, made._answers, made._full_at = self._connections, self._answers, self._full_at
        made._rests_until, made._is_climbing = self._rests_until, self._is_climbing
        return made

    def heed(
        self, served: Served, moment: Moment, refused: Refused, *, others: int, is_first: bool = True
    ) -> Lesson | None:
        """What is learnt from a mail that was not taken, while `others` were under way.

        Mails in flight together are refused together: only the first counts.
        """
        is_repeated_miss = refused.message_id is not None and refused.message_id == self._missed
        self._missed = refused.message_id if served is Served.UNREACHABLE else None
        if served is not Served.UNREACHABLE:
            self._misses = 0
        elif not is_repeated_miss:
            self._misses += 1
        if served in REFUSALS:
            self._answers = True
            if not self._may_teach(refused):
                return None
        match served:
            case Served.PUSHED_BACK:
                if is_first:
                    self._step_back(moment.seconds)
            case Served.SLOW:
                return self._stopped(self._pace.slowed(refused, moment), moment) if is_first else None
            case Served.BLOCKED:
                return self._stopped(self._pace.blocked(refused, moment), moment) if is_first else None
            case Served.CONNECTIONS:
                lesson = self._pace.refused_connection(refused, others, moment)
                # Even a single one was too many.
                if is_first and not others:
                    self._step_back(moment.seconds)
                return lesson
            case Served.PER_CONNECTION:
                lesson = self._pace.refused_over_connection(refused, moment)
                # Even the first mail was too many.
                if is_first and not refused.taken_before:
                    self._step_back(moment.seconds)
                return lesson
            case Served.UNREACHABLE:
                self._answers = False
                if self._misses >= MISSES_MAX and is_first:
                    self._pause_unreachable(moment.seconds)
            case Served.OTHERWISE | Served.WELL | Served.NOT_SENT:
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
            return self.standing.state is not LaneState.OPEN
        self._taught[message_id] = None
        if len(self._taught) > TAUGHT_MAX:
            self._taught.popitem(last=False)
        return True

    def _serve(self, moment: Moment, *, was_full: bool, is_answer: bool) -> Lesson | None:
        self._answers = True
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

    def _stopped(self, lesson: Lesson | None, moment: Moment) -> Lesson | None:
        if lesson is not None:
            self._rest(moment)
        return lesson

    def _rest(self, moment: Moment) -> None:
        """Send nothing until the standing's time, then begin with a single connection."""
        paused_until = self.standing.paused_until
        seconds = 0.0 if paused_until is None else (paused_until - moment.at).total_seconds()
        self._rests_until = moment.seconds + max(0.0, seconds)
        self._pace.begin_window(self._rests_until)
        self._era += 1
        if self.standing.state is not LaneState.OPEN:
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
        # After the pause, a single mail probes the destination.
        self._connections = 1.0


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items in order within each account, with the accounts taking turns; of an account, lists and other mail in turn.

    Every operation takes constant time. Both the whole and each account's part are bounded, so that one account's
    backlog can't keep the others out.
    """

    __slots__ = ("_account_items_max", "_count", "_items_max", "_lists", "_lists_next", "_waiting")

    def __init__(self, items_max: int, account_items_max: int) -> None:
        self._items_max = items_max
        self._account_items_max = account_items_max
        self._count = 0
        # In the order of turns. Not a plain dict, which finds its first key only after scanning all deleted ones.
        self._waiting: OrderedDict[AccountId, deque[Item]] = OrderedDict()
        # Mail of lists waits apart, so that a list does not delay its own account's other mail.
        self._lists: dict[AccountId, deque[Item]] = {}
        self._lists_next: set[AccountId] = set()

    def __len__(self) -> int:
        return self._count

    def waiting(self, account_id: AccountId) -> int:
        return len(self._waiting.get(account_id, ())) + len(self._lists.get(account_id, ()))

    def push(self, account_id: AccountId, item: Item, *, is_list: bool = False) -> bool:
        """Whether there was room. An account that had nothing waiting has its turn after all others."""
        if self._count >= self._items_max or self.waiting(account_id) >= self._account_items_max:
            return False
        others = self._waiting.setdefault(account_id, deque())
        (self._lists.setdefault(account_id, deque()) if is_list else others).append(item)
        self._count += 1
        return True

    def accounts(self) -> Iterable[AccountId]:
        """Those that have something waiting, in the order of their turns."""
        return self._waiting.keys()

    def pop(self, account_id: AccountId | None = None) -> Item:
        """The next item of the account, or of the account whose turn it is; IndexError when nothing waits."""
        if not self._count:
            raise IndexError("nothing waits")
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
