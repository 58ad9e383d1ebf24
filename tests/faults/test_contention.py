"""The accepting transaction under contention: no deadlock, each item decided separately, each key used once."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from posthouse.clock import DatabaseClock
from posthouse.flows.accept.intake import AcceptedMessage
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, CredentialId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.acceptance import IdempotencyKey
from tests.support.accept_flow import AcceptFlow, Sender, new_sender, open_accept_flow
from tests.support.bad_input import new_seed
from tests.support.clock import SettableClock
from tests.support.database_checks import database_faults
from tests.support.operator_client import Operator
from tests.support.server_process import environment

BATCHES = 400
ROOT = Path(__file__).parents[2]


@pytest_asyncio.fixture
async def accept_flow(database_url: str) -> AsyncIterator[AcceptFlow]:
    async with open_accept_flow(database_url, SettableClock()) as opened:
        yield opened


@asynccontextmanager
async def session(database_url: str) -> AsyncIterator[Any]:
    """Someone else's connection."""
    connection = await asyncpg.connect(database_url)
    try:
        yield connection
    finally:
        await connection.close()


async def known(accept_flow: AcceptFlow, *senders: Sender) -> None:
    """Loaded into the cache beforehand, so that no request misses the batch."""
    for sender in senders:
        assert await accept_flow.control_cache.is_verified(AccountId(sender.account_id), sender.domain)


async def in_one_batch(*accepting: Any) -> list[str]:
    """The result of each, by name: requests that start in the same turn of the event loop share a transaction."""
    answers = await asyncio.gather(*accepting, return_exceptions=True)
    return [outcome(answer) for answer in answers]


def outcome(answer: AcceptedMessage | BaseException) -> str:
    match answer:
        case Refusal():
            return answer.code.value
        case AcceptedMessage():
            return "replay" if answer.is_replay else "accepted"
        case _:
            return type(answer).__name__


@pytest.mark.long
async def test_two_processes_that_take_accounts_in_opposite_order_never_deadlock(
    database_url: str, operator: Operator
) -> None:
    seed = new_seed()
    senders = [await new_sender(operator, f"contended{number}", credits=10_000_000) for number in range(6)]
    contenders = []
    for descending in (False, True):
        task = {
            "url": database_url,
            "seed": seed,
            "rounds": BATCHES // 2,
            "senders": [[str(sender.account_id), str(sender.credential_id), sender.domain] for sender in senders],
            "descending": descending,
        }
        contenders.append(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.faults.contender",
                json.dumps(task),
                cwd=ROOT,
                env=environment(database_url),
                stdout=asyncio.subprocess.PIPE,
            )
        )
    outcomes: Counter[str] = Counter()
    for contender in contenders:
        written, _ = await contender.communicate()
        assert contender.returncode == 0
        outcomes.update(json.loads(written))
    print(dict(outcomes))
    async with session(database_url) as connection:
        deadlocks = await connection.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        # Each transaction leaves its own number on what it wrote.
        batches = await connection.fetchval("SELECT count(DISTINCT xmin::text) FROM messages")
        messages = await connection.fetchval("SELECT count(*) FROM messages")
    assert deadlocks == 0
    # On a busy machine a lock may time out, which is reported as such.
    busy = sum(count for outcome, count in outcomes.items() if outcome.startswith("Refusal: temporary_failure"))
    assert outcomes["accepted"] == messages == outcomes.total() - busy
    assert busy < messages / 1000
    # A round whose requests found the cache just emptied was split.
    assert BATCHES - busy <= batches < BATCHES * 1.1
    assert await database_faults(database_url) == {}


async def test_8_5_and_2_against_10_credits_are_yes_no_yes(
    accept_flow: AcceptFlow, operator: Operator, database_url: str
) -> None:
    sender = await new_sender(operator, "ten", credits=10)
    await known(accept_flow, sender)
    assert await in_one_batch(
        *(accept_flow.accept(sender, f"key {count}", sender.draft(count)) for count in (8, 5, 2))
    ) == [
        "accepted",
        "insufficient_credits",
        "accepted",
    ]
    async with session(database_url) as connection:
        assert await connection.fetchval("SELECT available FROM accounts WHERE id = $1", sender.account_id) == 0
        assert await connection.fetchval("SELECT count(DISTINCT xmin::text) FROM messages") == 1
    assert await database_faults(database_url) == {}


@pytest.mark.rule("MONEY-05", "IDEM-06")
async def test_a_mixed_batch_of_several_accounts_is_decided_item_by_item(
    accept_flow: AcceptFlow, operator: Operator, database_url: str
) -> None:
    rich = await new_sender(operator, "rich")
    poor = await new_sender(operator, "poor", credits=1)
    barred = await new_sender(operator, "barred")
    await operator.suspend(barred.account_id)
    await known(accept_flow, rich, poor, barred)
    first = await accept_flow.accept(rich, "used")
    held = IdempotencyKey(AccountId(rich.account_id), CredentialId(rich.credential_id), "held elsewhere")
    async with session(database_url) as elsewhere, elsewhere.transaction():
        await elsewhere.execute("SELECT pg_advisory_xact_lock($1)", held.lock_number)
        outcomes = await in_one_batch(
            accept_flow.accept(rich, "fresh"),
            accept_flow.accept(rich, "used"),
            accept_flow.accept(rich, "used by another", body=b"first"),
            accept_flow.accept(rich, "used by another", body=b"second"),
            accept_flow.accept(rich, "held elsewhere"),
            accept_flow.accept(poor, "too much", poor.draft(2)),
            accept_flow.accept(poor, "just enough"),
            accept_flow.accept(poor, "nothing left"),
            accept_flow.accept(poor, "costs nothing", poor.draft(5), mode=Mode.TEST),
            accept_flow.accept(barred, "barred"),
            accept_flow.accept(rich, "fresh too", rich.draft(50)),
        )
    assert outcomes == [
        "accepted", "replay", "accepted", "idempotency_in_progress", "idempotency_in_progress", "insufficient_credits",
        "accepted", "insufficient_credits", "accepted", "account_suspended", "accepted",
    ]  # fmt: skip
    assert await in_one_batch(
        accept_flow.accept(rich, "used", body=b"other"),
        accept_flow.accept(rich, "used"),
        accept_flow.accept(rich, "held elsewhere"),
    ) == ["idempotency_conflict", "replay", "accepted"]
    assert (await accept_flow.accept(rich, "used")).message_id == first.message_id
    assert await database_faults(database_url) == {}


async def test_an_item_that_postgresql_refuses_fails_without_the_others(
    accept_flow: AcceptFlow, operator: Operator, database_url: str
) -> None:
    sender = await new_sender(operator, "poisoned")
    neighbour = await new_sender(operator, "neighbour")
    await known(accept_flow, sender, neighbour)
    draft = sender.draft()
    # No draft from outside contains a NUL; should it ever, PostgreSQL refuses it with the whole statement.
    poison = draft._replace(request_fields=draft.request_fields._replace(sender="a\x00b"))
    outcomes = await in_one_batch(
        accept_flow.accept(neighbour, "before"),
        accept_flow.accept(sender, "poison", poison),
        accept_flow.accept(sender, "after"),
        accept_flow.accept(neighbour, "after"),
    )
    assert outcomes[:1] + outcomes[2:] == ["accepted"] * 3
    assert outcomes[1] not in {"accepted", "replay"}
    async with session(database_url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM messages") == 3
    # The key of what failed is free.
    assert await in_one_batch(accept_flow.accept(sender, "poison")) == ["accepted"]
    assert await database_faults(database_url) == {}


async def test_a_message_without_its_partition_fails_without_the_others(
    accept_flow: AcceptFlow, operator: Operator, database_url: str
) -> None:
    sender = await new_sender(operator, "late")
    clock = accept_flow.clock
    assert isinstance(clock, SettableClock)
    clock.advance(days=30)
    assert "accepted" not in await in_one_batch(accept_flow.accept(sender, "one"), accept_flow.accept(sender, "two"))
    assert await database_faults(database_url) == {}


async def test_an_expired_key_is_new_again(accept_flow: AcceptFlow, operator: Operator, database_url: str) -> None:
    sender = await new_sender(operator, "expiring")
    clock = accept_flow.clock
    assert isinstance(clock, SettableClock)
    first = await accept_flow.accept(sender, "key")
    clock.advance(hours=23, minutes=59)
    assert (await accept_flow.accept(sender, "key")).message_id == first.message_id
    assert await in_one_batch(accept_flow.accept(sender, "key", body=b"other")) == ["idempotency_conflict"]
    clock.advance(minutes=1)
    second = await accept_flow.accept(sender, "key", body=b"other")
    assert (second.is_replay, second.message_id == first.message_id) == (False, False)
    assert await in_one_batch(accept_flow.accept(sender, "key")) == ["idempotency_conflict"]
    async with session(database_url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM messages") == 2
        assert await connection.fetchval("SELECT count(*) FROM idempotency") == 1


@pytest.mark.rule("IDEM-10", "IDEM-13")
async def test_an_expired_key_by_two_instances_at_once_is_one_message(
    accept_flow: AcceptFlow, operator: Operator, database_url: str
) -> None:
    sender = await new_sender(operator, "expiring")
    clock = accept_flow.clock
    assert isinstance(clock, SettableClock)
    async with open_accept_flow(database_url, clock) as another:
        for number in range(20):
            await accept_flow.accept(sender, f"key {number}")
        clock.advance(hours=24)
        for number in range(20):
            outcomes = await in_one_batch(
                accept_flow.accept(sender, f"key {number}", body=b"new"),
                another.accept(sender, f"key {number}", body=b"new"),
            )
            assert outcomes.count("accepted") == 1, outcomes
            assert set(outcomes) <= {"accepted", "replay", "idempotency_in_progress"}
    async with session(database_url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM messages") == 40


@pytest.mark.rule("IDEM-13")
async def test_one_key_by_two_instances_at_once_is_one_message(
    accept_flow: AcceptFlow, operator: Operator, database_url: str
) -> None:
    sender = await new_sender(operator, "twice")
    async with open_accept_flow(database_url, accept_flow.clock) as another:
        for number in range(50):
            accept_flows = [accept_flow, another] if number % 2 else [another, accept_flow]
            outcomes = await in_one_batch(
                *(flow.accept(sender, f"key {number}") for flow in accept_flows for _ in range(2))
            )
            assert outcomes.count("accepted") == 1, outcomes
            assert set(outcomes) <= {"accepted", "replay", "idempotency_in_progress"}
    async with session(database_url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM messages") == 50
    assert await database_faults(database_url) == {}


@pytest.mark.rule("MONEY-03", "MONEY-04")
async def test_two_instances_spend_the_last_credits_exactly(
    accept_flow: AcceptFlow, operator: Operator, database_url: str
) -> None:
    sender = await new_sender(operator, "few", credits=10)
    async with open_accept_flow(database_url, accept_flow.clock) as another:
        outcomes = await in_one_batch(
            *(
                flow.accept(sender, f"key {number} {id(flow)}")
                for number in range(32)
                for flow in (accept_flow, another)
            )
        )
    assert Counter(outcomes) == {"accepted": 10, Code.INSUFFICIENT_CREDITS.value: 54}
    assert await database_faults(database_url) == {}


async def test_a_locked_account_delays_only_its_own_items(operator: Operator, database_url: str) -> None:
    stuck = await new_sender(operator, "stuck")
    free = await new_sender(operator, "free")
    async with (
        open_accept_flow(database_url, DatabaseClock()) as accept_flow,
        session(database_url) as elsewhere,
        elsewhere.transaction(),
    ):
        await known(accept_flow, stuck, free)
        await elsewhere.execute("SELECT FROM accounts WHERE id = $1 FOR UPDATE", stuck.account_id)
        # All are decided while the lock is held.
        outcomes = await in_one_batch(
            *(accept_flow.accept(sender, f"key {number}") for number in range(10) for sender in (stuck, free))
        )
    assert outcomes == ["temporary_failure", "accepted"] * 10
    assert await database_faults(database_url) == {}
