"""The delivery sessions of a process: each account's share of them, and a part reserved for lanes that answer.

A server that accepts connections and stays silent holds a session until its deadline. Anyone can run such a server,
under any number of domains, so sessions in lanes that have not answered are limited separately: they never take those
of the other lanes.

Lanes that find no session wait here, and get their turns in order.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from posthouse.flows.deliver.lane_queue import LaneKey
from posthouse.flows.shared.shares import FairShare
from posthouse.rules.ids import AccountId

UNPROVEN_PART: Final = 0.5
# When a session ends, lanes of each account above its share are tried again, until this many could not continue.
FAILURES_MAX: Final = 5


class SessionShares:
    def __init__(self, sessions_max: int) -> None:
        self._sessions: FairShare[AccountId] = FairShare(sessions_max)
        self._unproven: FairShare[AccountId] = FairShare(max(1, int(sessions_max * UNPROVEN_PART)))
        # Lanes that wait only for the process's limit of sessions, in the order in which they reached it.
        self._starved: dict[LaneKey, None] = {}
        # For each account above its share of sessions, the lanes in which only such accounts wait.
        self._over_share: dict[AccountId, dict[LaneKey, None]] = {}

    @property
    def is_full(self) -> bool:
        return self._sessions.taken >= self._sessions.capacity

    def with_capacity(self, accounts: Iterable[AccountId], *, is_unproven: bool) -> Iterator[AccountId]:
        """The accounts that may have another session now."""
        # Both bounds are the same for all accounts, so only what each account uses is looked up.
        held, most = self._sessions.holdings, self._sessions.most
        held_unproven, most_unproven = self._unproven.holdings, self._unproven.most if is_unproven else 0
        for account_id in accounts:
            if held.get(account_id, 0) < most and (not is_unproven or held_unproven.get(account_id, 0) < most_unproven):
                yield account_id

    def begin(self, account_id: AccountId, *, is_unproven: bool) -> None:
        """Begin a session; the caller has checked that there is capacity for it."""
        self._sessions.take_units(account_id)
        if is_unproven:
            self._unproven.take_units(account_id)

    def end(self, account_id: AccountId, *, is_unproven: bool) -> None:
        self._sessions.release_units(account_id)
        if is_unproven:
            self._unproven.release_units(account_id)

    def wait(self, lane: LaneKey) -> None:
        """The lane waits for a session, behind those that already do."""
        self._starved.setdefault(lane)

    def wait_for_share(self, accounts: Iterable[AccountId], lane: LaneKey) -> None:
        """The lane waits until one of these accounts, which wait in it, is below its share."""
        for account_id in accounts:
            self._over_share.setdefault(account_id, {})[lane] = None

    def is_waiting(self, lane: LaneKey) -> bool:
        """Whether it waits for a session."""
        return lane in self._starved

    def forget(self, lane: LaneKey) -> None:
        self._starved.pop(lane, None)

    def starved(self) -> Iterator[LaneKey]:
        """The lanes that wait for a session, as long as one is free; each may begin sessions in its turn."""
        while self._starved and not self.is_full:
            lane = next(iter(self._starved))
            del self._starved[lane]
            yield lane

    def over_share(self) -> Iterator[LaneKey]:
        """The lanes that wait for an account's share, once it has capacity; each may begin sessions in its turn."""
        if not self._over_share:
            return
        for account_id in list(self.with_capacity(self._over_share, is_unproven=False)):
            # An account before it may have taken the last session.
            if not self._sessions.has_capacity(account_id):
                continue
            # An account that still waits gets its next turn after the others, and so does each of its lanes.
            lanes = self._over_share.pop(account_id)
            failures = 0
            while lanes and failures < FAILURES_MAX and self._sessions.has_capacity(account_id):
                taken = self._sessions.taken
                lane = next(iter(lanes))
                del lanes[lane]
                yield lane
                failures += self._sessions.taken == taken
            if lanes:
                self._over_share[account_id] = lanes | self._over_share.get(account_id, {})
