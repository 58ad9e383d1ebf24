"""Connects to the one of several PostgreSQL servers that takes writes.

All hosts of the URL are asked at the same time: a frozen one would use up the whole timeout of a client that asks one
after another. Of those that take writes, the one with the newest timeline is used, because each promotion begins a new
one: the others are old primaries that don't know of it yet.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import asyncpg

from posthouse.rules.database_url import each_host

# Once a host takes writes, the others have this long to report a newer timeline.
NEWER_SECONDS_MAX: Final = 0.1
# The first eight digits of a WAL file's name are the timeline.
_TIMELINE: Final = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"


class OldPrimary(ConnectionError):  # noqa: N818 (reads as what it says)
    """The only host that takes writes is an old primary: its successor was promoted."""


class _Opened(NamedTuple):
    timeline: int
    connection: Any


class WritableHost:
    """Connects to the host that takes writes, and remembers the newest timeline."""

    def __init__(self, url: str) -> None:
        self._urls = each_host(url)
        self._timeline: int | None = None
        # Called when a newer timeline was found: connections to the former primary are useless.
        self.when_promoted: Callable[[], Awaitable[None]] | None = None

    async def connect(self, *_: object, **options: Any) -> Any:
        """Replaces `asyncpg.connect`, whose options it takes; the address is that of this object."""
        if len(self._urls) == 1:
            return await asyncpg.connect(self._urls[0], **options)
        opened = await _race([asyncio.ensure_future(_open(url, options)) for url in self._urls])
        known, self._timeline = self._timeline, max(opened.timeline, self._timeline or 0)
        if opened.timeline < self._timeline:
            opened.connection.terminate()
            raise OldPrimary(f"its timeline is {opened.timeline}, and that of its successor {self._timeline}")
        if known is not None and opened.timeline > known and self.when_promoted is not None:
            await self.when_promoted()
        return opened.connection


async def _open(url: str, options: dict[str, Any]) -> _Opened:
    connection = await asyncpg.connect(url, **options, target_session_attrs="read-write")
    try:
        return _Opened(await connection.fetchval(_TIMELINE), connection)
    except BaseException:
        connection.terminate()
        raise


async def _race(attempts: Sequence[asyncio.Future[_Opened]]) -> _Opened:
    """The connection with the newest timeline; others are closed. If there is none, the most useful fault is raised."""
    kept: _Opened | None = None
    waiting = set(attempts)
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=None if kept is None else NEWER_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            opened = [attempt.result() for attempt in done if attempt.exception() is None]
            kept = max([*opened, *([kept] if kept else [])], key=lambda one: one.timeline, default=None)
    except BaseException:
        kept = None
        raise
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(lambda ended: _close_unless(kept, ended))
    if kept is None:
        raise _most_informative([fault for attempt in attempts if (fault := attempt.exception()) is not None])
    return kept


def _close_unless(kept: _Opened | None, ended: asyncio.Future[_Opened]) -> None:
    if not ended.cancelled() and ended.exception() is None and ended.result() is not kept:
        ended.result().connection.terminate()


def _most_informative(faults: Sequence[BaseException]) -> BaseException:
    """The most useful fault: a refused password says more than a standby that takes no writes."""
    return min(faults, key=lambda fault: isinstance(fault, OSError | asyncpg.TargetServerAttributeNotMatched))
