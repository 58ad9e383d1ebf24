"""Invitations: the token goes only to the invited address; consequences fall on the inviters, not on the service."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.http_answer import Answer
from tests.support.service import PASSWORD, SENDER_ACCOUNT, Service, Tenant
from tests.support.service_processes import prepare_processes

INVITED = "cto@victim-company.example"
DOMAIN = "one.example.net"
# A network may ask for this many new passwords at once.
RESETS = 3
SCENE_SECONDS_MAX = 3 * HANG_SECONDS


async def test_an_owner_can_not_claim_another_persons_address(service: Service) -> None:
    await service.prepare_sender()
    attacker, victim = await service.account(), await service.account()
    invited = await attacker.call("POST", "/v1/invitations", {"email": INVITED, "role": "viewer"})
    assert invited.status == 201, invited.raw
    (token,) = await service.mailed_tokens(INVITED)
    # Nothing that the attacker can read of the account contains the token.
    paths = ("/v1/invitations", "/v1/audit-log", "/v1/messages", "/v1/auth/me")
    seen = [invited.raw, *[(await attacker.call("GET", path)).raw for path in paths]]
    assert not any(token.encode() in raw for raw in seen)
    assert await service.value("SELECT count(*) FROM users WHERE email = $1", INVITED) == 0
    # The invited person's own company invites them: they choose the password.
    await victim.call("POST", "/v1/invitations", {"email": INVITED, "role": "owner"})
    accepting = {"token": await service.mailed_token(INVITED), "password": "the invited person's own password"}
    accepted = await service.request("POST", "/v1/invitations/accept", json=accepting)
    assert (accepted.status, accepted.body["role"]) == (200, "owner")


async def invite_unknown(tenant: Tenant, attempts: int) -> Answer:
    """At least this many, and more until the account may send no more."""
    number = 0
    while True:
        body = {"email": f"550-rcpt+{tenant.unique}-{number}@{DOMAIN}", "role": "viewer"}
        answer = await tenant.call("POST", "/v1/invitations", body)
        number += 1
        if answer.status == 403 and number >= attempts:
            return answer
        assert answer.status in (201, 403) or answer.is_refusal(429, "rate_limited"), answer.raw
        await asyncio.sleep(0.05 if answer.status == 201 else 0.2)  # as an attacker who stays below the rate


async def forgot(service: Service, email: str) -> Answer:
    return await service.request("POST", "/v1/auth/forgot", json={"email": email})


@pytest.mark.rule("TEAM-18")
@pytest.mark.parametrize(
    ("accounts", "attempts", "lane_per_second"),
    [(2, 20, 4), pytest.param(20, 50, 5, marks=pytest.mark.nightly)],
    ids=["short", "1000"],
)
async def test_invitations_to_unknown_addresses_stop_the_inviters_and_no_password_reset(
    new_database: Callable[[], str], tmp_path: Path, accounts: int, attempts: int, lane_per_second: int
) -> None:
    async with prepare_processes(
        await asyncio.to_thread(new_database),
        tmp_path,
        stream="memory",
        LANES__PER_SECOND=str(lane_per_second),
        LANES__BURST="1",
        LANES__CONNECTIONS_MAX="4",
    ) as processes:
        processes.destination(DOMAIN)
        await processes.start_http("dispatch", "delivery", "maintenance")
        service = processes.service
        await service.prepare_sender()
        sender = await service.value("SELECT id FROM accounts WHERE name = $1", SENDER_ACCOUNT)
        await service.operator.set_limits(sender, rate=(20, 40), warmup=())
        inviters = [await service.account() for _ in range(accounts)]
        users = [f"taken+user{number}@{DOMAIN}" for number in range(RESETS)]
        for user in users:
            await service.operator.create_user(inviters[0].id, user, PASSWORD, "viewer")
        for tenant in inviters:
            await tenant.jwt()

        async def waiting() -> set[UUID]:
            return {row["message_id"] for row in await service.sql("SELECT message_id FROM delivery_schedule")}

        async def arrived() -> set[str]:
            return set(users) & set(processes.copies())

        attack = asyncio.gather(*[invite_unknown(tenant, attempts) for tenant in inviters])
        try:
            before = await eventually(waiting, lambda found: len(found) >= 20)
            assert [(await forgot(service, user)).status for user in users] == [200] * RESETS
            await eventually(arrived, lambda found: found == set(users))
            # The resets overtook most of the invitations.
            assert len(before & await waiting()) >= len(before) // 3
            stopped = await asyncio.wait_for(attack, SCENE_SECONDS_MAX)
        finally:
            attack.cancel()
        assert all(answer.is_refusal(403, "forbidden", "invitations", "addresses") for answer in stopped)
        for tenant in inviters:
            log = (await tenant.call("GET", "/v1/audit-log?limit=100")).body["entries"]
            assert [entry["action"] for entry in log].count("account.warned") == 1
        neighbour = await service.account()
        invited = await neighbour.call("POST", "/v1/invitations", {"email": f"taken+new@{DOMAIN}", "role": "viewer"})
        assert invited.status == 201, invited.raw
        if attempts * accounts >= 1_000:
            said = "SELECT count(*) FROM audit_log WHERE account_id = $1 AND action = 'account.warned'"
            await eventually(lambda: service.value(said, sender), lambda count: count == 1)

            async def again() -> int:
                return processes.copies()[users[0]]

            assert (await forgot(service, users[0])).status == 200
            await eventually(again, lambda count: count == 2)
        assert await service.value("SELECT suspended_at FROM accounts WHERE id = $1", sender) is None
