"""The operator of a service under test: creates accounts, credentials, domains and users through the real flows."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from posthouse.clock import Clock
from posthouse.compose.flows import Flows, open_flows
from posthouse.config import Settings
from posthouse.flows.operate.accounts import KNOWN_EVERYWHERE
from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR, Mode, Role, Scope
from posthouse.rules.ids import AccountId
from tests.support.clock import SettableClock
from tests.support.faster import CHEAP_HASHER

WHY: Final = "acceptance tests"


@dataclass(frozen=True, slots=True)
class MadeCredential:
    id: UUID
    username: str
    password: str


@dataclass(frozen=True, slots=True)
class MadeAccount:
    id: UUID
    credential: MadeCredential


@dataclass(frozen=True, slots=True)
class MadeKey:
    id: UUID
    secret: str


class Operator:
    """The flows of commands, with accounts, credentials and keys named by UUID."""

    def __init__(self, flows: Flows, stack: AsyncExitStack, clock: Clock | None = None) -> None:
        self._flows = flows
        self._accounts = flows.accounts
        self.domains = flows.domains
        self.credentials = flows.credentials
        self.maintenance = flows.maintenance
        self.alert_check = flows.alert_check
        self._stack = stack
        self._clock = clock

    @classmethod
    async def open(cls, settings: Settings, clock: Clock | None = None) -> "Operator":
        """With the test's own clock, if it has one; the database's otherwise."""
        stack = AsyncExitStack()
        flows = await stack.enter_async_context(open_flows(settings))
        flows.passwords._hasher = CHEAP_HASHER
        if clock is not None:
            flows.accounts._clock = flows.domains._clock = flows.credentials._clock = clock
        return cls(flows, stack, clock)

    async def close(self) -> None:
        await self._stack.aclose()

    async def create_account(self, name: str) -> MadeAccount:
        made = await self._accounts.create_account(name)
        default = made.credential
        credential = MadeCredential(default.credential.id, default.credential.username, default.password)
        return MadeAccount(made.account.id, credential)

    async def login_link(self, email: str) -> str:
        """The token of a link."""
        return (await self._flows.login_links.new_link(email)).partition("#link=")[2]

    async def end_sessions(self, email: str) -> None:
        await self._flows.sessions.end_of(email, None)

    async def grant_credits(self, account: UUID, amount: int) -> None:
        await self._accounts.grant_credits(_account(account), amount, WHY)

    async def add_domain(self, account: UUID, name: str) -> None:
        await self.domains.add(AccountId(account), name, OPERATOR)

    async def verify_domain(self, account: UUID, name: str) -> None:
        await self.domains.verify(AccountId(account), name, OPERATOR, vouched=True)

    async def add_verified_domain(self, account: UUID, name: str) -> None:
        await self.add_domain(account, name)
        await self.verify_domain(account, name)

    async def set_limits(self, account: UUID, *, rate: tuple[int, int] | None, warmup: Sequence[int] | None) -> None:
        """A rate of None and a warm-up of None are the service's own; a warm-up without numbers is exempt."""
        await self._accounts.set_limits(
            _account(account),
            rate_per_second=rate[0] if rate else "default",
            rate_burst=rate[1] if rate else "default",
            warmup="default" if warmup is None else (warmup or "exempt"),
        )

    async def suspend(self, account: UUID) -> None:
        await self._accounts.suspend(_account(account), WHY)

    async def resume(self, account: UUID) -> None:
        """A clock that the test moves is moved to when held mail is due."""
        await self._accounts.resume(_account(account))
        if isinstance(self._clock, SettableClock):
            self._clock.advance(KNOWN_EVERYWHERE)

    async def create_credential(self, account: UUID, name: str, allowed_networks: Sequence[str] = ()) -> MadeCredential:
        made = await self.credentials.create_credential(AccountId(account), name, allowed_networks, OPERATOR)
        return MadeCredential(made.credential.id, made.credential.username, made.password)

    async def revoke_credential(self, account: UUID, credential: UUID) -> None:
        given = ids.text(ids.CREDENTIAL, credential)
        await self.credentials.revoke_credential(AccountId(account), given, OPERATOR, even_the_last=True)

    async def create_key(
        self,
        account: UUID,
        credential: UUID,
        *,
        mode: str = "live",
        may_read: bool = False,
        scopes: Sequence[Scope] = (),
        sender_domains: tuple[str, ...] = (),
    ) -> MadeKey:
        made = await self.credentials.create_key(
            AccountId(account),
            OPERATOR,
            mode=Mode(mode),
            scopes=scopes or ([Scope.SEND, Scope.READ] if may_read else [Scope.SEND]),
            sender_domains=sender_domains,
            given_credential=ids.text(ids.CREDENTIAL, credential),
        )
        return MadeKey(made.key.id, made.secret)

    async def revoke_key(self, account: UUID, key: UUID) -> None:
        await self.credentials.revoke_key(AccountId(account), ids.text(ids.API_KEY, key), OPERATOR)

    async def create_user(self, account: UUID, email: str, password: str, role: str) -> None:
        await self._flows.team.create_user(AccountId(account), email, password, Role(role), OPERATOR)

    async def invite(self, account: UUID, email: str, role: str) -> str:
        """The invitation's token."""
        return (await self._flows.team.invite(AccountId(account), email, Role(role), OPERATOR)).token


def _account(account: UUID) -> str:
    return ids.text(ids.ACCOUNT, account)
