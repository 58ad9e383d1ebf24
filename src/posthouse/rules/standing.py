"""Standings: what a lane has learnt from a destination's replies to one of our addresses, and what changes it.

A refusal for sending too much teaches a ceiling: the lane rests, then asks with a single mail, and goes on below the
ceiling. Time without a refusal raises the rate again, in small steps. A refusal of our address as such blocks the
lane; one mail asks from time to time whether it still holds. Every change is a lesson, which can be undone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.ids import AccountId

# What the great providers ask of a sender that was too fast: so much silence, and then a single connection.
PROVIDER_REST_SECONDS: Final = {"google": 600.0, "microsoft": 600.0, "yahoo": 600.0, "apple": 600.0}
REST_SECONDS: Final = 60.0
REST_SECONDS_MAX: Final = 4 * 3600.0
# "Try again in N minutes" is heeded up to this.
ASKED_SECONDS_MAX: Final = 3600.0
REST_KEPT: Final = 0.8
REST_SPREAD: Final = 0.1
# The rate of a lane that was just refused is measured over this time.
SEEN_SECONDS: Final = 60.0
SEEN_PART_MIN: Final = 0.25
SLOWED_FIRST: Final = 0.5
SLOWED_LATER: Final = 0.8
# A refusal within so many rests after the last one says that the rate is still far too high.
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
# The cause of a growth, as the refusals' is their reply's code.
GROWTH: Final = "growth"


DOMAIN_MARK: Final = "@"
BRANCH_MARK: Final = ">"

Bound = TypeVar("Bound", int, float)


class Branch(NamedTuple):
    """A branch of a lane, the narrowest part of it: what one account sends to one domain."""

    account_id: AccountId
    destination: str

    @property
    def name(self) -> str:
        return f"{self.destination}{BRANCH_MARK}{ids.text(ids.ACCOUNT, self.account_id)}"


class Place(NamedTuple):
    """Where a standing holds: our address, empty for the only one, and the lane.

    Or a domain in From instead of an address, after an `@`: what a provider said about the mail of that domain. Or,
    after the address and a `>`, the domain and the account of a branch of the lane.
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
    def whole(self) -> "Place":
        """That of the lane of which it is a branch."""
        return Place(self.ip.partition(BRANCH_MARK)[0], self.lane)


def place_of_domain(domain: str, lane: str) -> Place:
    return Place(f"{DOMAIN_MARK}{domain.lower()}", lane)


def place_of_branch(whole: Place, branch: Branch) -> Place:
    return Place(f"{whole.ip}{BRANCH_MARK}{branch.name}", whole.lane)


class LaneState(StrEnum):
    OPEN = "open"
    # Until a mail is taken after the rest.
    RESTING = "resting"
    BLOCKED = "blocked"


class LessonKind(StrEnum):
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
class Standing:
    """What holds for a lane. Rates are mails a second of all workers together.

    `paused_until` is the end of the last rest or block. `rest_seconds` is how long the lane rests after its last
    lesson, in all; `rest_helped_seconds` was so the last time that mail was taken afterwards. `ignored` are causes that
    teach nothing until a time.
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


Change = tuple[LessonKind, Standing]
_FIELDS: Final = tuple(field.name for field in fields(Standing))
_TIMES: Final = ("paused_until", "connections_since", "per_connection_since")


@dataclass(frozen=True, slots=True)
class Refused:
    """A reply that refused a mail because of us. `cause` is its code and status.

    `asked_seconds` is how long it said to wait, `taken_before` how many mails the connection had taken.
    """

    cause: str = ""
    reply: str = ""
    scope: str = ""
    message_id: UUID | None = None
    asked_seconds: float = 0.0
    taken_before: int = 0


@dataclass(frozen=True, slots=True)
class Lesson:
    """One change of a standing: by which reply to which message, if any."""

    at: datetime
    place: Place
    kind: LessonKind
    before: Standing
    after: Standing
    refused: Refused = Refused()

    @property
    def until(self) -> datetime | None:
        """How long it stops the lane."""
        paused_until = self.after.paused_until
        return paused_until if paused_until is not None and paused_until > self.at else None

    @property
    def is_new_block(self) -> bool:
        return self.kind is LessonKind.BLOCK and self.before.state is not LaneState.BLOCKED


def rest_seconds_of(lane: str) -> float:
    """The shortest rest of the lane."""
    return PROVIDER_REST_SECONDS.get(lane, REST_SECONDS)


def growth_seconds_of(lane: str, standing: Standing) -> float:
    """How long a lane must go without a refusal before its rate grows."""
    return GROWTH_SECONDS_FIRST if standing.paused_until is None else rest_seconds_of(lane)


def slowed(
    standing: Standing, lane: str, refused: Refused, *, seen_per_second: float, now: datetime, random: float
) -> Change | None:
    """After a refusal for sending too much. `seen_per_second` is the rate at which mail was taken just before."""
    if standing.is_ignored(refused.cause, now):
        return None
    shortest = rest_seconds_of(lane)
    if standing.state is LaneState.OPEN:
        kind = LessonKind.SLOW
        rested = 0.0
        base = min(standing.per_second, max(seen_per_second, standing.per_second * SEEN_PART_MIN))
        last_rest = standing.paused_until
        is_soon = last_rest is None or now - last_rest < timedelta(seconds=SOON_RESTS * shortest)
        if not standing.is_pinned:
            per_second = max(PER_SECOND_MIN, base * (SLOWED_FIRST if is_soon else SLOWED_LATER))
            standing = replace(standing, per_second=per_second, ceiling=base)
        seconds = min(max(shortest, REST_KEPT * standing.rest_helped_seconds), REST_SECONDS_MAX)
    else:
        # The rest was too short; what the rate should be is not known yet.
        kind = LessonKind.STILL_SLOW
        rested = standing.rest_seconds
        missing = standing.rest_helped_seconds - rested
        # As long as helped before, in all; if that was not enough either, twice as long each time.
        seconds = min(max(shortest, missing if missing > 0 else rested + shortest), REST_SECONDS_MAX)
    seconds = max(seconds, min(refused.asked_seconds, ASKED_SECONDS_MAX))
    paused = timedelta(seconds=seconds * (1 + REST_SPREAD * random))
    return kind, replace(standing, state=LaneState.RESTING, rest_seconds=rested + seconds, paused_until=now + paused)


def blocked(standing: Standing, refused: Refused, now: datetime) -> Change | None:
    """After a refusal of our address, network or domain as such."""
    if standing.is_ignored(refused.cause, now):
        return None
    was_blocked = standing.state is LaneState.BLOCKED
    seconds = min(2 * standing.block_seconds, BLOCK_SECONDS_MAX) if was_blocked else BLOCK_SECONDS_MIN
    paused_until = now + timedelta(seconds=seconds)
    return LessonKind.BLOCK, replace(
        standing, state=LaneState.BLOCKED, block_seconds=seconds, paused_until=paused_until
    )


def recovered(standing: Standing) -> Change | None:
    """After a mail that was taken: a rest or a block is over."""
    if standing.state is LaneState.OPEN:
        return None
    helped = standing.rest_seconds if standing.state is LaneState.RESTING else standing.rest_helped_seconds
    return LessonKind.RECOVERED, replace(standing, state=LaneState.OPEN, rest_helped_seconds=helped, block_seconds=0.0)


def grown(standing: Standing, per_second_max: float, now: datetime) -> Change | None:
    """After a time without refusals in which the lane had more mail than its rate allowed."""
    if standing.state is not LaneState.OPEN or standing.is_pinned or standing.is_ignored(GROWTH, now):
        return None
    if standing.ceiling is None:
        per_second = standing.per_second * GROWTH_FREE
    else:
        is_far = standing.per_second < NEAR * standing.ceiling
        per_second = standing.per_second + standing.ceiling * (GROWTH_FAR if is_far else GROWTH_NEAR)
    per_second = min(per_second, per_second_max)
    if per_second <= standing.per_second:
        return None
    return LessonKind.GREW, replace(standing, per_second=per_second)


def with_fewer_connections(standing: Standing, refused: Refused, seen: int, now: datetime) -> Change | None:
    """After a refusal for too many connections, while `seen` others were open."""
    bound = max(1, seen)
    if standing.is_ignored(refused.cause, now) or (
        standing.connections_max is not None and standing.connections_max < bound
    ):
        return None
    return LessonKind.CONNECTIONS, replace(standing, connections_max=bound, connections_since=now)


def with_shorter_connections(standing: Standing, refused: Refused, seen: int, now: datetime) -> Change | None:
    """After a refusal for too many mails over one connection, which had taken `seen`."""
    bound = max(1, seen)
    if standing.is_ignored(refused.cause, now) or (
        standing.per_connection_max is not None and standing.per_connection_max < bound
    ):
        return None
    return LessonKind.PER_CONNECTION, replace(standing, per_connection_max=bound, per_connection_since=now)


def relaxed(standing: Standing, now: datetime, *, connections_max: int, per_connection_max: int) -> Change | None:
    """After a clean day: one more connection, one more mail over each, and no ceiling any more.

    A bound that is no lower than the limit without it is forgotten.
    """
    after = standing
    if _is_day_old(standing.connections_since, now):
        bound = _raised(standing.connections_max, connections_max)
        after = replace(after, connections_max=bound, connections_since=None if bound is None else now)
    if _is_day_old(standing.per_connection_since, now):
        bound = _raised(standing.per_connection_max, per_connection_max)
        after = replace(after, per_connection_max=bound, per_connection_since=None if bound is None else now)
    is_open = standing.state is LaneState.OPEN and standing.ceiling is not None
    if is_open and _is_day_old(standing.paused_until, now):
        return LessonKind.CEILING_FORGOTTEN, replace(after, ceiling=None)
    return None if after is standing else (LessonKind.RELAXED, after)


def _is_day_old(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since >= CLEAN_FOR


def _raised(bound: int | None, limit: int) -> int | None:
    return None if bound is None or bound + 1 >= limit else bound + 1


def undone(lesson: Lesson, now: datetime) -> Change:
    """As before the lesson, whose cause teaches nothing for a day."""
    cause = lesson.refused.cause or (GROWTH if lesson.kind is LessonKind.GREW else lesson.kind)
    kept = tuple((ignored, until) for ignored, until in lesson.before.ignored if until > now and ignored != cause)
    return LessonKind.UNDONE, replace(lesson.before, ignored=(*kept, (cause, now + IGNORED_FOR)))


def pinned(standing: Standing, per_second: float) -> Change:
    """At the operator's rate: refusals make it rest, but change the rate no more."""
    return LessonKind.PINNED, replace(standing, per_second=per_second, ceiling=None, is_pinned=True)


def unpinned(standing: Standing) -> Change:
    """Learning again, from the rate that it has."""
    return LessonKind.UNPINNED, replace(standing, is_pinned=False)


def stricter(one: Standing, other: Standing) -> Standing:
    """What two workers learnt at the same time, neither knowing of the other's."""
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


def is_stricter(branch: Standing, whole: Standing) -> bool:
    """Whether a branch's standing says more than that of its lane. What the lane was taught later replaces it."""
    if _is_below(branch.connections_max, whole.connections_max):
        return True
    if _is_below(branch.per_connection_max, whole.per_connection_max):
        return True
    if branch.paused_until is None or (whole.paused_until is not None and branch.paused_until <= whole.paused_until):
        return False
    return branch.state is not LaneState.OPEN or branch.per_second < whole.per_second


def _is_below(bound: int | None, other: int | None) -> bool:
    return bound is not None and (other is None or bound < other)


def reconciled(stored: Standing, learnt: Standing, known: Standing | None) -> Standing:
    """What was learnt from `known`, while `stored` took its place.

    Only operators pin, unpin and undo, and they change what is stored: their word counts.
    """
    if set(stored.ignored) - set(known.ignored if known else ()):
        return stored
    both = stricter(stored, learnt)
    if stored.is_pinned:
        return replace(both, per_second=stored.per_second, ceiling=stored.ceiling, is_pinned=True)
    return replace(both, is_pinned=False)


def stored(standing: Standing) -> dict[str, Any]:
    """As JSON can hold it."""
    return {name: _plain(getattr(standing, name)) for name in _FIELDS}


def restored(plain: Mapping[str, Any]) -> Standing:
    """What was stored, by this version of the service or another: unknown fields are left out."""
    known = {name: value for name, value in plain.items() if name in _FIELDS}
    for name in _TIMES:
        if known.get(name) is not None:
            known[name] = datetime.fromisoformat(known[name])
    ignored = tuple((cause, datetime.fromisoformat(until)) for cause, until in known.pop("ignored", ()))
    return Standing(**{**known, "state": LaneState(known.get("state", LaneState.OPEN)), "ignored": ignored})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _least(one: Bound | None, other: Bound | None) -> Bound | None:
    return other if one is None else one if other is None else min(one, other)
