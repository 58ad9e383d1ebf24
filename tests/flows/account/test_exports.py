"""Exports: page by page to the end or the bound, and a few at a time."""

from collections.abc import Sequence
from contextlib import ExitStack
from uuid import uuid4

import pytest

from posthouse.flows.account import exports
from posthouse.flows.account.exports import Exports
from posthouse.flows.shared.page import Page
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from tests.support.clock import SettableClock


class Numbers:
    """A list of numbers, whose cursors are numbers; `empty_at` is a page without rows that is not the last."""

    def __init__(self, count: int, empty_at: int = -1) -> None:
        self.count = count
        self.empty_at = empty_at

    async def page(self, limit: int, cursor: str | None) -> Page[int]:
        begin = int(cursor or 0)
        if begin == self.empty_at:
            self.empty_at = -1
            return Page([], str(begin))
        end = min(begin + limit, self.count)
        return Page(range(begin, end), str(end) if end < self.count else None)


async def read(flow: Exports, numbers: Numbers, cursor: str | None = None) -> tuple[Sequence[int], str | None]:
    pages = [page async for page in flow.pages(numbers.page, cursor)]
    return [number for page in pages for number in page.items], pages[-1].goes_on_at


async def test_an_export_continues_to_the_end_of_its_list() -> None:
    flow = Exports(clock=SettableClock())
    for count in (0, 1, exports.PAGE_ROWS, 3 * exports.PAGE_ROWS + 1):
        assert await read(flow, Numbers(count)) == (list(range(count)), None)
    with_gap = Numbers(3 * exports.PAGE_ROWS, empty_at=exports.PAGE_ROWS)
    assert await read(flow, with_gap) == (list(range(3 * exports.PAGE_ROWS)), None)


@pytest.mark.rule("EXP-03")
async def test_an_export_that_reaches_its_limit_says_where_to_continue() -> None:
    flow = Exports(clock=SettableClock(), rows_max=300)
    assert await read(flow, Numbers(300)) == (list(range(300)), None)
    assert await read(flow, Numbers(301)) == (list(range(300)), "300")
    assert await read(flow, Numbers(301), "300") == ([300], None)


async def test_an_export_that_takes_too_long_says_where_to_continue() -> None:
    clock = SettableClock()
    flow = Exports(clock=clock)
    numbers = Numbers(1_000)

    async def slow(limit: int, cursor: str | None) -> Page[int]:
        clock.advance(seconds=exports.SECONDS_MAX / 2)
        return await numbers.page(limit, cursor)

    pages = [page async for page in flow.pages(slow, None)]
    assert (len(pages), pages[-1].goes_on_at) == (2, str(2 * exports.PAGE_ROWS))


@pytest.mark.rule("EXP-04")
def test_an_account_leaves_places_to_others() -> None:
    flow = Exports(clock=SettableClock())
    busy = AccountId(uuid4())
    with ExitStack() as stack:
        taken = [_has_place(flow, busy, stack) for _ in range(exports.CONCURRENCY_MAX)]
        assert taken == sorted(taken, reverse=True)
        assert (taken[0], taken[-1]) == (True, False)
        stack.enter_context(flow.place(AccountId(uuid4())))
    with flow.place(busy):
        pass


def _has_place(flow: Exports, account_id: AccountId, stack: ExitStack) -> bool:
    try:
        stack.enter_context(flow.place(account_id))
    except Refusal as refusal:
        return refusal.code is not Code.RATE_LIMITED
    return True
