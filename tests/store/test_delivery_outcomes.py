"""Claims and outcomes: who may try, what follows from a result, and that it follows once."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import chain, combinations_with_replacement
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId
from posthouse.rules.message import message_state
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult, NewEvent
from posthouse.store.postgres import SETTINGS
from tests.support.bad_input import new_seed
from tests.support.database_checks import database_faults
from tests.support.delivery_steps import LEASE, WAIT, DeliverySteps, outcome, record_on

RECIPIENT = "SELECT status, billing_status, attempt_count, last_smtp_code, last_smtp_response FROM recipients"
FINAL = (DeliveryResult.DELIVERED, DeliveryResult.BOUNCED, DeliveryResult.FAILED)
# A claim can end this way; what is cancelled was never claimed.
RESULTS = [result for result in DeliveryResult if result is not DeliveryResult.CANCELLED]


async def available(steps: DeliverySteps) -> int:
    number: int = await steps.value("SELECT available FROM accounts WHERE id = $1", steps.sender.account_id)
    return number


async def state(steps: DeliverySteps) -> list[Any]:
    """Everything that an outcome may change, as stored."""
    tables = ("messages", "recipients", "attempts", "delivery_schedule", "ledger", "events", "suppressions", "accounts")
    return [await steps.fetch(f"SELECT xmin::text, ctid::text, t::text FROM {table} t ORDER BY 3") for table in tables]


# Days


@pytest.mark.parametrize("hours_later", [0, 60])
async def test_mail_of_two_days_is_claimed_and_recorded_together(steps: DeliverySteps, hours_later: int) -> None:
    """Where all of a batch is of one recent day, only that day's partitions are asked."""
    now = steps.clock.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    steps.clock.advance(midnight - now - timedelta(minutes=1))
    await steps.accept()
    steps.clock.advance(timedelta(minutes=2))
    await steps.accept()
    steps.clock.advance(timedelta(hours=hours_later))
    first, second = await steps.claim(await steps.lease())
    assert first.message.mime is not None
    assert second.message.mime is not None
    recorded = await steps.record(*[steps.outcome(claimed, DeliveryResult.DELIVERED) for claimed in (first, second)])
    assert len(recorded.counted) == 2
    assert await steps.fetch("SELECT status, count(*) FROM messages GROUP BY 1") == [("delivered", 2)]


async def test_mail_of_one_day_is_claimed_and_recorded_days_later(steps: DeliverySteps) -> None:
    await steps.accept(2)
    steps.clock.advance(timedelta(hours=60))
    claimed = await steps.claim(await steps.lease())
    recorded = await steps.record(*[steps.outcome(each, DeliveryResult.BOUNCED) for each in claimed])
    assert len(recorded.counted) == 2
    assert await steps.fetch("SELECT status, count(*) FROM recipients GROUP BY 1") == [("bounced", 2)]
    ledger = await steps.fetch("SELECT kind, count(*) FROM ledger GROUP BY 1 ORDER BY 1")
    assert ledger == [("release", 2), ("reserve", 1)]


# Claims


async def test_a_claim_has_all_that_an_attempt_needs(steps: DeliverySteps) -> None:
    message_id = await steps.accept(["Ada@example.org", "bob@example.net"])
    first, second = sorted(await steps.claim(await steps.lease()), key=lambda claim: claim.position)
    assert (first.account_id, first.message_id, first.position) == (steps.sender.account_id, message_id, 0)
    assert (first.email, first.destination, second.email) == ("Ada@example.org", "example.org", "bob@example.net")
    assert (first.fence, first.attempt_count, first.held, first.is_suppressed) == (1, 1, timedelta(0), False)
    message = first.message
    assert second.message is message, "a message's body is loaded once"
    assert (message.id, message.source, message.subject) == (message_id, "api", "Hello")
    assert message.sender == message.envelope_sender == f"news@{steps.sender.domain}"
    assert message.created_at == steps.clock.now()
    assert message.mime is not None
    assert message.mime == await steps.value("SELECT mime FROM bodies")


async def test_an_attempt_is_on_record_before_it_is_made(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    rows = await steps.fetch("SELECT message_id, position, fence, worker_id, started_at, outcome FROM attempts")
    assert rows == [(claimed.message_id, 0, 1, steps.worker_id, steps.clock.now(), None)]
    scheduled = await steps.fetch("SELECT fence, worker_id, attempt_count FROM delivery_schedule")
    assert scheduled == [(1, steps.worker_id, 1)]


async def test_of_two_tickets_for_one_recipient_only_one_is_valid(steps: DeliverySteps) -> None:
    await steps.accept(2)
    tickets = await steps.lease()
    assert len(await steps.claim([*tickets, *tickets])) == 2
    assert await steps.claim(tickets) == []
    assert await steps.value("SELECT count(*) FROM attempts") == 2


async def test_workers_with_the_same_tickets_share_them_out(steps: DeliverySteps) -> None:
    await steps.accept(50)
    tickets = await steps.lease()
    shuffled = [random.sample(tickets, 50) for _ in range(8)]
    shares = await asyncio.gather(*(steps.claim(mine, uuid4()) for mine in shuffled))
    assert sorted(claim.position for share in shares for claim in share) == list(range(50))
    assert await steps.fetch("SELECT DISTINCT fence FROM attempts") == [(1,)]


async def suppress(steps: DeliverySteps, email: str, account_id: object = None) -> None:
    async with steps.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, $2, 'complaint', $3)",
            account_id or steps.sender.account_id, email, steps.clock.now(),
        )  # fmt: skip


@pytest.mark.rule("SUP-04", "DAY-05")
async def test_a_suppressed_address_is_not_tried_in_whatever_case_it_is_spelt(steps: DeliverySteps) -> None:
    await suppress(steps, "ada@example.org")
    ada, bob = await steps.claimed(["ADA@Example.org", "bob@example.org"])
    assert (ada.is_suppressed, ada.attempt_count, ada.fence) == (True, 0, 1)
    assert (bob.is_suppressed, bob.attempt_count, bob.fence) == (False, 1, 1)
    assert await steps.fetch("SELECT position FROM attempts") == [(1,)]
    before = await available(steps)
    await steps.record(steps.outcome(ada, DeliveryResult.BOUNCED, code=None, response="suppressed"))
    assert await available(steps) == before + 1
    assert await steps.fetch(f"{RECIPIENT} WHERE position = 0") == [("bounced", "released", 0, None, "suppressed")]


async def test_a_message_without_open_recipients_is_not_loaded(steps: DeliverySteps) -> None:
    await suppress(steps, "ada@example.org")
    (claimed,) = await steps.claimed(["ada@example.org"])
    assert claimed.message.mime is None
    assert claimed.message.subject == "Hello"


@pytest.mark.rule("DLV-14")
async def test_a_suppression_is_the_accounts_own(steps: DeliverySteps) -> None:
    await suppress(steps, "ada@example.org", uuid4())
    (claimed,) = await steps.claimed(["ada@example.org"])
    assert not claimed.is_suppressed


# Outcomes


@pytest.mark.parametrize("result", FINAL)
async def test_a_final_result_is_written_everywhere_at_once(result: DeliveryResult, steps: DeliverySteps) -> None:
    before = await available(steps)
    (claimed,) = await steps.claimed()
    steps.clock.advance(seconds=3)
    now = steps.clock.now()
    outcomes = steps.outcome(claimed, result)
    code = {DeliveryResult.DELIVERED: 250, DeliveryResult.BOUNCED: 550}.get(result, 451)
    returned = int(result is DeliveryResult.BOUNCED)
    assert await steps.record(outcomes) == ((outcomes,), (), (), 1 - returned, returned)
    billing = "released" if returned else "settled"
    assert await steps.fetch(RECIPIENT) == [(result, billing, 1, code, f"it was {result}")]
    assert await steps.fetch("SELECT coalesce(delivered_at, bounced_at, failed_at) FROM recipients") == [(now,)]
    assert outcomes.event is not None
    events = await steps.fetch("SELECT account_id, id, message_id, position, type, created_at, body FROM events")
    event = outcomes.event
    assert events == [(claimed.account_id, event.id, claimed.message_id, 0, f"email.{result}", now, event.body)]
    columns = "finished_at, outcome, mx_host, remote_ip, tls, stage, code, is_ambiguous"
    attempt = (now, result, "mx.example.org", "192.0.2.1", "TLSv1.3", "dot", code, False)
    assert await steps.fetch(f"SELECT {columns} FROM attempts") == [attempt]
    kind = "release" if returned else "settle"
    assert await steps.fetch("SELECT kind, amount, at FROM ledger WHERE position = 0") == [(kind, 1, now)]
    assert await steps.fetch("SELECT FROM delivery_schedule") == []
    assert await available(steps) == before - 1 + returned
    assert await database_faults(steps.url) == {}


async def test_a_deferral_waits_and_makes_no_event(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    await steps.record(steps.outcome(claimed, DeliveryResult.DEFERRED, is_ambiguous=True))
    assert await steps.fetch(RECIPIENT) == [("deferred", "reserved", 1, 451, "it was deferred")]
    scheduled = await steps.fetch("SELECT next_at, worker_id, attempt_count FROM delivery_schedule")
    assert scheduled == [(steps.clock.now() + WAIT, None, 1)]
    assert await steps.fetch("SELECT outcome, is_ambiguous FROM attempts") == [("deferred", True)]
    assert await steps.value("SELECT count(*) FROM events") == 0
    assert await steps.fetch("SELECT status, open_count FROM messages") == [("queued", 1)]
    assert await database_faults(steps.url) == {}
    steps.clock.advance(WAIT)
    (again,) = await steps.claim(await steps.lease())
    assert again.attempt_count == 2
    await steps.record(steps.outcome(again, DeliveryResult.DELIVERED))
    assert await steps.fetch(RECIPIENT) == [("delivered", "settled", 2, 250, "it was delivered")]
    assert await steps.value("SELECT count(*) FROM attempts") == 2
    assert await database_faults(steps.url) == {}


async def test_a_postponed_attempt_is_not_counted_and_its_ticket_is_void(steps: DeliverySteps) -> None:
    await steps.accept()
    (ticket,) = await steps.lease()
    (claimed,) = await steps.claim([ticket])
    outcomes = steps.outcome(claimed, DeliveryResult.POSTPONED, code=None, response="no connection was free")
    assert (await steps.record(outcomes))[:3] == ((outcomes,), (), ())
    assert await steps.fetch(RECIPIENT) == [("queued", "reserved", 0, None, None)]
    assert await steps.fetch("SELECT attempt_count, worker_id FROM delivery_schedule") == [(0, None)]
    steps.clock.advance(WAIT)
    (new,) = await steps.lease()
    assert new.fence > claimed.fence > ticket.fence
    assert await steps.claim([ticket]) == []
    assert (await steps.claim([new]))[0].attempt_count == 1
    assert await steps.fetch("SELECT outcome FROM attempts ORDER BY fence") == [("postponed",), (None,)]


@pytest.mark.parametrize("result", RESULTS)
async def test_recording_a_second_time_changes_nothing(result: DeliveryResult, steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    outcomes = steps.outcome(claimed, result, suppress=result is DeliveryResult.BOUNCED)
    await steps.record(outcomes)
    before = await state(steps)
    steps.clock.advance(seconds=1)
    for again in RESULTS:
        late = steps.outcome(claimed, again)
        assert (await steps.record(late))[:3] == ((), (late,), ())
    assert await state(steps) == before


async def test_of_two_outcomes_of_one_claim_in_one_batch_the_first_counts(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    first, second = steps.outcome(claimed, DeliveryResult.BOUNCED), steps.outcome(claimed, DeliveryResult.DELIVERED)
    assert (await steps.record(first, second))[:3] == ((first,), (), ())
    assert await steps.fetch("SELECT type FROM events") == [("email.bounced",)]
    assert await database_faults(steps.url) == {}


@pytest.mark.parametrize("result", RESULTS)
async def test_a_late_outcome_fills_its_own_attempt_and_nothing_else(
    result: DeliveryResult, steps: DeliverySteps
) -> None:
    (slow,) = await steps.claimed()
    steps.clock.advance(LEASE)
    assert await steps.reclaim() == 1
    (quick,) = await steps.claim(await steps.lease(), uuid4())
    before = await state(steps)
    late = steps.outcome(slow, result)
    assert (await steps.record(late))[:3] == ((), (late,), ())
    after = await state(steps)
    del before[2], after[2]  # the attempts
    assert after == before
    assert await steps.fetch("SELECT fence, outcome FROM attempts ORDER BY fence") == [(1, result), (2, None)]
    await steps.record(steps.outcome(quick, DeliveryResult.DELIVERED))
    assert await steps.fetch("SELECT fence, outcome FROM attempts ORDER BY fence") == [(1, result), (2, "delivered")]
    assert await database_faults(steps.url) == {}


async def test_an_outcome_counts_until_another_claim(steps: DeliverySteps) -> None:
    """Its worker's lease expired, but its result is known: one message less is sent twice."""
    (slow,) = await steps.claimed()
    steps.clock.advance(LEASE)
    await steps.reclaim()
    tickets = await steps.lease()
    outcomes = steps.outcome(slow, DeliveryResult.DELIVERED)
    assert (await steps.record(outcomes))[:3] == ((outcomes,), (), ())
    assert await steps.claim(tickets) == []
    assert await database_faults(steps.url) == {}


@pytest.mark.parametrize("result", [DeliveryResult.DEFERRED, DeliveryResult.POSTPONED])
async def test_a_ticket_from_before_a_deferral_brings_no_early_attempt(
    result: DeliveryResult, steps: DeliverySteps
) -> None:
    (slow,) = await steps.claimed()
    steps.clock.advance(LEASE)
    await steps.reclaim()
    early = await steps.lease()
    await steps.record(steps.outcome(slow, result))
    assert await steps.claim(early) == []


async def test_a_bounce_gives_the_credit_back_exactly_once(steps: DeliverySteps) -> None:
    before = await available(steps)
    claimed = await steps.claimed(4)
    assert await available(steps) == before - 4
    outcomes = [steps.outcome(claim, DeliveryResult.BOUNCED) for claim in claimed[:3]]
    await asyncio.gather(*(steps.record(*random.sample(outcomes, 3)) for _ in range(6)))
    assert await available(steps) == before - 1
    ledger = await steps.fetch("SELECT kind, sum(amount) FROM ledger GROUP BY 1 ORDER BY 1")
    assert ledger == [("release", 3), ("reserve", 4)]
    assert await database_faults(steps.url) == {}


async def test_a_failure_that_is_not_charged_gives_the_credit_back_exactly_once(steps: DeliverySteps) -> None:
    before = await available(steps)
    first, second = await steps.claimed(2)
    released = steps.outcome(first, DeliveryResult.FAILED, is_released=True)
    await steps.record(released)
    await steps.record(released)
    assert await available(steps) == before - 1
    await steps.record(steps.outcome(second, DeliveryResult.FAILED))
    recipients = await steps.fetch("SELECT status, billing_status FROM recipients ORDER BY position")
    assert recipients == [("failed", "released"), ("failed", "settled")]
    messages = await steps.fetch("SELECT status, billing_status, released_count FROM messages")
    assert messages == [("failed", "settled", 1)]
    assert await available(steps) == before - 1
    assert await database_faults(steps.url) == {}


async def test_only_what_gives_credits_back_touches_the_account(steps: DeliverySteps) -> None:
    claimed = await steps.claimed(4)
    row = "SELECT xmin::text, ctid::text FROM accounts"
    before = await steps.fetch(row)
    results = (DeliveryResult.DELIVERED, DeliveryResult.FAILED, DeliveryResult.DEFERRED, DeliveryResult.POSTPONED)
    await steps.record(*(steps.outcome(claim, result) for claim, result in zip(claimed, results, strict=True)))
    assert await steps.fetch(row) == before


async def test_test_mail_costs_nothing_and_gives_nothing_back(steps: DeliverySteps) -> None:
    before = await available(steps)
    claimed = await steps.claimed(3, mode=Mode.TEST)
    assert {claim.message.source for claim in claimed} == {"test"}
    await steps.record(*(steps.outcome(claim, result) for claim, result in zip(claimed, FINAL, strict=True)))
    assert await available(steps) == before
    assert await steps.value("SELECT count(*) FROM ledger") == 0
    assert await steps.value("SELECT count(*) FROM events") == 3
    assert await database_faults(steps.url) == {}


@pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "one by one"])
async def test_the_message_becomes_what_the_rule_says_for_every_mix_of_results(
    at_once: bool, steps: DeliverySteps
) -> None:
    seed = new_seed()
    randomness = random.Random(seed)
    open_results = (DeliveryResult.DEFERRED, DeliveryResult.POSTPONED)
    # Of three recipients, each can be in another of the states that count.
    mixes = list(chain.from_iterable(combinations_with_replacement(RESULTS, size) for size in range(1, 4)))
    wanted = {await steps.accept(len(mix)): mix for mix in mixes}
    claims = await steps.claim(await steps.lease())
    outcomes = [steps.outcome(claimed, wanted[claimed.message_id][claimed.position]) for claimed in claims]
    randomness.shuffle(outcomes)
    for batch in [outcomes] if at_once else [[single] for single in outcomes]:
        await steps.record(*batch)
    rows = await steps.fetch(
        "SELECT id, status, billing_status, open_count, delivered_count, released_count FROM messages"
    )
    assert len(rows) == len(mixes)
    for message_id, status, billing_status, *counts in rows:
        mix = wanted[message_id]
        expected = (
            sum(mix.count(result) for result in open_results),
            mix.count(DeliveryResult.DELIVERED),
            mix.count(DeliveryResult.BOUNCED),
        )
        assert tuple(counts) == expected
        assert (status, billing_status) == message_state(*expected, len(mix))
    assert await database_faults(steps.url) == {}


@pytest.mark.rule("DLV-14")
async def test_an_unknown_address_is_suppressed_and_a_second_bounce_changes_nothing(steps: DeliverySteps) -> None:
    before = steps.clock.now()
    ada, bob = await steps.claimed(["Ada@example.org", "bob@example.org"])
    other = (await steps.claimed(["ada@example.org"]))[0]
    await steps.record(
        steps.outcome(ada, DeliveryResult.BOUNCED, suppress=True, code=550, response="5.1.1 nobody here"),
        steps.outcome(bob, DeliveryResult.BOUNCED),
    )
    steps.clock.advance(seconds=1)
    await steps.record(steps.outcome(other, DeliveryResult.BOUNCED, suppress=True, response="again"))
    assert await steps.fetch("SELECT account_id, email, reason, code, response, at FROM suppressions") == [
        (steps.sender.account_id, "ada@example.org", "bounce", 550, "5.1.1 nobody here", before)
    ]
    (later,) = await steps.claimed(["ADA@example.org"])
    assert later.is_suppressed


async def test_what_a_server_says_can_not_fail_a_batch(steps: DeliverySteps) -> None:
    first, second = await steps.claimed(2)
    await steps.record(
        steps.outcome(first, DeliveryResult.DEFERRED, response="a\0b\ud800c", mx_host="mx\0.example.org"),
        steps.outcome(second, DeliveryResult.BOUNCED, response="\0", suppress=True),
    )
    assert await steps.fetch("SELECT last_smtp_response FROM recipients ORDER BY position") == [("ab?c",), ("",)]


async def test_an_outcome_of_a_recipient_that_was_never_there_is_late(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    before = await state(steps)
    strange = DeliveryOutcome(
        claimed.account_id, claimed.message_id, 7, 1, DeliveryResult.DEFERRED, next_at=steps.clock.now()
    )
    elsewhere = replace(strange, account_id=AccountId(steps.worker_id), position=0)
    recorded = await steps.record(strange, elsewhere)
    assert set(recorded.late) == {strange, elsewhere}
    assert await state(steps) == before


@pytest.mark.parametrize(
    "given",
    [
        {"result": DeliveryResult.DELIVERED},
        {"result": DeliveryResult.DEFERRED},
        {"result": DeliveryResult.POSTPONED, "event": NewEvent(uuid4(), "email.failed", b"")},
        {"result": DeliveryResult.DELIVERED, "event": NewEvent(uuid4(), "email.delivered", b""), "is_ambiguous": True},
    ],
)
def test_an_outcome_that_makes_no_sense_can_not_be_made(given: dict[str, Any]) -> None:
    unknown: Any = uuid4()
    with pytest.raises(ValueError, match=r"a final result has an event|is never ambiguous"):
        DeliveryOutcome(unknown, unknown, 0, 1, **given)


async def test_many_recorders_of_the_same_messages_never_deadlock(steps: DeliverySteps) -> None:
    """Fifty recipients a message, recorded by eight connections in any order, some of it twice."""
    seed = new_seed()
    randomness = random.Random(seed)
    senders = [steps.sender, await steps.another_sender("second"), await steps.another_sender("third")]
    await asyncio.gather(*(steps.accept(50, sender=senders[number % 3]) for number in range(45)))
    settings = {**SETTINGS, "lock_timeout": "20000", "deadlock_timeout": "50"}
    connections = [await asyncpg.connect(steps.url, server_settings=settings) for _ in range(8)]
    final: Counter[tuple[object, int]] = Counter()
    results = (
        [DeliveryResult.DELIVERED] * 12
        + [DeliveryResult.BOUNCED] * 4
        + [DeliveryResult.FAILED, DeliveryResult.DEFERRED, DeliveryResult.POSTPONED]
    )

    def judged(claimed: ClaimedRecipient) -> DeliveryOutcome:
        result = DeliveryResult.BOUNCED if claimed.is_suppressed else randomness.choice(results)
        return outcome(claimed, result, steps.clock.now(), suppress=result is DeliveryResult.BOUNCED)

    try:
        while tickets := await steps.lease(10_000):
            outcomes = [judged(claimed) for claimed in await steps.claim(tickets)]
            outcomes += randomness.sample(outcomes, len(outcomes) // 10)
            randomness.shuffle(outcomes)
            batches = [outcomes[start : start + 40] for start in range(0, len(outcomes), 40)]

            async def work(connection: Any, batches: list[list[DeliveryOutcome]] = batches) -> None:
                while batches:
                    recorded = await record_on(connection, batches.pop(), steps.clock.now())
                    final.update(
                        (outcome.message_id, outcome.position)
                        for outcome in recorded.counted
                        if outcome.result.is_final
                    )

            await asyncio.gather(*(work(connection) for connection in connections))
            steps.clock.advance(WAIT)
    finally:
        for connection in connections:
            await connection.close()
    assert len(final) == 45 * 50
    assert set(final.values()) == {1}
    assert await steps.value("SELECT count(*) FROM messages WHERE status = 'queued'") == 0
    assert await steps.value("SELECT count(*) FROM delivery_schedule") == 0
    assert await steps.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert await database_faults(steps.url) == {}
