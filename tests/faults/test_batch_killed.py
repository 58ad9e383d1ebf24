"""`kill -9` at every step of accepting a batch request: the repeated request has one message for each email."""

import os
import random
from pathlib import Path

import aiohttp
import pytest

from posthouse import crash
from tests.support.bad_input import new_seed
from tests.support.http_answer import Answer
from tests.support.server_process import ServerProcess
from tests.support.service import Service, Tenant

# More than two transactions' worth.
EMAILS = 120
SINGLE_ONLY = {"accept.admitted", "accept.read", "accept.before_answer", "accept.answered"}
# Without a stream, no ticket is published.
POINTS = sorted({point for point in crash.POINTS if point.startswith("accept.")} - SINGLE_ONLY - {"accept.published"})
PASSES = {"accept.prepared": EMAILS}


async def post(client: Service, tenant: Tenant, key: str, emails: list[dict[str, object]]) -> Answer | None:
    headers = {"Authorization": tenant.basic, "Idempotency-Key": key}
    try:
        return await client.request("POST", "/emails/batch", headers=headers, json={"emails": emails})
    except (aiohttp.ClientError, OSError):
        return None


@pytest.mark.long
async def test_a_repeated_batch_request_makes_one_message_for_each_email(database_url: str, tmp_path: Path) -> None:
    """KILLS=200 kills more often than CI does."""
    kills = int(os.environ.get("KILLS", "8"))
    seed = new_seed()
    randomness = random.Random(seed)
    server = ServerProcess(database_url, tmp_path / "server.log")
    await server.start()
    client = await server.open_client()
    tenant = await client.account(credits=kills * EMAILS)
    emails: list[dict[str, object]] = [
        dict(tenant.mail(to=f"r{number}@example.org", subject=f"No. {number}")) for number in range(EMAILS)
    ]
    try:
        for number in range(kills):
            point = POINTS[number % len(POINTS)]
            server.settings["CRASH_AT"] = f"{point}:{randomness.randint(1, PASSES.get(point, 3))}"
            server.kill()
            await server.start()
            key = f"batch-{number}"
            assert await post(client, tenant, key, emails) is None, f"{server.settings} was not passed"
            del server.settings["CRASH_AT"]
            assert await server.ended() == -9
            await server.start()
            answer = await post(client, tenant, key, emails)
            assert answer is not None
            assert answer.status == 200, answer.body
            ids = [result["id"] for result in answer.body["results"]]
            assert len(set(ids)) == EMAILS
            subjects = await client.sql("SELECT subject FROM messages WHERE account_id = $1", tenant.id)
            assert len(subjects) == (number + 1) * EMAILS, server.settings
        assert await tenant.available() == 0
        assert (
            await client.value("SELECT count(DISTINCT subject) FROM messages WHERE account_id = $1", tenant.id)
            == EMAILS
        )
    finally:
        server.kill()
        await client.close()
