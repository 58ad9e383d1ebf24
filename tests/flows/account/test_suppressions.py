"""Suppression on a real database: which reason outranks which, removal and reputation, batched imports, plans."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from posthouse.flows.account.suppressions import BATCH, HELD_FOR, Import, ImportProgress, Suppressions
from posthouse.flows.inbound.reputation import Reputation, ReputationRun
from posthouse.rules.credential import OPERATOR
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.reputation import WINDOW
from posthouse.rules.suppression import MANUAL_MAX
from posthouse.store import reports
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.maintenance import new_maintenance

UNKNOWN: dict[str, Any] = {"stage": "rcpt", "response": "5.1.1 unknown", "suppress": True}


class SuppressionFlow:
    def __init__(self, steps: DeliverySteps) -> None:
        self.steps = steps
        self.suppression = Suppressions(context(steps.database, steps.clock))
        self.reputation = Reputation(context(steps.database, steps.clock))

    @property
    def account_id(self) -> AccountId:
        return AccountId(self.steps.sender.account_id)

    async def add(self, email: str, note: str | None = None) -> tuple[str, bool]:
        row, is_new = await self.suppression.add(self.account_id, OPERATOR, email, note)
        return row.reason, is_new

    async def bounce(self, *emails: str) -> None:
        claimed = await self.steps.claimed(list(emails))
        await self.steps.record(*[self.steps.outcome(row, DeliveryResult.BOUNCED, **UNKNOWN) for row in claimed])

    async def reason(self, email: str) -> str | None:
        found: str | None = await self.steps.value("SELECT reason FROM suppressions WHERE email = $1", email)
        return found

    async def bring_in(self, *chunks: bytes, importing: Import | None = None, fault: Exception | None = None) -> Import:
        importing = importing or await self.suppression.begin_import(self.account_id, OPERATOR)
        async with aclosing(self.suppression.bring_in(importing, given(*chunks, fault=fault))) as brought_in:
            async for _ in brought_in:
                pass
        return importing

    async def log(self) -> list[tuple[str, str]]:
        query = "SELECT action, target FROM audit_log WHERE action LIKE 'suppression%' ORDER BY at, target"
        return [tuple(row) for row in await self.steps.fetch(query)]

    async def count(self) -> int:
        number: int = await self.steps.value("SELECT count(*) FROM suppressions")
        return number


async def given(*chunks: bytes, fault: Exception | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if fault is not None:
        raise fault


async def refused(doing: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await doing
    return caught.value


def addresses(count: int, start: int = 0) -> bytes:
    return b"".join([b"r%06d@example.org\n" % (start + row) for row in range(count)])


@pytest.fixture
def flow(steps: DeliverySteps) -> SuppressionFlow:
    return SuppressionFlow(steps)


async def test_a_bounce_outranks_what_was_entered_and_a_complaint_outranks_both(flow: SuppressionFlow) -> None:
    claimed = await flow.steps.claimed(["Ada@example.org", "bob@example.org"])
    assert await flow.add("ada@example.org", "by hand") == ("manual", True)
    assert await flow.add("ADA@example.org") == ("manual", False)
    # Both messages were under way when the address was entered.
    await flow.steps.record(*[flow.steps.outcome(row, DeliveryResult.BOUNCED, **UNKNOWN) for row in claimed])
    assert await flow.add("ada@example.org") == ("bounce", False)
    assert await flow.steps.value("SELECT note FROM suppressions WHERE email = 'ada@example.org'") == "by hand"
    await flow.add("eve@example.org")
    entered = ("ada@example.org", "eve@example.org")
    async with flow.steps.database.transaction() as tx:
        complaints = [reports.NewSuppression(flow.account_id, email, "complaint", None, "") for email in entered]
        assert await reports.suppress(tx, complaints, flow.steps.clock.now()) == 2
    assert [await flow.reason(email) for email in entered] == ["complaint"] * 2
    assert await flow.log() == [("suppression.added", email) for email in entered]


async def test_the_same_address_twice_in_one_batch_of_results_is_one_suppression(flow: SuppressionFlow) -> None:
    claimed = [*await flow.steps.claimed(["ada@example.org"]), *await flow.steps.claimed(["ADA@example.org"])]
    await flow.add("ada@example.org")
    await flow.steps.record(*[flow.steps.outcome(row, DeliveryResult.BOUNCED, **UNKNOWN) for row in claimed])
    assert await flow.reason("ada@example.org") == "bounce"


async def test_what_was_entered_is_honoured_by_the_claim_until_it_is_removed(flow: SuppressionFlow) -> None:
    await flow.add("ada@example.org")
    assert [row.is_suppressed for row in await flow.steps.claimed(["Ada@Example.org"])] == [True]
    await flow.suppression.remove(flow.account_id, OPERATOR, "Ada@example.org", "a mistake")
    assert [row.is_suppressed for row in await flow.steps.claimed(["Ada@Example.org"])] == [False]


@pytest.mark.rule("SUP-06")
async def test_removing_a_bounced_address_hides_nothing_from_reputation(flow: SuppressionFlow) -> None:
    delivered = [row for _ in range(4) for row in await flow.steps.claimed(45)]
    await flow.steps.record(*[flow.steps.outcome(row, DeliveryResult.DELIVERED) for row in delivered])
    emails = [f"bounced{number}@example.org" for number in range(21)]
    await flow.bounce(*emails)
    for email in emails:
        await flow.suppression.remove(flow.account_id, OPERATOR, email, "please")
    assert await flow.count() == 0
    flow.steps.clock.advance(seconds=30)
    assert (await flow.reputation.run()) == ReputationRun(checked=1, suspended=1)


async def test_manual_suppressions_do_not_count_for_reputation(flow: SuppressionFlow) -> None:
    await flow.bring_in(addresses(50))
    assert await flow.reputation.run() == ReputationRun()
    await flow.suppression.remove(flow.account_id, OPERATOR, "r000001@example.org", "a mistake")
    assert await flow.steps.value("SELECT count(*) FROM removed_suppressions") == 0


async def test_maintenance_forgets_removed_addresses_once_they_count_no_more(flow: SuppressionFlow) -> None:
    await flow.bounce("ada@example.org", "bob@example.org")
    await flow.suppression.remove(flow.account_id, OPERATOR, "ada@example.org", "please")
    maintenance = new_maintenance(flow.steps.database, flow.steps.clock)
    counts = []
    for moment in (WINDOW, timedelta(seconds=1)):
        flow.steps.clock.advance(moment)
        await maintenance.forget_expired()
        counts.append(await flow.steps.value("SELECT count(*) FROM removed_suppressions"))
    assert counts == [1, 0]
    # What is older needn't be stored at all.
    await flow.suppression.remove(flow.account_id, OPERATOR, "bob@example.org", "please")
    assert await flow.steps.value("SELECT count(*) FROM removed_suppressions") == 0


async def test_the_log_says_who_removed_what_and_why(flow: SuppressionFlow) -> None:
    await flow.bounce("ada@example.org")
    await flow.steps.fetch("UPDATE suppressions SET reason = 'complaint'")
    await flow.suppression.remove(flow.account_id, OPERATOR, "ada@example.org", "She asked us to.")
    (row,) = await flow.steps.fetch(
        "SELECT actor, action, target, detail FROM audit_log WHERE action LIKE 'suppression%'"
    )
    assert tuple(row)[:3] == ("operator", "suppression.removed", "ada@example.org")
    assert '"was": "complaint"' in row[3]
    assert "She asked us to." in row[3]


@pytest.mark.rule("SUP-12")
async def test_an_import_enters_whole_batches_and_can_be_repeated(flow: SuppressionFlow) -> None:
    await flow.bounce("r000000@example.org")
    importing = await flow.suppression.begin_import(flow.account_id, OPERATOR)
    with pytest.raises(ConnectionResetError):
        await flow.bring_in(addresses(2 * BATCH + 100), importing=importing, fault=ConnectionResetError())
    entered = await flow.count()
    assert BATCH <= entered < 2 * BATCH + 100
    assert importing.progress.added == entered - 1
    again = await flow.bring_in(addresses(2 * BATCH + 100))
    assert again.progress == ImportProgress(
        lines=2 * BATCH + 100, added=2 * BATCH + 100 - entered, known=entered, invalid=0
    )
    assert await flow.reason("r000000@example.org") == "bounce"
    assert [action for action, _ in await flow.log()] == ["suppressions.import_began", "suppressions.imported"] * 2


@pytest.mark.rule("SUP-13")
async def test_one_import_at_a_time_and_an_idle_one_gives_way(flow: SuppressionFlow) -> None:
    first = await flow.suppression.begin_import(flow.account_id, OPERATOR)
    refusal = await refused(flow.suppression.begin_import(flow.account_id, OPERATOR))
    assert (refusal.code, refusal.retry_after_seconds) == (Code.CONFLICT, 60)
    # Another account doesn't mind.
    other = await flow.steps.another_sender("beta")
    await flow.suppression.begin_import(AccountId(other.account_id), OPERATOR)
    flow.steps.clock.advance(HELD_FOR)
    second = await flow.suppression.begin_import(flow.account_id, OPERATOR)
    refusal = await refused(flow.bring_in(addresses(10), importing=first))
    assert refusal.code is Code.CONFLICT
    # The end of the first is not that of the second.
    assert (await refused(flow.suppression.begin_import(flow.account_id, OPERATOR))).code is Code.CONFLICT
    await flow.bring_in(addresses(1), importing=second)
    assert await flow.count() == 1
    await flow.bring_in(addresses(2))


async def test_a_file_has_no_more_lines_than_the_limit(flow: SuppressionFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.flows.account.suppressions.IMPORT_LINES_MAX", 100)
    assert (await flow.bring_in(addresses(3), b"\n" * 97)).progress.added == 3
    refusal = await refused(flow.bring_in(addresses(3, start=3), b"\n" * 98))
    assert refusal.code is Code.PAYLOAD_TOO_LARGE
    assert await flow.count() == 6


async def test_an_account_enters_no_more_addresses_than_it_may(flow: SuppressionFlow) -> None:
    await flow.add("ada@example.org")
    await flow.steps.fetch("UPDATE suppression_counts SET manual = $1", MANUAL_MAX - 1)
    assert (await refused(flow.bring_in(addresses(2)))).code is Code.CONFLICT
    await flow.bring_in(addresses(1))
    assert (await refused(flow.add("bob@example.org"))).code is Code.CONFLICT
    await flow.suppression.remove(flow.account_id, OPERATOR, "ada@example.org", "to free a place")
    await flow.add("bob@example.org")
    # What is there already needs no space.
    await flow.bring_in(addresses(1))


async def test_an_import_and_results_of_the_same_addresses_both_end(flow: SuppressionFlow) -> None:
    claimed = [row for _ in range(4) for row in await flow.steps.claimed(50)]
    emails = b"".join([f"{claim.email}\n".encode() for claim in reversed(claimed)])

    async def results() -> None:
        for at in range(0, 50, 10):
            rows = [flow.steps.outcome(row, DeliveryResult.BOUNCED, **UNKNOWN) for row in claimed[at : at + 10]]
            await flow.steps.record(*rows)

    await asyncio.gather(flow.bring_in(emails), results())
    assert await flow.steps.value("SELECT count(*) FROM suppressions WHERE reason = 'bounce'") == 50


async def test_pages_are_newest_first_whatever_the_reason(flow: SuppressionFlow) -> None:
    expected = []
    for number in range(5):
        flow.steps.clock.advance(seconds=1)
        await flow.bounce(f"b{number}@example.org")
        await flow.add(f"m{number}@example.org")
        expected += [f"b{number}@example.org", f"m{number}@example.org"]
    flow.steps.clock.advance(seconds=1)
    await flow.bring_in(b"".join([b"z%d@example.net\n" % row for row in range(5)]))
    expected += [f"z{number}@example.net" for number in range(5)]

    async def pages(count: int, **filters: str) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = await flow.suppression.page(flow.account_id, count, cursor, **filters)
            found += [item.email for item in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return found

    wanted = sorted(expected[:10], key=lambda row: (row[1], row[0]), reverse=True)
    for count in (1, 3, 100):
        assert await pages(count) == [*reversed(expected[10:]), *wanted]
        assert await pages(count, search="@example.org") == wanted
        assert await pages(count, search="@example.org", reason="bounce") == [row for row in wanted if row[0] == "b"]
        manual = [row for row in wanted if row[0] == "m"]
        assert await pages(count, reason="manual") == [*reversed(expected[10:]), *manual]
        assert await pages(count, search="M") == sorted(row for row in expected if row[0] == "m")
        assert await pages(count, search="z1@example.net") == ["z1@example.net"]


async def test_many_lines_are_entered_and_known_again_and_given_back(flow: SuppressionFlow) -> None:
    count = 3 * BATCH + 100
    lines = addresses(count)
    pieces = [lines[at : at + 16_384] for at in range(0, len(lines), 16_384)]
    assert (await flow.bring_in(*pieces)).progress == ImportProgress(count, count, 0, 0)
    assert (await flow.bring_in(*pieces)).progress == ImportProgress(count, 0, count, 0)
    exported = [row.email async for batch in flow.suppression.export(flow.account_id) for row in batch]
    assert exported == sorted(exported)
    assert len(exported) == count
