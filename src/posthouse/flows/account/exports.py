"""Exports: a list is read page by page, completely or up to a bound, by a few clients at a time.

No page waits in a transaction for the next, so a client that reads slowly occupies only its slot.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from posthouse.clock import Clock
from posthouse.flows.shared.page import Page
from posthouse.flows.shared.shares import FairShare
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal

# How many exports run in one process; each account has a share.
CONCURRENCY_MAX: Final = 8
ROWS_MAX: Final = 100_000
SECONDS_MAX: Final = 600.0
PAGE_ROWS: Final = 200

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ExportPage(Generic[Item]):
    """`goes_on_at` is the cursor of the first omitted row, on the last page of an export that reached its bound."""

    items: Sequence[Item]
    goes_on_at: str | None = None


class Exports:
    def __init__(self, *, clock: Clock, concurrency_max: int = CONCURRENCY_MAX, rows_max: int = ROWS_MAX) -> None:
        self._clock = clock
        self._rows_max = rows_max
        self._share: FairShare[AccountId] = FairShare(concurrency_max)

    @contextmanager
    def place(self, account_id: AccountId) -> Iterator[None]:
        """A slot for an export, while the block runs."""
        refusal = Refusal(Code.RATE_LIMITED, "Other exports are running: wait until one of them is done.", 10)
        with self._share.taking(account_id, refusal):
            yield

    async def pages(
        self, read: Callable[[int, str | None], Awaitable[Page[Item]]], cursor: str | None
    ) -> AsyncGenerator[ExportPage[Item], None]:
        """The pages that `read` returns for a number of rows and a cursor; there is always a first page."""
        rows = 0
        ends_at = self._clock.monotonic() + SECONDS_MAX
        while True:
            page = await read(min(PAGE_ROWS, self._rows_max - rows), cursor)
            rows += len(page.items)
            cursor = page.next_cursor
            if cursor is not None and (rows >= self._rows_max or self._clock.monotonic() >= ends_at):
                yield ExportPage(page.items, cursor)
                return
            yield ExportPage(page.items)
            if cursor is None:
                return
