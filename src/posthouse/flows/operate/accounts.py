"""Accounts, as an operator manages them: limits, credits, suspension.

An account is named by its name or its id (`ac_…`). Secrets are in the result of the creating call and nowhere
else afterwards.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.new_credential import CredentialGenerator, NewCredential
from posthouse.flows.shared.new_id import new_id
from posthouse.flows.shared.operator_log import OperatorLog
from posthouse.rules import ids, input_checks
from posthouse.rules import reputation as reputation_rules
from posthouse.rules.actor import OPERATOR, Actor
from posthouse.rules.ids import AccountId
from posthouse.rules.limits import CONTROL_CACHE_SECONDS
from posthouse.rules.operator import VISIT_MAX
from posthouse.rules.pepper import Peppers
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.reputation import ReputationFigures
from posthouse.rules.reputation import ReputationVerdict as ReputationVerdict
from posthouse.rules.usage import hour_of
from posthouse.store import (
    account_figures,
    accounts,
    credentials,
    delivery_schedule,
    domains,
    inbox,
    invitations,
    reputation,
    usage,
    users,
)
from posthouse.store.account_figures import AccountFigures as AccountFigures
from posthouse.store.account_figures import AccountOrder as AccountOrder
from posthouse.store.account_figures import RankedAccount
from posthouse.store.accounts import AccountRow as AccountRow
from posthouse.store.audit_log import Detail
from posthouse.store.credentials import ApiKeyRow as ApiKeyRow
from posthouse.store.credentials import CredentialRow as CredentialRow
from posthouse.store.domains import DomainRow as DomainRow
from posthouse.store.postgres import Connection, Database
from posthouse.store.reputation import AccountReputation
from posthouse.store.users import MemberRow as MemberRow

if TYPE_CHECKING:
    from posthouse.flows.operate.sandbox_domain import SandboxDomain

LIST_MAX: Final = 1_000
# Hours of all accounts would be many rows: those that stand out by the day come first.
ACCOUNTS_A_STEP: Final = 2_500
CANDIDATES: Final = 500
WARMUP_DAYS_MAX: Final = 366
# Large enough for any account, small enough that no sum of grants exceeds PostgreSQL's bigint.
CREDITS_MAX: Final = 10**12
# The columns are integers of four bytes.
LIMIT_MAX: Final = 10**9
RESUMED_AT_ONCE: Final = 5_000
# A worker whose cache still says suspended would hold the mail again.
KNOWN_EVERYWHERE: Final = timedelta(seconds=CONTROL_CACHE_SECONDS + 1)


@dataclass(frozen=True, slots=True)
class NewAccount:
    account: AccountRow
    credential: NewCredential


class FirstAccounts(NamedTuple):
    """The first of so many accounts that were `read`."""

    account_ids: Sequence[AccountId]
    read: int


@dataclass(frozen=True, slots=True)
class ClosedAccount:
    """How much access ended with the account."""

    account: AccountRow
    credentials: int
    keys: int
    members: int


@dataclass(frozen=True, slots=True)
class AccountDetail:
    """An account with everything that belongs to it."""

    account: AccountRow
    granted: int
    domains: Sequence[DomainRow]
    credentials: Sequence[CredentialRow]
    keys: Sequence[ApiKeyRow]
    members: Sequence[MemberRow]


@dataclass(frozen=True, slots=True)
class ReputationView:
    """An account's reputation: the results of its latest mail, the verdict, and how many of its addresses it erased."""

    standing: AccountReputation
    figures: ReputationFigures
    verdict: ReputationVerdict
    counted_since: datetime
    erased: int


@dataclass(frozen=True, slots=True)
class Visit:
    account: AccountRow
    until: datetime


class Accounts:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        peppers: Peppers,
        sender_account: str = "",
        sandbox_domain: "SandboxDomain | None" = None,
        actor: Actor = OPERATOR,
    ) -> None:
        """In the account's log its owners read of "the operator"; the operator's log names the `actor`."""
        self._operator_log = None if actor == OPERATOR else OperatorLog(chance, actor)
        # It belongs to no account.
        self._inbox_log = OperatorLog(chance, actor)
        self._database = database
        self._clock = clock
        self._chance = chance
        self._sender_account = sender_account
        self._sandbox_domain = sandbox_domain
        self._audit_log = AuditLog(chance)
        self._generator = CredentialGenerator(chance, peppers)

    # Accounts.

    async def create_account(self, name: str) -> NewAccount:
        """The account and its default SMTP credential, whose password is shown this once."""
        name = input_checks.name("An account's name", name)
        if name.startswith(ids.ACCOUNT):
            raise invalid(f"An account's name can't begin with {ids.ACCOUNT}, as ids do: choose another.")
        now = self._clock.now()
        async with self._database.transaction() as tx:
            account = await accounts.insert(tx, AccountId(new_id(self._chance, now)), name, now)
            if account is None:
                raise Refusal(Code.CONFLICT, f"There is an account named {name!r} already: choose another name.")
            created = await self._generator.credential(tx, account.id, "default", (), now, is_default=True)
            await self._note(tx, account, "account.created", now)
            if self._sandbox_domain is not None:
                await self._sandbox_domain.share(tx, account.id, now)
        return NewAccount(account, created)

    async def list_accounts(self) -> Sequence[AccountRow]:
        """All of them, in the order of their names."""
        found: list[AccountRow] = []
        is_more = True
        while is_more:
            async with self._database.connection() as connection:
                page = await accounts.page(connection, found[-1].name if found else "", LIST_MAX)
            found += page
            is_more = len(page) == LIST_MAX
        return found

    async def page(self, after_name: str, limit: int) -> Sequence[AccountRow]:
        """In the order of their names."""
        async with self._database.connection() as connection:
            return await accounts.page(connection, after_name, limit)

    async def first(self, order: AccountOrder, limit: int) -> FirstAccounts:
        """Those that stand out in this order, which is not that of names or limits."""
        async with self._database.connection() as connection:
            if order is AccountOrder.NEW:
                return FirstAccounts(await account_figures.newest(connection, limit), limit)
            return await self._first_lately(connection, order, limit)

    async def _first_lately(self, connection: Connection, order: AccountOrder, limit: int) -> FirstAccounts:
        """In the last 24 hours, of those that stand out in the days of these hours."""
        since, read = self._lately(), 0
        day = since.astimezone(UTC).date()
        ranked: list[RankedAccount] = []
        async for account_ids in all_accounts(connection, ACCOUNTS_A_STEP):
            ranked += await account_figures.first_of_days(connection, order, account_ids, day, CANDIDATES)
            read += len(account_ids)
        candidates = first_ids(ranked, CANDIDATES)
        return FirstAccounts(await account_figures.first_of_hours(connection, order, candidates, since, limit), read)

    async def rows(self, account_ids: Sequence[AccountId]) -> Sequence[AccountRow]:
        """In this order; those that are gone are left out."""
        async with self._database.connection() as connection:
            rows = await accounts.find_by_ids(connection, account_ids)
        return [rows[account_id] for account_id in account_ids if account_id in rows]

    async def figures(self, account_ids: Sequence[AccountId]) -> Mapping[AccountId, AccountFigures]:
        """What they sent in the last 24 hours."""
        async with self._database.connection() as connection:
            return await account_figures.of_accounts(connection, account_ids, self._lately())

    def _lately(self) -> datetime:
        return hour_of(self._clock.now()) - timedelta(hours=23)

    async def account(self, account: str) -> AccountDetail:
        async with self._database.connection() as connection:
            found = await _account(connection, account)
            return AccountDetail(
                account=found,
                granted=await accounts.granted(connection, found.id),
                domains=await domains.list_of_account(connection, found.id, LIST_MAX),
                credentials=await credentials.list_credentials(connection, found.id, LIST_MAX),
                keys=await credentials.list_keys(connection, found.id, LIST_MAX),
                members=await users.list_members(connection, found.id, LIST_MAX),
            )

    async def account_id(self, account: str) -> AccountId:
        """The id of the account with this name or id."""
        async with self._database.connection() as connection:
            return (await _account(connection, account)).id

    async def suspend(self, account: str, reason: str) -> AccountRow:
        """Sending ends; reading still works; mail already queued is held."""
        reason = input_checks.reason(reason)
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.suspended_at is not None:
                raise Refusal(
                    Code.CONFLICT,
                    f"The account is suspended already, for this reason: {found.suspended_reason}",
                )
            now = self._clock.now()
            await accounts.suspend(tx, found.id, reason, now)
            await self._note(tx, found, "account.suspended", now, {"reason": reason})
            return await accounts.lock(tx, found.id)

    async def visit(self, account: str) -> Visit:
        """Its owners read of it in their log, and on their pages until it ends."""
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            now = self._clock.now()
            until = now + VISIT_MAX
            await self._note(tx, found, "account.visited", now, {"until": until.isoformat(timespec="seconds")})
        return Visit(found, until)

    async def close(self, account: str, reason: str) -> ClosedAccount:
        """Ends an account's access, all of it at once; its records stay.

        Sending ends as in a suspension: queued mail is held, and fails after seven days, its credits returned. Every
        credential and key is revoked, every member and invitation removed. Credits stay as they are.
        """
        reason = input_checks.reason(reason)
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.closed_at is not None:
                raise Refusal(Code.CONFLICT, f"The account was closed already, on {found.closed_at:%Y-%m-%d}.")
            if self._sender_account in (found.name, ids.text(ids.ACCOUNT, found.id)):
                raise Refusal(
                    Code.CONFLICT,
                    "The service sends its own mail from this account, password resets among it: "
                    "name another in service.sender_account first.",
                )
            now = self._clock.now()
            if found.suspended_at is None:
                await accounts.suspend(tx, found.id, f"closed: {reason}", now)
            await accounts.set_closed(tx, found.id, now, now)
            revoked, ended = await credentials.revoke_all(tx, found.id, now)
            members = await users.remove_all_members(tx, found.id, now)
            await invitations.clear_all(tx, found.id)
            detail: Detail = {"reason": reason, "credentials": revoked, "keys": ended, "members": members}
            await self._note(tx, found, "account.closed", now, detail)
            return ClosedAccount(await accounts.lock(tx, found.id), revoked, ended, members)

    async def reopen(self, account: str) -> NewAccount:
        """A closed account sends again, with a new default credential; held mail is sent. Users are invited anew."""
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.closed_at is None:
                raise Refusal(Code.CONFLICT, "The account is not closed: there is nothing to reopen.")
            now = self._clock.now()
            await accounts.set_closed(tx, found.id, None, now)
            created = await self._generator.credential(tx, found.id, "default", (), now)
            await credentials.make_default(tx, found.id, created.credential.id, now)
            await self._note(tx, found, "account.reopened", now)
        # If this process ends here, the account is suspended, and `account resume` is left to do.
        resumed = await self.resume(ids.text(ids.ACCOUNT, found.id))
        return NewAccount(resumed, replace(created, credential=replace(created.credential, is_default=True)))

    async def resume(self, account: str) -> AccountRow:
        """Sending begins anew; mail that was held is sent as soon as every worker knows."""
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.closed_at is not None:
                raise Refusal(Code.CONFLICT, "The account is closed: open it again with `account reopen`.")
            if found.suspended_at is None:
                raise Refusal(Code.CONFLICT, "The account is not suspended: there is nothing to resume.")
            now = self._clock.now()
            await accounts.resume(tx, found.id, now)
            await self._note(tx, found, "account.resumed", now)
            resumed = await accounts.lock(tx, found.id)
        due_at = self._clock.now() + KNOWN_EVERYWHERE
        is_more = True
        while is_more:
            async with self._database.transaction() as tx:
                is_more = await delivery_schedule.resume(tx, found.id, due_at, RESUMED_AT_ONCE) == RESUMED_AT_ONCE
        return resumed

    async def set_limits(
        self,
        account: str,
        *,
        rate_per_second: int | Literal["default"] | None = None,
        rate_burst: int | Literal["default"] | None = None,
        warmup: Sequence[int] | Literal["default", "exempt"] | None = None,
    ) -> AccountRow:
        """Sets what is given; None keeps a limit, "default" restores the service's."""
        numbers: dict[str, Sequence[object]] = {"rate_per_second": [rate_per_second], "rate_burst": [rate_burst]}
        if warmup is not None and not isinstance(warmup, str):
            if not 1 <= len(warmup) <= WARMUP_DAYS_MAX:
                raise invalid(f"`warmup` takes 1 to {WARMUP_DAYS_MAX} numbers, one a day; or exempt the account.")
            numbers["warmup"] = warmup
        for field, given in numbers.items():
            if any(isinstance(number, int) and not 1 <= number <= LIMIT_MAX for number in given):
                raise invalid(f"`{field}`: a limit is a number from 1 to {LIMIT_MAX}.")
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            exempt, own = found.warmup_exempt, found.warmup_limits
            if warmup is not None:
                exempt = warmup == "exempt"
                own = None if isinstance(warmup, str) else tuple(warmup)
            now = self._clock.now()
            await accounts.set_limits(
                tx,
                found.id,
                _changed(found.rate_per_second, rate_per_second),
                _changed(found.rate_burst, rate_burst),
                exempt,
                own,
                now,
            )
            limited = await accounts.lock(tx, found.id)
            await self._note(tx, limited, "account.limits_set", now, _limits(limited))
            return limited

    async def grant_credits(self, account: str, amount: int, reason: str, key: str | None = None) -> AccountRow:
        """Adds credits, once under a `key`; a negative amount takes back a mistake, never below what is available."""
        reason = input_checks.reason(reason)
        if amount == 0 or abs(amount) > CREDITS_MAX:
            raise invalid(f"`amount` is a whole number other than 0, up to {CREDITS_MAX} either way.")
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            first = None if key is None else await accounts.grant_with_key(tx, found.id, key)
            if first == (amount, reason):
                return found
            if first is not None:
                raise Refusal(
                    Code.IDEMPOTENCY_CONFLICT,
                    "This Idempotency-Key made another grant to this account: make a new one for each grant.",
                )
            if found.available + amount < 0:
                raise Refusal(
                    Code.CONFLICT,
                    f"Only {found.available} credits are available: take back {found.available} at most.",
                )
            if found.available + amount > CREDITS_MAX:
                raise Refusal(Code.CONFLICT, f"An account holds {CREDITS_MAX} credits at most: grant fewer.")
            available = await accounts.grant(tx, found.id, new_id(self._chance, now), amount, reason, now, key)
            await self._note(tx, found, "credits.granted", now, {"amount": amount, "reason": reason})
        return replace(found, available=available, changed_at=now)

    async def reputation(self, account: str, *, exempt: bool | None = None) -> ReputationView:
        """The account's reputation; an exempt account is warned about and never suspended. None changes nothing."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            if exempt is not None:
                await reputation.set_exempt(tx, found.id, exempt, now)
                await self._note(tx, found, "account.conduct_exemption_set", now, {"exempt": exempt})
        async with self._database.connection() as connection:
            standing = await reputation.account_reputation(connection, found.id)
            if standing is None:
                raise RuntimeError("an account is gone, which none ever is")
            since = reputation_rules.counted_since(standing.since, now)
            figures = await reputation.figures(connection, found.id, since)
            erased = (await account_figures.of_accounts(connection, [found.id], since))[found.id].erased
        return ReputationView(standing, figures, reputation_rules.judge(*figures), since, erased)

    # The inbox.

    async def forget_mail(self, given_ids: Sequence[str]) -> int:
        """Removes mail from the inbox for good; all of it when none is named."""
        mail_ids = [ids.parse(ids.INBOX_MAIL, given) for given in given_ids]
        named = [mail_id for mail_id in mail_ids if mail_id is not None]
        if len(named) < len(mail_ids):
            wrong = given_ids[mail_ids.index(None)]
            raise Refusal(Code.NOT_FOUND, f"The inbox has no mail {wrong!r}: `inbox list` shows what it has.")
        async with self._database.transaction() as tx:
            count = await inbox.forget(tx, named) if given_ids else await inbox.forget_all(tx)
            if count:
                target = given_ids[0] if len(given_ids) == 1 else "inbox"
                await self._inbox_log.note(tx, "inbox.removed", target, self._clock.now(), {"mails": count})
        return count

    async def _note(
        self, tx: Connection, account: AccountRow, action: str, now: datetime, detail: Detail | None = None
    ) -> None:
        await self._audit_log.note(tx, account.id, OPERATOR, action, account.name, now, detail)
        if self._operator_log is not None:
            await self._operator_log.note(tx, action, account.name, now, detail)


async def all_accounts(connection: Connection, step: int) -> AsyncIterator[Sequence[AccountId]]:
    account_ids: Sequence[AccountId] = []
    while account_ids := await usage.accounts_after(connection, account_ids[-1] if account_ids else None, step):
        yield account_ids


def first_ids(ranked: Iterable[RankedAccount], count: int) -> list[AccountId]:
    return [found.id for found in sorted(ranked, key=lambda found: (-found.rank, found.id))[:count]]


async def _account(connection: Connection, given: str) -> AccountRow:
    account_id = ids.parse(ids.ACCOUNT, given)
    if account_id is not None:
        found = await accounts.find_by_id(connection, AccountId(account_id))
    else:
        found = await accounts.find_by_name(connection, input_checks.name("`account`, by its name,", given))
    if found is None:
        raise Refusal(Code.NOT_FOUND, f"There is no account {given!r}: `account list` shows them all.")
    return found


def _changed(now: int | None, wanted: int | Literal["default"] | None) -> int | None:
    return now if wanted is None else None if wanted == "default" else wanted


def _limits(account: AccountRow) -> Detail:
    """As the audit log shows them; None is the service's default."""
    days = account.warmup_limits
    warmup = "exempt" if account.warmup_exempt else None if days is None else ", ".join(map(str, days))
    return {"rate_per_second": account.rate_per_second, "rate_burst": account.rate_burst, "warmup": warmup}
