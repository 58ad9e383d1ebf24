"""The delivery sessions of a process: each account's share of them, and a part reserved for lanes that answer.

A server that accepts connections and stays silent holds a session until its deadline. Anyone can run such a server,
under any number of domains, so sessions in lanes that have not answered are limited separately: they never take those
of the other lanes.

Lanes that find no session wait here, for the limit that they reached, and get their turns in order. Thousands of lanes
may wait, so the end of a session may only try those that it can help.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from posthouse.flows.deliver.lane_queue import LaneKey
from posthouse.flows.shared.shares import FairShare
from posthouse.rules.ids import AccountId

UNPROVEN_PART: Final = 0.5
# When a session ends, lanes of each account that was above its share are tried, until this many could not continue.
FAILURES_MAX: Final = 5

# In the order in which they came. Not a plain dict, which finds its first key only after scanning all deleted ones.
_Lanes = OrderedDict[LaneKey, None]


@dataclass(slots=True)
class _Limit:
    """A number of sessions, and the lanes that wait for one of them."""

    sessions: FairShare[AccountId]
    # Those that wait because all are in use.
    starved: _Lanes = field(default_factory=OrderedDict)
    # For each account that uses its share, the lanes in which only such accounts wait.
    over_share: dict[AccountId, _Lanes] = field(default_factory=lambda: defaultdict(OrderedDict))

    @property
    def is_full(self) -> bool:
        return self.sessions.taken >= self.sessions.capacity


class SessionShares:
    def __init__(self, sessions_max: int) -> None:
        self._all = _Limit(FairShare(sessions_max))
        self._unproven = _Limit(FairShare(max(1, int(sessions_max * UNPROVEN_PART))))

    def is_free(self, lane: LaneKey, *, is_unproven: bool) -> bool:
        """Whether a session is free for the lane, which otherwise waits for one."""
        for limit in self._limits(is_unproven=is_unproven):
            if limit.is_full:
                limit.starved.setdefault(lane)
                return False
        return True

    def next_account(self, lane: LaneKey, accounts: Iterable[AccountId], *, is_unproven: bool) -> AccountId | None:
        """The first of the accounts that may have another session; without one, the lane waits for their shares."""
        # Both bounds are the same for all accounts, so only what each account uses is looked up.
        sessions, unproven = self._all.sessions, self._unproven.sessions
        held, most = sessions.holdings, sessions.most
        held_unproven, most_unproven = unproven.holdings, unproven.most if is_unproven else 0
        for account_id in accounts:
            if held.get(account_id, 0) < most and (not is_unproven or held_unproven.get(account_id, 0) < most_unproven):
                return account_id
        for account_id in accounts:
            limit = self._all if held.get(account_id, 0) >= most else self._unproven
            limit.over_share[account_id][lane] = None
        return None

    def begin(self, account_id: AccountId, *, is_unproven: bool) -> None:
        """Begin a session; the caller has checked that there is capacity for it."""
        for limit in self._limits(is_unproven=is_unproven):
            limit.sessions.take_units(account_id)

    def end(self, account_id: AccountId, *, is_unproven: bool) -> None:
        for limit in self._limits(is_unproven=is_unproven):
            limit.sessions.release_units(account_id)

    def wait(self, lane: LaneKey) -> None:
        """The lane waits for a session, behind those that already do."""
        self._all.starved.setdefault(lane)

    def is_waiting(self, lane: LaneKey) -> bool:
        """Whether it waits for a session, and not only for an account's share."""
        return lane in self._all.starved or lane in self._unproven.starved

    def forget(self, lane: LaneKey) -> None:
        self._all.starved.pop(lane, None)
        self._unproven.starved.pop(lane, None)

    def starved(self) -> Iterator[LaneKey]:
        """The lanes that wait for a session, as long as one is free; each may begin sessions in its turn."""
        for limit in (self._all, self._unproven):
            while limit.starved and not limit.is_full and not self._all.is_full:
                yield limit.starved.popitem(last=False)[0]

    def over_share(self) -> Iterator[LaneKey]:
        """The lanes that wait for an account's share, once it has capacity; each may begin sessions in its turn."""
        for limit in (self._all, self._unproven):
            if limit.over_share:
                yield from self._below_share(limit)

    def _below_share(self, limit: _Limit) -> Iterator[LaneKey]:
        # An account that waits has a session, so there are never more of them than sessions.
        held, most = limit.sessions.holdings, limit.sessions.most
        for account_id in [each for each in limit.over_share if held.get(each, 0) < most]:
            # An account before it may have taken the last session. One that still waits gets its next turn after the
            # others, and so does each of its lanes.
            lanes = limit.over_share.pop(account_id)
            failures = 0
            while lanes and failures < FAILURES_MAX and limit.sessions.has_capacity(account_id):
                taken = limit.sessions.taken
                yield lanes.popitem(last=False)[0]
                failures += limit.sessions.taken == taken
            if lanes:
                lanes.update(limit.over_share.get(account_id, ()))
                limit.over_share[account_id] = lanes

    def _limits(self, *, is_unproven: bool) -> tuple[_Limit, ...]:
        return (self._all, self._unproven) if is_unproven else (self._all,)
