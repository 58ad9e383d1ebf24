"""Accounts, as an operator manages them: limits, credits, suspension.

An account is named by its name or its id (`ac_…`). A secret is only in the result of the call that creates it.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from posthouse.flows.shared.account_limits import Defaults, working_copy
from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.new_credential import CredentialGenerator, NewCredential
from posthouse.rules import ids, input_checks
from posthouse.rules import reputation as reputation_rules
from posthouse.rules.credential import IMPERSONATION_MAX, OPERATOR
from posthouse.rules.ids import AccountId
from posthouse.rules.limits import CONTROL_CACHE_SECONDS
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.reputation import ReputationFigures
from posthouse.rules.reputation import ReputationVerdict as ReputationVerdict
from posthouse.rules.send_quota import NearestLimit as NearestLimit
from posthouse.rules.send_quota import nearest_limit
from posthouse.rules.usage import hour_of
from posthouse.store import (
    acceptance,
    account_figures,
    accounts,
    audit_log,
    credentials,
    delivery_schedule,
    domains,
    invitations,
    postmaster_mail,
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
from posthouse.store.postgres import Connection
from posthouse.store.reputation import AccountReputation
from posthouse.store.users import MemberRow as MemberRow

if TYPE_CHECKING:
    from posthouse.flows.operate.sandbox_domain import SandboxDomain

LIST_MAX: Final = 1_000
# Hours of all accounts would be many rows, so the accounts that stand out by the day are chosen first.
ACCOUNTS_A_STEP: Final = 2_500
CANDIDATES: Final = 500
# The days of a week are read for each of them.
NEAREST_LIMITS_A_STEP: Final = 1_000
WARMUP_DAYS_MAX: Final = 366
# Large enough for any account, small enough that no sum of grants exceeds PostgreSQL's bigint.
CREDITS_MAX: Final = 10**12
# The columns are four-byte integers.
LIMIT_MAX: Final = 10**9
RESUMED_BATCH: Final = 5_000
# A worker whose cache still says suspended would hold the mail again.
KNOWN_EVERYWHERE: Final = timedelta(seconds=CONTROL_CACHE_SECONDS + 1)


@dataclass(frozen=True, slots=True)
class NewAccount:
    account: AccountRow
    credential: NewCredential


class FirstAccounts(NamedTuple):
    """The first of the accounts, and how many were `read`."""

    account_ids: Sequence[AccountId]
    read: int


@dataclass(frozen=True, slots=True)
class ClosedAccount:
    """How much access ended when the account was closed."""

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

    status: AccountReputation
    figures: ReputationFigures
    verdict: ReputationVerdict
    counted_since: datetime
    erased: int


@dataclass(frozen=True, slots=True)
class Impersonation:
    account: AccountRow
    until: datetime


class Accounts(Flow):
    """In an account's log its owners see "the operator"; the operator's log has the name."""

    def __init__(
        self,
        context: Context,
        *,
        defaults: Defaults,
        sender_account: str = "",
        sandbox_domain: "SandboxDomain | None" = None,
    ) -> None:
        super().__init__(context)
        self._defaults = defaults
        self._sender_account = sender_account
        self._sandbox_domain = sandbox_domain
        self._generator = CredentialGenerator(context.randomness, context.keys.peppers)

    # Accounts.

    async def create_account(self, name: str) -> NewAccount:
        """The account and its default SMTP credential, whose password is shown only once."""
        name = input_checks.name("An account's name", name)
        if name.startswith(ids.ACCOUNT):
            raise invalid(f"An account's name can't begin with {ids.ACCOUNT}, as ids do: choose another.")
        now = self._clock.now()
        async with self._database.transaction() as tx:
            account = await accounts.insert(tx, AccountId(new_id(self._randomness, now)), name, now)
            if account is None:
                raise Refusal(Code.CONFLICT, f"There is already an account named {name!r}: choose another name.")
            created = await self._generator.credential(tx, account.id, "default", (), now, is_default=True)
            await self._note(tx, account, "account.created", now)
            if self._sandbox_domain is not None:
                await self._sandbox_domain.share(tx, account.id, now)
        return NewAccount(account, created)

    async def list_accounts(self) -> Sequence[AccountRow]:
        """All of them, by name."""
        found: list[AccountRow] = []
        is_more = True
        while is_more:
            async with self._database.connection() as connection:
                page = await accounts.page(connection, found[-1].name if found else "", LIST_MAX)
            found += page
            is_more = len(page) == LIST_MAX
        return found

    async def page(self, after_name: str, limit: int) -> Sequence[AccountRow]:
        """A page of accounts, by name."""
        async with self._database.connection() as connection:
            return await accounts.page(connection, after_name, limit)

    async def first(self, order: AccountOrder, limit: int) -> FirstAccounts:
        """The accounts that stand out in this order, which is not that of names."""
        async with self._database.connection() as connection:
            if order is AccountOrder.NEW:
                return FirstAccounts(await account_figures.newest(connection, limit), limit)
            if order is AccountOrder.LIMITS:
                return await self._first_by_limits(connection, limit)
            return await self._first_by_recent_figures(connection, order, limit)

    async def _first_by_limits(self, connection: Connection, limit: int) -> FirstAccounts:
        """The closest first; each of them is among the first of its kind of limit."""
        today, read = self._clock.now().astimezone(UTC).date(), 0
        by_credits: list[RankedAccount] = []
        by_warmup: list[RankedAccount] = []
        async for account_ids in all_accounts(connection, NEAREST_LIMITS_A_STEP):
            by_credits += await account_figures.fewest_days_left(connection, account_ids, today, limit)
            by_warmup += await account_figures.most_warmup_used(
                connection, account_ids, today, self._defaults.warmup_limits, limit
            )
            read += len(account_ids)
        near = await self._nearest_limits(connection, [*{*first_ids(by_credits, limit), *first_ids(by_warmup, limit)}])
        ranked = [RankedAccount(account_id, nearest.share) for account_id, nearest in near.items()]
        return FirstAccounts(first_ids(ranked, limit), read)

    async def _first_by_recent_figures(self, connection: Connection, order: AccountOrder, limit: int) -> FirstAccounts:
        """By their figures of the last 24 hours, among the accounts that stand out in the days of these hours."""
        since, read = self._recent_since(), 0
        day = since.astimezone(UTC).date()
        ranked: list[RankedAccount] = []
        async for account_ids in all_accounts(connection, ACCOUNTS_A_STEP):
            ranked += await account_figures.first_of_days(connection, order, account_ids, day, CANDIDATES)
            read += len(account_ids)
        candidates = first_ids(ranked, CANDIDATES)
        return FirstAccounts(await account_figures.first_of_hours(connection, order, candidates, since, limit), read)

    async def rows(self, account_ids: Sequence[AccountId]) -> Sequence[AccountRow]:
        """The accounts with these ids, in this order; those that are gone are left out."""
        async with self._database.connection() as connection:
            rows = await accounts.find_by_ids(connection, account_ids)
        return [rows[account_id] for account_id in account_ids if account_id in rows]

    async def figures(self, account_ids: Sequence[AccountId]) -> Mapping[AccountId, AccountFigures]:
        """What they sent in the last 24 hours."""
        async with self._database.connection() as connection:
            return await account_figures.of_accounts(connection, account_ids, self._recent_since())

    async def nearest_limits(self, account_ids: Sequence[AccountId]) -> Mapping[AccountId, NearestLimit]:
        """Of those accounts that are close to a limit."""
        async with self._database.connection() as connection:
            return await self._nearest_limits(connection, account_ids)

    async def _nearest_limits(
        self, connection: Connection, account_ids: Sequence[AccountId]
    ) -> Mapping[AccountId, NearestLimit]:
        now = self._clock.now()
        paces = await account_figures.paces(connection, account_ids, now.astimezone(UTC).date())
        found = {
            row.id: nearest_limit(working_copy(row, self._defaults), paces[row.id], now)
            for row in await acceptance.read_many(connection, account_ids)
        }
        return {account_id: nearest for account_id, nearest in found.items() if nearest is not None}

    def _recent_since(self) -> datetime:
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
        """Stops sending; reading still works, and queued mail is held."""
        reason = input_checks.reason(reason)
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.suspended_at is not None:
                raise Refusal(
                    Code.CONFLICT,
                    f"The account is already suspended, for this reason: {found.suspended_reason}",
                )
            now = self._clock.now()
            await accounts.suspend(tx, found.id, reason, now)
            await self._note(tx, found, "account.suspended", now, {"reason": reason})
            return await accounts.lock(tx, found.id)

    async def impersonate(self, account: str) -> Impersonation:
        """Warns the account: its owners see it in their log, and on their pages until it ends."""
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            now = self._clock.now()
            until = now + IMPERSONATION_MAX
            await self._note(tx, found, "account.impersonated", now, audit_log.impersonation_detail(until))
        return Impersonation(found, until)

    async def close_account(self, account: str, reason: str) -> ClosedAccount:
        """Ends all of an account's access in one step; its records stay.

        Sending ends as in a suspension: queued mail is held, and fails after seven days, and its credits are returned.
        Every credential and key is revoked, every member and invitation removed. Credits stay as they are.
        """
        reason = input_checks.reason(reason)
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.closed_at is not None:
                raise Refusal(Code.CONFLICT, f"The account was already closed, on {found.closed_at:%Y-%m-%d}.")
            if self._sender_account in (found.name, ids.text(ids.ACCOUNT, found.id)):
                raise Refusal(
                    Code.CONFLICT,
                    "The service sends its own mail from this account, including password resets: "
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
        """A closed account can send again, with a new default credential; held mail is sent. Users need invitations."""
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.closed_at is None:
                raise Refusal(Code.CONFLICT, "The account is not closed, so it can't be reopened.")
            now = self._clock.now()
            await accounts.set_closed(tx, found.id, None, now)
            created = await self._generator.credential(tx, found.id, "default", (), now)
            await credentials.make_default(tx, found.id, created.credential.id, now)
            await self._note(tx, found, "account.reopened", now)
        # If this process ends here, the account is suspended, and the operator has to run `account resume`.
        resumed = await self.resume(ids.text(ids.ACCOUNT, found.id))
        return NewAccount(resumed, replace(created, credential=replace(created.credential, is_default=True)))

    async def resume(self, account: str) -> AccountRow:
        """Sending resumes; held mail is sent as soon as every worker knows."""
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.closed_at is not None:
                raise Refusal(Code.CONFLICT, "The account is closed: open it again with `account reopen`.")
            if found.suspended_at is None:
                raise Refusal(Code.CONFLICT, "The account is not suspended, so it can't be resumed.")
            now = self._clock.now()
            await accounts.resume(tx, found.id, now)
            await self._note(tx, found, "account.resumed", now)
            resumed = await accounts.lock(tx, found.id)
        due_at = self._clock.now() + KNOWN_EVERYWHERE
        is_more = True
        while is_more:
            async with self._database.transaction() as tx:
                is_more = await delivery_schedule.resume(tx, found.id, due_at, RESUMED_BATCH) == RESUMED_BATCH
        return resumed

    async def set_limits(
        self,
        account: str,
        *,
        rate_per_second: int | Literal["default"] | None = None,
        rate_burst: int | Literal["default"] | None = None,
        warmup: Sequence[int] | Literal["default", "exempt"] | None = None,
    ) -> AccountRow:
        """Sets the given limits; None keeps a limit, "default" restores the service's."""
        numbers: dict[str, Sequence[object]] = {"rate_per_second": [rate_per_second], "rate_burst": [rate_burst]}
        if warmup is not None and not isinstance(warmup, str):
            if not 1 <= len(warmup) <= WARMUP_DAYS_MAX:
                raise invalid(f"`warmup` takes 1 to {WARMUP_DAYS_MAX} numbers, one per day; or exempt the account.")
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
        """Adds credits, only once for a `key`; a negative amount takes back a mistake, never more than is available."""
        reason = input_checks.reason(reason)
        if amount == 0 or abs(amount) > CREDITS_MAX:
            raise invalid(f"`amount` is a whole number other than 0, from -{CREDITS_MAX} to {CREDITS_MAX}.")
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            first = None if key is None else await accounts.grant_with_key(tx, found.id, key)
            if first == (amount, reason):
                return found
            if first is not None:
                raise Refusal(
                    Code.IDEMPOTENCY_CONFLICT,
                    "This Idempotency-Key was used for another grant to this account: use a new one for each grant.",
                )
            if found.available + amount < 0:
                raise Refusal(
                    Code.CONFLICT,
                    f"Only {found.available} credits are available: take back at most {found.available}.",
                )
            if found.available + amount > CREDITS_MAX:
                raise Refusal(Code.CONFLICT, f"An account can have at most {CREDITS_MAX} credits: grant fewer.")
            available = await accounts.grant(tx, found.id, new_id(self._randomness, now), amount, reason, now, key)
            await self._note(tx, found, "credits.granted", now, {"amount": amount, "reason": reason})
        return replace(found, available=available, changed_at=now)

    async def reputation(self, account: str, *, exempt: bool | None = None) -> ReputationView:
        """The account's reputation; an exempt account is warned but never suspended. None changes nothing."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            if exempt is not None:
                await reputation.set_exempt(tx, found.id, exempt, now)
                await self._note(tx, found, "account.reputation_exemption_set", now, {"exempt": exempt})
        async with self._database.connection() as connection:
            status = await reputation.account_reputation(connection, found.id)
            if status is None:
                raise RuntimeError("an account is gone, although accounts are never deleted")
            since = reputation_rules.counted_since(status.since, now)
            figures = await reputation.figures(connection, found.id, since)
            erased = (await account_figures.of_accounts(connection, [found.id], since))[found.id].erased
        return ReputationView(status, figures, reputation_rules.judge(*figures), since, erased)

    # Postmaster mail.

    async def forget_mail(self, given_ids: Sequence[str]) -> int:
        """Removes postmaster mail for good; all of it if no message is named."""
        mail_ids = [ids.parse(ids.POSTMASTER_MESSAGE, given) for given in given_ids]
        named = [mail_id for mail_id in mail_ids if mail_id is not None]
        if len(named) < len(mail_ids):
            wrong = given_ids[mail_ids.index(None)]
            raise Refusal(Code.NOT_FOUND, f"There is no message {wrong!r}: see `posthouse postmaster-mail list`.")
        async with self._database.transaction() as tx:
            count = await postmaster_mail.forget(tx, named) if given_ids else await postmaster_mail.forget_all(tx)
            if count:
                target = given_ids[0] if len(given_ids) == 1 else "postmaster-mail"
                await self._operator_log.add_entry(
                    tx, "postmaster_mail.removed", target, self._clock.now(), {"mails": count}
                )
        return count

    async def _note(
        self, tx: Connection, account: AccountRow, action: str, now: datetime, detail: Detail | None = None
    ) -> None:
        await self._audit_log.add_entry(tx, account.id, OPERATOR, action, account.name, now, detail)
        if self._operator_log.actor != OPERATOR:
            await self._operator_log.add_entry(tx, action, account.name, now, detail)


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
    """The limits as the audit log shows them; None is the service's default."""
    days = account.warmup_limits
    warmup = "exempt" if account.warmup_exempt else None if days is None else ", ".join(map(str, days))
    return {"rate_per_second": account.rate_per_second, "rate_burst": account.rate_burst, "warmup": warmup}
