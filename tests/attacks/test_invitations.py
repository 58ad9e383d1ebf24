"""An owner invites a stranger's address to claim it: the token goes to the stranger alone."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.support.server_process import start_service

STRANGER = "cto@victim-company.example"


async def test_an_owner_can_not_claim_a_strangers_address(new_database: Callable[[], str], tmp_path: Path) -> None:
    service = await start_service(await asyncio.to_thread(new_database), tmp_path / "server.log")
    try:
        await service.prepare_sender()
        attacker, victim = await service.account(), await service.account()
        invited = await attacker.call("POST", "/v1/invitations", {"email": STRANGER, "role": "viewer"})
        assert invited.status == 201, invited.raw
        (token,) = await service.mailed_tokens(STRANGER)
        # Whatever the attacker can read of the account has no token.
        paths = ("/v1/invitations", "/v1/audit-log", "/v1/messages", "/v1/auth/me")
        seen = [invited.raw, *[(await attacker.call("GET", path)).raw for path in paths]]
        assert not any(token.encode() in raw for raw in seen)
        assert await service.value("SELECT count(*) FROM users WHERE email = $1", STRANGER) == 0
        # The stranger's own company invites them: they choose the password.
        await victim.call("POST", "/v1/invitations", {"email": STRANGER, "role": "owner"})
        accepting = {"token": await service.mailed_token(STRANGER), "password": "the stranger's own password"}
        accepted = await service.request("POST", "/v1/invitations/accept", json=accepting)
        assert (accepted.status, accepted.body["role"]) == (200, "owner")
    finally:
        await service.stop()
