"""Accounting on a real database: the account as it stands, its days, and a ledger that explains every credit."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from posthouse.flows.account import usage_and_ledger
from posthouse.flows.account.usage_and_ledger import (
    AccountSummary,
    ExplainedEntry,
    Kind,
    SplitUsage,
    UsageAndLedger,
    message_id_of,
)
from posthouse.flows.operate.usage_counter import UsageCounter
from posthouse.flows.shared.account_limits import Defaults
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Refusal
from posthouse.store import ledger as store
from posthouse.store import partitions
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.partitions import Partition
from posthouse.store.usage import UsageCounts
from tests.support.accept_flow import new_id
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.locks import lock_waits

DELIVERED, BOUNCED, FAILED, DEFERRED = (
    DeliveryResult.DELIVERED, DeliveryResult.BOUNCED, DeliveryResult.FAILED, DeliveryResult.DEFERRED,
)  # fmt: skip
MOMENT: Final = timedelta(milliseconds=1)
WARMUP: Final = (200, 300)
RESERVES: Final = """
INSERT INTO ledger (account_id, message_id, position, kind, amount, at)
SELECT $1, id, -1, 'reserve', 1, $3 FROM unnest($2::uuid[]) made(id)
"""


@dataclass(slots=True)
class Counter:
    """An account's flow: mail that came to its ends, and what the account reads of it."""

    steps: DeliverySteps
    usage_and_ledger: UsageAndLedger

    @property
    def account_id(self) -> AccountId:
        return AccountId(self.steps.sender.account_id)

    async def send(self, *results: DeliveryResult | None, **how: Any) -> MessageId:
        """A message whose recipients came to these ends; None is not tried yet."""
        claimed = await self.steps.claimed(len(results), **how)
        ends = zip(claimed, results, strict=True)
        await self.steps.record(*[self.steps.outcome(claim, end) for claim, end in ends if end is not None])
        self.steps.clock.advance(MOMENT)
        return claimed[0].message_id

    async def grant(self, amount: int) -> None:
        await self.steps.operator.grant_credits(self.account_id, amount)

    async def view(self) -> AccountSummary:
        return await self.usage_and_ledger.account(self.account_id)

    async def available(self) -> int:
        return (await self.view()).account.available

    async def whole(self, limit: int = 100, **filters: Any) -> list[ExplainedEntry]:
        """All pages."""
        entries: list[ExplainedEntry] = []
        cursor = None
        while True:
            page = await self.usage_and_ledger.ledger(self.account_id, limit, cursor, **filters)
            entries += page.items
            cursor = page.next_cursor
            if cursor is None:
                return entries


@pytest.fixture
async def flow(steps: DeliverySteps) -> Counter:
    # The operator's clock is the database's, and has advanced.
    steps.clock.advance(seconds=10)
    defaults = Defaults(rate=Rate(20, 40), warmup_limits=WARMUP)
    return Counter(steps, UsageAndLedger(context(steps.database, steps.clock), defaults=defaults))


def kinds_and_amounts(entries: Sequence[ExplainedEntry]) -> list[tuple[str, int]]:
    return [(item.entry.kind.value, item.amount) for item in entries]


# The account.


async def test_reserved_is_what_is_open_and_costs(flow: Counter) -> None:
    await flow.send(DELIVERED, BOUNCED, DEFERRED, None)
    await flow.steps.accept(2)
    await flow.steps.accept(3, mode=Mode.TEST)
    view = await flow.view()
    assert (view.granted, view.account.available, view.waiting.credits) == (1_000_000, 1_000_000 - 5, 4)
    assert (view.waiting.queued, view.waiting.deferred, view.waiting.held, view.waiting.is_more) == (6, 1, 0, False)
    assert view.granted - view.account.available - view.waiting.credits == 1, "spent"


async def test_a_second_attempt_that_is_under_way_is_still_deferred(flow: Counter) -> None:
    await flow.send(DEFERRED)
    flow.steps.clock.advance(minutes=6)
    await flow.steps.renew()
    assert len(await flow.steps.claim(await flow.steps.lease())) == 1
    waiting = (await flow.view()).waiting
    assert (waiting.queued, waiting.deferred) == (0, 1)


@pytest.mark.rule("ACC-06")
async def test_the_warm_up_is_read_as_it_is_enforced(flow: Counter) -> None:
    async def warmup() -> tuple[int | None, int | None, int]:
        shown = (await flow.view()).warmup
        return shown.day, shown.limit, shown.used

    assert (await flow.view()).warmup.limit is None, "exempt"
    await flow.steps.operator.set_limits(flow.account_id, rate=None, warmup=None)
    assert await warmup() == (1, 200, 0)
    await flow.steps.accept(7)
    assert await warmup() == (1, 200, 7)
    assert (await flow.view()).midnight.date() == flow.steps.clock.now().date() + timedelta(days=1)
    flow.steps.clock.advance(days=1)
    assert await warmup() == (2, 300, 0)
    flow.steps.clock.advance(days=1)
    assert (await flow.view()).warmup.limit is None


@pytest.mark.rule("ACC-06")
async def test_the_rate_is_the_accounts_or_the_services(flow: Counter) -> None:
    assert (await flow.view()).rate == Rate(20, 40)
    await flow.steps.operator.set_limits(flow.account_id, rate=(2, 3), warmup=())
    await flow.steps.accept_flow.control_cache.forget_changes()
    view = await flow.view()
    assert (view.rate, view.reading.remaining, view.reading.reset_seconds) == (Rate(2, 3), 3, 0)
    await flow.steps.accept()
    view = await flow.view()
    assert (view.reading.remaining, view.reading.reset_seconds) == (2, 1)


@pytest.mark.rule("ACC-07")
async def test_a_warning_is_shown_while_it_counts(flow: Counter) -> None:
    async def warned(ago: timedelta, forgiven_ago: timedelta | None = None) -> datetime | None:
        now = flow.steps.clock.now()
        since = None if forgiven_ago is None else now - forgiven_ago
        query = "UPDATE accounts SET reputation_warned_at = $2, reputation_since = $3 WHERE id = $1"
        await flow.steps.fetch(query, flow.account_id, now - ago, since)
        return (await flow.view()).warned_at

    hour = timedelta(hours=1)
    assert (await flow.view()).warned_at is None
    assert await warned(hour) == flow.steps.clock.now() - hour
    assert await warned(25 * hour) is None
    assert await warned(2 * hour, forgiven_ago=hour) is None


# The days.


@pytest.mark.rule("USE-01")
async def test_every_day_has_a_row_and_the_days_together_have_their_percentiles(flow: Counter) -> None:
    today = flow.steps.clock.now().astimezone(UTC).date()
    empty = await flow.usage_and_ledger.usage(flow.account_id)
    assert (empty.counted_to, len(empty.days), empty.providers) == (None, 7, [])
    assert (empty.split_from, empty.domains, empty.tags) == (None, [], [])
    now = flow.steps.clock.now()
    await flow.steps.fetch(
        "INSERT INTO usage_counter_progress (counted_before, pass_before, recount_day, splits_since)"
        " VALUES ($1, $1, $2, $3)", now, today, partitions.bounds(today)[0],
    )  # fmt: skip
    await flow.send(DELIVERED, BOUNCED, DEFERRED, tags=["order"])
    flow.steps.clock.advance(days=1)
    await flow.steps.renew()
    await flow.send(FAILED, None)
    flow.steps.clock.advance(minutes=3)
    longest = timedelta(hours=6)
    await UsageCounter(context(flow.steps.database, flow.steps.clock), window_longest=longest).run()
    # The days of the sending: minutes may have led over midnight.
    view = await flow.usage_and_ledger.usage(flow.account_id, first=str(today), last=str(today + timedelta(days=1)))
    second, first = view.days
    assert (first.day, second.day) == (today, today + timedelta(days=1))
    assert first.usage.live == UsageCounts(accepted=3, delivered=1, bounced=1)
    assert second.usage.live == UsageCounts(accepted=2, failed=1)
    assert [(row.provider, row.results) for row in first.providers] == [("other", 2)]
    assert [(row.provider, row.results) for row in view.providers] == [("other", 3)]
    assert view.split_from == today
    of_domain = UsageCounts(accepted=5, delivered=1, bounced=1, failed=1)
    assert view.domains == [SplitUsage(flow.steps.sender.domain, of_domain)]
    assert view.tags == [SplitUsage("order", UsageCounts(accepted=3, delivered=1, bounced=1))]
    assert (view.waiting.queued, view.waiting.deferred) == (1, 1)
    assert view.counted_to is not None
    assert timedelta(0) < flow.steps.clock.now() - view.counted_to < timedelta(minutes=5)
    unknown = await flow.usage_and_ledger.usage(AccountId(uuid4()))
    assert {row.usage.live.accepted for row in unknown.days} == {0}


async def test_the_rarest_tags_are_shown_together(flow: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_and_ledger, "SPLIT_SHOWN_MAX", 2)
    today = flow.steps.clock.now().astimezone(UTC).date()
    await flow.steps.fetch(
        "INSERT INTO usage_splits (account_id, day, kind, value, accepted, delivered, bounced, failed)"
        " SELECT $1, $2, 'tag', value, accepted, 1, 0, 0"
        " FROM (VALUES ('', 9), ('a', 4), ('b', 3), ('c', 2), ('d', 1)) made(value, accepted)",
        flow.account_id,
        today,
    )
    view = await flow.usage_and_ledger.usage(flow.account_id, days="1")
    assert [(tag.value, tag.counts.accepted, tag.counts.delivered) for tag in view.tags] == [
        ("a", 4, 1),
        ("b", 3, 1),
        (None, 12, 3),
    ]


# The ledger.


async def test_every_credit_is_explained_after_a_day_of_mixed_outcomes(flow: Counter) -> None:
    await flow.grant(500)
    for results in ([DELIVERED, BOUNCED, FAILED], [DEFERRED, None], [BOUNCED, BOUNCED], [DELIVERED] * 50):
        await flow.send(*results)
    await flow.send(DELIVERED, mode=Mode.TEST)
    await flow.grant(-100)
    for limit in (1, 7, 100):
        entries = await flow.whole(limit)
        assert sum(entry.amount for entry in entries) == await flow.available()
        assert len({entry.id for entry in entries}) == len(entries) == 3 + 4 + 3 + 2 + 50
    view = await flow.view()
    settled = [item for item in entries if item.entry.kind is Kind.SETTLE]
    assert view.granted - len(settled) - view.waiting.credits == view.account.available


async def test_the_newest_message_is_first_and_its_reserve_comes_after_its_ends(flow: Counter) -> None:
    older = await flow.send(DELIVERED)
    newer = await flow.send(BOUNCED, FAILED)
    entries = await flow.whole()
    assert [(message_id_of(item.entry), item.entry.kind, item.amount) for item in entries] == [
        (newer, Kind.SETTLE, 0),
        (newer, Kind.RELEASE, 1),
        (newer, Kind.RESERVE, -2),
        (older, Kind.SETTLE, 0),
        (older, Kind.RESERVE, -1),
        (None, Kind.GRANT, 1_000_000),
    ]
    settle, release, reserve, *_, grant = entries
    assert settle.why == "Spent: the message was tried until it was given up; last said: 451 it was failed"
    assert release.why == "Returned: the message was refused for good; last said: 550 it was bounced"
    assert reserve.why == "Reserved: one credit for each of its 2 recipients."
    assert grant.why == "Granted: acceptance tests"
    assert release.fate is not None
    assert (release.fate.email, release.fate.status, release.fate.code) == ("r0@example.org", "bounced", 550)


async def test_the_ledger_says_why_a_failed_message_was_not_charged(flow: Counter) -> None:
    (claimed,) = await flow.steps.claimed(1)
    held = flow.steps.outcome(claimed, FAILED, is_released=True, code=None, response="it was held for 7 days")
    await flow.steps.record(held)
    release, *_ = await flow.whole()
    assert (release.entry.kind, release.amount) == (Kind.RELEASE, 1)
    assert release.why == "Returned: it was held for 7 days."


@pytest.mark.rule("ACC-01", "LED-04")
async def test_one_message_one_kind_or_some_days_can_be_asked_for(flow: Counter) -> None:
    first_day = flow.steps.clock.now().astimezone(UTC).date()
    older = await flow.send(DELIVERED, BOUNCED)
    flow.steps.clock.advance(days=1)
    await flow.steps.renew()
    newer = await flow.send(BOUNCED)
    about = ids.text(ids.MESSAGE, older)
    assert kinds_and_amounts(await flow.whole(1, message_id=about)) == [("release", 1), ("settle", 0), ("reserve", -2)]
    assert kinds_and_amounts(await flow.whole(message_id=about, kind="release")) == [("release", 1)]
    assert await flow.whole(message_id="em_nothing") == []
    assert await flow.whole(message_id=ids.text(ids.MESSAGE, uuid4())) == []

    assert [message_id_of(row.entry) for row in await flow.whole(1, kind="release")] == [newer, older]
    assert kinds_and_amounts(await flow.whole(kind="reserve")) == [("reserve", -1), ("reserve", -2)]
    assert kinds_and_amounts(await flow.whole(kind="grant")) == [("grant", 1_000_000)]
    assert await flow.whole(kind="day") == []

    second_day = str(first_day + timedelta(days=1))
    assert {message_id_of(row.entry) for row in await flow.whole(first=second_day)} == {newer}
    earlier = await flow.whole(last=str(first_day))
    assert {message_id_of(row.entry) for row in earlier} == {older, None}
    assert await flow.whole(first=second_day, last=str(first_day)) == []
    assert await flow.whole(first="2100-01-01") == []


async def test_a_rare_kind_is_searched_in_parts(flow: Counter) -> None:
    release = await flow.send(BOUNCED)
    await _fill(flow, store.SEARCHED_BATCH_MAX)
    first = await flow.usage_and_ledger.ledger(flow.account_id, 100, kind="release")
    assert first.items == []
    assert first.next_cursor is not None
    second = await flow.usage_and_ledger.ledger(flow.account_id, 100, first.next_cursor, kind="release")
    assert [message_id_of(item.entry) for item in second.items] == [release]
    assert second.next_cursor is None


async def _fill(flow: Counter, number: int) -> None:
    """The reserves of this many messages, inserted directly: accepting them would take too long."""
    now = flow.steps.clock.now() + MOMENT
    made = [ids.new_message_id(now, uuid4().bytes[:10]) for _ in range(number)]
    await flow.steps.fetch(RESERVES, flow.account_id, made, now)
    flow.steps.clock.advance(2 * MOMENT)


@pytest.mark.rule("LED-05")
async def test_a_day_that_is_gone_is_one_entry_and_the_sum_stays(flow: Counter) -> None:
    day = flow.steps.clock.now().astimezone(UTC).date()
    await flow.send(DELIVERED, BOUNCED, FAILED)
    async with flow.steps.database.connection() as connection:
        await partitions.detach(connection, Partition(day, "ledger"))
        async with connection.transaction():
            await partitions.drop(connection, Partition(day, "ledger"))
    flow.steps.clock.advance(days=1)
    await flow.steps.renew()
    await flow.send(DELIVERED)
    for limit in (1, 100):
        entries = await flow.whole(limit)
        assert kinds_and_amounts(entries) == [("settle", 0), ("reserve", -1), ("grant", 1_000_000), ("day", -2)]
        assert sum(entry.amount for entry in entries) == await flow.available()
    (folded,) = await flow.whole(kind="day")
    assert (folded.entry.credits, folded.entry.at.date()) == ((3, 2, 1), day)
    assert folded.why.endswith("3 reserved, 2 spent, 1 returned.")
    assert await flow.whole(first=str(day), last=str(day), kind="day") == [folded]
    assert await flow.whole(first=str(day + timedelta(days=1)), kind="day") == []


async def test_a_page_is_of_one_moment(flow: Counter) -> None:
    """Grants, days and entries are read one after the other, and all as they were before the first."""
    await flow.send(DELIVERED)
    before = kinds_and_amounts(await flow.whole())
    account_id, now = flow.account_id, flow.steps.clock.now()
    day = now.astimezone(UTC).date() - timedelta(days=3)
    async with flow.steps.database.transaction() as tx:
        await tx.execute("LOCK TABLE ledger_days IN ACCESS EXCLUSIVE MODE")
        page = asyncio.create_task(flow.usage_and_ledger.ledger(account_id, 100))
        # It has read the grants, and waits for the days.
        await lock_waits(tx)
        assert not page.done()
        folded = "INSERT INTO ledger_days (account_id, day, reserved, settled, released) VALUES ($1, $2, 5, 5, 0)"
        await tx.execute(folded, account_id, day)
        await tx.execute(RESERVES, account_id, [new_id(now)], now)
    assert kinds_and_amounts((await page).items) == before
    assert len(await flow.whole()) == len(before) + 2


@pytest.mark.rule("ACC-01", "LED-04")
async def test_another_accounts_ledger_is_not_shown(flow: Counter) -> None:
    message_id = await flow.send(DELIVERED)
    other = AccountId((await flow.steps.another_sender("other-sender")).account_id)
    theirs = await flow.usage_and_ledger.ledger(other, 100)
    assert kinds_and_amounts(theirs.items) == [("grant", 1_000_000)]
    about = ids.text(ids.MESSAGE, message_id)
    assert (await flow.usage_and_ledger.ledger(other, 100, message_id=about)).items == []


async def test_an_invented_cursor_is_refused(flow: Counter) -> None:
    stamp = "01k6wq3v5e7m8x9c0b2d4f6h80"
    for cursor in ("", "le_", f"le_{stamp}", f"em_{stamp}00", "le_" + "z" * 28, "²" * 31):
        with pytest.raises(Refusal, match="`cursor`"):
            await flow.usage_and_ledger.ledger(flow.account_id, 10, cursor)


async def test_a_cursor_from_the_end_of_time_reads_from_the_newest(flow: Counter) -> None:
    await flow.send(DELIVERED)
    highest = ids.text("le_", UUID(int=2**128 - 1)) + "99"
    page = await flow.usage_and_ledger.ledger(flow.account_id, 10, highest)
    assert kinds_and_amounts(page.items) == kinds_and_amounts(await flow.whole())


async def test_a_filter_that_cannot_be_is_refused(flow: Counter) -> None:
    for filters in ({"kind": "gift"}, {"first": "today"}, {"last": "2026-13-01"}):
        with pytest.raises(Refusal):
            await flow.whole(10, **filters)


def test_a_days_place_is_its_beginning() -> None:
    place = store.day_place(date(2026, 11, 15))
    assert ids.time_of(place.id) == datetime(2026, 11, 15, tzinfo=UTC)
