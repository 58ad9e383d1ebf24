"""The pace of a lane: how fast it goes by its standing, and when a mail's result changes that."""

from collections import deque
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules import standing as rules
from posthouse.rules.standing import SEEN_SECONDS, Change, Lesson, Place, Refused, Standing

# The times of mails taken are kept for more than the fastest lane serves in that time by one process.
SEEN_MAX: Final = 60_000


class Moment(NamedTuple):
    """When something happened: in monotonic seconds, as the time of day, and with a random fraction for it."""

    seconds: float
    at: datetime
    random: float


class Pace:
    """One process's part of a lane. `share` is how much of the lane that is: the standing is of the whole lane."""

    __slots__ = ("_seen", "_wants_more", "_window_from", "place", "share", "standing")

    def __init__(self, place: Place, standing: Standing, share: float = 1.0) -> None:
        self.place = place
        self._seen: deque[float] = deque(maxlen=SEEN_MAX)
        self._window_from = float("-inf")
        self._wants_more = False
        self.standing = standing
        self.share = share

    def branch(self, place: Place) -> "Pace":
        """Of a branch of the lane, which begins where the lane is."""
        made = Pace(place, self.standing, self.share)
        made._seen.extend(self._seen)
        made._window_from, made._wants_more = self._window_from, self._wants_more
        return made

    @property
    def per_second(self) -> float:
        return self.standing.per_second * self.share

    def want_more(self) -> None:
        """A mail had to wait for the rate."""
        self._wants_more = True

    def begin_window(self, seconds: float) -> None:
        """Time without refusals counts from here."""
        self._window_from = seconds
        self._wants_more = False

    def taken(
        self, moment: Moment, *, is_answer: bool, per_second_max: float, connections_max: int, per_connection_max: int
    ) -> Lesson | None:
        """A mail was taken; if `is_answer`, it was sent after the last rest. The limits are the whole lane's."""
        self._seen.append(moment.seconds)
        self._drop_old(moment.seconds)
        if is_answer and (change := rules.recovered(self.standing)) is not None:
            return self._learnt(change, moment)
        if self._window_from == float("-inf"):
            self.begin_window(moment.seconds)
        if moment.seconds - self._window_from < rules.growth_seconds_of(self.place.lane, self.standing):
            return None
        wanted_more = self._wants_more
        self.begin_window(moment.seconds)
        change = rules.relaxed(
            self.standing, moment.at, connections_max=connections_max, per_connection_max=per_connection_max
        )
        if change is None and wanted_more:
            change = rules.grown(self.standing, per_second_max, moment.at)
        return self._learnt(change, moment)

    def slowed(self, refused: Refused, moment: Moment) -> Lesson | None:
        change = rules.slowed(
            self.standing,
            self.place.lane,
            refused,
            seen_per_second=self._seen_per_second(moment.seconds),
            now=moment.at,
            random=moment.random,
        )
        return self._learnt(change, moment, refused)

    def blocked(self, refused: Refused, moment: Moment) -> Lesson | None:
        return self._learnt(rules.blocked(self.standing, refused, moment.at), moment, refused)

    def refused_connection(self, refused: Refused, others: int, moment: Moment) -> Lesson | None:
        """Refused while `others` were open in this process."""
        seen = round(others / self.share)
        return self._learnt(rules.with_fewer_connections(self.standing, refused, seen, moment.at), moment, refused)

    def refused_over_connection(self, refused: Refused, moment: Moment) -> Lesson | None:
        seen = refused.taken_before
        return self._learnt(rules.with_shorter_connections(self.standing, refused, seen, moment.at), moment, refused)

    def _seen_per_second(self, seconds: float) -> float:
        self._drop_old(seconds)
        return len(self._seen) / SEEN_SECONDS / self.share

    def _drop_old(self, seconds: float) -> None:
        while self._seen and self._seen[0] <= seconds - SEEN_SECONDS:
            self._seen.popleft()

    def _learnt(self, change: Change | None, moment: Moment, refused: Refused | None = None) -> Lesson | None:
        if change is None:
            return None
        kind, after = change
        lesson = Lesson(moment.at, self.place, kind, self.standing, after, refused or Refused())
        self.standing = after
        return lesson
