"""The archive on a real database: every filter, pages that join up, and bounded work for each."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any
from uuid import uuid4

import pytest

from posthouse.entrypoints.http.route_context import PAGE_MAX
from posthouse.flows.account.message_search import UNINDEXED_MAX, MessageListRow, MessageSearch
from posthouse.flows.operate.search_indexer import SETTLED_AFTER, SearchIndexer
from posthouse.flows.shared.page import Page
from posthouse.rules import ids, search
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Refusal
from posthouse.rules.search import SearchField, SearchFilters
from posthouse.store import partitions, search_index
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.partitions import Partition
from posthouse.store.search_index import IndexEntry
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps

SETTLED = SETTLED_AFTER + timedelta(seconds=1)


class SearchFlow:
    """An archive, with what was sent into it."""

    def __init__(self, steps: DeliverySteps) -> None:
        self.steps = steps
        self.archive = MessageSearch(context(steps.database, steps.clock))
        self.search_indexer = SearchIndexer(context(steps.database, steps.clock))

    @property
    def account_id(self) -> AccountId:
        return AccountId(self.steps.sender.account_id)

    async def page(self, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page[MessageListRow]:
        return await self.archive.page(self.account_id, SearchFilters(**filters), limit, cursor)

    async def all(self, limit: int = 50, **filters: Any) -> list[MessageId]:
        """Page after page, to the last."""
        found: list[MessageId] = []
        cursor = None
        for _ in range(100):
            page = await self.page(limit, cursor, **filters)
            assert len(page.items) <= limit
            found += [item.id for item in page.items]
            cursor = page.next_cursor
            if cursor is None:
                assert found == sorted(set(found), reverse=True)
                return found
        raise AssertionError("there is no end to it")

    async def send(self, *, to: Sequence[str] = ("ada@example.org",), **fields: Any) -> MessageId:
        self.steps.clock.advance(milliseconds=2)
        return await self.steps.accept(to, **fields)

    async def settle(self) -> None:
        self.steps.clock.advance(SETTLED)
        await self.search_indexer.run()

    async def send_by_hand(self, count: int, **columns: object) -> list[MessageId]:
        """Many at once, each with its own row and one recipient; all are queued."""
        made = []
        async with self.steps.database.transaction() as tx:
            for _ in range(count):
                self.steps.clock.advance(milliseconds=2)
                now = self.steps.clock.now()
                message_id = ids.new_message_id(now, uuid4().bytes[:10])
                await tx.execute(
                    "INSERT INTO messages (account_id, id, credential_id, request_id, source, sender, envelope_sender, "
                    "subject, tags, recipient_count, credits_reserved, open_count, created_at) "
                    "VALUES ($1, $2, $3, $2, 'api', 'a@b.example', 'a@b.example', $5, $6, 1, 1, 1, $4)",
                    self.account_id, message_id, self.steps.sender.credential_id, now,
                    columns.get("subject", "Hello"), columns.get("tags"),
                )  # fmt: skip
                await tx.execute(
                    "INSERT INTO recipients (account_id, message_id, position, field, email) "
                    "VALUES ($1, $2, 0, 'to', 'many@example.org')",
                    self.account_id, message_id,
                )  # fmt: skip
                made.append(message_id)
        return made


@pytest.fixture
def flow(steps: DeliverySteps) -> SearchFlow:
    return SearchFlow(steps)


@pytest.mark.parametrize("is_settled", [False, True])
async def test_each_filter_and_each_pair_of_them_finds_what_it_names(flow: SearchFlow, *, is_settled: bool) -> None:
    """The same before the search index has them and afterwards."""
    steps = flow.steps
    other_sender = await steps.another_sender("other")
    wanted = {
        "recipient": "bob@example.org",
        "subject": "1023 order",
        "tag": "vip",
        "source": "test",
        "sender": "billing@acme.example.com",
        "template": "welcome",
        "credential_id": ids.text(ids.CREDENTIAL, steps.sender.credential_id),
    }
    having: dict[str, set[MessageId]] = {name: set() for name in wanted}
    for bits in range(16):
        message_id = await flow.send(
            to=["ada@example.org", *(["Bob@Example.org"] if bits & 1 else [])],
            subject="Your Order #1023!" if bits & 2 else "Your order #99",
            tags=["news", "vip"] if bits & 4 else ["news"],
            mode=Mode.TEST if bits & 8 else Mode.LIVE,
        )
        having["credential_id"].add(message_id)
        for bit, name in enumerate(("recipient", "subject", "tag", "source")):
            if bits >> bit & 1:
                having[name].add(message_id)
    await steps.accept(["bob@example.org"], sender=other_sender, subject="Order 1023", tags=["vip"])
    if is_settled:
        await flow.settle()
        assert await steps.value("SELECT count(*) FROM search_index") > 0

    everything = having["credential_id"]
    assert set(await flow.all()) == everything
    for name, value in wanted.items():
        for limit in (1, 5, 50):
            assert set(await flow.all(limit, **{name: value})) == having[name], name
    for name, other in combinations(wanted, 2):
        found = await flow.all(3, **{name: wanted[name], other: wanted[other]})
        assert set(found) == having[name] & having[other], (name, other)
    assert await flow.all(recipient="nobody@example.org") == []


@pytest.mark.rule("MSL-06")
@pytest.mark.parametrize("is_settled", [False, True])
async def test_a_status_finds_those_that_have_it(flow: SearchFlow, *, is_settled: bool) -> None:
    steps = flow.steps
    (delivered,) = await steps.claimed(["a@example.org"], tags=["t"])
    first, second = await steps.claimed(["a@example.org", "b@example.org"], tags=["t"])
    (failed,) = await steps.claimed(["c@example.org"])
    (waiting,) = await steps.claimed(["d@example.org"])
    queued = [await flow.send(to=["a@example.org", "b@example.org"], tags=["t"]) for _ in range(3)]
    await steps.record(
        steps.outcome(delivered, DeliveryResult.DELIVERED),
        steps.outcome(first, DeliveryResult.DELIVERED),
        steps.outcome(second, DeliveryResult.BOUNCED),
        steps.outcome(failed, DeliveryResult.FAILED),
        steps.outcome(waiting, DeliveryResult.DEFERRED),
    )
    if is_settled:
        await flow.settle()
    assert await flow.all(status="delivered") == [delivered.message_id]
    assert await flow.all(status="partial") == [first.message_id]
    assert await flow.all(status="failed") == [failed.message_id]
    assert await flow.all(2, status="queued") == [*reversed(queued), waiting.message_id]
    assert await flow.all(status="queued", tag="t") == list(reversed(queued))
    assert await flow.all(status="delivered", tag="t") == [delivered.message_id]
    assert await flow.all(status="failed", tag="t") == []


@pytest.mark.rule("MSL-09")
async def test_new_messages_come_before_indexed_messages(flow: SearchFlow) -> None:
    old = [await flow.send(tags=["t"]) for _ in range(5)]
    await flow.settle()
    new = [await flow.send(tags=["t"]) for _ in range(5)]
    for limit in (1, 2, 4, 5, 6, 10, 11):
        assert await flow.all(limit, tag="t") == [*reversed(new), *reversed(old)], limit
        assert await flow.all(limit, tag="t", subject="hello") == [*reversed(new), *reversed(old)], limit


@pytest.mark.rule("MSL-07")
async def test_times_bound_what_is_shown(flow: SearchFlow) -> None:
    sent = []
    for _ in range(4):
        flow.steps.clock.advance(seconds=10)
        sent.append(await flow.steps.accept(tags=["t"]))
    await flow.settle()
    second, fourth = (ids.time_of(sent[place]).isoformat() for place in (1, 3))
    asked: list[dict[str, Any]] = [{}, {"tag": "t"}, {"tag": "t", "subject": "hello"}, {"status": "queued"}]
    for filters in asked:
        assert await flow.all(after=second, before=fourth, **filters) == [sent[2], sent[1]], filters
        assert await flow.all(after=fourth, before=second, **filters) == [], filters


async def test_a_message_is_listed_with_what_it_is(flow: SearchFlow) -> None:
    to = [f"r{number}@example.org" for number in range(5)]
    sent = await flow.send(to=to, subject="Hello", tags=["b", "a"])
    (listed,) = (await flow.page()).items
    assert (listed.id, listed.status, listed.source, listed.billing_status) == (sent, "queued", "api", "reserved")
    assert (list(listed.recipients), listed.recipient_count) == (to[:3], 5)
    assert (listed.sender, listed.subject, listed.tags) == ("news@acme.example.com", "Hello", ["b", "a"])
    assert (listed.template, listed.credential_id) == (None, flow.steps.sender.credential_id)
    assert abs(listed.created_at - flow.steps.clock.now()) < timedelta(seconds=1)


async def test_a_page_examines_a_bounded_number_of_unindexed_messages(flow: SearchFlow) -> None:
    needle = await flow.send(tags=["needle"])
    await flow.send_by_hand(UNINDEXED_MAX)
    page = await flow.page(tag="needle")
    assert list(page.items) == []
    assert page.next_cursor is not None
    page = await flow.page(cursor=page.next_cursor, tag="needle")
    assert [item.id for item in page.items] == [needle]
    assert page.next_cursor is None


async def test_where_two_common_filters_hardly_overlap_a_page_may_be_short(flow: SearchFlow) -> None:
    """None of the leading filter's messages match the other, for longer than one page looks."""
    flow.archive = MessageSearch(context(flow.steps.database, flow.steps.clock), examined_max=10)
    both = await flow.send_by_hand(2, subject="red blue")
    for _ in range(35):
        await flow.send_by_hand(1, subject="red")
        await flow.send_by_hand(1, subject="blue")
    newest = await flow.send_by_hand(1, subject="blue red")
    await flow.settle()
    page = await flow.page(1, subject="red blue")
    assert [item.id for item in page.items] == newest
    page = await flow.page(1, page.next_cursor, subject="red blue")
    assert (list(page.items), page.next_cursor is None) == ([], False)
    for limit in (1, 2, 50):
        assert await flow.all(limit, subject="red blue") == [*newest, *reversed(both)]
        assert await flow.all(limit, subject="red blue", recipient="many@example.org") == [*newest, *reversed(both)]


async def test_a_page_reads_a_limited_number_of_days_and_the_last_ends_with_the_first_day(flow: SearchFlow) -> None:
    """Four days are stored: today, yesterday, and two that are made here."""
    steps = flow.steps
    flow.archive = MessageSearch(context(steps.database, steps.clock), days_examined_max=1)
    today = steps.clock.now().date()
    async with steps.database.connection() as connection:
        for back in (2, 3):
            for table in partitions.TABLES:
                await partitions.create(connection, Partition(today - timedelta(days=back), table))
    sent = []
    for back in (3, 1, 0):
        clock = SettableClock(steps.clock.now() - timedelta(days=back))
        sent += await SearchFlow(replace(steps, clock=clock)).send_by_hand(2, tags=["t"])
    await flow.settle()
    assert await flow.all(1, tag="t") == sorted(sent, reverse=True)
    assert await flow.all(tag="t", subject="hello") == sorted(sent, reverse=True)
    page = await flow.page(tag="t")
    assert len(page.items) < len(sent)
    assert page.next_cursor is not None
    assert await flow.all(tag="u") == []


async def test_the_rarer_leads_so_that_it_is_found_at_once(flow: SearchFlow) -> None:
    flow.archive = MessageSearch(context(flow.steps.database, flow.steps.clock), examined_max=10)
    first = await flow.send_by_hand(1, subject="invoice 48213")
    await flow.send_by_hand(30, subject="invoice")
    await flow.settle()
    page = await flow.page(subject="invoice 48213")
    assert ([item.id for item in page.items], page.next_cursor) == (first, None)
    page = await flow.page(subject="48213", status="queued")
    assert [item.id for item in page.items] == []  # by hand: nothing is in the calendar


async def test_deleted_messages_that_are_still_indexed_are_not_shown(flow: SearchFlow) -> None:
    sent = [await flow.send(tags=["t"]) for _ in range(3)]
    await flow.settle()
    async with flow.steps.database.transaction() as tx:
        gone = ids.new_message_id(ids.time_of(sent[1]) + timedelta(milliseconds=1), bytes(10))
        await search_index.enter(tx, [IndexEntry(flow.account_id, search.term(SearchField.TAG, "t"), gone)])
    assert await flow.all(1, tag="t") == list(reversed(sent))


async def test_a_cursor_of_another_search_is_refused(flow: SearchFlow) -> None:
    for _ in range(3):
        await flow.send(tags=["t"])
    cursor = (await flow.page(1, tag="t")).next_cursor
    assert cursor is not None
    with pytest.raises(Refusal, match="another search"):
        await flow.page(1, cursor, tag="u")
    with pytest.raises(Refusal, match="another search"):
        await flow.page(1, cursor)


def test_a_page_examines_more_than_it_can_hold() -> None:
    assert UNINDEXED_MAX > PAGE_MAX


async def test_a_page_of_several_filters_is_filled_when_all_messages_match(flow: SearchFlow) -> None:
    flow.archive = MessageSearch(context(flow.steps.database, flow.steps.clock), examined_max=5)
    sent = await flow.send_by_hand(12, subject="red blue")
    await flow.settle()
    page = await flow.page(10, subject="red blue")
    assert [item.id for item in page.items] == sent[:1:-1]
    assert page.next_cursor is not None
