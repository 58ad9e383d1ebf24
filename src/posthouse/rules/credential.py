"""Credentials: how secrets are generated, stored, presented and restricted, and who acts with them.

Each operation declares the least role of a member that may call it, and the scopes that an API key needs for it.
Operators are users who may see and change the whole installation. Only the command line makes a user an operator.
"""

import base64
import functools
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from posthouse.rules import input_checks, limits
from posthouse.rules.ids import SessionId, UserId
from posthouse.rules.refusal import Code, Refusal, invalid

USERNAME_RANDOM_BYTES: Final = 10
SECRET_RANDOM_BYTES: Final = 32
PEERS_REMEMBERED_MAX: Final = 4_096
_USERNAME_PREFIX: Final = "smtp_"
_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# The fewest base 62 digits for any 32-byte number.
_SECRET_CHARACTERS: Final = 43
# RFC 6750, b64token: what may follow "Bearer".
_BEARER: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
# RFC 7617 forbids control characters in both halves; PostgreSQL rejects a NUL.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ACCEPTED_FORMS: Final = (
    "send the Authorization header as 'Basic' with base64 of SMTP username:password,"
    " as 'Bearer' with an API key, or as 'Bearer' with a token from login."
)
SESSION_MAX: Final = timedelta(hours=8)
IMPERSONATION_MAX: Final = timedelta(minutes=30)


class Mode(StrEnum):
    LIVE = "live"
    TEST = "test"


_KEY_PREFIXES: Final = {Mode.LIVE: "ph_live_", Mode.TEST: "ph_test_"}


class Scope(StrEnum):
    """The permissions of an API key."""

    SEND = "send"
    READ = "read"
    EVENTS = "events"
    MESSAGES = "messages"
    TEMPLATES = "templates"
    SUPPRESSIONS = "suppressions"
    DOMAINS = "domains"
    ENDPOINTS = "endpoints"


# Scopes for mail itself; all others are for the account, under /v1.
FOR_MAIL: Final = frozenset({Scope.SEND, Scope.READ})


class Role(StrEnum):
    """Viewers read, members send, admins manage keys and domains, owners manage the team."""

    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


# Each role includes the permissions of those before it.
_FROM_LEAST: Final = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)

SECOND_FACTOR_REQUIRED: Final = (
    "This account requires a second factor, and you have none: begin one with POST /v1/auth/totp."
)


# Secrets stay out of reprs, and so out of logs and tracebacks; usernames too, because users paste API keys there
# by mistake.
@dataclass(frozen=True, slots=True)
class BasicCredentials:
    username: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ApiKeySecret:
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BearerToken:
    jwt: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changed an account, as its audit log records it: a user, by their address, the operator, or the service."""

    user_id: UserId | None
    name: str


OPERATOR: Final = Actor(None, "operator")
SERVICE: Final = Actor(None, "posthouse")


def mode(given: str | None) -> Mode:
    """The given mode; live by default."""
    if given is None:
        return Mode.LIVE
    if given not in list(Mode):
        raise invalid(f"`mode` is {' or '.join(Mode)}.")
    return Mode(given)


def scopes(given: Sequence[str] | None) -> Sequence[Scope]:
    """The given scopes; `send` by default."""
    if given is None:
        return (Scope.SEND,)
    wrong = [name for name in given if name not in list(Scope)]
    if wrong or not given:
        raise invalid(f"`scopes` has at least one of {', '.join(Scope)}, and no other.")
    return tuple([scope for scope in Scope if scope in given])


def require_combination(mode: Mode, scopes: Sequence[Scope], domains: Sequence[str]) -> None:
    """Refuse a key that would see more than its mode or its domains allow."""
    others = [scope.value for scope in scopes if scope not in FOR_MAIL]
    if others and mode is Mode.TEST:
        raise invalid(f"`scopes`: a test key can only have `send` and `read`, not `{others[0]}`: make a live key.")
    if others and domains:
        raise invalid(
            f"`sender_domains`: a key that is bound to domains can only have `send` and `read`, not `{others[0]}`."
        )


def sender_domains(given: Sequence[str] | None) -> tuple[str, ...]:
    """The domains that a key is bound to, as A-labels; none by default."""
    if given is not None and len(given) > limits.KEY_DOMAINS_MAX:
        raise invalid(f"`sender_domains` has at most {limits.KEY_DOMAINS_MAX} domains.")
    return tuple(dict.fromkeys(input_checks.domain_name(name, "sender_domains") for name in given or ()))


def parse_role(given: str) -> Role:
    """The role with this name."""
    if given not in list(Role):
        raise invalid(f"`role` is one of {', '.join(Role)}.")
    return Role(given)


def role_includes(role: Role, needed: Role) -> bool:
    return _FROM_LEAST.index(role) >= _FROM_LEAST.index(needed)


def require_role(role: Role, needed: Role) -> None:
    if not role_includes(role, needed):
        article = "an" if needed.value[0] in "ao" else "a"
        raise Refusal(
            Code.FORBIDDEN,
            f"This needs the role of {article} {needed.value}, and yours is {role.value}: ask an owner of the account.",
        )


def new_smtp_username(random: bytes) -> str:
    """A username from ten random bytes; lower case, because users type it into mail programs."""
    _require_bytes(random, USERNAME_RANDOM_BYTES)
    return _USERNAME_PREFIX + base64.b32encode(random).decode("ascii").lower()


def is_smtp_username(given: str) -> bool:
    """Whether it could be a username of ours; any other needs no database query."""
    return given.startswith(_USERNAME_PREFIX) and given.isascii() and given.isprintable()


def new_smtp_password(random: bytes) -> str:
    """A password from 32 random bytes."""
    return _base62(random)


def new_api_key(mode: Mode, random: bytes) -> str:
    """An API key from 32 random bytes."""
    return _KEY_PREFIXES[mode] + _base62(random)


def new_mail_token(random: bytes) -> str:
    """The token that accepts an invitation or resets a password, from 32 random bytes."""
    return _base62(random)


def secret_hash(secret: str, pepper: bytes) -> bytes:
    """The keyed hash of a secret; `rules/pepper` says which is stored.

    A fast hash is enough: our secrets are 256 random bits and can't be guessed from a list.
    """
    # `surrogatepass` avoids an exception: a string with lone surrogates matches nothing.
    return hmac.digest(pepper, secret.encode("utf-8", "surrogatepass"), "sha256")


def parse_authorization(header: str | None) -> BasicCredentials | ApiKeySecret | BearerToken:
    """The presented credential, not yet verified."""
    if not header:
        raise _unauthorized("The Authorization header is missing")
    if len(header) > limits.AUTHORIZATION_CHARACTERS_MAX:
        raise _unauthorized(f"The Authorization header is longer than {limits.AUTHORIZATION_CHARACTERS_MAX} characters")
    scheme, _, given = header.strip(" \t").partition(" ")
    given = given.strip(" \t")
    match scheme.lower():
        case "basic":
            return _parse_basic(given)
        case "bearer":
            return _parse_bearer(given)
        case _:
            raise _unauthorized("The Authorization header has an unknown scheme")


def may_send(role: Role) -> bool:
    return role is not Role.VIEWER


def is_allowed(networks: Sequence[IPv4Network | IPv6Network], peer: str) -> bool:
    """Whether the peer's address is in the allow-list; an empty list allows every address."""
    if not networks:
        return True
    try:
        address = peer_address(peer)
    except ValueError:
        return False
    return any(address in network for network in networks)


def peer_address(peer: str) -> IPv4Address | IPv6Address:
    """A socket that serves both families shows an IPv4 peer as ::ffff:192.0.2.1. Raises ValueError."""
    address = ip_address(peer)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


# Clients connect repeatedly, and parsing an address takes longer than the rest of a greeting.
@functools.lru_cache(maxsize=PEERS_REMEMBERED_MAX)
def peer_network(peer: str) -> str:
    """The network that rate limits count as a single client: an IPv6 customer has a /64, not a single address."""
    try:
        address = ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return peer


def peer_prefix(peer: str) -> str:
    """The range of addresses that usually has a single owner: many addresses in it don't mean many clients."""
    try:
        address = peer_address(peer)
    except ValueError:
        return peer
    return str(ip_network((int(address), 48 if isinstance(address, IPv6Address) else 24), strict=False))


def _parse_basic(given: str) -> BasicCredentials:
    try:
        decoded = base64.b64decode(given, validate=True)
        pair = decoded.decode("utf-8")
    except ValueError:
        # Not chained: the cause would carry the secret into a traceback.
        raise _unauthorized("What follows 'Basic' is not base64 of UTF-8 text") from None
    # The decoder accepts surplus padding and stray last bits; encoding again finds them.
    if base64.b64encode(decoded).decode("ascii") != given:
        raise _unauthorized("What follows 'Basic' is not base64 with the right padding")
    username, colon, password = pair.partition(":")
    if not colon or not username or not password:
        raise _unauthorized("What follows 'Basic' must spell username:password, neither of them empty")
    if _CONTROL.search(pair):
        raise _unauthorized("The username and password must not contain control characters")
    return BasicCredentials(username, password)


def _parse_bearer(given: str) -> ApiKeySecret | BearerToken:
    if not _BEARER.fullmatch(given):
        raise _unauthorized("What follows 'Bearer' is not a key or token")
    if given.startswith(tuple(_KEY_PREFIXES.values())):
        return ApiKeySecret(given)
    return BearerToken(given)


def _unauthorized(what: str) -> Refusal:
    return Refusal(Code.UNAUTHORIZED, f"{what}: {_ACCEPTED_FORMS}")


def _base62(random: bytes) -> str:
    # Encoded as a single number: taking a digit from each byte would favour some digits.
    _require_bytes(random, SECRET_RANDOM_BYTES)
    number = int.from_bytes(random, "big")
    digits = []
    for _ in range(_SECRET_CHARACTERS):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))


def _require_bytes(random: bytes, count: int) -> None:
    if len(random) != count:
        raise ValueError(f"needs {count} random bytes, got {len(random)}")


class OperatorSession(NamedTuple):
    """A current login, and what decides whether it is an operator's."""

    user_id: UserId
    email: str
    session_id: SessionId
    began_at: datetime
    is_operator: bool
    has_second_factor: bool


def require_operator(session: OperatorSession, now: datetime) -> None:
    """Refuse a login that is not an operator's, and say what it lacks."""
    if not session.is_operator:
        raise Refusal(Code.FORBIDDEN, "This is for operators of the service.")
    if not session.has_second_factor:
        raise Refusal(
            Code.FORBIDDEN, "Operators need a second factor, and you have none: begin one with POST /v1/auth/totp."
        )
    if now - session.began_at > SESSION_MAX:
        raise Refusal(
            Code.UNAUTHORIZED,
            f"An operator's login is valid for {SESSION_MAX // timedelta(hours=1)} hours: log in again.",
        )
