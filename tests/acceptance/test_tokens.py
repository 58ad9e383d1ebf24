"""Forged, expired and revoked tokens are refused wherever a token is accepted."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from posthouse.rules import ids
from tests.support.eventually import eventually
from tests.support.service import ABSENT, JWT_SECRET, PASSWORD, PEPPER, Tenant

OTHER = "a secret of the forger's own, of thirty-two bytes or more"
Claims = dict[str, Any]


def part(content: object) -> str:
    """A token that a JWT library would refuse to write."""
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def signed(claims: Claims, header: dict[str, Any] | None = None, secret: str = JWT_SECRET, alg: str = "HS256") -> str:
    return jwt.encode(claims, secret, alg, headers=header)


def changed(**changes: object) -> Callable[[Claims], str]:
    """Signed with the right key, so only its claims can be refused."""

    def forge(claims: Claims) -> str:
        return signed({name: value for name, value in (claims | changes).items() if value is not ABSENT})

    return forge


def confused(claims: Claims) -> str:
    """Signed as HS256 with a public key as the secret, to confuse algorithms."""
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return signed(claims, secret=pem.hex())


def unsigned(alg: object, signature: str = "") -> Callable[[Claims], str]:
    return lambda claims: f"{part({'alg': alg, 'typ': 'JWT'})}.{part(claims)}.{signature}"


def tampered(**changes: object) -> Callable[[Claims], str]:
    """The real signature with another payload."""

    def forge(claims: Claims) -> str:
        head, _, signature = signed(claims).split(".")
        return f"{head}.{part(claims | changes)}.{signature}"

    return forge


def now(seconds: int = 0) -> int:
    return int(time.time()) + seconds


# tests/rules/test_token.py has every other way to forge one.
FORGERIES: dict[str, Callable[[Claims], str]] = {
    "none": unsigned("none"),
    "alg of another kind": unsigned(["HS256"]),
    "HS256 without a signature": unsigned("HS256"),
    "HS384": lambda claims: signed(claims, alg="HS384"),
    "ES256": lambda claims: jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256"),
    "a public key for the secret": confused,
    "another key and a raised role": lambda claims: signed(claims | {"role": "owner"}, secret=OTHER),
    "the pepper for the key": lambda claims: signed(claims, secret=PEPPER),
    "kid that leads to a file": lambda claims: signed(claims, {"kid": "../../dev/null"}, secret=OTHER),
    "jku": lambda claims: signed(claims, {"jku": "https://example.com/keys"}),
    "tampered role": tampered(role="owner"),
    "tampered account": tampered(account_id=ids.text(ids.ACCOUNT, UUID(int=7))),
    "another issuer": changed(iss="another"),
    "another audience": changed(aud=["another"]),
    "without an end": changed(exp=ABSENT),
    "expired": lambda claims: changed(iat=now(-7200), exp=now(-1))(claims),
    "a session that never was": changed(sid=ids.text(ids.SESSION, UUID(int=7))),
    "a session's id for the user": lambda claims: changed(sub=claims["sid"])(claims),
    "a user that never was": changed(sub=ids.text(ids.USER, UUID(int=7))),
    "an account that never was": changed(account_id=ids.text(ids.ACCOUNT, UUID(int=7))),
    "encrypted": lambda _: f"{part({'alg': 'dir', 'enc': 'A256GCM'})}..AAAA.AAAA.AAAA",
    "longer than any": lambda claims: signed(claims | {"more": "x" * 9_000}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def real(regular: Tenant) -> Claims:
    """The claims of a valid token, of a member, so that a raised role would show."""
    claims: Claims = jwt.decode(
        (await regular.jwt("member")).removeprefix("Bearer "), options={"verify_signature": False}
    )
    return claims


async def statuses(tenant: Tenant, token: str) -> list[int]:
    """All kinds of routes that accept a token."""
    headers = {"Authorization": f"Bearer {token}"}
    service = tenant.service
    return [
        (await service.request("GET", "/v1/auth/me", headers=headers)).status,
        (await service.request("GET", "/v1/templates", headers=headers)).status,
        (await service.request("POST", "/v1/auth/logout", headers=headers)).status,
        (await tenant.get("em_x", authorization=headers["Authorization"])).status,
        (await tenant.send(authorization=headers["Authorization"])).status,
    ]


@pytest.mark.rule("SES-08", "SES-01", "AUTH-08", "AUTH-09", "AUTH-10")
@pytest.mark.parametrize("name", FORGERIES)
async def test_a_token_that_is_not_ours_is_unauthorized(regular: Tenant, real: Claims, name: str) -> None:
    assert await statuses(regular, FORGERIES[name](real)) == [401] * 5


@pytest.mark.rule("SES-08")
async def test_an_unchanged_forged_token_is_accepted(regular: Tenant, real: Claims) -> None:
    headers = {"Authorization": f"Bearer {signed(real)}"}
    assert (await regular.service.request("GET", "/v1/auth/me", headers=headers)).body["role"] == "member"


@pytest.mark.rule("SES-01")
async def test_a_session_validates_only_its_own_users_tokens_for_their_accounts(
    regular: Tenant, other_tenant: Tenant, real: Claims
) -> None:
    other: Claims = jwt.decode((await regular.jwt()).removeprefix("Bearer "), options={"verify_signature": False})
    assert await statuses(regular, signed(real | {"sid": other["sid"]})) == [401] * 5
    assert await statuses(regular, signed(real | {"sub": other["sub"], "role": "owner"})) == [401] * 5
    assert (
        await statuses(other_tenant, signed(real | {"account_id": ids.text(ids.ACCOUNT, other_tenant.id)})) == [401] * 5
    )


@pytest.mark.rule("SES-01", "SES-02")
async def test_a_revoked_token_is_unauthorized_everywhere(tenant: Tenant) -> None:
    token = (await tenant.service.login(await tenant.user(), PASSWORD)).body["token"]
    headers = {"Authorization": f"Bearer {token}"}
    assert (await tenant.service.request("POST", "/v1/auth/logout", headers=headers)).status == 200
    await eventually(lambda: statuses(tenant, token), lambda seen: seen == [401] * 5)
