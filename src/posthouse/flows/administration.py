"""Administration: what an operator does to accounts, their money, domains, credentials and users.

An account is named by its name or its id (`ac_…`). Secrets are in what the creating call returns and
nowhere else afterwards.
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Literal
from uuid import UUID

from argon2 import PasswordHasher

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.mail import dkim
from posthouse.rules import conduct as conduct_rules
from posthouse.rules import credential, domain, ids, particulars
from posthouse.rules.conduct import Conduct as Conduct
from posthouse.rules.conduct import Figures
from posthouse.rules.credential import Mode, Role
from posthouse.rules.domain import Judgement, Records, Result
from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId, DomainId, UserId
from posthouse.rules.limits import CONTROL_CACHE_SECONDS
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.store import accounts, conduct, credentials, domains, inbox, schedule, users
from posthouse.store.accounts import AccountRow as AccountRow
from posthouse.store.conduct import Standing
from posthouse.store.credentials import CredentialRow as CredentialRow
from posthouse.store.credentials import KeyRow as KeyRow
from posthouse.store.domains import DomainRow as DomainRow
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer
from posthouse.store.users import MemberRow as MemberRow
from posthouse.store.users import UserRow
from posthouse.wire.dns import Resolver

LIST_MAX: Final = 1_000
WARMUP_DAYS_MAX: Final = 366
# Large enough for anybody, small enough that no sum of grants leaves PostgreSQL's bigint.
CREDITS_MAX: Final = 10**12
# The columns are integers of four bytes.
LIMIT_MAX: Final = 10**9
RESUMED_AT_ONCE: Final = 5_000
# Whoever still believes the account to be suspended would hold its mail again.
HEARD_EVERYWHERE: Final = timedelta(seconds=CONTROL_CACHE_SECONDS + 1)
_TOKEN_BYTES: Final = 20
_SELECTOR_BYTES: Final = 5
_KEY_HINT_CHARACTERS: Final = 4


@dataclass(frozen=True, slots=True)
class NewCredential:
    credential: CredentialRow
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewAccount:
    account: AccountRow
    credential: NewCredential


@dataclass(frozen=True, slots=True)
class NewKey:
    key: KeyRow
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AccountView:
    """An account with everything that belongs to it."""

    account: AccountRow
    granted: int
    domains: Sequence[DomainRow]
    credentials: Sequence[CredentialRow]
    keys: Sequence[KeyRow]
    members: Sequence[MemberRow]


@dataclass(frozen=True, slots=True)
class ConductView:
    """How an account behaves: what its latest mail came to, and what that makes of it."""

    standing: Standing
    figures: Figures
    conduct: Conduct
    counted_since: datetime


@dataclass(frozen=True, slots=True)
class DomainView:
    domain: DomainRow
    records: Records


@dataclass(frozen=True, slots=True)
class Verification:
    """The domain after the check; no judgement when an operator vouched for it."""

    domain: DomainRow
    judgement: Judgement | None


class Administration:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        sealer: Sealer,
        pepper: bytes,
        resolver: Resolver,
    ) -> None:
        self._database = database
        self._clock = clock
        self._chance = chance
        self._sealer = sealer
        self._pepper = pepper
        self._resolver = resolver
        self._passwords = PasswordHasher()

    # Accounts.

    async def create_account(self, name: str) -> NewAccount:
        """The account and its default SMTP credential, whose password is shown this once."""
        name = particulars.name("An account's name", name)
        if name.startswith(ids.ACCOUNT):
            raise invalid(f"An account's name can't begin with {ids.ACCOUNT}, as ids do: choose another.")
        now = self._clock.now()
        async with self._database.transaction() as tx:
            account = await accounts.insert(tx, AccountId(self._new_id(now)), name, now)
            if account is None:
                raise Refusal(Code.CONFLICT, f"There is an account named {name!r} already: choose another name.")
            created = await self._add_credential(tx, account.id, "default", (), now, is_default=True)
        return NewAccount(account, created)

    async def list_accounts(self, limit: int = LIST_MAX) -> Sequence[AccountRow]:
        async with self._database.connection() as connection:
            return await accounts.list_all(connection, max(1, min(limit, LIST_MAX)))

    async def account(self, account: str) -> AccountView:
        async with self._database.connection() as connection:
            found = await _account(connection, account)
            return AccountView(
                account=found,
                granted=await accounts.granted(connection, found.id),
                domains=await domains.list_of_account(connection, found.id, LIST_MAX),
                credentials=await credentials.list_credentials(connection, found.id, LIST_MAX),
                keys=await credentials.list_keys(connection, found.id, LIST_MAX),
                members=await users.list_members(connection, found.id, LIST_MAX),
            )

    async def suspend(self, account: str, reason: str) -> AccountRow:
        """Sending ends; reading still works; mail already queued is held."""
        reason = particulars.reason(reason)
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.suspended_at is not None:
                raise Refusal(
                    Code.CONFLICT,
                    f"The account is suspended already, for this reason: {found.suspended_reason}",
                )
            await accounts.suspend(tx, found.id, reason, self._clock.now())
            return await accounts.lock(tx, found.id)

    async def resume(self, account: str) -> AccountRow:
        """Sending begins anew; mail that was held goes out as soon as every worker has heard of it."""
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.suspended_at is None:
                raise Refusal(Code.CONFLICT, "The account is not suspended: there is nothing to resume.")
            await accounts.resume(tx, found.id, self._clock.now())
            resumed = await accounts.lock(tx, found.id)
        due_at = self._clock.now() + HEARD_EVERYWHERE
        is_more = True
        while is_more:
            async with self._database.transaction() as tx:
                is_more = await schedule.resume(tx, found.id, due_at, RESUMED_AT_ONCE) == RESUMED_AT_ONCE
        return resumed

    async def set_limits(
        self,
        account: str,
        *,
        rate_per_second: int | Literal["default"] | None = None,
        rate_burst: int | Literal["default"] | None = None,
        warmup: Sequence[int] | Literal["default", "exempt"] | None = None,
    ) -> AccountRow:
        """Sets what is given; None leaves a limit as it is, "default" returns it to the service's own."""
        numbers = [number for number in (rate_per_second, rate_burst) if isinstance(number, int)]
        if warmup is not None and not isinstance(warmup, str):
            if not 1 <= len(warmup) <= WARMUP_DAYS_MAX:
                raise invalid(f"Warm-up takes 1 to {WARMUP_DAYS_MAX} numbers, one a day; or exempt the account.")
            numbers += warmup
        if any(not 1 <= number <= LIMIT_MAX for number in numbers):
            raise invalid(f"A limit is a number from 1 to {LIMIT_MAX}.")
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            exempt, own = found.warmup_exempt, found.warmup_limits
            if warmup is not None:
                exempt = warmup == "exempt"
                own = None if isinstance(warmup, str) else tuple(warmup)
            await accounts.set_limits(
                tx,
                found.id,
                _changed(found.rate_per_second, rate_per_second),
                _changed(found.rate_burst, rate_burst),
                exempt,
                own,
                self._clock.now(),
            )
            return await accounts.lock(tx, found.id)

    async def grant_credits(self, account: str, amount: int, reason: str) -> AccountRow:
        """Adds credits; a negative amount takes back a mistake, never below what is available."""
        reason = particulars.reason(reason)
        if amount == 0 or abs(amount) > CREDITS_MAX:
            raise invalid(f"An amount is a whole number other than 0, up to {CREDITS_MAX} either way.")
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await accounts.lock(tx, (await _account(tx, account)).id)
            if found.available + amount < 0:
                raise Refusal(
                    Code.CONFLICT,
                    f"Only {found.available} credits are available: take back {found.available} at most.",
                )
            if found.available + amount > CREDITS_MAX:
                raise Refusal(Code.CONFLICT, f"An account holds {CREDITS_MAX} credits at most: grant fewer.")
            available = await accounts.grant(tx, found.id, self._new_id(now), amount, reason, now)
        return replace(found, available=available, changed_at=now)

    async def conduct(self, account: str, *, exempt: bool | None = None) -> ConductView:
        """How the account behaves; an exempt one is warned about and never suspended for it. None leaves that."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            if exempt is not None:
                await conduct.set_exempt(tx, found.id, exempt, now)
        async with self._database.connection() as connection:
            standing = await conduct.standing(connection, found.id)
            if standing is None:
                raise RuntimeError("an account is gone, which none ever is")
            since = conduct_rules.counted_since(standing.since, now)
            figures = await conduct.figures(connection, found.id, since)
        return ConductView(standing, figures, conduct_rules.judge(*figures), since)

    # The inbox.

    async def forget_mail(self, given_ids: Sequence[str]) -> int:
        """Removes mail from the inbox for good; all of it when none is named."""
        mail_ids = [ids.parse(ids.INBOX_MAIL, given) for given in given_ids]
        named = [mail_id for mail_id in mail_ids if mail_id is not None]
        if len(named) < len(mail_ids):
            wrong = given_ids[mail_ids.index(None)]
            raise Refusal(Code.NOT_FOUND, f"The inbox has no mail {wrong!r}: `inbox list` shows what it has.")
        async with self._database.transaction() as tx:
            return await inbox.forget(tx, named) if given_ids else await inbox.forget_all(tx)

    # Domains.

    async def add_domain(self, account: str, name: str) -> DomainView:
        """Registers the domain, unverified; returns the DNS records to publish."""
        name = particulars.domain_name(name)
        pair, ed25519_pair = await asyncio.to_thread(lambda: (dkim.new_key_pair(), dkim.new_ed25519_key_pair()))
        selector = domain.SELECTOR_PREFIX + _base32(self._chance.bytes(_SELECTOR_BYTES))
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            domain_id = DomainId(self._new_id(now))
            row = DomainRow(
                account_id=found.id,
                id=domain_id,
                name=name,
                token=_base32(self._chance.bytes(_TOKEN_BYTES)),
                selector=selector,
                dkim_public=pair.public,
                created_at=now,
                verified_at=None,
                checked_at=None,
                missing_since=None,
                dkim_sealed=self._sealer.seal(pair.private_der, domains.dkim_purpose(found.id, domain_id)),
                ed25519_selector=domain.ed25519_selector(selector),
                ed25519_public=ed25519_pair.public,
                ed25519_sealed=self._sealer.seal(
                    ed25519_pair.private_der, domains.ed25519_purpose(found.id, domain_id)
                ),
            )
            view = DomainView(row, _records(row))
            if len(view.records.dkim.name) > domain.NAME_CHARACTERS_MAX:
                raise invalid("The domain is too long: the name of its DKIM record would not fit into DNS.")
            if not await domains.insert(tx, row, now):
                raise Refusal(Code.CONFLICT, f"The account has {name} already: list its records with `domain list`.")
        return view

    async def list_domains(self, account: str) -> Sequence[DomainView]:
        async with self._database.connection() as connection:
            found = await _account(connection, account)
            rows = await domains.list_of_account(connection, found.id, LIST_MAX)
        return [DomainView(row, _records(row)) for row in rows]

    async def verify_domain(self, account: str, name: str, *, vouched: bool = False) -> Verification:
        """Looks for the records in DNS; or takes the operator's word for it and asks no DNS, now or later."""
        async with self._database.connection() as connection:
            found = await _account(connection, account)
            row = await domains.find(connection, found.id, particulars.domain_name(name))
        if row is None:
            raise Refusal(Code.NOT_FOUND, f"The account has no domain {name}: add it with `domain add`.")
        if vouched:
            now = self._clock.now()
            has_ed25519 = row.ed25519_sealed is not None
            return Verification(await self._record(row, row.verified_at or now, None, None, has_ed25519, now), None)
        wanted = _records(row)
        answers = await asyncio.gather(*[self._resolver.texts(record.name) for record in wanted.all])
        judgement = domain.judge(wanted, *answers)
        # Missing records take nothing from a domain that stands on the operator's word.
        if row.is_vouched_for and judgement.result is not Result.FOUND:
            return Verification(row, judgement)
        now = self._clock.now()
        verified_at, missing_since = domain.after_check(row.verified_at, row.missing_since, judgement.result, now)
        published = judgement.is_ed25519_published(row.ed25519_published)
        return Verification(await self._record(row, verified_at, missing_since, now, published, now), judgement)

    async def _record(
        self,
        row: DomainRow,
        verified_at: datetime | None,
        missing_since: datetime | None,
        checked_at: datetime | None,
        ed25519_published: bool,
        now: datetime,
    ) -> DomainRow:
        async with self._database.transaction() as tx:
            if not await domains.record_check(tx, row, verified_at, missing_since, checked_at, ed25519_published, now):
                raise Refusal(Code.CONFLICT, f"{row.name} was checked by someone else meanwhile: try again.")
        return replace(
            row,
            verified_at=verified_at,
            missing_since=missing_since,
            checked_at=checked_at,
            ed25519_published=ed25519_published,
        )

    # Credentials, keys and users.

    async def create_credential(self, account: str, name: str, allowed_networks: Sequence[str] = ()) -> NewCredential:
        """An SMTP username and password, usable from the given networks only, or from anywhere when none."""
        name = particulars.name("A credential's name", name)
        networks = particulars.networks(allowed_networks)
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            return await self._add_credential(tx, found.id, name, networks, self._clock.now())

    async def revoke_credential(self, account: str, given: str) -> CredentialRow:
        """Ends the credential, named by its username or id, and all API keys that belong to it."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            row = await _credential(tx, found.id, given)
            if not await credentials.revoke_credential(tx, found.id, row.id, now):
                raise Refusal(Code.CONFLICT, f"The credential {row.username} was revoked already.")
        return replace(row, revoked_at=now)

    async def create_key(
        self,
        account: str,
        *,
        name: str = "",
        mode: Mode = Mode.LIVE,
        may_read: bool = False,
        given_credential: str | None = None,
        expires_at: datetime | None = None,
    ) -> NewKey:
        """An API key of the given credential (username or id), or of the account's default one."""
        name = particulars.name("A key's name", name or f"{mode} key")
        now = self._clock.now()
        if expires_at is not None and expires_at <= now:
            raise invalid("The key would have expired before it exists: give a time to come.")
        secret = credential.new_api_key(mode, self._chance.bytes(credential.SECRET_RANDOM_BYTES))
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            owner = await _credential(tx, found.id, given_credential)
            if owner.revoked_at is not None:
                raise Refusal(Code.CONFLICT, f"The credential {owner.username} is revoked: name another for the key.")
            row = KeyRow(
                account_id=found.id,
                id=ApiKeyId(self._new_id(now)),
                credential_id=owner.id,
                hint=f"{secret[: secret.rindex('_') + 1]}…{secret[-_KEY_HINT_CHARACTERS:]}",
                name=name,
                mode=mode,
                may_read=may_read,
                created_at=now,
                expires_at=expires_at,
                revoked_at=None,
            )
            await credentials.insert_key(tx, row, credential.secret_hash(secret, self._pepper), now)
        return NewKey(row, secret)

    async def revoke_key(self, account: str, given: str) -> KeyRow:
        """Ends an API key, named by its id (`ak_…`)."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            keys = await credentials.list_keys(tx, found.id, LIST_MAX)
            row = next((key for key in keys if ids.text(ids.API_KEY, key.id) == given), None)
            if row is None:
                raise Refusal(Code.NOT_FOUND, "The account has no key with this id: `account show` lists its keys.")
            if not await credentials.revoke_key(tx, found.id, row.id, now):
                raise Refusal(Code.CONFLICT, f"The key {row.hint} was revoked already.")
        return replace(row, revoked_at=now)

    async def create_user(self, account: str, email: str, password: str, role: Role) -> MemberRow:
        """A person who may log in to the dashboard of this account."""
        address = particulars.user_address(email)
        particulars.check_password(password)
        async with self._database.connection() as connection:
            await _account(connection, account)
        # Made slow on purpose: not on the event loop, and not inside a transaction.
        password_hash = await asyncio.to_thread(self._passwords.hash, password)
        now = self._clock.now()
        user = UserRow(UserId(self._new_id(now)), address, now, password_hash)
        async with self._database.transaction() as tx:
            found = await _account(tx, account)
            if not await users.insert(tx, user):
                raise Refusal(Code.CONFLICT, f"There is a user {user.email} already: use another address.")
            await users.join_account(tx, found.id, user.id, role, now)
        return MemberRow(user.id, user.email, role, now)

    def _new_id(self, now: datetime) -> UUID:
        return ids.new_id(now, self._chance.bytes(ids.RANDOM_BYTES))

    async def _add_credential(
        self,
        tx: Connection,
        account_id: AccountId,
        name: str,
        networks: tuple[IPv4Network | IPv6Network, ...],
        now: datetime,
        *,
        is_default: bool = False,
    ) -> NewCredential:
        password = credential.new_smtp_password(self._chance.bytes(credential.SECRET_RANDOM_BYTES))
        row = CredentialRow(
            account_id=account_id,
            id=CredentialId(self._new_id(now)),
            username=credential.new_smtp_username(self._chance.bytes(credential.USERNAME_RANDOM_BYTES)),
            name=name,
            is_default=is_default,
            allowed_networks=networks,
            created_at=now,
            revoked_at=None,
        )
        await credentials.insert_credential(tx, row, credential.secret_hash(password, self._pepper), now)
        return NewCredential(row, password)


async def _account(connection: Connection, given: str) -> AccountRow:
    account_id = ids.parse(ids.ACCOUNT, given)
    if account_id is not None:
        found = await accounts.find_by_id(connection, AccountId(account_id))
    else:
        found = await accounts.find_by_name(connection, particulars.name("An account's name", given))
    if found is None:
        raise Refusal(Code.NOT_FOUND, f"There is no account {given!r}: `account list` shows them all.")
    return found


async def _credential(connection: Connection, account_id: AccountId, given: str | None) -> CredentialRow:
    rows = await credentials.list_credentials(connection, account_id, LIST_MAX)
    for row in rows:
        if row.is_default if given is None else given in (row.username, ids.text(ids.CREDENTIAL, row.id)):
            return row
    raise Refusal(
        Code.NOT_FOUND,
        "The account has no credential with this username or id: `account show` lists its credentials.",
    )


def _records(row: DomainRow) -> Records:
    return domain.records(row.name, row.token, row.selector, row.dkim_public, row.ed25519_selector, row.ed25519_public)


def _changed(now: int | None, wanted: int | Literal["default"] | None) -> int | None:
    return now if wanted is None else None if wanted == "default" else wanted


def _base32(random: bytes) -> str:
    return base64.b32encode(random).decode().lower().rstrip("=")
