"""The flows of accounts, domains and credentials on a real database and a real name server, with a settable clock."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from posthouse.flows.account.credentials import Credentials
from posthouse.flows.account.domains import Domains, DomainView
from posthouse.flows.operate.accounts import Accounts
from posthouse.flows.shared.account_limits import Defaults
from posthouse.randomness import SeededRandomness
from posthouse.rules.credential import Actor
from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.support.context import context
from tests.support.nameserver import Nameserver

NOON: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY: Final = timedelta(days=1)
DEFAULTS: Final = Defaults(rate=Rate(20, 40), warmup_limits=(200, 300, 500))
RETURN_PATH: Final = "bounces.posthouse.example"
ADA: Final = Actor(UserId(UUID(int=1)), "ada@example.com")


class TickingClock:
    """Stands still until it is set; each reading adds a millisecond, so that ids sort."""

    def __init__(self, now: datetime = NOON) -> None:
        self.time = now

    def now(self) -> datetime:
        self.time += timedelta(milliseconds=1)
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()


@dataclass
class AccountFlows:
    accounts: Accounts
    domains: Domains
    credentials: Credentials
    database: Database
    nameserver: Nameserver
    clock: TickingClock
    sealer: Sealer

    async def account(self, name: str = "Acme") -> AccountId:
        return (await self.accounts.create_account(name)).account.id

    async def value(self, query: str, *arguments: object) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(query, *arguments)

    async def change(self, query: str, *arguments: object) -> None:
        async with self.database.transaction() as tx:
            await tx.execute(query, *arguments)

    async def actions(self, account_id: AccountId) -> list[tuple[str, str]]:
        """The account's audit log: actions and actors."""
        async with self.database.connection() as connection:
            rows = await connection.fetch(
                "SELECT action, actor FROM audit_log WHERE account_id = $1 ORDER BY id", account_id
            )
        return [(row["action"], row["actor"]) for row in rows]

    def publish(self, view: DomainView) -> None:
        """Publishes all records that the domain's owner is asked for."""
        for line in view.lines:
            if line.record.value:
                self.nameserver.zone[line.record.name] = [line.record.value]

    async def stamps(self, act: Callable[[], Awaitable[object]]) -> object:
        """Asserts that the act moves the account's changed_at, so that caches forget the account."""
        before = await self.value("SELECT max(changed_at) FROM accounts")
        self.clock.time += timedelta(minutes=1)
        answer = await act()
        assert await self.value("SELECT max(changed_at) FROM accounts") > before
        return answer


@asynccontextmanager
async def open_account_flows(
    database: Database, warmup_limits: tuple[int, ...] | None = DEFAULTS.warmup_limits
) -> AsyncIterator[AccountFlows]:
    clock, randomness, sealer = TickingClock(), SeededRandomness(7), Sealer({"1": b"k" * 32}, "1")
    async with Nameserver() as nameserver:
        credentials = Credentials(context(database, clock, randomness))
        domains = Domains(
            context(database, clock, randomness, sealer=sealer),
            resolver=Resolver([nameserver.endpoint], lookup_seconds_max=1.0),
            return_path=RETURN_PATH,
        )
        defaults = replace(DEFAULTS, warmup_limits=warmup_limits)
        accounts = Accounts(context(database, clock, randomness), defaults=defaults)
        yield AccountFlows(accounts, domains, credentials, database, nameserver, clock, sealer)


async def assert_refused(act: Awaitable[object], code: Code, said: str = "") -> Refusal:
    with pytest.raises(Refusal) as caught:
        await act
    assert caught.value.code is code, caught.value
    assert said in caught.value.text
    return caught.value
