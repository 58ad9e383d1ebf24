"""The delivery sessions of a process: each account's share of them, and a part for lanes that answer.

A server that accepts connections and stays silent holds a session until its deadline. Anybody can have such a server,
under any number of domains, so sessions in lanes that have not answered are shared apart: they never take those of
the other lanes.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from posthouse.rules.fair_share import FairShare
from posthouse.rules.ids import AccountId

UNPROVEN_PART: Final = 0.5


class SessionShares:
    def __init__(self, sessions_max: int) -> None:
        self._sessions: FairShare[AccountId] = FairShare(sessions_max)
        self._unproven: FairShare[AccountId] = FairShare(max(1, int(sessions_max * UNPROVEN_PART)))

    @property
    def taken(self) -> int:
        return self._sessions.taken

    @property
    def is_full(self) -> bool:
        return self._sessions.taken >= self._sessions.capacity

    def has_room(self, account_id: AccountId, *, is_unproven: bool) -> bool:
        return self._sessions.has_room(account_id) and (not is_unproven or self._unproven.has_room(account_id))

    def with_room(self, accounts: Iterable[AccountId], *, is_unproven: bool) -> Iterator[AccountId]:
        """Those of the accounts that may have another session now."""
        # The same for all of them: only what each has is looked up.
        held, most = self._sessions.holdings, self._sessions.most
        held_unproven, most_unproven = self._unproven.holdings, self._unproven.most if is_unproven else 0
        for account_id in accounts:
            if held.get(account_id, 0) < most and (not is_unproven or held_unproven.get(account_id, 0) < most_unproven):
                yield account_id

    def begin(self, account_id: AccountId, *, is_unproven: bool) -> None:
        """Begin a session for which there is room."""
        self._sessions.take(account_id)
        if is_unproven:
            self._unproven.take(account_id)

    def end(self, account_id: AccountId, *, is_unproven: bool) -> None:
        self._sessions.give_back(account_id)
        if is_unproven:
            self._unproven.give_back(account_id)
