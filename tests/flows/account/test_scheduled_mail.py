"""A sender cancels mail: none of its recipients gets it, or it was tried; each credit is returned once."""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final
from uuid import UUID

import pytest

from posthouse.flows.account.message_changes import MessageChanges
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.shared.account_limits import Defaults
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.ids import MessageId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.messages import StoredMessage
from posthouse.wire.stream import TicketKind
from tests.flows.audit import audit_findings
from tests.support.accept_flow import RATE, Sender
from tests.support.bad_input import new_seed
from tests.support.context import context
from tests.support.delivery_flow import SHARDS, DeliveryFlow, PausingCarrier, open_delivery_flow
from tests.support.eventually import HANG_SECONDS

RACES: Final = int(os.environ.get("RACES", "100"))
BATCH: Final = 25


class Desk:
    """A delivery worker, and a sender."""

    def __init__(self, flow: DeliveryFlow) -> None:
        self.flow = flow
        self.steps = flow.steps
        defaults = Defaults(rate=RATE, warmup_limits=None)
        given = context(flow.steps.database, flow.clock)
        self.unsent = MessageChanges(given, search=MessageSearch(given), defaults=defaults)

    async def cancel(
        self, message_id: UUID, sender: Sender | None = None, mode: Mode = Mode.LIVE
    ) -> StoredMessage | Code:
        by = sender or self.steps.sender
        try:
            return await self.unsent.cancel(by.principal(mode), ids.text(ids.MESSAGE, message_id))
        except Refusal as refusal:
            return refusal.code

    async def move(self, message_id: UUID, **ahead: float) -> StoredMessage | Code:
        send_at = (self.flow.clock.now() + timedelta(**ahead)).isoformat()
        try:
            principal = self.steps.sender.principal()
            return await self.unsent.move(principal, ids.text(ids.MESSAGE, message_id), send_at)
        except Refusal as refusal:
            return refusal.code

    async def available(self) -> int:
        query = "SELECT available FROM accounts WHERE id = $1"
        return int(await self.steps.value(query, self.steps.sender.account_id))

    async def later(self, to: list[str] | None = None) -> MessageId:
        send_at = self.flow.clock.now() + timedelta(hours=1)
        return await self.steps.accept(to or ["ada@example.org"], send_at=send_at.isoformat())


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with open_delivery_flow(database_url) as flow:
        flow.serve("example.org")
        yield Desk(flow)


@pytest.mark.rule("LATER-04", "LATER-06")
async def test_cancelled_mail_is_not_sent_and_its_credits_are_returned_once(desk: Desk) -> None:
    before = await desk.available()
    message_id = await desk.later(["ada@example.org", "bob@example.org"])
    assert await desk.available() == before - 2
    for _ in range(2):
        answer = await desk.cancel(message_id)
        assert isinstance(answer, StoredMessage)
        assert (answer.status, answer.billing_status) == ("failed", "released")
        assert {row.status for row in answer.recipients} == {"cancelled"}
        assert {row.billing_status for row in answer.recipients} == {"released"}
    assert await desk.available() == before
    desk.flow.clock.advance(hours=1)
    assert await desk.flow.run_due() == 0
    assert desk.flow.receiver.accepted == []
    assert await desk.steps.value("SELECT count(*) FROM events") == 0
    assert await audit_findings(desk.flow) == []


async def test_a_ticket_that_is_out_is_void_once_its_mail_is_cancelled_or_moved(desk: Desk) -> None:
    for change in (desk.cancel, lambda moved: desk.move(moved, hours=1)):
        message_id = await desk.later()
        desk.flow.clock.advance(hours=1)
        tickets = await desk.steps.lease()
        assert isinstance(await change(message_id), StoredMessage)
        assert await desk.steps.claim(tickets) == []
    assert await desk.steps.value("SELECT count(*) FROM attempts") == 0


@pytest.mark.rule("LATER-05")
async def test_what_a_worker_has_claimed_is_not_cancelled(desk: Desk) -> None:
    message_id = await desk.steps.accept(["ada@example.org", "bob@example.org"])
    tickets = await desk.steps.lease()
    await desk.steps.claim(tickets[:1])
    assert await desk.cancel(message_id) is Code.CONFLICT
    assert await desk.flow.statuses(message_id) == ["queued", "queued"]


@pytest.mark.rule("LATER-05")
@pytest.mark.parametrize("to", ["ada", "450-rcpt", "550-rcpt", "ada 450-rcpt"])
async def test_what_was_tried_is_not_cancelled_neither_as_a_whole_nor_in_part(desk: Desk, to: str) -> None:
    message_id = await desk.steps.accept([f"{name}@example.org" for name in to.split()])
    await desk.flow.run_due()
    before = await desk.flow.recipients(message_id)
    assert await desk.cancel(message_id) is Code.CONFLICT
    assert await desk.flow.recipients(message_id) == before


async def test_a_claim_that_sends_nothing_does_not_stop_a_cancellation(desk: Desk) -> None:
    message_id = await desk.steps.accept()
    suppressed = "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, $2, 'manual', $3)"
    await desk.steps.fetch(suppressed, desk.steps.sender.account_id, "r0@example.org", desk.flow.clock.now())
    (claimed,) = await desk.steps.claim(await desk.steps.lease())
    assert claimed.is_suppressed
    assert isinstance(await desk.cancel(message_id), StoredMessage)


async def test_mail_held_since_a_restore_is_not_cancelled(desk: Desk) -> None:
    message_id = await desk.later()
    await desk.steps.fetch("UPDATE delivery_schedule SET held_by = 'restore', held_since = $1", desk.flow.clock.now())
    assert await desk.cancel(message_id) is Code.CONFLICT


async def test_another_accounts_message_is_unknown_and_so_is_live_mail_to_a_test_key(desk: Desk) -> None:
    message_id = await desk.later()
    other = await desk.steps.another_sender("other")
    assert await desk.cancel(message_id, other) is Code.NOT_FOUND
    assert await desk.cancel(message_id, mode=Mode.TEST) is Code.NOT_FOUND
    assert await desk.flow.statuses(message_id) == ["queued"]


async def test_a_worker_that_holds_a_message_before_it_connects_wins(desk: Desk) -> None:
    flow, pausing = desk.flow, PausingCarrier(desk.flow.carrier, sets_out=False)
    worker = flow.another_worker(carrier=pausing)
    message_id = await desk.later()
    flow.clock.advance(hours=1)
    await worker.renew()
    await flow.dispatch.step()
    await worker.offer(await flow.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10, 0))
    await asyncio.wait_for(pausing.claimed.wait(), HANG_SECONDS)
    assert await desk.cancel(message_id) is Code.CONFLICT
    pausing.resume.set()
    await worker.settle()
    assert await flow.statuses(message_id) == ["delivered"]


# Another time.


@pytest.mark.parametrize("minutes", [0, 30, 90, 60 * 24 * 30])
async def test_moved_mail_is_sent_at_its_new_time_and_not_before(desk: Desk, minutes: int) -> None:
    message_id = await desk.later()
    moved = await desk.move(message_id, minutes=minutes)
    assert isinstance(moved, StoredMessage)
    assert moved.send_at == desk.flow.clock.now() + timedelta(minutes=minutes)
    if minutes:
        desk.flow.clock.advance(timedelta(minutes=minutes) - timedelta(microseconds=1))
        await desk.flow.pass_days(0)
        assert await desk.flow.run_due() == 0
        desk.flow.clock.advance(microseconds=1)
    assert await desk.flow.run_due() == 1
    assert await desk.flow.statuses(message_id) == ["delivered"]
    assert await audit_findings(desk.flow) == []


async def test_the_end_of_a_suspension_does_not_send_moved_mail_early(desk: Desk) -> None:
    message_id = await desk.later()
    await desk.steps.operator.suspend(desk.steps.sender.account_id)
    desk.flow.clock.advance(hours=1)
    await desk.flow.run_due()
    assert isinstance(await desk.move(message_id, hours=5), StoredMessage)
    await desk.steps.operator.resume(desk.steps.sender.account_id)
    assert await desk.flow.run_due() == 0
    desk.flow.clock.advance(hours=5)
    assert await desk.flow.run_due() == 1


async def test_an_operators_hold_outlasts_a_move(desk: Desk) -> None:
    message_id = await desk.later()
    hold = (
        "UPDATE delivery_schedule SET held_by = 'operator', held_since = $1, due_at = next_at, next_at = '9999-01-01'"
    )
    await desk.steps.fetch(hold, desk.flow.clock.now())
    assert isinstance(await desk.move(message_id, hours=2), StoredMessage)
    desk.flow.clock.advance(hours=3)
    assert await desk.flow.run_due() == 0
    query = "SELECT due_at FROM delivery_schedule WHERE held_by = 'operator'"
    assert await desk.steps.value(query) == desk.flow.clock.now() - timedelta(hours=1)


@pytest.mark.rule("LATER-08")
async def test_what_was_tried_cancelled_or_never_scheduled_is_not_moved(desk: Desk) -> None:
    tried, cancelled, plain = await desk.later(), await desk.later(), await desk.steps.accept()
    assert await desk.move(plain, hours=1) is Code.CONFLICT
    await desk.cancel(cancelled)
    assert await desk.move(cancelled, hours=1) is Code.CONFLICT
    assert await desk.move(tried, days=31) is Code.INVALID_REQUEST
    desk.flow.clock.advance(hours=1)
    await desk.flow.run_due()
    assert await desk.move(tried, hours=1) is Code.CONFLICT


async def test_the_warm_up_counts_moved_mail_only_on_its_new_day(desk: Desk) -> None:
    clock, sender = desk.flow.clock, desk.steps.sender
    await desk.steps.operator.set_limits(sender.account_id, rate=None, warmup=(5, 5, 1))
    await desk.steps.fetch("UPDATE accounts SET warmup_exempt = false")
    to = ["ada@example.org", "bob@example.org"]

    async def ahead() -> dict[str, int]:
        found = await desk.steps.value("SELECT warmup_ahead FROM accounts WHERE id = $1", sender.account_id)
        return {day: count for day, count in json.loads(found or "{}").items() if count}

    await desk.steps.accept(["cy@example.org"])
    today = clock.now().date()
    message_id = await desk.steps.accept(to, send_at=(clock.now() + timedelta(days=1)).isoformat())
    assert await ahead() == {str(today + timedelta(days=1)): 2}
    # The third day has capacity for one.
    assert await desk.move(message_id, days=2) is Code.WARMUP_LIMITED
    assert await ahead() == {str(today + timedelta(days=1)): 2}
    assert isinstance(await desk.move(message_id, days=5), StoredMessage)
    assert await ahead() == {str(today + timedelta(days=5)): 2}
    assert isinstance(await desk.move(message_id), StoredMessage)
    assert await ahead() == {}
    assert await desk.steps.value("SELECT warmup_used FROM accounts WHERE id = $1", sender.account_id) == 3


async def test_a_cancellation_gives_a_later_day_of_the_warm_up_back(desk: Desk) -> None:
    clock, sender = desk.flow.clock, desk.steps.sender
    await desk.steps.operator.set_limits(sender.account_id, rate=None, warmup=(2, 2, 2))
    await desk.steps.fetch("UPDATE accounts SET warmup_exempt = false")
    tomorrow = (clock.now() + timedelta(days=1)).isoformat()
    to = ["ada@example.org", "bob@example.org"]
    for _ in range(2):
        assert isinstance(await desk.cancel(await desk.steps.accept(to, send_at=tomorrow)), StoredMessage)
    await desk.steps.accept(to, send_at=tomorrow)
    with pytest.raises(Refusal, match="warm-up"):
        await desk.steps.accept(["cy@example.org"], send_at=tomorrow)


@pytest.mark.rule("LATER-10")
async def test_cancellations_have_the_accounts_own_rate_of_sending(desk: Desk) -> None:
    message_id = await desk.later()
    await desk.steps.operator.set_limits(desk.steps.sender.account_id, rate=(1, 2), warmup=None)
    answers = [await desk.cancel(message_id) for _ in range(3)]
    assert [isinstance(answer, StoredMessage) for answer in answers] == [True, True, False]
    assert answers[2] is Code.RATE_LIMITED
    desk.flow.clock.advance(timedelta(seconds=1))
    assert isinstance(await desk.cancel(message_id), StoredMessage)


# Races.


async def race(desk: Desk, races: int, randomness: random.Random) -> Counter[str]:
    """Mail that becomes due and is cancelled at the same moment, many at a time."""
    flow, counts = desk.flow, Counter[str]()
    for start in range(0, races, BATCH):
        addresses = [f"r{number}@example.org" for number in range(start, start + BATCH)]
        messages = {address: await desk.later([address]) for address in addresses}
        # An hour: the mail is due, and ten thousand races take more days than partitions are created for.
        await flow.pass_days(1 / 24)
        # Workers are as fast as the machine.
        longest = randomness.choice((0.05, 0.2, 0.5, 1.0))

        async def cancel(message_id: MessageId, longest: float = longest) -> StoredMessage | Code:
            await asyncio.sleep(randomness.random() * longest)
            # On a slow machine it may wait too long for its locks; then nothing was changed.
            while (answer := await desk.cancel(message_id)) is Code.TEMPORARY_FAILURE:
                pass
            return answer

        *answers, _ = await asyncio.gather(*map(cancel, messages.values()), flow.run_due())
        # What a cancellation had locked is due at the next step.
        flow.clock.advance(minutes=2)
        await flow.run_due()
        got = Counter(mail.recipient for mail in flow.receiver.accepted)
        for (address, message_id), answer in zip(messages.items(), answers, strict=True):
            (status,) = await flow.statuses(message_id)
            attempts = await desk.steps.value("SELECT count(*) FROM attempts WHERE message_id = $1", message_id)
            if isinstance(answer, StoredMessage):
                counts["cancelled"] += 1
                assert (status, attempts, got[address]) == ("cancelled", 0, 0)
            else:
                counts["tried"] += 1
                assert answer is Code.CONFLICT
                assert (status, attempts, got[address]) == ("delivered", 1, 1)
    return counts


async def check_races(desk: Desk, races: int) -> None:
    seed = new_seed()
    before = await desk.available()
    counts = await race(desk, races, random.Random(seed))
    print(counts)
    assert min(counts["cancelled"], counts["tried"]) > 0
    assert await desk.available() == before - counts["tried"]
    assert await desk.steps.value("SELECT count(*) FROM delivery_schedule") == 0
    assert await audit_findings(desk.flow) == []


async def test_of_each_race_between_cancel_and_claim_one_wins(desk: Desk) -> None:
    await check_races(desk, RACES)


@pytest.mark.nightly
async def test_of_10_000_races_between_cancel_and_claim_one_wins_each(desk: Desk) -> None:
    await check_races(desk, 10_000)
