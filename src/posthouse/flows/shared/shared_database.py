"""Connections to PostgreSQL that accounts share: an account with many requests leaves connections to the others.

A request counts for its account once that is known (`count_for`), a login for its network; all others count together.
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

from posthouse.flows.shared.fair_room import FairRoom
from posthouse.rules.refusal import Refusal
from posthouse.store.postgres import ACQUIRE_SECONDS_MAX, Connection, Database, as_refusal

_HOLDER: Final[ContextVar[Hashable]] = ContextVar("holder", default=None)


def count_for(holder: Hashable) -> None:
    """What this task does from now on counts for this account or network."""
    _HOLDER.set(holder)


class SharedDatabase(Database):
    def __init__(self, pool: Any, patience: float = 1.0, standbys: int = 0) -> None:
        super().__init__(pool, patience, standbys)
        self._room: FairRoom[Hashable] = FairRoom(pool.get_max_size(), wait_seconds_max=ACQUIRE_SECONDS_MAX * patience)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        holder = _HOLDER.get()
        room = self._room
        try:
            await room.take(holder)
        except Refusal as refusal:
            # Others have every connection for so long only if PostgreSQL hangs.
            raise refusal if room.held(holder) else as_refusal(TimeoutError()) or refusal from None
        try:
            async with super().connection() as connection:
                yield connection
        finally:
            room.give_back(holder)
