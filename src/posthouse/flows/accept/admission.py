"""Admission: who is calling, and whether they may, judged from the request's headers alone."""

from posthouse.clock import Clock
from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.shared.principal import Member, Principal
from posthouse.rules import credential, token
from posthouse.rules.credential import ApiKeySecret, BasicCredentials, BearerToken, Mode
from posthouse.rules.ids import SessionId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.control_cache import CachedApiKey as KnownKey
from posthouse.store.control_cache import ControlCache, Credential, Membership, Networks


class Admission:
    def __init__(
        self, *, control_cache: ControlCache, uses: LastUsed, clock: Clock, pepper: bytes, token_secret: str
    ) -> None:
        self._control_cache = control_cache
        self._uses = uses
        self._clock = clock
        self._pepper = pepper
        self._token_secret = token_secret

    async def sender(self, authorization: str | None, peer: str) -> Principal:
        match credential.parse_authorization(authorization):
            case BasicCredentials() as given:
                known = await self._basic(given)
                _require_place(peer, known.allowed_networks)
                return self._by_credential(known)
            case ApiKeySecret() as given:
                key = await self._api_key(given)
                if not key.may_send:
                    raise Refusal(Code.FORBIDDEN, "This API key may only read: use one with the send scope.")
                _require_place(peer, key.own_networks, key.allowed_networks)
                return self._by_key(key)
            case BearerToken() as given:
                membership, _ = await self._membership(given)
                if not credential.may_send(membership.role):
                    raise Refusal(Code.FORBIDDEN, "A viewer may not send mail: ask for the role of a member.")
                return Principal(membership.account_id, membership.credential_id, Mode.LIVE)

    async def password(self, username: str, password: str, peer: str) -> Principal:
        """Whoever knows an SMTP credential, and calls from where it may be used."""
        known, password_hash = await self._matched(BasicCredentials(username, password))
        _require_place(peer, known.allowed_networks)
        return self._by_credential(known)._replace(password_hash=password_hash)

    async def recall(self, caller: Principal, peer: str) -> None:
        """Raises when a credential or a password that was let in may not be used any more: sessions outlast both."""
        known = await self._control_cache.credential_of(caller.account_id, caller.credential_id)
        if known is None:
            raise _unauthorized("The SMTP credential was revoked: log in with another.")
        if caller.password_hash not in self._good_hashes(known):
            raise _unauthorized("The SMTP password was replaced: log in with the new one.")
        _require_place(peer, known.allowed_networks)

    async def reader(self, authorization: str | None, peer: str) -> Principal:
        match credential.parse_authorization(authorization):
            case BasicCredentials() as given:
                known = await self._basic(given)
                if not _is_place(peer, known.allowed_networks):
                    raise _unauthorized(f"This credential may not be used from {peer}.")
                return self._by_credential(known)
            case ApiKeySecret() as given:
                key = await self._api_key(given)
                if not key.may_read:
                    raise _unauthorized("This API key may only send: use one with the read scope.")
                if not _is_place(peer, key.own_networks, key.allowed_networks):
                    raise _unauthorized(f"This credential may not be used from {peer}.")
                return self._by_key(key)
            case BearerToken() as given:
                membership, _ = await self._membership(given)
                return Principal(membership.account_id, membership.credential_id, Mode.LIVE)

    async def member(self, authorization: str | None) -> Member:
        """Someone with a dashboard login; SMTP passwords and API keys open nothing here."""
        given = credential.parse_authorization(authorization)
        if not isinstance(given, BearerToken):
            raise _unauthorized("This endpoint takes the token of a dashboard login: POST /v1/auth/login gives one.")
        membership, session_id = await self._membership(given)
        return Member(membership.account_id, membership.user_id, membership.role, membership.email, session_id)

    async def _basic(self, given: BasicCredentials) -> Credential:
        known, _ = await self._matched(given)
        return known

    async def _matched(self, given: BasicCredentials) -> tuple[Credential, bytes]:
        """The credential, and the hash of that of its passwords which was given."""
        known = await self._control_cache.credential(given.username)
        if known is not None:
            for one in self._good_hashes(known):
                if credential.matches(given.password, one, self._pepper):
                    return known, one
        raise _unauthorized("The SMTP username or password is wrong, or was revoked.")

    def _good_hashes(self, known: Credential) -> tuple[bytes, ...]:
        """That of the password, and of the one that it replaced for as long as that may still be used."""
        if known.previous_hash is None or known.previous_until is None or known.previous_until <= self._clock.now():
            return (known.secret_hash,)
        return known.secret_hash, known.previous_hash

    def _by_credential(self, known: Credential) -> Principal:
        self._uses.of_credential(known.account_id, known.id, self._clock.now())
        return Principal(known.account_id, known.id, Mode.LIVE)

    def _by_key(self, known: KnownKey) -> Principal:
        self._uses.of_key(known.account_id, known.id, self._clock.now())
        return Principal(known.account_id, known.credential_id, known.mode)

    async def _api_key(self, given: ApiKeySecret) -> KnownKey:
        # Found by its keyed hash, so nothing about the key can be learnt from how long the search took.
        known = await self._control_cache.api_key(credential.secret_hash(given.secret, self._pepper))
        if known is None or (known.expires_at is not None and known.expires_at <= self._clock.now()):
            raise _unauthorized("The API key is unknown, expired or revoked.")
        return known

    async def _membership(self, given: BearerToken) -> tuple[Membership, SessionId]:
        """What the user is in the account now, whatever the token says of their role; and by which session."""
        claims = token.read(given.jwt, secret=self._token_secret, now=self._clock.now())
        if claims is not None and await self._control_cache.user_of_session(claims.session_id) == claims.user_id:
            known = await self._control_cache.membership(claims.account_id, claims.user_id)
            if known is not None:
                return known, claims.session_id
        raise _unauthorized("The token is invalid, expired or logged out: log in again.")


def _is_place(peer: str, *lists: Networks) -> bool:
    """Whether the peer is in every one of the allow-lists: a key's own, and that of its credential."""
    return all(credential.is_allowed(networks, peer) for networks in lists)


def _require_place(peer: str, *lists: Networks) -> None:
    if not _is_place(peer, *lists):
        raise Refusal(
            Code.FORBIDDEN,
            f"This credential may not be used from {peer}: add that address to its allow-list.",
        )


def _unauthorized(text: str) -> Refusal:
    return Refusal(Code.UNAUTHORIZED, text)
