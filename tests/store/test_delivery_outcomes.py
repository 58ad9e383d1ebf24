"""Claims and outcomes: who may try, what follows from what came of it, and that it follows once."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import chain, combinations_with_replacement
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from posthouse.rules.credential import Mode
from posthouse.rules.message import message_state
from posthouse.store.delivery_claims import Claimed
from posthouse.store.delivery_outcomes import DeliveryResult, Event, Outcome
from posthouse.store.postgres import SETTINGS
from tests.support.books import faults_in_the_books
from tests.support.rounds import LEASE, WAIT, Rounds, beginning, outcome, record_on

RECIPIENT = "SELECT status, billing_status, attempt_count, last_smtp_code, last_smtp_response FROM recipients"
FINAL = (DeliveryResult.DELIVERED, DeliveryResult.BOUNCED, DeliveryResult.FAILED)


@pytest_asyncio.fixture
async def rounds(database_url: str) -> AsyncIterator[Rounds]:
    async with beginning(database_url) as begun:
        yield begun


async def available(rounds: Rounds) -> int:
    number: int = await rounds.value("SELECT available FROM accounts WHERE id = $1", rounds.sender.account_id)
    return number


async def state(rounds: Rounds) -> list[Any]:
    """Everything that an outcome may change, as it lies there."""
    tables = ("messages", "recipients", "attempts", "schedule", "ledger", "events", "suppressions", "accounts")
    return [await rounds.fetch(f"SELECT xmin::text, ctid::text, t::text FROM {table} t ORDER BY 3") for table in tables]


# Claims


async def test_a_claim_tells_all_that_an_attempt_needs(rounds: Rounds) -> None:
    message_id = await rounds.accept(["Ada@example.org", "bob@example.net"])
    first, second = sorted(await rounds.claim(await rounds.lease()), key=lambda one: one.position)
    assert (first.account_id, first.message_id, first.position) == (rounds.sender.account_id, message_id, 0)
    assert (first.email, first.destination, second.email) == ("Ada@example.org", "example.org", "bob@example.net")
    assert (first.fence, first.attempt_count, first.held, first.is_suppressed) == (1, 1, timedelta(0), False)
    message = first.message
    assert second.message is message, "a message's body is loaded once"
    assert (message.id, message.source, message.subject) == (message_id, "api", "Hello")
    assert message.sender == message.envelope_sender == f"news@{rounds.sender.domain}"
    assert message.created_at == rounds.clock.now()
    assert message.mime is not None
    assert message.mime == await rounds.value("SELECT mime FROM bodies")


async def test_an_attempt_is_on_record_before_it_is_made(rounds: Rounds) -> None:
    (claimed,) = await rounds.claimed()
    rows = await rounds.fetch("SELECT message_id, position, fence, worker_id, started_at, outcome FROM attempts")
    assert rows == [(claimed.message_id, 0, 1, rounds.worker_id, rounds.clock.now(), None)]
    assert await rounds.fetch("SELECT fence, worker_id, attempt_count FROM schedule") == [(1, rounds.worker_id, 1)]


async def test_of_two_tickets_for_one_recipient_one_is_worth_something(rounds: Rounds) -> None:
    await rounds.accept(2)
    tickets = await rounds.lease()
    assert len(await rounds.claim([*tickets, *tickets])) == 2
    assert await rounds.claim(tickets) == []
    assert await rounds.value("SELECT count(*) FROM attempts") == 2


async def test_workers_with_the_same_tickets_share_them_out(rounds: Rounds) -> None:
    await rounds.accept(50)
    tickets = await rounds.lease()
    shuffled = [random.sample(tickets, 50) for _ in range(8)]
    shares = await asyncio.gather(*(rounds.claim(mine, uuid4()) for mine in shuffled))
    assert sorted(one.position for share in shares for one in share) == list(range(50))
    assert await rounds.fetch("SELECT DISTINCT fence FROM attempts") == [(1,)]


async def suppress(rounds: Rounds, email: str, account_id: object = None) -> None:
    async with rounds.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, $2, 'complaint', $3)",
            account_id or rounds.sender.account_id, email, rounds.clock.now(),
        )  # fmt: skip


async def test_a_suppressed_address_is_marked_and_not_tried_in_whatever_case_it_is_spelt(rounds: Rounds) -> None:
    await suppress(rounds, "ada@example.org")
    ada, bob = await rounds.claimed(["ADA@Example.org", "bob@example.org"])
    assert (ada.is_suppressed, ada.attempt_count, ada.fence) == (True, 0, 1)
    assert (bob.is_suppressed, bob.attempt_count, bob.fence) == (False, 1, 1)
    assert await rounds.fetch("SELECT position FROM attempts") == [(1,)]
    before = await available(rounds)
    await rounds.record(rounds.outcome(ada, DeliveryResult.BOUNCED, code=None, response="suppressed"))
    assert await available(rounds) == before + 1
    assert await rounds.fetch(f"{RECIPIENT} WHERE position = 0") == [("bounced", "released", 0, None, "suppressed")]


async def test_a_message_that_nobody_may_get_is_not_loaded(rounds: Rounds) -> None:
    await suppress(rounds, "ada@example.org")
    (claimed,) = await rounds.claimed(["ada@example.org"])
    assert claimed.message.mime is None
    assert claimed.message.subject == "Hello"


async def test_a_suppression_is_the_accounts_own(rounds: Rounds) -> None:
    await suppress(rounds, "ada@example.org", uuid4())
    (claimed,) = await rounds.claimed(["ada@example.org"])
    assert not claimed.is_suppressed


# Outcomes


@pytest.mark.parametrize("result", FINAL)
async def test_a_final_result_is_written_everywhere_at_once(result: DeliveryResult, rounds: Rounds) -> None:
    before = await available(rounds)
    (claimed,) = await rounds.claimed()
    rounds.clock.advance(seconds=3)
    now = rounds.clock.now()
    told = rounds.outcome(claimed, result)
    assert await rounds.record(told) == ((told,), (), ())
    code, returned = (
        (250, 0) if result is DeliveryResult.DELIVERED else (550, 1) if result is DeliveryResult.BOUNCED else (451, 0)
    )
    billing = "released" if returned else "settled"
    assert await rounds.fetch(RECIPIENT) == [(result, billing, 1, code, f"it was {result}")]
    assert await rounds.fetch("SELECT coalesce(delivered_at, bounced_at, failed_at) FROM recipients") == [(now,)]
    assert told.event is not None
    assert await rounds.fetch(
        "SELECT account_id, id, message_id, position, type, created_at, body FROM events"
    ) == [
        (claimed.account_id, told.event.id, claimed.message_id, 0, f"email.{result}", now, told.event.body)
    ]  # fmt: skip
    assert await rounds.fetch(
        "SELECT finished_at, outcome, exchange, address, tls, stage, code, is_ambiguous FROM attempts"
    ) == [(now, result, "mx.example.org", "192.0.2.1", "TLSv1.3", "dot", code, False)]
    kind = "release" if returned else "settle"
    assert await rounds.fetch("SELECT kind, amount, at FROM ledger WHERE position = 0") == [(kind, 1, now)]
    assert await rounds.fetch("SELECT FROM schedule") == []
    assert await available(rounds) == before - 1 + returned
    assert await faults_in_the_books(rounds.url) == {}


async def test_a_deferral_waits_and_tells_nobody(rounds: Rounds) -> None:
    (claimed,) = await rounds.claimed()
    await rounds.record(rounds.outcome(claimed, DeliveryResult.DEFERRED, is_ambiguous=True))
    assert await rounds.fetch(RECIPIENT) == [("deferred", "reserved", 1, 451, "it was deferred")]
    assert await rounds.fetch("SELECT next_at, worker_id, attempt_count FROM schedule") == [
        (rounds.clock.now() + WAIT, None, 1)
    ]
    assert await rounds.fetch("SELECT outcome, is_ambiguous FROM attempts") == [("deferred", True)]
    assert await rounds.value("SELECT count(*) FROM events") == 0
    assert await rounds.fetch("SELECT status, open_count FROM messages") == [("queued", 1)]
    assert await faults_in_the_books(rounds.url) == {}
    rounds.clock.advance(WAIT)
    (again,) = await rounds.claim(await rounds.lease())
    assert again.attempt_count == 2
    await rounds.record(rounds.outcome(again, DeliveryResult.DELIVERED))
    assert await rounds.fetch(RECIPIENT) == [("delivered", "settled", 2, 250, "it was delivered")]
    assert await rounds.value("SELECT count(*) FROM attempts") == 2
    assert await faults_in_the_books(rounds.url) == {}


async def test_an_attempt_that_came_to_nothing_is_not_counted_and_its_ticket_never_matches_again(
    rounds: Rounds,
) -> None:
    await rounds.accept()
    (ticket,) = await rounds.lease()
    (claimed,) = await rounds.claim([ticket])
    told = rounds.outcome(claimed, DeliveryResult.POSTPONED, code=None, response="no connection was free")
    assert await rounds.record(told) == ((told,), (), ())
    assert await rounds.fetch(RECIPIENT) == [("queued", "reserved", 0, None, None)]
    assert await rounds.fetch("SELECT attempt_count, worker_id FROM schedule") == [(0, None)]
    rounds.clock.advance(WAIT)
    (new,) = await rounds.lease()
    assert new.fence > claimed.fence > ticket.fence
    assert await rounds.claim([ticket]) == []
    assert (await rounds.claim([new]))[0].attempt_count == 1
    assert await rounds.fetch("SELECT outcome FROM attempts ORDER BY fence") == [("postponed",), (None,)]


async def test_attempts_that_nobody_lived_to_report_count(rounds: Rounds) -> None:
    await rounds.accept()
    for attempt in range(1, 4):
        (claimed,) = await rounds.claim(await rounds.lease())
        assert claimed.attempt_count == attempt
        rounds.clock.advance(LEASE)
        assert await rounds.reclaim() == 1
    (claimed,) = await rounds.claim(await rounds.lease())
    await rounds.record(rounds.outcome(claimed, DeliveryResult.FAILED))
    assert await rounds.value("SELECT attempt_count FROM recipients") == 4
    assert await rounds.value("SELECT count(*) FROM attempts WHERE outcome IS NULL") == 3
    assert await faults_in_the_books(rounds.url) == {}


@pytest.mark.parametrize("result", DeliveryResult)
async def test_recording_a_second_time_changes_nothing(result: DeliveryResult, rounds: Rounds) -> None:
    (claimed,) = await rounds.claimed()
    told = rounds.outcome(claimed, result, suppress=result is DeliveryResult.BOUNCED)
    await rounds.record(told)
    before = await state(rounds)
    rounds.clock.advance(seconds=1)
    for again in DeliveryResult:
        late = rounds.outcome(claimed, again)
        assert await rounds.record(late) == ((), (late,), ())
    assert await state(rounds) == before


async def test_of_two_outcomes_of_one_claim_in_one_batch_the_first_counts(rounds: Rounds) -> None:
    (claimed,) = await rounds.claimed()
    first, second = rounds.outcome(claimed, DeliveryResult.BOUNCED), rounds.outcome(claimed, DeliveryResult.DELIVERED)
    assert await rounds.record(first, second) == ((first,), (), ())
    assert await rounds.fetch("SELECT type FROM events") == [("email.bounced",)]
    assert await faults_in_the_books(rounds.url) == {}


@pytest.mark.parametrize("result", DeliveryResult)
async def test_a_late_outcome_fills_its_own_attempt_and_nothing_else(result: DeliveryResult, rounds: Rounds) -> None:
    (slow,) = await rounds.claimed()
    rounds.clock.advance(LEASE)
    assert await rounds.reclaim() == 1
    (quick,) = await rounds.claim(await rounds.lease(), uuid4())
    before = await state(rounds)
    late = rounds.outcome(slow, result)
    assert await rounds.record(late) == ((), (late,), ())
    after = await state(rounds)
    assert [one for number, one in enumerate(after) if number != 2] == [
        one for number, one in enumerate(before) if number != 2
    ]
    assert await rounds.fetch("SELECT fence, outcome FROM attempts ORDER BY fence") == [(1, result), (2, None)]
    await rounds.record(rounds.outcome(quick, DeliveryResult.DELIVERED))
    assert await rounds.fetch("SELECT fence, outcome FROM attempts ORDER BY fence") == [(1, result), (2, "delivered")]
    assert await faults_in_the_books(rounds.url) == {}


async def test_an_outcome_counts_while_nobody_else_has_claimed(rounds: Rounds) -> None:
    """Its worker was given up for dead, yet it knows better: one mail less that is sent twice."""
    (slow,) = await rounds.claimed()
    rounds.clock.advance(LEASE)
    await rounds.reclaim()
    tickets = await rounds.lease()
    told = rounds.outcome(slow, DeliveryResult.DELIVERED)
    assert await rounds.record(told) == ((told,), (), ())
    assert await rounds.claim(tickets) == []
    assert await faults_in_the_books(rounds.url) == {}


@pytest.mark.parametrize("result", [DeliveryResult.DEFERRED, DeliveryResult.POSTPONED])
async def test_a_ticket_from_before_a_deferral_brings_no_early_attempt(result: DeliveryResult, rounds: Rounds) -> None:
    (slow,) = await rounds.claimed()
    rounds.clock.advance(LEASE)
    await rounds.reclaim()
    early = await rounds.lease()
    await rounds.record(rounds.outcome(slow, result))
    assert await rounds.claim(early) == []


async def test_a_bounce_gives_the_credit_back_exactly_once(rounds: Rounds) -> None:
    before = await available(rounds)
    claimed = await rounds.claimed(4)
    assert await available(rounds) == before - 4
    told = [rounds.outcome(one, DeliveryResult.BOUNCED) for one in claimed[:3]]
    await asyncio.gather(*(rounds.record(*random.sample(told, 3)) for _ in range(6)))
    assert await available(rounds) == before - 1
    assert await rounds.fetch("SELECT kind, sum(amount) FROM ledger GROUP BY 1 ORDER BY 1") == [
        ("release", 3),
        ("reserve", 4),
    ]
    assert await faults_in_the_books(rounds.url) == {}


async def test_only_what_gives_credits_back_touches_the_account(rounds: Rounds) -> None:
    claimed = await rounds.claimed(4)
    row = "SELECT xmin::text, ctid::text FROM accounts"
    before = await rounds.fetch(row)
    results = (DeliveryResult.DELIVERED, DeliveryResult.FAILED, DeliveryResult.DEFERRED, DeliveryResult.POSTPONED)
    await rounds.record(*(rounds.outcome(one, result) for one, result in zip(claimed, results, strict=True)))
    assert await rounds.fetch(row) == before


async def test_test_mail_costs_nothing_and_gives_nothing_back(rounds: Rounds) -> None:
    before = await available(rounds)
    claimed = await rounds.claimed(3, mode=Mode.TEST)
    assert {one.message.source for one in claimed} == {"test"}
    await rounds.record(*(rounds.outcome(one, result) for one, result in zip(claimed, FINAL, strict=True)))
    assert await available(rounds) == before
    assert await rounds.value("SELECT count(*) FROM ledger") == 0
    assert await rounds.value("SELECT count(*) FROM events") == 3
    assert await faults_in_the_books(rounds.url) == {}


@pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "one by one"])
async def test_the_message_becomes_what_the_rule_says_for_every_mix_of_results(at_once: bool, rounds: Rounds) -> None:
    seed = random.randrange(2**32)
    print(f"{seed=}")
    chance = random.Random(seed)
    open_results = (DeliveryResult.DEFERRED, DeliveryResult.POSTPONED)
    mixes = list(chain.from_iterable(combinations_with_replacement(DeliveryResult, size) for size in range(1, 5)))
    wanted = {await rounds.accept(len(mix)): mix for mix in mixes}
    told = [
        rounds.outcome(claimed, wanted[claimed.message_id][claimed.position])
        for claimed in await rounds.claim(await rounds.lease())
    ]
    chance.shuffle(told)
    for batch in [told] if at_once else [[one] for one in told]:
        await rounds.record(*batch)
    rows = await rounds.fetch(
        "SELECT id, status, billing_status, open_count, delivered_count, released_count FROM messages"
    )
    assert len(rows) == len(mixes)
    for message_id, status, billing_status, *counts in rows:
        mix = wanted[message_id]
        expected = (
            sum(mix.count(one) for one in open_results),
            mix.count(DeliveryResult.DELIVERED),
            mix.count(DeliveryResult.BOUNCED),
        )
        assert tuple(counts) == expected
        assert (status, billing_status) == message_state(*expected, len(mix))
    assert await faults_in_the_books(rounds.url) == {}


async def test_an_unknown_address_is_suppressed_and_a_second_bounce_changes_nothing(rounds: Rounds) -> None:
    before = rounds.clock.now()
    ada, bob = await rounds.claimed(["Ada@example.org", "bob@example.org"])
    other = (await rounds.claimed(["ada@example.org"]))[0]
    await rounds.record(
        rounds.outcome(ada, DeliveryResult.BOUNCED, suppress=True, code=550, response="5.1.1 nobody here"),
        rounds.outcome(bob, DeliveryResult.BOUNCED),
    )
    rounds.clock.advance(seconds=1)
    await rounds.record(rounds.outcome(other, DeliveryResult.BOUNCED, suppress=True, response="again"))
    assert await rounds.fetch("SELECT account_id, email, reason, code, response, at FROM suppressions") == [
        (rounds.sender.account_id, "ada@example.org", "bounce", 550, "5.1.1 nobody here", before)
    ]
    (later,) = await rounds.claimed(["ADA@example.org"])
    assert later.is_suppressed


async def test_what_a_server_says_can_not_fail_a_batch(rounds: Rounds) -> None:
    first, second = await rounds.claimed(2)
    await rounds.record(
        rounds.outcome(first, DeliveryResult.DEFERRED, response="a\0b\ud800c", exchange="mx\0.example.org"),
        rounds.outcome(second, DeliveryResult.BOUNCED, response="\0", suppress=True),
    )
    assert await rounds.fetch("SELECT last_smtp_response FROM recipients ORDER BY position") == [("ab?c",), ("",)]


async def test_an_outcome_of_a_recipient_that_was_never_there_is_late(rounds: Rounds) -> None:
    (claimed,) = await rounds.claimed()
    before = await state(rounds)
    strange = Outcome(claimed.account_id, claimed.message_id, 7, 1, DeliveryResult.DEFERRED, next_at=rounds.clock.now())
    elsewhere = Outcome(rounds.worker_id, claimed.message_id, 0, 1, DeliveryResult.DEFERRED, next_at=rounds.clock.now())  # type: ignore[arg-type]
    recorded = await rounds.record(strange, elsewhere)
    assert set(recorded.late) == {strange, elsewhere}
    assert await state(rounds) == before


@pytest.mark.parametrize(
    "given",
    [
        {"result": DeliveryResult.DELIVERED},
        {"result": DeliveryResult.DEFERRED},
        {"result": DeliveryResult.POSTPONED, "event": Event(uuid4(), "email.failed", b"")},
        {"result": DeliveryResult.DELIVERED, "event": Event(uuid4(), "email.delivered", b""), "is_ambiguous": True},
    ],
)
def test_an_outcome_that_makes_no_sense_can_not_be_made(given: dict[str, Any]) -> None:
    nobody: Any = uuid4()
    with pytest.raises(ValueError, match=r"result|doubts"):
        Outcome(nobody, nobody, 0, 1, **given)


async def test_many_recorders_of_the_same_messages_never_deadlock_and_leave_nothing_open(rounds: Rounds) -> None:
    """Fifty recipients a message, recorded by eight connections in any order, some of it twice."""
    seed = random.randrange(2**32)
    print(f"{seed=}")
    chance = random.Random(seed)
    senders = [rounds.sender, await rounds.another_sender("second"), await rounds.another_sender("third")]
    await asyncio.gather(*(rounds.accept(50, sender=senders[number % 3]) for number in range(102)))
    settings = {**SETTINGS, "lock_timeout": "20000", "deadlock_timeout": "50"}
    connections = [await asyncpg.connect(rounds.url, server_settings=settings) for _ in range(8)]
    final: Counter[tuple[object, int]] = Counter()
    results = (
        [DeliveryResult.DELIVERED] * 12
        + [DeliveryResult.BOUNCED] * 4
        + [DeliveryResult.FAILED, DeliveryResult.DEFERRED, DeliveryResult.POSTPONED]
    )

    def judged(claimed: Claimed) -> Outcome:
        result = DeliveryResult.BOUNCED if claimed.is_suppressed else chance.choice(results)
        return outcome(claimed, result, rounds.clock.now(), suppress=result is DeliveryResult.BOUNCED)

    try:
        while tickets := await rounds.lease(10_000):
            told = [judged(claimed) for claimed in await rounds.claim(tickets)]
            told += chance.sample(told, len(told) // 10)
            chance.shuffle(told)
            batches = [told[start : start + 40] for start in range(0, len(told), 40)]

            async def work(connection: Any, batches: list[list[Outcome]] = batches) -> None:
                while batches:
                    recorded = await record_on(connection, batches.pop(), rounds.clock.now())
                    final.update((one.message_id, one.position) for one in recorded.counted if one.result.is_final)

            await asyncio.gather(*(work(connection) for connection in connections))
            rounds.clock.advance(WAIT)
    finally:
        for connection in connections:
            await connection.close()
    assert len(final) == 102 * 50
    assert set(final.values()) == {1}
    assert await rounds.value("SELECT count(*) FROM messages WHERE status = 'queued'") == 0
    assert await rounds.value("SELECT count(*) FROM schedule") == 0
    assert await rounds.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert await faults_in_the_books(rounds.url) == {}
