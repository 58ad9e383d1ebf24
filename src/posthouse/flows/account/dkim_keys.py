"""The making of DKIM key pairs, of which an RSA key takes a good part of a second of a core.

One is made at a time, and accounts take turns. A few RSA keys are made ahead, so that a request seldom waits: beginning
with the first request, so that a process that makes none does nothing.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.low_priority import in_low_priority
from posthouse.flows.shared.turns import Turns
from posthouse.mail import dkim
from posthouse.mail.dkim import KeyPair
from posthouse.rules.ids import AccountId

IN_PROGRESS_MAX: Final = 32
AHEAD: Final = 4


class DkimKeys:
    def __init__(self, *, ahead: int = 0, make: Callable[[], KeyPair] = dkim.new_key_pair) -> None:
        """`ahead`: how many RSA keys are held ready."""
        self._ahead = ahead
        self._make = make
        # None is the holder of what is made ahead.
        self._turns: Turns[AccountId | None] = Turns(
            at_once_max=1, in_progress_max=IN_PROGRESS_MAX, work="Many keys are being made"
        )
        self._ready: deque[KeyPair] = deque()
        self._tasks = BackgroundTasks()
        self._is_refilling = False

    async def new_pairs(self, account_id: AccountId) -> tuple[KeyPair, KeyPair]:
        """An RSA and an Ed25519 key pair."""
        with self._turns.place(account_id):
            rsa = self._ready.popleft() if self._ready else await self._made(account_id)
        self._refill()
        return rsa, dkim.new_ed25519_key_pair()

    async def _made(self, holder: AccountId | None) -> KeyPair:
        async with self._turns.turn(holder):
            return await in_low_priority(self._make)

    def _refill(self) -> None:
        if not self._is_refilling and len(self._ready) < self._ahead:
            self._is_refilling = True
            self._tasks.spawn(self._make_ahead())

    async def _make_ahead(self) -> None:
        try:
            while len(self._ready) < self._ahead:
                self._ready.append(await self._made(None))
        finally:
            self._is_refilling = False
