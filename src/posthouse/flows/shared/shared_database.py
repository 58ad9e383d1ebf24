"""Connections to PostgreSQL that accounts share: an account with many requests leaves connections for the others.

A request counts for its account once that is known (`count_for`), a login for its network; all others count together.
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

from posthouse.flows.shared.shares import WaitedShare
from posthouse.rules.refusal import Refusal
from posthouse.store.postgres import ACQUIRE_SECONDS_MAX, Connection, Database, as_refusal

_HOLDER: Final[ContextVar[Hashable]] = ContextVar("holder", default=None)


def count_for(holder: Hashable) -> None:
    """Count what this task does from now on for this account or network."""
    _HOLDER.set(holder)


class SharedDatabase(Database):
    def __init__(self, pool: Any, timeout_factor: float = 1.0, standbys: int = 0) -> None:
        super().__init__(pool, timeout_factor, standbys)
        self._capacity: WaitedShare[Hashable] = WaitedShare(
            pool.get_max_size(), wait_seconds_max=ACQUIRE_SECONDS_MAX * timeout_factor
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        holder = _HOLDER.get()
        capacity = self._capacity
        try:
            if not capacity.acquire_units_now(holder):
                await capacity.acquire_units(holder)
        except Refusal as refusal:
            # Others occupy every connection for this long only if PostgreSQL hangs.
            raise refusal if capacity.held(holder) else as_refusal(TimeoutError()) or refusal from None
        try:
            async with super().connection() as connection:
                yield connection
        finally:
            capacity.release_units(holder)
