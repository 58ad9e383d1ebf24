"""Admission: authenticates a request using only its headers."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.principal import Caller, Member, Principal, Program
from posthouse.flows.shared.shared_database import count_for
from posthouse.rules import credential, token
from posthouse.rules.credential import ApiKeySecret, BasicCredentials, BearerToken, Mode, Role, Scope
from posthouse.rules.ids import SessionId
from posthouse.rules.limits import AUTHORIZATION_CHARACTERS_MAX
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.token import Claims
from posthouse.store.control_cache import CachedApiKey as KnownKey
from posthouse.store.control_cache import CachedCredential, CachedMembership, ControlCache, Networks
from posthouse.store.credentials import LastUse, Rehash

# Authorization headers with a verified SMTP password, so that the next request needn't verify it again.
#
# A header is found by its keyed hash, so the search reveals nothing about it and no password is kept. It is valid for
# the credential in the control cache: after any change of that, such as a new password, the cache contains another
# one, and the header is verified again.


HEADERS_MAX: Final = 20_000
_HASH_BYTES: Final = 16


class VerifiedHeaders:
    def __init__(self, control_cache: ControlCache, key: bytes) -> None:
        self._control_cache = control_cache
        self._key = blake2b(key, person=b"authorization").digest()
        self._known: dict[bytes, tuple[str, CachedCredential]] = {}

    def credential(self, header: str | None) -> CachedCredential | None:
        """The credential for which the header was verified, if it has not changed."""
        if not header or len(header) > AUTHORIZATION_CHARACTERS_MAX:
            return None
        found = self._known.get(self._hash(header))
        if found is None:
            return None
        username, verified = found
        return verified if self._control_cache.known_credential(username) is verified else None

    def add(self, header: str, username: str, verified: CachedCredential) -> None:
        if len(self._known) >= HEADERS_MAX:
            self._known.clear()
        self._known[self._hash(header)] = username, verified

    def _hash(self, header: str) -> bytes:
        return blake2b(header.encode("utf-8", "surrogatepass"), key=self._key, digest_size=_HASH_BYTES).digest()


class Admission(Flow):
    def __init__(self, context: Context, *, control_cache: ControlCache, last_used: LastUsed) -> None:
        super().__init__(context)
        self._control_cache = control_cache
        self._last_used = last_used
        self._peppers = context.keys.peppers
        self._token_secrets = context.keys.token_secrets
        self._verified = VerifiedHeaders(control_cache, context.keys.peppers.active.key)

    async def sender(self, authorization: str | None, peer: str) -> Principal:
        verified = self._verified.credential(authorization)
        if verified is not None:
            _require_permitted(peer, verified.allowed_networks)
            return self._used(verified, peer, None)
        match credential.parse_authorization(authorization):
            case BasicCredentials() as given:
                known, password_hash = await self._matched(given)
                _require_permitted(peer, known.allowed_networks)
                rehash = self._rehash(given.password, password_hash)
                # A previous password and an old pepper expire at their own time, not with the credential.
                if authorization is not None and password_hash == known.secret_hash and rehash is None:
                    self._verified.add(authorization, given.username, known)
                return self._used(known, peer, rehash)
            case ApiKeySecret() as given:
                key, rehash = await self._api_key(given)
                if not key.may_send:
                    raise Refusal(Code.FORBIDDEN, "This API key may only read: use one with the send scope.")
                _require_permitted(peer, key.own_networks, key.allowed_networks)
                return self._by_key(key, peer, rehash)
            case BearerToken() as given:
                membership, _ = await self._membership(given)
                if not credential.may_send(membership.role):
                    raise Refusal(Code.FORBIDDEN, "A viewer may not send mail: ask for the role of a member.")
                if membership.lacks_second_factor:
                    raise Refusal(Code.FORBIDDEN, credential.SECOND_FACTOR_REQUIRED)
                return _by_login(membership)

    async def password(self, username: str, password: str, peer: str) -> Principal:
        """The holder of an SMTP credential, if the peer's network may use it."""
        known, password_hash = await self._matched(BasicCredentials(username, password))
        _require_permitted(peer, known.allowed_networks)
        principal = self._by_credential(known, peer, password, password_hash)
        return principal._replace(password_hashes=self._peppers.hashes(password))

    async def recall(self, principal: Principal, peer: str) -> None:
        """Raises if an SMTP session's credential or password is no longer valid: sessions outlast both."""
        known = await self._control_cache.credential_of(principal.account_id, principal.credential_id)
        if known is None:
            raise _unauthorized("The SMTP credential was revoked: log in with another.")
        if not any(password_hash in principal.password_hashes for password_hash in self._good_hashes(known)):
            raise _unauthorized("The SMTP password was replaced: log in with the new one.")
        _require_permitted(peer, known.allowed_networks)

    async def reader(self, authorization: str | None, peer: str) -> Principal:
        principal = await self._reader(authorization, peer)
        count_for(principal.account_id)
        return principal

    async def _reader(self, authorization: str | None, peer: str) -> Principal:
        match credential.parse_authorization(authorization):
            case BasicCredentials() as given:
                known, password_hash = await self._matched(given)
                if not _is_permitted(peer, known.allowed_networks):
                    raise _unauthorized(f"This credential may not be used from {peer}.")
                return self._by_credential(known, peer, given.password, password_hash)
            case ApiKeySecret() as given:
                key, rehash = await self._api_key(given)
                if not key.may_read:
                    raise _unauthorized("This API key may only send: use one with the read scope.")
                if not _is_permitted(peer, key.own_networks, key.allowed_networks):
                    raise _unauthorized(f"This credential may not be used from {peer}.")
                return self._by_key(key, peer, rehash)
            case BearerToken() as given:
                membership, _ = await self._membership(given)
                if membership.lacks_second_factor:
                    raise _unauthorized(credential.SECOND_FACTOR_REQUIRED)
                return _by_login(membership)

    async def member(self, authorization: str | None) -> Member:
        """A member with a dashboard login; SMTP passwords and API keys are not accepted here."""
        member = await self.recall_member(authorization)
        count_for(member.account_id)
        if member.impersonated_until is None:
            self._last_used.note_member(member.account_id, member.user_id, LastUse(self._clock.now()))
        return member

    async def recall_member(self, authorization: str | None) -> Member:
        """The same, for a task that changes nothing in the member's account."""
        given = credential.parse_authorization(authorization)
        if not isinstance(given, BearerToken):
            raise _login_needed()
        impersonation = token.read_impersonation(given.jwt, secrets=self._token_secrets, now=self._clock.now())
        if impersonation is not None:
            return await self._impersonator(impersonation)
        membership, session_id = await self._membership(given)
        return Member(
            membership.account_id,
            membership.user_id,
            membership.role,
            membership.email,
            session_id,
            membership.lacks_second_factor,
        )

    async def _impersonator(self, impersonation: Claims) -> Member:
        """An operator, until they end the impersonation or the login that it began with ends."""
        now = self._clock.now()
        session = await self._control_cache.impersonator(impersonation, now)
        if session is None:
            raise _unauthorized("The impersonation is over: the operator ended it, or logged out.")
        credential.require_operator(session, now)
        return Member(
            impersonation.account_id,
            impersonation.user_id,
            Role.VIEWER,
            session.email,
            impersonation.session_id,
            impersonated_until=impersonation.expires_at,
        )

    async def caller(self, authorization: str | None, peer: str, scopes: Sequence[Scope]) -> Caller:
        """A member with a dashboard login, or a program with an API key that has all of the scopes."""
        given = credential.parse_authorization(authorization)
        if not isinstance(given, ApiKeySecret):
            return await self.member(authorization)
        key, rehash = await self._api_key(given)
        lacking = [scope for scope in scopes if scope not in key.scopes]
        if lacking:
            raise _unauthorized(f"This API key lacks the scope `{lacking[0]}`: use one that has it.")
        if not _is_permitted(peer, key.own_networks, key.allowed_networks):
            raise _unauthorized(f"This credential may not be used from {peer}.")
        self._by_key(key, peer, rehash)
        count_for(key.account_id)
        return Program(key.account_id, key.id, key.mode, key.sender_domains)

    async def _matched(self, given: BasicCredentials) -> tuple[CachedCredential, bytes]:
        """The credential, and the stored hash that the given password matches."""
        known = await self._control_cache.credential(given.username)
        if known is not None:
            for secret_hash in self._good_hashes(known):
                if self._peppers.matches(given.password, secret_hash):
                    return known, secret_hash
        raise _unauthorized("The SMTP username or password is wrong, or was revoked.")

    def _good_hashes(self, known: CachedCredential) -> tuple[bytes, ...]:
        """The hash of the password, and that of the previous password while it may still be used."""
        if known.previous_hash is None or known.previous_until is None or known.previous_until <= self._clock.now():
            return (known.secret_hash,)
        return known.secret_hash, known.previous_hash

    def _by_credential(self, known: CachedCredential, peer: str, password: str, password_hash: bytes) -> Principal:
        return self._used(known, peer, self._rehash(password, password_hash))

    def _used(self, known: CachedCredential, peer: str, rehash: Rehash | None) -> Principal:
        self._last_used.note_credential(known.account_id, known.id, LastUse(self._clock.now(), peer or None, rehash))
        return Principal(known.account_id, known.id, Mode.LIVE)

    def _by_key(self, known: KnownKey, peer: str, rehash: Rehash | None) -> Principal:
        self._last_used.note_key(known.account_id, known.id, LastUse(self._clock.now(), peer or None, rehash))
        return Principal(known.account_id, known.credential_id, known.mode, sender_domains=known.sender_domains)

    async def _api_key(self, given: ApiKeySecret) -> tuple[KnownKey, Rehash | None]:
        # Found by its keyed hash, so the time of the search reveals nothing about the key.
        for secret_hash in self._peppers.hashes(given.secret):
            known = await self._control_cache.api_key(secret_hash)
            if known is not None and (known.expires_at is None or known.expires_at > self._clock.now()):
                return known, self._rehash(given.secret, secret_hash)
        raise _unauthorized("The API key is unknown, expired or revoked.")

    def _rehash(self, secret: str, stored_hash: bytes) -> Rehash | None:
        """A hash under an old pepper is replaced when its secret is used."""
        hashed = self._peppers.rehashed(secret, stored_hash)
        return None if hashed is None else Rehash(stored_hash, hashed)

    async def _membership(self, given: BearerToken) -> tuple[CachedMembership, SessionId]:
        """The user's current membership, which may differ from the role in the token; and the session."""
        claims = token.read(given.jwt, secrets=self._token_secrets, now=self._clock.now())
        if claims is not None and await self._control_cache.user_of_session(claims.session_id) == claims.user_id:
            known = await self._control_cache.membership(claims.account_id, claims.user_id)
            if known is not None:
                return known, claims.session_id
        raise _unauthorized("The token is invalid, expired or logged out: log in again.")


def _by_login(known: CachedMembership) -> Principal:
    return Principal(known.account_id, known.credential_id, Mode.LIVE, scope_id=known.scope_id)


def _is_permitted(peer: str, *lists: Networks) -> bool:
    """Whether every allow-list permits the peer: the key's own, and that of its credential."""
    return not any(lists) or all(credential.is_allowed(networks, peer) for networks in lists)


def _require_permitted(peer: str, *lists: Networks) -> None:
    if not _is_permitted(peer, *lists):
        raise Refusal(
            Code.FORBIDDEN,
            f"This credential may not be used from {peer}: add that address to its allow-list.",
        )


def _login_needed() -> Refusal:
    return _unauthorized("This endpoint takes the token of a dashboard login: POST /v1/auth/login gives one.")


def _unauthorized(text: str) -> Refusal:
    return Refusal(Code.UNAUTHORIZED, text)
