"""Learned limits: what a lane has learnt from a destination's replies to one of our addresses, and what changes it.

A refusal for sending too much teaches a ceiling: the lane rests, then probes with a single message, and continues below
the ceiling. Time without a refusal raises the rate again, in small steps. A refusal of our address as such blocks the
lane; from time to time one message probes whether the block still holds. Every change is stored as a limit change,
which can be undone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.ids import AccountId
from posthouse.rules.wait_reason import one_line, when

# What the large providers want from a sender that was too fast: silence for this long, and then a single connection.
PROVIDER_REST_SECONDS: Final = {"google": 600.0, "microsoft": 600.0, "yahoo": 600.0, "apple": 600.0}
REST_SECONDS: Final = 60.0
REST_SECONDS_MAX: Final = 4 * 3600.0
# "Try again in N minutes" is respected up to this.
ASKED_SECONDS_MAX: Final = 3600.0
REST_KEPT: Final = 0.8
REST_SPREAD: Final = 0.1
# The rate of a lane that was just refused is measured over this time.
SEEN_SECONDS: Final = 60.0
SEEN_PART_MIN: Final = 0.25
SLOWED_FIRST: Final = 0.5
SLOWED_LATER: Final = 0.8
# A refusal within this many rests after the last one says that the rate is still far too high.
SOON_RESTS: Final = 4
PER_SECOND_MIN: Final = 0.001
GROWTH_SECONDS_FIRST: Final = 60.0
GROWTH_FREE: Final = 1.1
GROWTH_FAR: Final = 0.10
GROWTH_NEAR: Final = 0.02
NEAR: Final = 0.9
CLEAN_FOR: Final = timedelta(hours=24)
BLOCK_SECONDS_MIN: Final = 3600.0
BLOCK_SECONDS_MAX: Final = 24 * 3600.0
IGNORED_FOR: Final = timedelta(hours=24)
# The cause of a growth; the cause of other changes is the code of the refusing reply.
GROWTH: Final = "growth"

DOMAIN_MARK: Final = "@"
BRANCH_MARK: Final = ">"

Bound = TypeVar("Bound", int, float)
_TIMES: Final = ("paused_until", "connections_since", "per_connection_since")


class Branch(NamedTuple):
    """A branch of a lane, the narrowest part of it: what one account sends to one domain."""

    account_id: AccountId
    destination: str

    @property
    def name(self) -> str:
        return f"{self.destination}{BRANCH_MARK}{ids.text(ids.ACCOUNT, self.account_id)}"


class LaneScope(NamedTuple):
    """Where learned limits apply: our address, empty if there is only one, and the lane.

    `ip` may also be an `@` and a domain in From: what a provider said about the mail of that domain. For a branch of
    the lane, a `>` and the domain and account of the branch follow the address.
    """

    ip: str
    lane: str

    @property
    def domain(self) -> str | None:
        return self.ip[1:] if self.ip.startswith(DOMAIN_MARK) else None

    @property
    def branch(self) -> Branch | None:
        """None for the whole lane, or a domain in From."""
        _, _, branch = self.ip.partition(BRANCH_MARK)
        destination, _, account = branch.partition(BRANCH_MARK)
        account_id = ids.parse(ids.ACCOUNT, account) if account else None
        return None if account_id is None else Branch(AccountId(account_id), destination)

    @property
    def whole(self) -> "LaneScope":
        """The scope of the lane that this is a branch of."""
        return LaneScope(self.ip.partition(BRANCH_MARK)[0], self.lane)


class LaneState(StrEnum):
    OPEN = "open"
    # Until a message is taken after the rest.
    RESTING = "resting"
    BLOCKED = "blocked"


class LimitChangeKind(StrEnum):
    SLOW = "slow"
    STILL_SLOW = "still_slow"
    RECOVERED = "recovered"
    GREW = "grew"
    CEILING_FORGOTTEN = "ceiling_forgotten"
    CONNECTIONS = "connections"
    PER_CONNECTION = "per_connection"
    RELAXED = "relaxed"
    BLOCK = "block"
    UNDONE = "undone"
    PINNED = "pinned"
    UNPINNED = "unpinned"


@dataclass(frozen=True, slots=True)
class LearnedLimits:
    """What applies to a lane. Rates are messages a second of all workers together.

    `paused_until` is the end of the last rest or block. `rest_seconds` is how long the lane rests in all after its last
    limit change; `rest_helped_seconds` is the last such time after which mail was taken. `ignored` are causes that
    teach nothing until a given time.
    """

    per_second: float
    ceiling: float | None = None
    state: LaneState = LaneState.OPEN
    paused_until: datetime | None = None
    rest_seconds: float = 0.0
    rest_helped_seconds: float = 0.0
    block_seconds: float = 0.0
    connections_max: int | None = None
    connections_since: datetime | None = None
    per_connection_max: int | None = None
    per_connection_since: datetime | None = None
    is_pinned: bool = False
    ignored: tuple[tuple[str, datetime], ...] = ()

    def is_ignored(self, cause: str, now: datetime) -> bool:
        return any(ignored == cause and now < until for ignored, until in self.ignored)


Change = tuple[LimitChangeKind, LearnedLimits]
_FIELDS: Final = tuple(field.name for field in fields(LearnedLimits))


@dataclass(frozen=True, slots=True)
class Refused:
    """A reply that refused a message because of us. `cause` is its code and status.

    `asked_seconds` is how long it asked us to wait, `taken_before` how many messages the connection had taken.
    """

    cause: str = ""
    reply: str = ""
    scope: str = ""
    message_id: UUID | None = None
    asked_seconds: float = 0.0
    taken_before: int = 0


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One change of learned limits, with the reply and the message that caused it, if any."""

    at: datetime
    scope: LaneScope
    kind: LimitChangeKind
    before: LearnedLimits
    after: LearnedLimits
    refused: Refused = Refused()

    @property
    def until(self) -> datetime | None:
        """Until when it stops the lane."""
        paused_until = self.after.paused_until
        return paused_until if paused_until is not None and paused_until > self.at else None

    @property
    def is_new_block(self) -> bool:
        return self.kind is LimitChangeKind.BLOCK and self.before.state is not LaneState.BLOCKED


def lane_scope_of_domain(domain: str, lane: str) -> LaneScope:
    return LaneScope(f"{DOMAIN_MARK}{domain.lower()}", lane)


def lane_scope_of_branch(whole: LaneScope, branch: Branch) -> LaneScope:
    return LaneScope(f"{whole.ip}{BRANCH_MARK}{branch.name}", whole.lane)


def rest_seconds_of(lane: str) -> float:
    """The shortest rest of the lane."""
    return PROVIDER_REST_SECONDS.get(lane, REST_SECONDS)


def growth_seconds_of(lane: str, learned: LearnedLimits) -> float:
    """How long a lane must go without a refusal before its rate grows."""
    return GROWTH_SECONDS_FIRST if learned.paused_until is None else rest_seconds_of(lane)


def slowed(
    learned: LearnedLimits, lane: str, refused: Refused, *, seen_per_second: float, now: datetime, random: float
) -> Change | None:
    """After a refusal for sending too much. `seen_per_second` is the rate at which mail was taken just before."""
    if learned.is_ignored(refused.cause, now):
        return None
    shortest = rest_seconds_of(lane)
    if learned.state is LaneState.OPEN:
        kind = LimitChangeKind.SLOW
        rested = 0.0
        base = min(learned.per_second, max(seen_per_second, learned.per_second * SEEN_PART_MIN))
        last_rest = learned.paused_until
        is_soon = last_rest is None or now - last_rest < timedelta(seconds=SOON_RESTS * shortest)
        if not learned.is_pinned:
            per_second = max(PER_SECOND_MIN, base * (SLOWED_FIRST if is_soon else SLOWED_LATER))
            learned = replace(learned, per_second=per_second, ceiling=base)
        seconds = min(max(shortest, REST_KEPT * learned.rest_helped_seconds), REST_SECONDS_MAX)
    else:
        # The rest was too short; what the rate should be is not known yet.
        kind = LimitChangeKind.STILL_SLOW
        rested = learned.rest_seconds
        missing = learned.rest_helped_seconds - rested
        # In all as long as helped before; if that was not enough either, twice as long each time.
        seconds = min(max(shortest, missing if missing > 0 else rested + shortest), REST_SECONDS_MAX)
    seconds = max(seconds, min(refused.asked_seconds, ASKED_SECONDS_MAX))
    paused = timedelta(seconds=seconds * (1 + REST_SPREAD * random))
    return kind, replace(learned, state=LaneState.RESTING, rest_seconds=rested + seconds, paused_until=now + paused)


def blocked(learned: LearnedLimits, refused: Refused, now: datetime) -> Change | None:
    """After a refusal of our address, network or domain as such."""
    if learned.is_ignored(refused.cause, now):
        return None
    was_blocked = learned.state is LaneState.BLOCKED
    seconds = min(2 * learned.block_seconds, BLOCK_SECONDS_MAX) if was_blocked else BLOCK_SECONDS_MIN
    paused_until = now + timedelta(seconds=seconds)
    return LimitChangeKind.BLOCK, replace(
        learned, state=LaneState.BLOCKED, block_seconds=seconds, paused_until=paused_until
    )


def recovered(learned: LearnedLimits) -> Change | None:
    """After a message that was taken: a rest or a block is over."""
    if learned.state is LaneState.OPEN:
        return None
    helped = learned.rest_seconds if learned.state is LaneState.RESTING else learned.rest_helped_seconds
    return LimitChangeKind.RECOVERED, replace(
        learned, state=LaneState.OPEN, rest_helped_seconds=helped, block_seconds=0.0
    )


def grown(learned: LearnedLimits, per_second_max: float, now: datetime) -> Change | None:
    """After a time without refusals in which the lane had more mail than its rate allowed."""
    if learned.state is not LaneState.OPEN or learned.is_pinned or learned.is_ignored(GROWTH, now):
        return None
    if learned.ceiling is None:
        per_second = learned.per_second * GROWTH_FREE
    else:
        is_far = learned.per_second < NEAR * learned.ceiling
        per_second = learned.per_second + learned.ceiling * (GROWTH_FAR if is_far else GROWTH_NEAR)
    per_second = min(per_second, per_second_max)
    if per_second <= learned.per_second:
        return None
    return LimitChangeKind.GREW, replace(learned, per_second=per_second)


def with_fewer_connections(learned: LearnedLimits, refused: Refused, seen: int, now: datetime) -> Change | None:
    """After a refusal for too many connections, while `seen` others were open."""
    bound = _lower_bound(learned, refused, learned.connections_max, seen, now)
    if bound is None:
        return None
    return LimitChangeKind.CONNECTIONS, replace(learned, connections_max=bound, connections_since=now)


def with_shorter_connections(learned: LearnedLimits, refused: Refused, seen: int, now: datetime) -> Change | None:
    """After a refusal for too many messages over one connection, which had taken `seen`."""
    bound = _lower_bound(learned, refused, learned.per_connection_max, seen, now)
    if bound is None:
        return None
    return LimitChangeKind.PER_CONNECTION, replace(learned, per_connection_max=bound, per_connection_since=now)


def relaxed(learned: LearnedLimits, now: datetime, *, connections_max: int, per_connection_max: int) -> Change | None:
    """After a day without refusals: one more connection, one more message over each, and no ceiling any more.

    A bound that is not below the configured limit is forgotten.
    """
    after = learned
    if _is_day_old(learned.connections_since, now):
        bound = _raised(learned.connections_max, connections_max)
        after = replace(after, connections_max=bound, connections_since=None if bound is None else now)
    if _is_day_old(learned.per_connection_since, now):
        bound = _raised(learned.per_connection_max, per_connection_max)
        after = replace(after, per_connection_max=bound, per_connection_since=None if bound is None else now)
    is_open = learned.state is LaneState.OPEN and learned.ceiling is not None
    if is_open and _is_day_old(learned.paused_until, now):
        return LimitChangeKind.CEILING_FORGOTTEN, replace(after, ceiling=None)
    return None if after is learned else (LimitChangeKind.RELAXED, after)


def undone(limit_change: LimitChange, now: datetime) -> Change:
    """The limits before this limit change, whose cause teaches nothing for a day."""
    cause = limit_change.refused.cause or (GROWTH if limit_change.kind is LimitChangeKind.GREW else limit_change.kind)
    kept = tuple((ignored, until) for ignored, until in limit_change.before.ignored if until > now and ignored != cause)
    return LimitChangeKind.UNDONE, replace(limit_change.before, ignored=(*kept, (cause, now + IGNORED_FOR)))


def pinned(learned: LearnedLimits, per_second: float) -> Change:
    """Pinned at the operator's rate: refusals make the lane rest, but no longer change the rate."""
    return LimitChangeKind.PINNED, replace(learned, per_second=per_second, ceiling=None, is_pinned=True)


def unpinned(learned: LearnedLimits) -> Change:
    """Learning again, from the present rate."""
    return LimitChangeKind.UNPINNED, replace(learned, is_pinned=False)


def stricter(one: LearnedLimits, other: LearnedLimits) -> LearnedLimits:
    """The stricter of what two workers learnt at the same time, independently."""
    is_later = other.paused_until is not None and (one.paused_until is None or one.paused_until < other.paused_until)
    first, last = (one, other) if is_later else (other, one)
    return replace(
        last,
        per_second=min(first.per_second, last.per_second),
        ceiling=_least(first.ceiling, last.ceiling),
        connections_max=_least(first.connections_max, last.connections_max),
        per_connection_max=_least(first.per_connection_max, last.per_connection_max),
        ignored=tuple(dict([*first.ignored, *last.ignored]).items()),
    )


def is_stricter(branch: LearnedLimits, whole: LearnedLimits) -> bool:
    """Whether a branch's learned limits are stricter than its lane's. What the lane learns later replaces them."""
    if _is_below(branch.connections_max, whole.connections_max):
        return True
    if _is_below(branch.per_connection_max, whole.per_connection_max):
        return True
    if branch.paused_until is None or (whole.paused_until is not None and branch.paused_until <= whole.paused_until):
        return False
    return branch.state is not LaneState.OPEN or branch.per_second < whole.per_second


def reconciled(stored: LearnedLimits, learnt: LearnedLimits, known: LearnedLimits | None) -> LearnedLimits:
    """The limits to store: `learnt` was derived from `known`, which `stored` has replaced meanwhile.

    Only operators pin, unpin and undo, and they change the stored limits: their decision wins.
    """
    if set(stored.ignored) - set(known.ignored if known else ()):
        return stored
    both = stricter(stored, learnt)
    if stored.is_pinned:
        return replace(both, per_second=stored.per_second, ceiling=stored.ceiling, is_pinned=True)
    return replace(both, is_pinned=False)


def stored(learned: LearnedLimits) -> dict[str, Any]:
    """The limits in a form that JSON can represent."""
    return {name: _plain(getattr(learned, name)) for name in _FIELDS}


def restored(plain: Mapping[str, Any]) -> LearnedLimits:
    """Limits that this or another version of the service stored: unknown fields are left out."""
    known = {name: value for name, value in plain.items() if name in _FIELDS}
    for name in _TIMES:
        if known.get(name) is not None:
            known[name] = datetime.fromisoformat(known[name])
    ignored = tuple((cause, datetime.fromisoformat(until)) for cause, until in known.pop("ignored", ()))
    return LearnedLimits(**{**known, "state": LaneState(known.get("state", LaneState.OPEN)), "ignored": ignored})


def change_text(limit_change: LimitChange) -> str:
    """What changed, and because of which reply, for operators."""
    reply = f", after the reply: {one_line(limit_change.refused.reply)}" if limit_change.refused.reply else ""
    return f"{_what_changed(limit_change)}{reply}"


def limits_text(learned: LearnedLimits, now: datetime) -> list[str]:
    """What applies to a lane, line by line, for operators."""
    lines = [f"{_rate(learned)}{', pinned by an operator' if learned.is_pinned else ''}"]
    if learned.ceiling is not None:
        lines.append(f"the destination refused more than about {learned.ceiling:.3g} messages a second")
    until = learned.paused_until
    if learned.state is LaneState.BLOCKED and until is not None:
        asks = f"one message retries at {when(until)}" if until > now else "one message retries now"
        lines.append(f"blocked: our address is refused; {asks}")
    elif learned.state is LaneState.RESTING and until is not None:
        rests = f"rests until {when(until)}" if until > now else "its rest is over"
        lines.append(f"{rests}; then one connection, and one more for each message taken")
    lines += _connection_bounds(learned)
    lines += [f"{cause} teaches nothing until {when(end)}" for cause, end in learned.ignored if end > now]
    return lines


def _lower_bound(learned: LearnedLimits, refused: Refused, known: int | None, seen: int, now: datetime) -> int | None:
    """None if the refusal teaches nothing."""
    bound = max(1, seen)
    return None if learned.is_ignored(refused.cause, now) or (known is not None and known < bound) else bound


def _is_day_old(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since >= CLEAN_FOR


def _raised(bound: int | None, limit: int) -> int | None:
    return None if bound is None or bound + 1 >= limit else bound + 1


def _is_below(bound: int | None, other: int | None) -> bool:
    return bound is not None and (other is None or bound < other)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _least(one: Bound | None, other: Bound | None) -> Bound | None:
    return other if one is None else one if other is None else min(one, other)


def _what_changed(limit_change: LimitChange) -> str:
    before, after, until = limit_change.before, limit_change.after, limit_change.until
    rest = "" if until is None else f" rests until {when(until)}"
    match limit_change.kind:
        case LimitChangeKind.SLOW:
            return f"{rest.strip()}, then {_rate(after)} instead of {_rate(before)}"
        case LimitChangeKind.STILL_SLOW:
            return f"still refused:{rest}, {_rate(after)} as before"
        case LimitChangeKind.RECOVERED:
            return f"mail is taken again, {_rate(after)}"
        case LimitChangeKind.GREW:
            return f"{_rate(after)} instead of {_rate(before)}: it had more mail, and nothing was refused"
        case LimitChangeKind.CEILING_FORGOTTEN:
            return "a day without a refusal: the ceiling is forgotten"
        case LimitChangeKind.CONNECTIONS:
            return f"{after.connections_max} connections at most"
        case LimitChangeKind.PER_CONNECTION:
            return f"{after.per_connection_max} messages over a connection at most"
        case LimitChangeKind.RELAXED:
            return "a day without a refusal: " + "; ".join(_connection_bounds(after) or ["no bounds any more"])
        case LimitChangeKind.BLOCK:
            return (
                f"our address is refused: one message retries at {when(until)}" if until else "our address is refused"
            )
        case LimitChangeKind.UNDONE:
            return f"an operator undid a limit change: {_rate(after)}"
        case LimitChangeKind.PINNED:
            return f"an operator pinned it at {_rate(after)}"
        case LimitChangeKind.UNPINNED:
            return f"an operator let it learn again, from {_rate(after)}"


def _connection_bounds(learned: LearnedLimits) -> list[str]:
    """The learnt bounds of connections."""
    found = []
    if learned.connections_max is not None:
        found.append(f"{learned.connections_max} connections at most")
    if learned.per_connection_max is not None:
        found.append(f"{learned.per_connection_max} messages over a connection at most")
    return found


def _rate(learned: LearnedLimits) -> str:
    return f"{learned.per_second:.3g} messages a second"
