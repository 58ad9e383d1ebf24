"""`kill -9` in mid-load: every message answered with 202 is stored, and nothing is half stored."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.http_load import HttpLoad
from tests.support.bad_input import new_seed
from tests.support.database_checks import database_faults
from tests.support.server_process import ServerProcess
from tests.support.service import Service, uuid

KILLS = 10
SENDERS = 16


async def kill_again_and_again(server: ServerProcess, kills: int, randomness: random.Random) -> None:
    for _ in range(kills):
        await asyncio.sleep(randomness.uniform(0.1, 0.6))
        await asyncio.to_thread(server.kill)
        await server.start(processes=2 if randomness.random() < 0.25 else 1)


async def messages_by_key(service: Service) -> dict[str, list[str]]:
    rows = await service.sql("SELECT subject, id FROM messages")
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["subject"], []).append(row["id"])
    return found


@pytest.mark.rule("RESP-06")
@pytest.mark.long
async def test_kills_in_mid_load_lose_nothing_and_double_nothing(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    seed = new_seed()
    url = await asyncio.to_thread(new_database)
    # Two servers of one fleet, killed in turns and started again at their ports: the other serves meanwhile.
    servers = [ServerProcess(url, tmp_path / f"server-{number}.log") for number in range(2)]
    clients: list[Service] = []
    try:
        await asyncio.gather(servers[0].start(processes=2), servers[1].start())
        clients = [await server.open_client() for server in servers]
        tenants = [await clients[0].account(credits=10_000_000) for _ in range(3)]
        tenants.append(await clients[0].account(credits=60))
        load = HttpLoad(clients, tenants, seed)
        sending = asyncio.create_task(load.run(SENDERS))
        await asyncio.gather(
            *(
                kill_again_and_again(server, KILLS // 2, random.Random(f"{seed} kills {number}"))
                for number, server in enumerate(servers)
            )
        )
        load.stop()
        await sending
        accepted = [request for request in load.requests if request.message_id is not None]
        unanswered = [request for request in load.requests if request.is_open]
        print(f"{len(accepted)} accepted, {len(unanswered)} without an answer, {load.answers}")
        assert len(accepted) > 5 * KILLS, "too little load to show anything"
        assert unanswered, "no kill hit a request"

        assert await database_faults(url) == {}
        there = await messages_by_key(clients[0])
        assert [key for key, ids in there.items() if len(ids) > 1] == []
        for request in accepted:
            assert there[request.key] == [uuid(request.message_id or "")]
        refused = [request for request in load.requests if request.refusal is not None]
        assert {request.refusal for request in refused} <= {"insufficient_credits"}
        assert [request.key for request in refused if request.key in there] == []
        assert set(there) <= {request.key for request in load.requests}

        # The retry of an unanswered request finds its message, or creates the only one.
        fates: Counter[str] = Counter()
        async with asyncio.TaskGroup() as group:
            for request in unanswered:
                group.create_task(load.settle(request, clients[0]))
        for request in unanswered:
            before = there.get(request.key)
            fates["was there" if before else "was not"] += 1
            if before:
                assert uuid(request.message_id or "") == before[0]
        print(f"without an answer: {dict(fates)}")
        randomness = random.Random(f"{seed} replays")
        await asyncio.gather(*(replay(load, accepted[start::SENDERS], clients, randomness) for start in range(SENDERS)))
        assert await database_faults(url) == {}
        afterwards = await messages_by_key(clients[0])
        assert [key for key, ids in afterwards.items() if len(ids) > 1] == []
        assert set(afterwards) == {request.key for request in load.requests if request.message_id is not None}
    finally:
        for client in clients:
            await client.close()
        for server in servers:
            server.kill()


async def replay(load: HttpLoad, requests: list, clients: list[Service], randomness: random.Random) -> None:
    for request in requests:
        answer = await load.attempt(request, randomness.choice(clients))
        assert answer is not None
        assert answer.status == 202, answer.raw
        assert answer.headers["Idempotent-Replayed"] == "true"
