"""The pace of a lane: how fast it sends according to its learned limits, and when a result changes that."""

from collections import deque
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules import learned_limits as rules
from posthouse.rules.learned_limits import SEEN_SECONDS, Change, LaneScope, LearnedLimits, LimitChange, Refused

# How many times of taken messages are stored: more than one process sends in the fastest lane within SEEN_SECONDS.
SEEN_MAX: Final = 60_000


class Moment(NamedTuple):
    """When something happened: in monotonic seconds, as the time of day, and with a random fraction for it."""

    seconds: float
    at: datetime
    random: float


class Pace:
    """One process's part of a lane.

    `share` is the size of that part: the learned limits are those of the whole lane.
    """

    __slots__ = ("_seen", "_wants_more", "_window_from", "learned", "scope", "share")

    def __init__(self, scope: LaneScope, learned: LearnedLimits, share: float = 1.0) -> None:
        self.scope = scope
        self._seen: deque[float] = deque(maxlen=SEEN_MAX)
        self._window_from = float("-inf")
        self._wants_more = False
        self.learned = learned
        self.share = share

    def branch(self, scope: LaneScope) -> "Pace":
        """The pace of a branch of the lane, which starts with the lane's present pace."""
        made = Pace(scope, self.learned, self.share)
        made._seen.extend(self._seen)
        made._window_from, made._wants_more = self._window_from, self._wants_more
        return made

    def note_demand(self) -> None:
        """A message had to wait for the rate."""
        self._wants_more = True

    def begin_window(self, seconds: float) -> None:
        """Count time without refusals from here."""
        self._window_from = seconds
        self._wants_more = False

    def taken(
        self, moment: Moment, *, is_answer: bool, per_second_max: float, connections_max: int, per_connection_max: int
    ) -> LimitChange | None:
        """A message was taken; if `is_answer`, it was sent after the last rest. The limits are the whole lane's."""
        self._seen.append(moment.seconds)
        self._drop_old(moment.seconds)
        if is_answer and (change := rules.recovered(self.learned)) is not None:
            return self._learnt(change, moment)
        if self._window_from == float("-inf"):
            self.begin_window(moment.seconds)
        if moment.seconds - self._window_from < rules.growth_seconds_of(self.scope.lane, self.learned):
            return None
        wanted_more = self._wants_more
        self.begin_window(moment.seconds)
        change = rules.relaxed(
            self.learned, moment.at, connections_max=connections_max, per_connection_max=per_connection_max
        )
        if change is None and wanted_more:
            change = rules.grown(self.learned, per_second_max, moment.at)
        return self._learnt(change, moment)

    def slowed(self, refused: Refused, moment: Moment) -> LimitChange | None:
        change = rules.slowed(
            self.learned,
            self.scope.lane,
            refused,
            seen_per_second=self._seen_per_second(moment.seconds),
            now=moment.at,
            random=moment.random,
        )
        return self._learnt(change, moment, refused)

    def blocked(self, refused: Refused, moment: Moment) -> LimitChange | None:
        return self._learnt(rules.blocked(self.learned, refused, moment.at), moment, refused)

    def refused_connection(self, refused: Refused, others: int, moment: Moment) -> LimitChange | None:
        """Refused while `others` were open in this process."""
        seen = round(others / self.share)
        return self._learnt(rules.with_fewer_connections(self.learned, refused, seen, moment.at), moment, refused)

    def refused_over_connection(self, refused: Refused, moment: Moment) -> LimitChange | None:
        seen = refused.taken_before
        return self._learnt(rules.with_shorter_connections(self.learned, refused, seen, moment.at), moment, refused)

    def _seen_per_second(self, seconds: float) -> float:
        self._drop_old(seconds)
        return len(self._seen) / SEEN_SECONDS / self.share

    def _drop_old(self, seconds: float) -> None:
        while self._seen and self._seen[0] <= seconds - SEEN_SECONDS:
            self._seen.popleft()

    def _learnt(self, change: Change | None, moment: Moment, refused: Refused | None = None) -> LimitChange | None:
        if change is None:
            return None
        kind, after = change
        limit_change = LimitChange(moment.at, self.scope, kind, self.learned, after, refused or Refused())
        self.learned = after
        return limit_change
