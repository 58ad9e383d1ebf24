"""Admission: who is calling, and whether they may, judged from the request's headers alone."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.caller import Caller, Member, Session
from posthouse.rules import credential, limits, pace, token
from posthouse.rules.credential import ApiKey, Basic, Mode, Token
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import logins
from posthouse.store.directory import Directory, Membership
from posthouse.store.postgres import Database

# Each check holds 64 MiB and a core for a while.
PASSWORD_CHECKS_AT_ONCE_MAX: Final = 2
# Many people can share an address, so it is blocked later than one person at it.
PEER_FAILURES_PER_PERSON: Final = 10
_WRONG_LOGIN: Final = "The e-mail address or the password is wrong."


class Admission:
    def __init__(
        self,
        *,
        database: Database,
        directory: Directory,
        clock: Clock,
        chance: Chance,
        pepper: bytes,
        token_secret: str,
    ) -> None:
        self._database = database
        self._directory = directory
        self._clock = clock
        self._chance = chance
        self._pepper = pepper
        self._token_secret = token_secret
        self._passwords = PasswordHasher()
        self._password_checks = asyncio.Semaphore(PASSWORD_CHECKS_AT_ONCE_MAX)
        # Checked when the user is unknown, so that the time taken doesn't tell.
        self._nobodys_hash = self._passwords.hash(chance.bytes(16).hex())

    async def sender(self, authorization: str | None, peer: str) -> Caller:
        match credential.parse_authorization(authorization):
            case Basic() as given:
                caller, networks = await self._basic(given)
            case ApiKey() as given:
                caller, networks, _ = await self._api_key(given)
            case Token() as given:
                membership = await self._membership(given)
                if not credential.may_send(membership.role):
                    raise Refusal(Code.FORBIDDEN, "A viewer may not send mail: ask for the role of a member.")
                return Caller(membership.account_id, membership.credential_id, Mode.LIVE)
        return _from_where_it_may(caller, networks, peer)

    async def password(self, username: str, password: str, peer: str) -> Caller:
        """Whoever knows an SMTP credential, and calls from where it may be used."""
        caller, networks = await self._basic(Basic(username, password))
        return _from_where_it_may(caller, networks, peer)

    async def recall(self, caller: Caller, peer: str) -> None:
        """Raises when a credential that was let in may not be used any more: sessions outlast revocations."""
        networks = await self._directory.networks(caller.account_id, caller.credential_id)
        if networks is None:
            raise _unauthorized("The SMTP credential was revoked: log in with another.")
        _from_where_it_may(caller, networks, peer)

    async def reader(self, authorization: str | None, peer: str) -> Caller:
        match credential.parse_authorization(authorization):
            case Basic() as given:
                caller, networks = await self._basic(given)
            case ApiKey() as given:
                caller, networks, may_read = await self._api_key(given)
                if not may_read:
                    raise _unauthorized("This API key may only send: use one with the read scope.")
            case Token() as given:
                membership = await self._membership(given)
                return Caller(membership.account_id, membership.credential_id, Mode.LIVE)
        if not credential.is_allowed(networks, peer):
            raise _unauthorized(f"This credential may not be used from {peer}.")
        return caller

    async def member(self, authorization: str | None) -> Member:
        """Someone with a dashboard login; SMTP passwords and API keys open nothing here."""
        given = credential.parse_authorization(authorization)
        if not isinstance(given, Token):
            raise _unauthorized("This endpoint takes the token of a dashboard login: POST /v1/auth/login gives one.")
        membership = await self._membership(given)
        return Member(membership.account_id, membership.user_id, membership.role, membership.email)

    async def login(self, email: str, password: str, peer: str) -> Session:
        email = email.strip().lower()
        if len(email) > limits.ADDRESS_CHARACTERS_MAX or not email.isprintable():
            raise _unauthorized(_WRONG_LOGIN)
        place = credential.neighbourhood(peer)
        person, place = f"person {email} {place}", f"peer {place}"
        await self._count_try(person, 1)
        await self._count_try(place, PEER_FAILURES_PER_PERSON)
        async with self._database.connection() as connection:
            known = await logins.login_of(connection, email)
        is_right = await self._is_password(known.password_hash if known else self._nobodys_hash, password)
        if known is None or not is_right:
            raise _unauthorized(_WRONG_LOGIN)
        async with self._database.transaction() as tx:
            await logins.clear(tx, person)
            # Of the place only this try is forgiven: whoever guesses there may have a login of their own.
            await logins.forgive(tx, place, self._clock.now())
        issued, expires_at = token.issue(
            account_id=known.account_id,
            user_id=known.user_id,
            role=known.role,
            token_id=self._chance.bytes(16).hex(),
            secret=self._token_secret,
            now=self._clock.now(),
        )
        return Session(issued, expires_at)

    async def _basic(self, given: Basic) -> tuple[Caller, Sequence[IPv4Network | IPv6Network]]:
        known = await self._directory.credential(given.username)
        if known is None or not credential.matches(given.password, known.secret_hash, self._pepper):
            raise _unauthorized("The SMTP username or password is wrong, or was revoked.")
        return Caller(known.account_id, known.id, Mode.LIVE), known.allowed_networks

    async def _api_key(self, given: ApiKey) -> tuple[Caller, Sequence[IPv4Network | IPv6Network], bool]:
        # Found by its keyed hash, so nothing about the key can be learnt from how long the search took.
        known = await self._directory.api_key(credential.secret_hash(given.secret, self._pepper))
        if known is None or (known.expires_at is not None and known.expires_at <= self._clock.now()):
            raise _unauthorized("The API key is unknown, expired or revoked.")
        caller = Caller(known.account_id, known.credential_id, known.mode)
        return caller, known.allowed_networks, known.may_read

    async def _membership(self, given: Token) -> Membership:
        claims = token.read(given.jwt, secret=self._token_secret, now=self._clock.now())
        known = None if claims is None else await self._directory.membership(claims.account_id, claims.user_id)
        if known is None:
            raise _unauthorized("The token is invalid or expired: log in again.")
        return known

    async def _count_try(self, subject: str, per_failure: int) -> None:
        """Count this try, and refuse it while the subject is blocked by those before it."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            until = await logins.blocked_until(tx, subject)
            if until is not None and until > now:
                seconds = -((now - until) // timedelta(seconds=1))
                raise Refusal(Code.RATE_LIMITED, f"Too many failed logins: try again in {seconds} s.", seconds)
            count = await logins.count_try(tx, subject, now)
            wait_seconds = pace.login_wait_seconds(count // per_failure)
            await logins.block(tx, subject, now + timedelta(seconds=wait_seconds))

    async def _is_password(self, password_hash: str, password: str) -> bool:
        async with self._password_checks:
            try:
                return await asyncio.to_thread(self._passwords.verify, password_hash, password)
            except (VerificationError, InvalidHashError):
                return False


def _from_where_it_may(caller: Caller, networks: Sequence[IPv4Network | IPv6Network], peer: str) -> Caller:
    if not credential.is_allowed(networks, peer):
        raise Refusal(
            Code.FORBIDDEN,
            f"This credential may not be used from {peer}: add that address to its allow-list.",
        )
    return caller


def _unauthorized(text: str) -> Refusal:
    return Refusal(Code.UNAUTHORIZED, text)
