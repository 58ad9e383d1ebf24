"""Failed mail is sent again: each message once, within the account's limits, to those who may get it."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from posthouse.flows.accept.accept_transaction import AcceptTransaction
from posthouse.flows.accept.preparation import Preparation
from posthouse.flows.accept.resender import Resender
from posthouse.flows.account.resends import ResendRequest, ResendRow, Resends
from posthouse.flows.shared.account_limits import Defaults
from posthouse.flows.shared.principal import Program
from posthouse.rules import ids, limits
from posthouse.rules.ids import AccountId, ApiKeyId, MessageId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import resends as store
from tests.flows.audit import audit_findings
from tests.support.accept_flow import RATE, SIMULATOR, Sender
from tests.support.bad_input import new_seed
from tests.support.context import context
from tests.support.database_checks import database_faults
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow

STEPS_MAX: Final = 300
ROUNDS_MAX: Final = 60
DEAD: Final = "dead.example"


class Desk:
    """A delivery worker, a destination that is dead, and an account that sends again what failed there."""

    def __init__(self, flow: DeliveryFlow) -> None:
        self.flow = flow
        self.steps = flow.steps
        self.clock = flow.clock
        self.resends = Resends(context(flow.steps.database, flow.clock))
        self.began_at = flow.clock.now()

    def resender(self) -> Resender:
        control_cache = self.steps.accept_flow.control_cache
        defaults = Defaults(rate=RATE, warmup_limits=None)
        return Resender(
            context(self.steps.database, self.clock),
            control_cache=control_cache,
            preparation=Preparation(
                control_cache=control_cache,
                hostname="posthouse.test",
                offers_one_click=True,
                simulator_domain=SIMULATOR,
            ),
            transaction=AcceptTransaction(context(self.steps.database, self.clock), defaults=defaults, tickets=None),
        )

    async def fail(self, addresses: list[str], sender: Sender | None = None, **fields: Any) -> list[MessageId]:
        """A message for each of these, all final."""
        sent = [await self.steps.accept([address], sender=sender, **fields) for address in addresses]
        await self.give_up()
        return sent

    async def give_up(self) -> None:
        """A dead destination is tried less and less often: after three days, what was not taken has failed."""
        await self.flow.run_due()
        await self.flow.pass_days(3.1)
        await self.run()

    async def run(self) -> None:
        """Until no recipient is open."""
        for _ in range(ROUNDS_MAX):
            await self.flow.run_due()
            if not await self.steps.value("SELECT count(*) FROM delivery_schedule"):
                return
            self.clock.advance(minutes=20)
        raise AssertionError("some recipients are still open")

    async def begin(self, key: str = "again", sender: Sender | None = None, **fields: Any) -> ResendRow:
        given: dict[str, Any] = {
            "since": self.began_at.isoformat(),
            "until": None,
            "tag": None,
            "metadata": {},
            "destination": None,
            "is_dry_run": False,
        }
        account_id = AccountId((sender or self.steps.sender).account_id)
        caller = Program(account_id, ApiKeyId(uuid4()))
        return await self.resends.begin(caller, key, ResendRequest(**{**given, **fields}))

    async def finished(self, resend: ResendRow, resender: Resender | None = None) -> ResendRow:
        by = resender or self.resender()
        for _ in range(STEPS_MAX):
            await by.step()
            found = await self.resends.resend(resend.account_id, ids.text(ids.RESEND, resend.id))
            if found.finished_at is not None:
                return found
            self.clock.advance(seconds=1)
        raise AssertionError(f"not done: {found}")

    async def new_messages(self) -> list[tuple[UUID, UUID]]:
        """The old id and the new id of each."""
        return await self.steps.fetch("SELECT resent_from, id FROM messages WHERE resent_from IS NOT NULL ORDER BY id")

    def revive(self) -> None:
        self.flow.serve(DEAD)
        self.clock.advance(hours=2)

    def arrived(self) -> Counter[str]:
        return Counter(mail.recipient for mail in self.flow.receiver.accepted)


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with open_delivery_flow(database_url) as flow:
        flow.serve("example.org")
        # Nothing listens there.
        flow.serve(DEAD, address="127.0.0.99")
        yield Desk(flow)


def dead(count: int) -> list[str]:
    return [f"r{number}@{DEAD}" for number in range(count)]


async def content(desk: Desk, message_ids: Sequence[UUID]) -> list[Any]:
    return await desk.steps.fetch(
        "SELECT credential_id, sender, envelope_sender, subject, tags, metadata::text, mime FROM messages"
        " JOIN bodies ON message_id = messages.id WHERE messages.id = ANY($1) ORDER BY mime",
        message_ids,
    )


async def test_what_failed_becomes_new_messages_once(desk: Desk) -> None:
    old = await desk.fail(dead(30), tags=["a", "b"], metadata={"order": "7"}, subject="Ünïcode")
    assert {status for message_id in old for status in await desk.flow.statuses(message_id)} == {"failed"}
    other = await desk.steps.another_sender("other")
    theirs = await desk.fail(["x@dead.example"], other)
    available = "SELECT available FROM accounts WHERE id = $1"
    before = await desk.steps.value(available, desk.steps.sender.account_id)

    counted = await desk.finished(await desk.begin("count", is_dry_run=True))
    assert (counted.counts.matched, counted.counts.recipients, counted.counts.resent) == (30, 30, 0)
    assert await desk.new_messages() == []

    first = await desk.begin()
    done = await desk.finished(first)
    assert (await desk.begin()).id == first.id
    assert (done.status, done.counts.matched, done.counts.resent, done.counts.refused) == ("done", 30, 30, 0)
    pairs = await desk.new_messages()
    assert sorted(pair[0] for pair in pairs) == sorted(old)
    assert await content(desk, [new for _, new in pairs]) == await content(desk, old)
    assert await desk.steps.value(available, desk.steps.sender.account_id) == before - 30
    desk.revive()
    await desk.run()
    assert desk.arrived() == Counter(dead(30))
    assert await desk.flow.statuses(theirs[0]) == ["failed"]
    assert await desk.steps.value("SELECT count(*) FROM messages WHERE account_id = $1", other.account_id) == 1
    # Another key finds nothing that was not sent again.
    again = await desk.finished(await desk.begin("another key"))
    assert (again.counts.matched, again.counts.resent) == (0, 0)
    assert await audit_findings(desk.flow) == []
    assert await database_faults(desk.steps.url) == {}


async def test_only_those_who_did_not_get_it_and_may_get_it_get_it_again(desk: Desk) -> None:
    to = ["ada@example.org", "550-rcpt@example.org", *dead(3)]
    await desk.steps.accept(to, tags=["list:news"])
    await desk.give_up()
    left = "INSERT INTO unsubscriptions (account_id, mailing_list, email, at) VALUES ($1, 'news', $2, now())"
    suppressed = "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, $2, 'manual', now())"
    for number, statement in enumerate((suppressed, left)):
        await desk.steps.fetch(statement, desk.steps.sender.account_id, f"r{number}@{DEAD}")
    done = await desk.finished(await desk.begin())
    assert (done.counts.resent, done.counts.recipients, done.counts.excluded) == (1, 1, 3)
    ((_, new),) = await desk.new_messages()
    assert await desk.steps.fetch("SELECT email FROM recipients WHERE message_id = $1", new) == [(f"r2@{DEAD}",)]


async def test_filters_choose(desk: Desk) -> None:
    await desk.fail(["a@dead.example"], tags=["one"])
    await desk.fail(["b@dead.example"], metadata={"order": "1", "kind": "x"})
    await desk.fail(["c@dead.example", "451-rcpt@example.org"])
    middle = desk.clock.now()
    await desk.fail(["d@dead.example"])

    async def found(**fields: Any) -> int:
        resend = await desk.finished(await desk.begin(str(uuid4()), is_dry_run=True, **fields))
        return resend.counts.matched

    assert await found() == 5
    assert await found(tag="one") == 1
    assert await found(metadata={"order": "1"}) == 1
    assert await found(metadata={"order": "1", "kind": "y"}) == 0
    assert await found(destination="EXAMPLE.org") == 1
    assert await found(until=middle.isoformat()) == 4
    assert await found(since=middle.isoformat()) == 1


async def test_named_messages_are_sent_again_and_no_others(desk: Desk) -> None:
    old = await desk.fail(dead(4))
    theirs = await desk.fail(["x@dead.example"], await desk.steps.another_sender("other"))
    arrived = await desk.steps.accept(["ada@example.org"])
    await desk.run()
    named = [ids.text(ids.MESSAGE, each) for each in (old[2], old[0], old[2], theirs[0], arrived, uuid4())]
    request: dict[str, Any] = {"since": None, "message_ids": named}
    counted = await desk.finished(await desk.begin("count", is_dry_run=True, **request))
    assert (counted.counts.matched, counted.counts.recipients) == (2, 2)
    # A process of the version before knows only the times.
    assert counted.since == counted.until == ids.time_of(old[0])
    for key in ("send", "send", "another key"):
        await desk.finished(await desk.begin(key, **request))
    assert sorted(pair[0] for pair in await desk.new_messages()) == sorted([old[0], old[2]])
    assert (await desk.finished(await desk.begin("the others"))).counts.resent == 2


async def test_mail_without_a_body_is_counted_and_test_mail_is_not(desk: Desk) -> None:
    old = await desk.fail(dead(3))
    await desk.steps.fetch("DELETE FROM bodies WHERE message_id = $1", old[1])
    await desk.steps.fetch("UPDATE messages SET source = 'test' WHERE id = $1", old[2])
    for is_dry_run in (True, False):
        done = await desk.finished(await desk.begin(str(is_dry_run), is_dry_run=is_dry_run))
        assert (done.counts.matched, done.counts.without_body) == (1, 1)
    assert [pair[0] for pair in await desk.new_messages()] == [old[0]]


async def test_a_step_sends_no_more_than_it_may_and_the_next_continues(desk: Desk) -> None:
    await desk.fail(dead(60))
    resend = await desk.begin()
    resender = desk.resender()
    counts = []
    for _ in range(4):
        await resender.step()
        counts.append(len(await desk.new_messages()))
    assert counts == [25, 50, 60, 60]
    assert (await desk.resends.resend(resend.account_id, ids.text(ids.RESEND, resend.id))).status == "done"


async def test_a_step_has_no_more_recipients_than_any_transaction(desk: Desk) -> None:
    for number in range(7):
        await desk.steps.accept([f"r{number}-{place}@{DEAD}" for place in range(limits.RECIPIENTS_MAX)])
    await desk.give_up()
    resend = await desk.begin()
    resender = desk.resender()
    counts = []
    for _ in range(2):
        await resender.step()
        counts.append(len(await desk.new_messages()))
    assert counts == [limits.GROUP_COMMIT_RECIPIENTS_MAX // limits.RECIPIENTS_MAX, 7]
    assert (await desk.finished(resend)).status == "done"


async def test_without_credits_it_waits_and_continues_when_there_are_some(desk: Desk) -> None:
    await desk.fail(dead(10))
    account_id = desk.steps.sender.account_id
    await desk.steps.fetch("UPDATE accounts SET available = 4 WHERE id = $1", account_id)
    resend = await desk.begin()
    resender = desk.resender()
    await resender.step()
    waiting = await desk.resends.resend(resend.account_id, ids.text(ids.RESEND, resend.id))
    assert (waiting.status, waiting.waiting_for, waiting.counts.resent) == ("running", Code.INSUFFICIENT_CREDITS, 4)
    assert await resender.step() == 0
    await desk.steps.fetch("UPDATE accounts SET available = 100 WHERE id = $1", account_id)
    desk.clock.advance(minutes=2)
    done = await desk.finished(resend, resender)
    assert (done.waiting_for, done.counts.matched, done.counts.resent) == (None, 10, 10)
    assert len({pair[0] for pair in await desk.new_messages()}) == 10


async def test_a_domain_that_is_not_verified_any_more_is_refused(desk: Desk) -> None:
    await desk.fail(dead(2))
    await desk.steps.fetch("UPDATE domains SET verified_at = NULL")
    await desk.steps.fetch("UPDATE accounts SET changed_at = now()")
    desk.clock.advance(minutes=2)
    done = await desk.finished(await desk.begin())
    assert (done.status, done.counts.matched, done.counts.refused, done.counts.resent) == ("done", 2, 2, 0)


async def test_a_suspended_account_waits_and_a_resend_ends_after_three_days(desk: Desk) -> None:
    await desk.fail(dead(2))
    await desk.steps.suspend()
    resend = await desk.begin()
    resender = desk.resender()
    await resender.step()
    await desk.flow.pass_days(3.1)
    await desk.steps.resume()
    done = await desk.finished(resend, resender)
    assert (done.status, done.waiting_for, done.counts.resent) == ("stopped", Code.ACCOUNT_SUSPENDED, 0)


async def test_one_resend_at_a_time_and_a_key_for_each(desk: Desk) -> None:
    await desk.fail(dead(1))
    first = await desk.begin("one")
    with pytest.raises(Refusal, match="running") as refused:
        await desk.begin("two")
    assert refused.value.code is Code.CONFLICT
    with pytest.raises(Refusal) as refused:
        await desk.begin("one", tag="x")
    assert refused.value.code is Code.IDEMPOTENCY_CONFLICT
    caller = Program(first.account_id, ApiKeyId(uuid4()))
    assert (await desk.resends.stop(caller, ids.text(ids.RESEND, first.id))).status == "stopped"
    assert await desk.resender().step() == 0
    assert await desk.new_messages() == []
    await desk.finished(await desk.begin("two"))
    assert len(await desk.new_messages()) == 1
    # Another account's key is its own.
    assert (await desk.begin("one", await desk.steps.another_sender("other"))).id != first.id


async def test_of_two_processes_that_make_the_same_step_one_does(desk: Desk) -> None:
    await desk.fail(dead(40))
    resend = await desk.begin()
    both = [desk.resender(), desk.resender()]
    for _ in range(6):
        await asyncio.gather(*[resender.step() for resender in both])
    done = await desk.finished(resend)
    assert (done.counts.matched, done.counts.resent) == (40, 40)
    assert len({pair[0] for pair in await desk.new_messages()}) == len(await desk.new_messages()) == 40


async def test_steps_that_are_cut_off_anywhere_send_each_message_once(desk: Desk) -> None:
    await desk.fail(dead(60))
    seed = new_seed()
    randomness = random.Random(seed)
    resend = await desk.begin()
    for _ in range(12):
        step = asyncio.create_task(desk.resender().step())
        # Real time: wherever the step has come to by then.
        await asyncio.sleep(randomness.random() * 0.2)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
    done = await desk.finished(resend)
    assert (done.counts.matched, done.counts.resent) == (60, 60)
    assert len({pair[0] for pair in await desk.new_messages()}) == len(await desk.new_messages()) == 60
    assert await database_faults(desk.steps.url) == {}


async def test_what_is_finished_is_forgotten_after_a_while(desk: Desk) -> None:
    await desk.fail(dead(1))
    done = await desk.finished(await desk.begin())
    async with desk.steps.database.transaction() as tx:
        assert await store.forget_old(tx, done.created_at, 10) == 0
        assert await store.forget_old(tx, desk.clock.now() + timedelta(seconds=1), 10) == 1
