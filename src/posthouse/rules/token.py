"""The dashboard's JWT: a fixed algorithm, a key from the configuration, every claim required.

The token of a read-only impersonation has another audience: it is refused wherever impersonation is not expected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

import jwt

from posthouse.rules import ids
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, SessionId, UserId
from posthouse.rules.limits import JWT_LIFETIME_SECONDS

_ALGORITHM: Final = "HS256"
_ISSUER: Final = "posthouse"
_AUDIENCE: Final = "posthouse-dashboard"
_IMPERSONATION_AUDIENCE: Final = "posthouse-impersonation"
_CLAIMS: Final = ["iss", "aud", "sub", "account_id", "role", "iat", "exp", "jti", "sid"]
# Cached tokens; each is cached as a member's and as an impersonation's.
TOKENS_KNOWN_MAX: Final = 2_000
# Processes share database time, so only rounding to whole seconds separates them.
_LEEWAY: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Claims:
    account_id: AccountId
    user_id: UserId
    role: Role
    session_id: SessionId
    expires_at: datetime


def end_of_session(now: datetime) -> datetime:
    """When the tokens of a session that begins now expire; in whole seconds, as in the token."""
    return now.replace(microsecond=0) + timedelta(seconds=JWT_LIFETIME_SECONDS)


def issue(
    *,
    account_id: AccountId,
    user_id: UserId,
    role: Role,
    session_id: SessionId,
    expires_at: datetime,
    token_id: str,
    secret: str,
    now: datetime,
    is_impersonation: bool = False,
) -> str:
    claims = {
        "iss": _ISSUER,
        "aud": _IMPERSONATION_AUDIENCE if is_impersonation else _AUDIENCE,
        "sub": ids.text(ids.USER, user_id),
        "account_id": ids.text(ids.ACCOUNT, account_id),
        "role": role.value,
        "iat": int(now.timestamp()),
        "exp": int(expires_at.timestamp()),
        "jti": token_id,
        "sid": ids.text(ids.SESSION, session_id),
    }
    return jwt.encode(claims, secret, algorithm=_ALGORITHM)


def read(token: str, *, secrets: Sequence[str], now: datetime) -> Claims | None:
    """The claims of a valid token that we signed with one of the secrets, or None."""
    return _read(token, secrets, now, _AUDIENCE)


def read_impersonation(token: str, *, secrets: Sequence[str], now: datetime) -> Claims | None:
    """The same for a read-only impersonation."""
    return _read(token, secrets, now, _IMPERSONATION_AUDIENCE)


def _read(token: str, secrets: Sequence[str], now: datetime, audience: str) -> Claims | None:
    signed = next(filter(None, (_signed(token, secret, audience) for secret in secrets)), None)
    if signed is None or now >= signed.claims.expires_at or signed.issued_at > now + _LEEWAY:
        return None
    return signed.claims


@dataclass(frozen=True, slots=True)
class _Signed:
    claims: Claims
    issued_at: datetime


# A token's claims never change, and a session presents the same token all day.
@lru_cache(TOKENS_KNOWN_MAX)
def _signed(token: str, secret: str, audience: str) -> _Signed | None:
    """The claims of a token that we signed, valid or expired."""
    try:
        # The key and the algorithm are fixed: any other header field is refused.
        if jwt.get_unverified_header(token).keys() - {"alg", "typ"}:
            return None
        claims = jwt.decode(
            token,
            secret,
            algorithms=[_ALGORITHM],
            issuer=_ISSUER,
            audience=audience,
            # The caller checks the times, against the time that is passed in.
            options={"require": _CLAIMS, "verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )
        issued_at = datetime.fromtimestamp(claims["iat"], UTC)
        expires_at = datetime.fromtimestamp(claims["exp"], UTC)
        account_id = ids.parse(ids.ACCOUNT, claims["account_id"])
        user_id = ids.parse(ids.USER, claims["sub"])
        session_id = ids.parse(ids.SESSION, claims["sid"])
        role = Role(claims["role"])
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, OverflowError, OSError):
        return None
    if account_id is None or user_id is None or session_id is None:
        return None
    return _Signed(Claims(AccountId(account_id), UserId(user_id), role, SessionId(session_id), expires_at), issued_at)
