"""Patience with failed logins: how long the next answer is held back, from where the failures came.

Failures are counted per place (an address, or a network of IPv6) and per user at a place, never per user alone:
whoever guesses somewhere keeps nobody out elsewhere. The right password is only answered later, at a place where
wrong ones come from; only when many are held back there already is it told to come again. A user who was right at a
place within the last hour doesn't wait for others there.

Failures are forgotten one by one, so that a place where someone mistypes every now and then is as good as any. What
is remembered is bounded: the least recent goes first.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from posthouse.rules import rate_limit

# Mail programs wait for minutes, and people for seconds.
WAIT_SECONDS_MAX: Final = 20.0
# Many people can share an address, so it is slowed down later than one of them.
PLACE_FAILURES_PER_USER: Final = 10
FORGET_SECONDS: Final = 3_600.0
# One failure is forgotten every so often.
FORGIVE_SECONDS: Final = 180.0
REMEMBERED_MAX: Final = 10_000
# Answers that are held back at a time: each keeps a connection.
HELD_MAX: Final = 500
HELD_PER_PLACE_MAX: Final = 10


@dataclass(slots=True)
class _Record:
    failures: float = 0.0
    under_way: int = 0
    was_right: bool = False
    touched_at: float = 0.0


class Backoff:
    """Every `begin` that returns a wait is followed by one of `right`, `wrong` or `undecided`."""

    def __init__(self) -> None:
        self._places: OrderedDict[Hashable, _Record] = OrderedDict()
        self._users: OrderedDict[Hashable, _Record] = OrderedDict()
        self._held_at: dict[str, int] = {}
        self._held = 0

    def begin(self, username: str, place: str, now: float) -> float | None:
        """How many seconds to hold this login back; None when too many are held already."""
        user = self._user(username, place, now)
        common = _record(self._places, place, now)
        wait = _wait_seconds(user, 1)
        if not user.was_right:
            wait = max(wait, _wait_seconds(common, PLACE_FAILURES_PER_USER))
        if wait:
            held_here = self._held_at.get(place, 0)
            if self._held >= HELD_MAX or held_here >= HELD_PER_PLACE_MAX:
                return None
            self._held += 1
            self._held_at[place] = held_here + 1
        user.under_way += 1
        common.under_way += 1
        return wait

    def waited(self, place: str) -> None:
        """After a wait, however it ended."""
        self._held -= 1
        left = self._held_at.pop(place) - 1
        if left:
            self._held_at[place] = left

    def right(self, username: str, place: str, now: float) -> None:
        self._end(username, place, now)
        user = self._user(username, place, now)
        user.failures = 0.0
        user.was_right = True

    def wrong(self, username: str, place: str, now: float) -> None:
        self._end(username, place, now)
        self._user(username, place, now).failures += 1
        _record(self._places, place, now).failures += 1

    def undecided(self, username: str, place: str, now: float) -> None:
        self._end(username, place, now)

    def _end(self, username: str, place: str, now: float) -> None:
        for record in (self._user(username, place, now), _record(self._places, place, now)):
            record.under_way = max(0, record.under_way - 1)

    def _user(self, username: str, place: str, now: float) -> _Record:
        # The name itself may be a password in the wrong field, or kilobytes of nonsense.
        return _record(self._users, hash((username, place)), now)


def _record(records: OrderedDict[Hashable, _Record], key: Hashable, now: float) -> _Record:
    record = records.get(key)
    if record is None or (now - record.touched_at > FORGET_SECONDS and not record.under_way):
        record = records[key] = _Record()
    if record.failures:
        record.failures = max(0.0, record.failures - (now - record.touched_at) / FORGIVE_SECONDS)
    record.touched_at = now
    records.move_to_end(key)
    if len(records) > REMEMBERED_MAX:
        records.popitem(last=False)
    return record


def _wait_seconds(record: _Record, per_failure: int) -> float:
    # Where nobody has failed, logins that come together are a busy client, not guesses made in parallel.
    count = record.failures + record.under_way if record.failures else 0
    return min(float(rate_limit.login_wait_seconds(int(count) // per_failure)), WAIT_SECONDS_MAX)
