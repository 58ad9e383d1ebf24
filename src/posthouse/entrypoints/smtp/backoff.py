"""Delays logins after failed logins from the same network.

Failures are counted per network (an IPv4 address, or an IPv6 network) and per user in a network, never per user alone:
a guesser in one network can't lock users out in another. The right password is only delayed where wrong passwords come
from, and refused only when many logins from there are delayed already. A user who logged in from a network within the
last hour doesn't wait for the failures of others there.

Failures are forgotten at a fixed rate, so that occasional mistakes don't add up. Memory is bounded: the least recently
used record is dropped first.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from posthouse.rules import rate_limit

# Mail programs wait for minutes, people for seconds.
WAIT_SECONDS_MAX: Final = 20.0
# Many users can share an address, so it is delayed later than a single user.
NETWORK_FAILURES_PER_USER: Final = 10
FORGET_SECONDS: Final = 3_600.0
# A failure is forgotten after each such interval.
FORGIVE_SECONDS: Final = 180.0
REMEMBERED_MAX: Final = 10_000
# Logins delayed at a time: each keeps a connection.
DELAYED_MAX: Final = 500
DELAYED_PER_NETWORK_MAX: Final = 10


@dataclass(slots=True)
class _Record:
    failures: float = 0.0
    running: int = 0
    has_succeeded: bool = False
    touched_at: float = 0.0


class Backoff:
    """Every `begin` that returns a wait is followed by one of `right`, `wrong` or `undecided`."""

    def __init__(self) -> None:
        self._networks: OrderedDict[Hashable, _Record] = OrderedDict()
        self._users: OrderedDict[Hashable, _Record] = OrderedDict()
        self._delayed_per_network: dict[str, int] = {}
        self._delayed = 0

    def begin(self, username: str, network: str, now: float) -> float | None:
        """The seconds to delay this login; None when too many are delayed already."""
        user = self._user(username, network, now)
        shared = _record(self._networks, network, now)
        wait = _wait_seconds(user, 1)
        if not user.has_succeeded:
            wait = max(wait, _wait_seconds(shared, NETWORK_FAILURES_PER_USER))
        if wait:
            delayed_here = self._delayed_per_network.get(network, 0)
            if self._delayed >= DELAYED_MAX or delayed_here >= DELAYED_PER_NETWORK_MAX:
                return None
            self._delayed += 1
            self._delayed_per_network[network] = delayed_here + 1
        user.running += 1
        shared.running += 1
        return wait

    def waited(self, network: str) -> None:
        """After a delay, whether it was completed or cancelled."""
        self._delayed -= 1
        remaining = self._delayed_per_network.pop(network) - 1
        if remaining:
            self._delayed_per_network[network] = remaining

    def right(self, username: str, network: str, now: float) -> None:
        self._end(username, network, now)
        user = self._user(username, network, now)
        user.failures = 0.0
        user.has_succeeded = True

    def wrong(self, username: str, network: str, now: float) -> None:
        self._end(username, network, now)
        self._user(username, network, now).failures += 1
        _record(self._networks, network, now).failures += 1

    def undecided(self, username: str, network: str, now: float) -> None:
        self._end(username, network, now)

    def _end(self, username: str, network: str, now: float) -> None:
        for record in (self._user(username, network, now), _record(self._networks, network, now)):
            record.running = max(0, record.running - 1)

    def _user(self, username: str, network: str, now: float) -> _Record:
        # A hash: the name may be a password typed into the wrong field, or kilobytes long.
        return _record(self._users, hash((username, network)), now)


def _record(records: OrderedDict[Hashable, _Record], key: Hashable, now: float) -> _Record:
    record = records.get(key)
    if record is None or (now - record.touched_at > FORGET_SECONDS and not record.running):
        record = records[key] = _Record()
    if record.failures:
        record.failures = max(0.0, record.failures - (now - record.touched_at) / FORGIVE_SECONDS)
    record.touched_at = now
    records.move_to_end(key)
    if len(records) > REMEMBERED_MAX:
        records.popitem(last=False)
    return record


def _wait_seconds(record: _Record, per_failure: int) -> float:
    # Without failures, simultaneous logins are a busy client, not parallel guesses.
    count = record.failures + record.running if record.failures else 0
    return min(float(rate_limit.login_wait_seconds(int(count) // per_failure)), WAIT_SECONDS_MAX)
