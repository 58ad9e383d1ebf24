"""The accept flow without a server around it: built as the composition root builds it, on a real database."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from posthouse.clock import Clock
from posthouse.flows.accept.intake import AcceptedMessage, Intake
from posthouse.flows.accept.preparation import Preparation
from posthouse.flows.shared.account_limits import Defaults
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.principal import Principal
from posthouse.randomness import SystemRandomness
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.draft import Draft, compose
from posthouse.rules.ids import AccountId, CredentialId, RequestId
from posthouse.rules.rate_limit import Rate
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from tests.support.context import context
from tests.support.fresh_database import PATIENCE, open_database
from tests.support.operator_client import Operator

SIMULATOR: Final = "simulator.invalid"
RATE: Final = Rate(1_000_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class Sender:
    """An account that may send."""

    account_id: UUID
    credential_id: UUID
    domain: str

    def principal(self, mode: Mode = Mode.LIVE) -> Principal:
        return Principal(AccountId(self.account_id), CredentialId(self.credential_id), mode)

    def draft(self, recipients: int | Sequence[str] = 1, **fields: Any) -> Draft:
        to = [f"r{number}@example.org" for number in range(recipients)] if isinstance(recipients, int) else recipients
        return compose(sender=f"news@{self.domain}", to=to, **{"subject": "Hello", "text": "Good morning.", **fields})


@dataclass(slots=True)
class AcceptFlow:
    database: Database
    control_cache: ControlCache
    intake: Intake
    clock: Clock

    async def accept(
        self, sender: Sender, key: str, draft: Draft | None = None, *, body: bytes = b"body", mode: Mode = Mode.LIVE
    ) -> AcceptedMessage:
        """`body` represents the request: two requests are the same when their bodies are."""
        request_id = RequestId(new_id(self.clock.now()))
        given = draft or sender.draft()
        return await self.intake.accept(sender.principal(mode), key, given, self.intake.fingerprint(body), request_id)


def new_id(now: datetime) -> UUID:
    return ids.new_id(now, SystemRandomness().id_bytes())


@asynccontextmanager
async def open_accept_flow(
    database_url: str, clock: Clock, *, connections_max: int = 10, storage: DiskSpace | None = None
) -> AsyncIterator[AcceptFlow]:
    """The accept flow of one process. Its cache is fresh; `forget_changes` keeps it so."""
    async with open_database(database_url, connections_max=connections_max, timeout_factor=PATIENCE) as database:
        control_cache = ControlCache(database, clock.monotonic)
        await control_cache.forget_changes()
        intake = new_intake(database, control_cache, clock, offers_one_click=True, disk_space=storage)
        yield AcceptFlow(database, control_cache, intake, clock)
        await intake.drain()


def new_intake(database: Database, control_cache: ControlCache, clock: Clock, **given: Any) -> Intake:
    of_context = {name: given.pop(name) for name in ("randomness", "peppers") if name in given}
    preparation = Preparation(
        control_cache=control_cache,
        hostname="posthouse.test",
        simulator_domain=SIMULATOR,
        offers_one_click=given.pop("offers_one_click", False),
    )
    return Intake(
        context(database, clock, **of_context),
        control_cache=control_cache,
        preparation=preparation,
        **{"defaults": Defaults(rate=RATE, warmup_limits=None), **given},
    )


async def new_sender(operator: Operator, name: str, *, credits: int = 1_000_000) -> Sender:  # noqa: A002
    made = await operator.create_account(name)
    if credits:
        await operator.grant_credits(made.id, credits)
    await operator.add_verified_domain(made.id, f"{name}.example.com")
    await operator.set_limits(made.id, rate=None, warmup=())
    return Sender(made.id, made.credential.id, f"{name}.example.com")
