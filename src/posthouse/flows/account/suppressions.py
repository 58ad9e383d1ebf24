"""Suppressions: the addresses to which an account sends nothing.

An import is stored in batches, each in its own transaction, which begins when the batch is complete: a slow client
holds no lock, and a client that disconnects has stored whole batches. Known addresses stay as they are, so that the
same file can be sent again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.page import Page, page_of, time_cursor, time_position
from posthouse.rules import erasure, reputation, suppression
from posthouse.rules.credential import Actor
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal, invalid, unreadable_cursor
from posthouse.rules.suppression import (
    IMPORT_BYTES_MAX,
    IMPORT_LINES_MAX,
    MANUAL_MAX,
    ImportLine,
    ImportLines,
    SuppressionReason,
)
from posthouse.store import erasures, suppressions
from posthouse.store.postgres import Connection
from posthouse.store.suppressions import Position
from posthouse.store.suppressions import SuppressionRow as SuppressionRow

BATCH: Final = 1_000
# This much of a file is parsed before other tasks run.
PIECE_BYTES: Final = 16 * 1024
# Lines that have arrived are stored and reported after this long, even if they don't fill a batch.
PROGRESS_SECONDS: Final = 1.0
# Another import may begin after this long without progress.
HELD_FOR: Final = timedelta(seconds=60)

_SECOND: Final = timedelta(seconds=1)
# Newer than every suppression, and before every address.
_START: Final = (datetime(9999, 1, 1, tzinfo=UTC), "")


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """An import's lines so far; each was added, was known before, or is invalid."""

    lines: int
    added: int
    known: int
    invalid: int


class Import:
    """The account's import; `bring_in` reads the file to its end, and `faults` are its first invalid lines."""

    def __init__(self, account_id: AccountId, actor: Actor, importer: UUID) -> None:
        self.account_id = account_id
        self.actor = actor
        self.importer = importer
        self.faults: list[ImportLine] = []
        self.progress = ImportProgress(0, 0, 0, 0)
        self.has_begun = False


class Suppressions(Flow):
    def __init__(self, context: Context, *, disk_space: DiskSpace | None = None) -> None:
        super().__init__(context)
        self._disk_space = disk_space or DiskSpace()

    async def page(
        self,
        account_id: AccountId,
        count: int,
        cursor: str | None = None,
        *,
        email: str | None = None,
        search: str | None = None,
        reason: str | None = None,
    ) -> Page[SuppressionRow]:
        """The newest first; results of a search by prefix in alphabetical order."""
        before = _START if cursor is None else _position(cursor)
        reasons = list(SuppressionReason) if reason is None else [suppression.reason_of(reason)]
        if email is not None:
            if search is not None:
                raise invalid("`email` and `search` can't be combined: leave one of them out.")
            return await self._by_email(account_id, suppression.address_of(email), reasons)
        wanted = suppression.SuppressionSearch() if search is None else suppression.search_of(search)
        async with self._database.connection() as connection:
            if wanted.prefix is not None:
                if reason is not None:
                    raise invalid("`search` by the beginning of an address takes no `reason`: leave one of them out.")
                found = await suppressions.by_address(connection, account_id, wanted.prefix, before[1], count + 1)
            else:
                found = await suppressions.newest(connection, account_id, reasons, before, count + 1, wanted.domain)
        return page_of(found, count, lambda row: time_cursor(row.at, row.email))

    async def _by_email(
        self, account_id: AccountId, email: str, reasons: list[SuppressionReason]
    ) -> Page[SuppressionRow]:
        async with self._database.connection() as connection:
            found = await suppressions.find(connection, account_id, email)
        return Page([found] if found is not None and found.reason in reasons else [], None)

    async def add(
        self, account_id: AccountId, actor: Actor, email: str, note: str | None = None
    ) -> tuple[SuppressionRow, bool]:
        """The suppression, and whether it is new: an existing suppression stays as it is."""
        address = suppression.address_of(email)
        note = suppression.checked_note(note)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            is_new = bool(await suppressions.add(tx, account_id, [(address, note)], actor.name, now))
            if is_new:
                if await suppressions.enter(tx, account_id, 1) > MANUAL_MAX:
                    raise _too_many()
                await self._audit_log.add_entry(
                    tx, account_id, actor, "suppression.added", address, now, {"note": note}
                )
            row = await suppressions.find(tx, account_id, address)
        if row is None:
            raise Refusal(Code.TEMPORARY_FAILURE, "The address was just removed by someone else: try again.", 1)
        return row, is_new

    async def remove(self, account_id: AccountId, actor: Actor, email: str, why: str) -> SuppressionRow:
        """The address may get mail again. That it bounced or complained still counts for the account's reputation."""
        why = suppression.checked_reason(why)
        address = suppression.known_address(email)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            row = None if address is None else await suppressions.remove(tx, account_id, address)
            if address is not None:
                hashes = erasure.hashes_of(address, self._keys.erasure)
                erased_at = await erasures.lift(tx, account_id, hashes)
                if row is None and erased_at is not None:
                    return await self._removed_erased(tx, account_id, actor, address, why, erased_at)
            if row is None:
                raise Refusal(Code.NOT_FOUND, "This account suppresses no such address.")
            if row.reason == SuppressionReason.MANUAL:
                await suppressions.enter(tx, account_id, -1)
            elif row.at >= now - reputation.WINDOW:
                await suppressions.lift(tx, account_id, row.reason, row.at)
            detail = {"reason": why, "was": row.reason, "suppressed_at": row.at.isoformat()}
            await self._audit_log.add_entry(tx, account_id, actor, "suppression.removed", row.email, now, detail)
        return row

    async def _removed_erased(
        self, tx: Connection, account_id: AccountId, actor: Actor, address: str, why: str, erased_at: datetime
    ) -> SuppressionRow:
        """Store the address again, as given by the member."""
        detail = {"reason": why, "was": "erased", "suppressed_at": erased_at.isoformat()}
        await self._audit_log.add_entry(
            tx, account_id, actor, "suppression.removed", address, self._clock.now(), detail
        )
        return SuppressionRow(address, SuppressionReason.MANUAL, None, None, None, None, erased_at)

    async def export(self, account_id: AccountId) -> AsyncGenerator[list[SuppressionRow], None]:
        """All of them, in alphabetical order; no batch waits in a transaction for the next."""
        after = ""
        while True:
            async with self._database.connection() as connection:
                found = await suppressions.by_address(connection, account_id, "", after, BATCH)
            if found:
                yield found
            if len(found) < BATCH:
                return
            after = found[-1].email

    # Imports.

    async def begin_import(self, account_id: AccountId, actor: Actor) -> Import:
        """Begin an import; an account has one at a time. It ends with `bring_in`, or after a while."""
        self._disk_space.require()
        now = self._clock.now()
        importer = new_id(self._randomness, now)
        async with self._database.transaction() as tx:
            if not await suppressions.hold_import(tx, account_id, importer, now, now + HELD_FOR):
                until = await suppressions.held_until(tx, account_id) or now
                seconds = max(1, -((now - until) // _SECOND))
                raise Refusal(
                    Code.CONFLICT, "Another import of this account is running: wait until it is done.", seconds
                )
        return Import(account_id, actor, importer)

    async def bring_in(self, importing: Import, chunks: AsyncIterator[bytes]) -> AsyncGenerator[ImportProgress, None]:
        """Store the addresses of a file; yields the progress at most once a second."""
        lines = ImportLines()
        batch: list[ImportLine] = []
        reported_at = entered_at = self._clock.monotonic()
        try:
            async for piece in _pieces(chunks):
                batch += lines.feed(piece) if piece else lines.finish()
                await asyncio.sleep(0)
                if lines.count > IMPORT_LINES_MAX:
                    await self._enter(importing, batch)
                    raise Refusal(
                        Code.PAYLOAD_TOO_LARGE,
                        f"The file has more than {IMPORT_LINES_MAX:,} lines, and only the first were added: split it.",
                    )
                now = self._clock.monotonic()
                if len(batch) >= BATCH or not piece or now - entered_at >= PROGRESS_SECONDS:
                    await self._enter(importing, batch)
                    batch = []
                    entered_at = now
                    if now - reported_at >= PROGRESS_SECONDS:
                        reported_at = now
                        yield importing.progress
        finally:
            await self._end(importing)

    async def _enter(self, importing: Import, batch: list[ImportLine]) -> None:
        """Store the lines of a batch, or none of them."""
        self._disk_space.require()
        given: dict[str, str | None] = {}
        for line in batch:
            if line.fault is None:
                given.setdefault(line.email, line.note)
        now = self._clock.now()
        account_id = importing.account_id
        async with self._database.transaction() as tx:
            if not importing.has_begun:
                await self._audit_log.add_entry(
                    tx, account_id, importing.actor, "suppressions.import_began", "", now, {}
                )
            added = 0
            if given:
                added = await suppressions.add(tx, account_id, list(given.items()), importing.actor.name, now)
            manual = await suppressions.extend_import(tx, account_id, importing.importer, added, now + HELD_FOR)
            if manual is None:
                raise Refusal(Code.CONFLICT, "Another import has begun because this one was idle: send it again.", 1)
            if manual > MANUAL_MAX and added:
                raise _too_many()
        importing.has_begun = True
        faults = [line for line in batch if line.fault is not None]
        importing.faults += faults[: suppression.FAULTS_REPORTED_MAX - len(importing.faults)]
        done = importing.progress
        importing.progress = ImportProgress(
            lines=done.lines + len(batch),
            added=done.added + added,
            known=done.known + len(batch) - len(faults) - added,
            invalid=done.invalid + len(faults),
        )

    async def _end(self, importing: Import) -> None:
        now = self._clock.now()
        done = importing.progress
        async with self._database.transaction() as tx:
            await suppressions.release_import(tx, importing.account_id, importing.importer)
            if importing.has_begun:
                detail = {"lines": done.lines, "added": done.added, "known": done.known, "invalid": done.invalid}
                await self._audit_log.add_entry(
                    tx, importing.account_id, importing.actor, "suppressions.imported", "", now, detail
                )


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The file in small pieces, with an empty piece at the end."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > IMPORT_BYTES_MAX:
            raise Refusal(
                Code.PAYLOAD_TOO_LARGE,
                f"The file is larger than {IMPORT_BYTES_MAX // 1_000_000} MB: split it.",
            )
        for at in range(0, len(chunk), PIECE_BYTES):
            yield chunk[at : at + PIECE_BYTES]
    yield b""


def _too_many() -> Refusal:
    return Refusal(
        Code.CONFLICT,
        f"An account can add at most {MANUAL_MAX:,} addresses itself: remove some that it no longer needs.",
    )


def _position(cursor: str) -> Position:
    at, email = time_position(cursor)
    if not email.isascii() or not email.isprintable():
        raise unreadable_cursor()
    return at, email
