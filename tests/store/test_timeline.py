"""A message's timeline: whatever was written about it is found again, and nothing of its neighbours'."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest
import pytest_asyncio

from posthouse.flows.oversight import Oversight
from posthouse.rules import ids
from posthouse.rules.feedback import Note
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import feedback
from posthouse.store.deliveries import Result
from posthouse.store.schedule import Postponement, postpone
from posthouse.store.timeline import Timeline
from tests.support.rounds import LEASE, LONGEST_ATTEMPT, WAIT, Rounds, beginning


@pytest_asyncio.fixture
async def rounds(database_url: str) -> AsyncIterator[Rounds]:
    async with beginning(database_url) as begun:
        yield begun


async def timeline_of(rounds: Rounds, message_id: MessageId) -> Timeline:
    oversight = Oversight(database=rounds.database, clock=rounds.clock)
    return await oversight.timeline(ids.text(ids.MESSAGE, message_id))


async def test_a_message_is_found_in_whichever_account_has_it(rounds: Rounds) -> None:
    other = await rounds.another_sender("beta")
    mine, theirs = await rounds.accept(), await rounds.accept(["ada@example.org", "bob@example.net"], sender=other)
    assert (await timeline_of(rounds, mine)).account_name == "acme"
    found = await timeline_of(rounds, theirs)
    assert (found.account_name, found.account_id, found.id) == ("beta", other.account_id, theirs)
    assert (found.source, found.status, found.billing_status) == ("api", "queued", "reserved")
    assert (found.subject, found.recipient_count, found.credits_reserved) == ("Hello", 2, 2)
    assert found.created_at == found.read_at == rounds.clock.now()
    assert [recipient.email for recipient in found.recipients] == ["ada@example.org", "bob@example.net"]
    assert not found.is_shortened


@pytest.mark.parametrize(
    ("given_id", "code"),
    [
        ("em_00000000000000000000000000", Code.NOT_FOUND),
        pytest.param(ids.text(ids.MESSAGE, uuid4()), Code.NOT_FOUND, id="any other-not_found"),
        ("rc_00000000000000000000000000", Code.INVALID_REQUEST),
        ("hello", Code.INVALID_REQUEST),
        ("", Code.INVALID_REQUEST),
    ],
)
async def test_an_id_that_names_nothing_is_refused_in_words(rounds: Rounds, given_id: str, code: Code) -> None:
    await rounds.accept()
    with pytest.raises(Refusal) as refused:
        await Oversight(database=rounds.database, clock=rounds.clock).timeline(given_id)
    assert refused.value.code == code


async def test_mail_that_nobody_tried_yet_waits(rounds: Rounds) -> None:
    (recipient,) = (await timeline_of(rounds, await rounds.accept())).recipients
    assert recipient.waiting is not None
    assert (recipient.waiting.fence, recipient.waiting.worker_id, recipient.waiting.attempt_count) == (0, None, 0)
    assert (recipient.attempts, recipient.event, recipient.suppression, recipient.final_at) == ((), None, None, None)


async def test_attempts_come_in_their_order_and_the_event_with_the_end(rounds: Rounds) -> None:
    (first,) = await rounds.claimed()
    await rounds.record(rounds.outcome(first, Result.DEFERRED, is_ambiguous=True))
    rounds.clock.advance(WAIT)
    (second,) = await rounds.claim(await rounds.lease())
    rounds.clock.advance(seconds=20)
    delivered = rounds.outcome(second, Result.DELIVERED)
    rounds.clock.advance(seconds=2)
    await rounds.record(delivered)
    await rounds.accept()

    (recipient,) = (await timeline_of(rounds, first.message_id)).recipients
    assert [attempt.outcome for attempt in recipient.attempts] == ["deferred", "delivered"]
    assert [attempt.is_ambiguous for attempt in recipient.attempts] == [True, False]
    assert [attempt.fence for attempt in recipient.attempts] == [first.fence, second.fence]
    last = recipient.attempts[-1]
    assert (last.exchange, last.address, last.tls, last.code) == ("mx.example.org", "192.0.2.1", "TLSv1.3", 250)
    assert (recipient.status, recipient.billing_status, recipient.waiting) == ("delivered", "settled", None)
    assert recipient.final_at == rounds.clock.now()
    assert delivered.event is not None
    assert recipient.event is not None
    assert (recipient.event.id, recipient.event.type) == (delivered.event.id, "email.delivered")


async def test_each_recipient_has_its_own_event(rounds: Rounds) -> None:
    claimed = await rounds.claimed(3)
    outcomes = [rounds.outcome(one, Result.BOUNCED) for one in claimed]
    await rounds.record(*outcomes)
    found = await timeline_of(rounds, claimed[0].message_id)
    told = [recipient.event and recipient.event.id for recipient in found.recipients]
    assert told == [outcome.event and outcome.event.id for outcome in outcomes]


async def test_a_suppressed_recipient_has_an_end_and_an_event_without_an_attempt(rounds: Rounds) -> None:
    (bounced,) = await rounds.claimed(["Ada@example.org"])
    await rounds.record(rounds.outcome(bounced, Result.BOUNCED, suppress=True))
    rounds.clock.advance(hours=2)
    (suppressed,) = await rounds.claimed(["ada@Example.org"])
    assert suppressed.is_suppressed
    outcome = rounds.outcome(suppressed, Result.BOUNCED, code=None, response="suppressed", exchange=None)
    await rounds.record(outcome)
    (recipient,) = (await timeline_of(rounds, suppressed.message_id)).recipients
    assert recipient.attempts == ()
    assert recipient.suppression is not None
    assert (recipient.suppression.reason, recipient.suppression.code) == ("bounce", 550)
    assert recipient.event is not None


async def test_a_worker_is_alive_for_as_long_as_its_lease(rounds: Rounds) -> None:
    (claimed,) = await rounds.claimed()
    (recipient,) = (await timeline_of(rounds, claimed.message_id)).recipients
    assert recipient.waiting is not None
    assert (recipient.waiting.worker_id, recipient.waiting.is_worker_alive) == (rounds.worker_id, True)
    assert recipient.waiting.next_at == rounds.clock.now() + LONGEST_ATTEMPT
    rounds.clock.advance(LEASE + timedelta(seconds=1))
    (recipient,) = (await timeline_of(rounds, claimed.message_id)).recipients
    assert recipient.waiting is not None
    assert not recipient.waiting.is_worker_alive
    assert recipient.attempts[0].outcome is None


async def test_a_hold_is_told(rounds: Rounds) -> None:
    message_id = await rounds.accept()
    (ticket,) = await rounds.lease()
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        held = Postponement(ticket.account_id, message_id, 0, ticket.fence, now + WAIT, is_held=True)
        assert await postpone(tx, [held], now) == 1
    await rounds.operator.suspend(rounds.sender.account_id)
    found = await timeline_of(rounds, message_id)
    assert found.suspended_at is not None
    assert found.recipients[0].waiting is not None
    assert found.recipients[0].waiting.held_since == now


async def test_what_came_back_is_told_with_its_recipient_or_apart(rounds: Rounds) -> None:
    other, mine = await rounds.accept(2), await rounds.accept(["ada@example.org", "bob@example.net"])
    notes = [
        Note("bounce", 1, "bob@example.net", "5.1.1", 550, "5.1.1 unknown", suppress=True),
        Note("bounce", None, "eve@example.net", "5.1.1", 550, "5.1.1 unknown"),
    ]
    async with rounds.database.transaction() as tx:
        for message_id in (other, mine):
            await feedback.note(tx, AccountId(rounds.sender.account_id), message_id, notes, rounds.clock.now())
    rounds.clock.advance(hours=1)
    complained = Note("complaint", 1, "abuse", response="stop it", suppress=True)
    async with rounds.database.transaction() as tx:
        await feedback.note(tx, AccountId(rounds.sender.account_id), mine, [complained], rounds.clock.now())
    found = await timeline_of(rounds, mine)
    assert [(one.kind, one.detail) for one in found.reports] == [("bounce", "eve@example.net")]
    assert found.recipients[0].reports == ()
    assert [(one.kind, one.status, one.suppressed) for one in found.recipients[1].reports] == [
        ("bounce", "5.1.1", True),
        ("complaint", None, True),
    ]
    assert len((await timeline_of(rounds, other)).recipients[1].reports) == 1
