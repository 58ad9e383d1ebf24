"""An account's SMTP credentials and API keys.

A secret is only in the result of the call that creates it. Every change locks the account first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.new_credential import CredentialGenerator
from posthouse.flows.shared.new_credential import NewCredential as NewCredential
from posthouse.flows.shared.page import Page, id_position, page_of
from posthouse.rules import credential, ids, input_checks, limits
from posthouse.rules.credential import Actor, Mode, Scope
from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.store import accounts, audit_log, credentials, domains
from posthouse.store.credentials import ApiKeyRow as ApiKeyRow
from posthouse.store.credentials import CredentialRow as CredentialRow
from posthouse.store.postgres import Connection

_KEY_HINT_CHARACTERS: Final = 4


@dataclass(frozen=True, slots=True)
class NewKey:
    """`previous` is the key that it replaces, if any."""

    key: ApiKeyRow
    secret: str = field(repr=False)
    previous: ApiKeyRow | None = None


class Credentials(Flow):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._generator = CredentialGenerator(context.randomness, context.keys.peppers)

    # Credentials.

    async def credentials(self, account_id: AccountId, limit: int, cursor: str | None = None) -> Page[CredentialRow]:
        before = None if cursor is None else id_position(ids.CREDENTIAL, cursor)
        async with self._database.connection() as connection:
            rows = await credentials.page_of_credentials(connection, account_id, before, limit + 1)
        return page_of(rows, limit, _text)

    async def create_credential(
        self, account_id: AccountId, name: str, allowed_networks: Sequence[str], actor: Actor
    ) -> NewCredential:
        """An SMTP username and password, usable only from the given networks, or from anywhere if there are none."""
        name = input_checks.name("`name`", name)
        networks = input_checks.networks(allowed_networks)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            live = await credentials.live_credentials(tx, account_id)
            if len(live) >= limits.CREDENTIALS_MAX:
                raise Refusal(
                    Code.CONFLICT, f"An account has at most {limits.CREDENTIALS_MAX} credentials: revoke one first."
                )
            made = await self._generator.credential(tx, account_id, name, networks, now)
            if not any(row.is_default for row in live):
                # The operator may have revoked the last credential.
                await credentials.make_default(tx, account_id, made.credential.id, now)
                made = replace(made, credential=replace(made.credential, is_default=True))
            detail = {"username": made.credential.username, "name": name}
            await self._audit_log.add_entry(
                tx, account_id, actor, "credential.created", _text(made.credential), now, detail
            )
        return made

    async def rotate_credential(
        self, account_id: AccountId, given: str, actor: Actor, *, overlap_seconds: int = limits.OVERLAP_SECONDS
    ) -> NewCredential:
        """A new password; the previous one works for the overlap, an older one no longer."""
        overlap = _overlap(overlap_seconds)
        now = self._clock.now()
        password, secret_hash = self._generator.password()
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            row = await _credential(tx, account_id, given)
            if row.revoked_at is not None:
                raise Refusal(Code.CONFLICT, f"The credential {row.username} is revoked: create another instead.")
            until = now + overlap if overlap else None
            await credentials.rotate_credential(tx, account_id, row.id, secret_hash, until, now)
            detail: audit_log.Detail = {"username": row.username, "overlap_seconds": overlap_seconds}
            await self._audit_log.add_entry(tx, account_id, actor, "credential.rotated", _text(row), now, detail)
        return NewCredential(replace(row, previous_until=until), password)

    async def revoke_credential(
        self, account_id: AccountId, given: str, actor: Actor, *, even_the_last: bool = False
    ) -> CredentialRow:
        """Ends the credential, named by its username or id, and all API keys that belong to it.

        Another becomes the default credential, with which members send. If there is no other, only an operator may
        revoke it: `even_the_last`.
        """
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            row = await _credential(tx, account_id, given)
            if row.revoked_at is not None:
                raise Refusal(Code.CONFLICT, f"The credential {row.username} was already revoked.")
            others = [other for other in await credentials.live_credentials(tx, account_id) if other.id != row.id]
            if not others and not even_the_last:
                raise Refusal(
                    Code.CONFLICT,
                    f"{row.username} is the account's only credential, under which its members send: create another "
                    "first, or rotate this one.",
                )
            if row.is_default and others:
                await credentials.make_default(tx, account_id, others[0].id, now)
                row = replace(row, is_default=False)
            await credentials.revoke_credential(tx, account_id, row.id, now)
            await self._audit_log.add_entry(
                tx, account_id, actor, "credential.revoked", _text(row), now, {"username": row.username}
            )
        return replace(row, revoked_at=now, previous_until=None)

    # Keys.

    async def keys(self, account_id: AccountId, limit: int, cursor: str | None = None) -> Page[ApiKeyRow]:
        before = None if cursor is None else id_position(ids.API_KEY, cursor)
        async with self._database.connection() as connection:
            rows = await credentials.page_of_keys(connection, account_id, before, limit + 1)
            rows = await _with_authors(connection, account_id, rows)
        return page_of(rows, limit, _key_text)

    async def create_key(
        self,
        account_id: AccountId,
        actor: Actor,
        *,
        name: str = "",
        mode: Mode = Mode.LIVE,
        scopes: Sequence[Scope] = (Scope.SEND,),
        given_credential: str | None = None,
        allowed_networks: Sequence[str] = (),
        expires_at: datetime | None = None,
        sender_domains: tuple[str, ...] = (),
    ) -> NewKey:
        """An API key of the given credential (username or id), or of the account's default credential."""
        name = input_checks.name("`name`", name or f"{mode} key")
        networks = input_checks.networks(allowed_networks)
        if not scopes:
            raise invalid(f"`scopes` is empty: a key has at least one of {', '.join(Scope)}.")
        credential.require_combination(mode, scopes, sender_domains)
        now = self._clock.now()
        if expires_at is not None and expires_at <= now:
            raise invalid("`expires_at`: the key would expire before it exists: give a future time.")
        if expires_at is not None and expires_at - now > timedelta(days=limits.KEY_DAYS_MAX):
            raise invalid("`expires_at`: the key would live for more than ten years: give an earlier time, or none.")
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            owner = await _credential(tx, account_id, given_credential)
            if owner.revoked_at is not None:
                raise Refusal(Code.CONFLICT, f"The credential {owner.username} is revoked: name another for the key.")
            for domain in sender_domains:
                if await domains.find(tx, account_id, domain) is None:
                    raise invalid(f"`sender_domains`: the account has no domain {domain!r}: register it first.")
            if (await credentials.count_keys(tx, account_id, now)).current >= limits.KEYS_MAX:
                raise Refusal(Code.CONFLICT, f"An account has at most {limits.KEYS_MAX} keys: revoke one first.")
            like = ApiKeyRow(
                account_id=account_id,
                id=ApiKeyId(new_id(self._randomness, now)),
                credential_id=owner.id,
                hint="",
                name=name,
                mode=mode,
                may_read=Scope.READ in scopes,
                created_at=now,
                expires_at=expires_at,
                revoked_at=None,
                may_send=Scope.SEND in scopes,
                allowed_networks=networks,
                other_scopes=tuple([given for given in scopes if given not in credential.FOR_MAIL]),
                sender_domains=sender_domains,
                created_by=actor.name,
            )
            made = await self._add_key(tx, like, now)
            await self._audit_log.add_entry(
                tx, account_id, actor, "key.created", _key_text(made.key), now, _about(made.key)
            )
        return made

    async def rotate_key(
        self, account_id: AccountId, given: str, actor: Actor, *, overlap_seconds: int = limits.OVERLAP_SECONDS
    ) -> NewKey:
        """A new key like the old key, which ends with the overlap, or earlier if it expires earlier.

        If the old key was to expire, the new key gets the same lifetime, counted from now.
        """
        overlap = _overlap(overlap_seconds)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            (row,) = await _with_authors(tx, account_id, [await _key(tx, account_id, given)])
            _require_use(row, now)
            if (await credentials.count_keys(tx, account_id, now)).replaced >= limits.KEYS_MAX:
                raise Refusal(
                    Code.CONFLICT,
                    f"{limits.KEYS_MAX} rotated keys of the account still work: revoke some of them first, or wait "
                    "until they end.",
                )
            new_key_id = ApiKeyId(new_id(self._randomness, now))
            expires_at = None if row.expires_at is None else now + (row.expires_at - row.created_at)
            like = replace(
                row,
                id=new_key_id,
                created_at=now,
                created_by=actor.name,
                expires_at=expires_at,
                last_used_at=None,
                last_used_from=None,
            )
            made = await self._add_key(tx, like, now)
            ends_at = await credentials.replace_key(tx, account_id, row.id, new_key_id, now + overlap, now)
            detail: audit_log.Detail = {"replaced_by": _key_text(made.key), "overlap_seconds": overlap_seconds}
            await self._audit_log.add_entry(tx, account_id, actor, "key.rotated", _key_text(row), now, detail)
        return replace(made, previous=replace(row, expires_at=ends_at, replaced_by=new_key_id))

    async def revoke_key(self, account_id: AccountId, given: str, actor: Actor) -> ApiKeyRow:
        """Ends an API key, named by its id (`ak_…`)."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            (row,) = await _with_authors(tx, account_id, [await _key(tx, account_id, given)])
            if not await credentials.revoke_key(tx, account_id, row.id, now):
                raise Refusal(Code.CONFLICT, f"The key {row.hint} was already revoked.")
            await self._audit_log.add_entry(tx, account_id, actor, "key.revoked", _key_text(row), now, _about(row))
        return replace(row, revoked_at=now)

    async def _add_key(self, tx: Connection, like: ApiKeyRow, now: datetime) -> NewKey:
        secret = credential.new_api_key(like.mode, self._randomness.bytes(credential.SECRET_RANDOM_BYTES))
        row = replace(like, hint=f"{secret[: secret.rindex('_') + 1]}…{secret[-_KEY_HINT_CHARACTERS:]}")
        await credentials.insert_key(tx, row, self._keys.peppers.hash(secret), now)
        return NewKey(row, secret)


async def _with_authors(
    connection: Connection, account_id: AccountId, rows: Sequence[ApiKeyRow]
) -> Sequence[ApiKeyRow]:
    authors = await audit_log.keys_created_by(connection, account_id, [row.id for row in rows])
    return [replace(row, created_by=authors.get(row.id)) for row in rows]


async def _credential(connection: Connection, account_id: AccountId, given: str | None) -> CredentialRow:
    """The credential with this id or username; without either, the account's default credential."""
    if given is None:
        row = await credentials.default_credential(connection, account_id)
    elif (credential_id := ids.parse(ids.CREDENTIAL, given)) is not None:
        row = await credentials.find_credential(connection, account_id, CredentialId(credential_id))
    elif credential.is_smtp_username(given):
        row = await credentials.find_username(connection, account_id, given)
    else:
        row = None
    if row is None:
        raise Refusal(Code.NOT_FOUND, "The account has no credential with this id: list its credentials.")
    return row


async def _key(connection: Connection, account_id: AccountId, given: str) -> ApiKeyRow:
    key_id = ids.parse(ids.API_KEY, given)
    row = None if key_id is None else await credentials.find_key(connection, account_id, ApiKeyId(key_id))
    if row is None:
        raise Refusal(Code.NOT_FOUND, "The account has no key with this id: list its keys.")
    return row


def _require_use(row: ApiKeyRow, now: datetime) -> None:
    """Raises unless the key works and has not been replaced yet."""
    if row.revoked_at is not None:
        state = "is revoked"
    elif row.replaced_by is not None:
        state = "was already rotated"
    elif row.expires_at is not None and row.expires_at <= now:
        state = "has expired"
    else:
        return
    raise Refusal(Code.CONFLICT, f"The key {row.hint} {state}: create a new one.")


def _overlap(seconds: int) -> timedelta:
    if not 0 <= seconds <= limits.OVERLAP_SECONDS_MAX:
        raise invalid(f"`overlap_seconds` is a number from 0 to {limits.OVERLAP_SECONDS_MAX}.")
    return timedelta(seconds=seconds)


def _text(row: CredentialRow) -> str:
    return ids.text(ids.CREDENTIAL, row.id)


def _key_text(row: ApiKeyRow) -> str:
    return ids.text(ids.API_KEY, row.id)


def _about(row: ApiKeyRow) -> audit_log.Detail:
    return {"hint": row.hint, "name": row.name}
