"""The operator of another version: creates accounts with the commands of its `posthouse`, which knows its tables."""

import asyncio
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from posthouse.rules import ids
from tests.support.operator_client import WHY, MadeAccount, MadeCredential


@dataclass(frozen=True, slots=True)
class CommandOperator:
    """What `Service.account` needs of `Operator`."""

    program: Path
    environment: Mapping[str, str]
    directory: Path

    async def create_account(self, name: str) -> MadeAccount:
        made = await self._run("account", "create", name, "--json")
        account = ids.parse(ids.ACCOUNT, made["id"])
        assert account is not None, made
        secret = made["credential"]
        return MadeAccount(account, MadeCredential(UUID(int=0), secret["username"], secret["password"]))

    async def grant_credits(self, account: UUID, amount: int) -> None:
        await self._run("credits", "grant", _text(account), str(amount), "--reason", WHY, "--json")

    async def add_verified_domain(self, account: UUID, name: str) -> None:
        await self._run("domain", "add", _text(account), name, "--json")
        await self._run("domain", "verify", _text(account), name, "--vouched", "--json")

    async def set_limits(self, account: UUID, *, rate: tuple[int, int] | None, warmup: Sequence[int] | None) -> None:
        per_second, burst = map(str, rate or ("default", "default"))
        days = "default" if warmup is None else ",".join(map(str, warmup)) or "exempt"
        await self._run(
            *("account", "limits", _text(account), "--json"),
            *("--rate", per_second, "--burst", burst, "--warmup", days),
        )

    async def close(self) -> None:
        """It has nothing to close."""

    async def _run(self, *words: str) -> Any:
        def run() -> Any:
            done = subprocess.run(
                [self.program, *words],
                env=self.environment,
                cwd=self.directory,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        return await asyncio.to_thread(run)


def _text(account: UUID) -> str:
    return ids.text(ids.ACCOUNT, account)
