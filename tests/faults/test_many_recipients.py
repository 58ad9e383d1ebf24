"""Messages of fifty recipients each, which end in different workers at once."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.rules.ticket import shard_of
from tests.support.eventually import HANG_SECONDS
from tests.support.service import Tenant, uuid
from tests.support.service_processes import run_processes

RECIPIENTS = 50
DOMAINS = 10
SHARDS = 16
WORKERS = 2
SENDERS = 8
FINAL_SECONDS_MAX = 3 * HANG_SECONDS

# How many recipients of a message end in which way, by the first word of their addresses; and how the message does.
TAKEN, UNKNOWN, UNWANTED, LATER, NEVER = "taken", "550-rcpt", "554-rcpt", "greylist", "451-rcpt"
ENDS = {TAKEN: "delivered", LATER: "delivered", UNKNOWN: "bounced", UNWANTED: "bounced", NEVER: "failed"}
KINDS: list[tuple[dict[str, int], str, str]] = [
    ({TAKEN: 50}, "delivered", "settled"),
    ({UNKNOWN: 25, UNWANTED: 25}, "failed", "released"),
    ({TAKEN: 30, UNKNOWN: 15, LATER: 5}, "partial", "settled"),
    ({UNWANTED: 47, NEVER: 3}, "failed", "settled"),
    ({TAKEN: 46, LATER: 3, NEVER: 1}, "partial", "settled"),
]


def domains_of_different_shards() -> list[str]:
    found: dict[int, str] = {}
    for number in itertools.count():
        name = f"d{number}.example.net"
        found.setdefault(shard_of(name, SHARDS), name)
        if len(found) == DOMAINS:
            return list(found.values())
    raise AssertionError("there are always more names")


def recipients_of(number: int, domains: list[str]) -> Iterator[str]:
    behaviours = [word for word, count in KINDS[number % len(KINDS)][0].items() for _ in range(count)]
    for position, behaviour in enumerate(behaviours):
        # Rotated by the message's number, so that the odd ones aren't always at the same domain.
        yield f"{behaviour}+{number}-{position}@{domains[(position + number) % len(domains)]}"


async def send(tenant: Tenant, numbers: Iterator[int], domains: list[str], sent: dict[str, int]) -> None:
    for number in numbers:
        accepted = await tenant.accepts(tenant.mail(to=list(recipients_of(number, domains))))
        sent[accepted["id"]] = number


@pytest.mark.long
@pytest.mark.parametrize("messages", [40, pytest.param(1_000, marks=pytest.mark.nightly)])
async def test_messages_of_fifty_recipients_without_a_deadlock(
    database_url: str, tmp_path: Path, messages: int
) -> None:
    # A backlog of this size outlives the short leases that other tests work with.
    leases = {"WORKERS__LEASE_SECONDS": "30", "WORKERS__TICKET_LEASE_SECONDS": "60"}
    async with run_processes(
        database_url, tmp_path, workers=WORKERS, keeps_mail=False, STREAM__SHARDS=str(SHARDS), **leases
    ) as processes:
        domains = [processes.destination(name) for name in domains_of_different_shards()]
        tenant = await processes.service.account(credits=messages * RECIPIENTS)
        sent: dict[str, int] = {}
        numbers = iter(range(messages))
        started = time.monotonic()
        await asyncio.gather(*(send(tenant, numbers, domains, sent) for _ in range(SENDERS)))
        accepted_after = time.monotonic() - started
        await processes.wait_until_all_final(FINAL_SECONDS_MAX)
        print(f"accepted after {accepted_after:.1f} s, all final after {time.monotonic() - started:.1f} s")

        assert await processes.service.value("SELECT count(*) FROM delivery_schedule") == 0, "some are stuck"
        rows = await processes.service.sql("SELECT id, status, billing_status FROM messages")
        states = {row["id"]: (row["status"], row["billing_status"]) for row in rows}
        wrong = {
            message_id: states[uuid(message_id)]
            for message_id, number in sent.items()
            if states[uuid(message_id)] != KINDS[number % len(KINDS)][1:]
        }
        assert (len(states), wrong) == (messages, {})
        rows = await processes.service.sql(
            "SELECT split_part(email, '+', 1) AS manner, status, count(*) FROM recipients GROUP BY 1, 2"
        )
        expected: Counter[tuple[str, str]] = Counter()
        for number in range(messages):
            for behaviour, count in KINDS[number % len(KINDS)][0].items():
                expected[behaviour, ENDS[behaviour]] += count
        assert {(row["manner"], row["status"]): row["count"] for row in rows} == dict(expected)
        assert await tenant.available() == expected[UNKNOWN, "bounced"] + expected[UNWANTED, "bounced"]

        assert await processes.broken_promises() == {}
        assert (await processes.orphans(), await processes.duplicates()) == (0, 0)
        busy = await processes.service.sql("SELECT worker_id, count(*) FROM attempts GROUP BY 1")
        assert len(busy) == WORKERS, "all of it went through one worker"
        shared = await processes.service.value(
            """SELECT count(*) FROM (
                   SELECT message_id FROM attempts GROUP BY 1 HAVING count(DISTINCT worker_id) > 1) both_worked_on"""
        )
        assert shared == messages
        deadlocks = await processes.service.value(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        assert deadlocks == 0
