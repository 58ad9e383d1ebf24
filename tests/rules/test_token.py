"""The dashboard's token: only what we issued, only until it ends."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import ids, token
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, SessionId, UserId
from tests.support.bad_input import bad_input, spoiled

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "0123456789abcdef0123456789abcdef"
ACCOUNT = AccountId(UUID(int=7))
USER = UserId(UUID(int=8))
SESSION = SessionId(UUID(int=9))


def claims(**changes: Any) -> dict[str, Any]:
    made = {
        "iss": "posthouse",
        "aud": "posthouse-dashboard",
        "sub": ids.text(ids.USER, USER),
        "account_id": ids.text(ids.ACCOUNT, ACCOUNT),
        "role": "member",
        "iat": int(NOW.timestamp()),
        "exp": int(NOW.timestamp()) + 60,
        "jti": "x",
        "sid": ids.text(ids.SESSION, SESSION),
    } | changes
    return {name: value for name, value in made.items() if value is not ...}


def issued(role: Role, expires_at: datetime, **given: Any) -> str:
    return token.issue(
        account_id=ACCOUNT,
        user_id=USER,
        role=role,
        session_id=SESSION,
        expires_at=expires_at,
        token_id="t",
        secret=SECRET,
        now=NOW,
        **given,
    )


def read(signed: str, now: datetime = NOW, secrets: Sequence[str] = (SECRET,)) -> token.Claims | None:
    return token.read(signed, secrets=secrets, now=now)


def test_an_issued_token_is_valid_for_twelve_hours() -> None:
    expires_at = token.end_of_session(NOW + timedelta(milliseconds=7))
    assert expires_at == NOW + timedelta(hours=12)
    made = issued(Role.MEMBER, expires_at)
    assert read(made) == token.Claims(ACCOUNT, USER, Role.MEMBER, SESSION, expires_at)
    assert read(made, expires_at - timedelta(seconds=1)) is not None
    assert read(made, expires_at) is None


@pytest.mark.parametrize(
    "changes",
    [
        *[{name: ...} for name in ("iss", "aud", "sub", "account_id", "role", "iat", "exp", "jti", "sid")],
        {"iss": "other"},
        {"aud": "other"},
        {"sub": "us_x"},
        {"sub": ids.text(ids.ACCOUNT, ACCOUNT)},
        {"account_id": 5},
        {"sid": 5},
        {"sid": "se_x"},
        {"sid": ids.text(ids.USER, USER)},
        {"jti": 5},
        {"role": "root"},
        {"exp": int(NOW.timestamp())},
        {"exp": 10**30},
        {"exp": "soon"},
        {"iat": int(NOW.timestamp()) + 60},
    ],
)
def test_without_a_claim_or_with_one_that_is_not_ours_a_token_is_refused(changes: dict[str, Any]) -> None:
    assert read(jwt.encode(claims(), SECRET, "HS256")) is not None
    assert read(jwt.encode(claims(**changes), SECRET, "HS256")) is None


@pytest.mark.parametrize(
    "forged",
    [
        jwt.encode(claims(), "another secret of thirty-two bytes", "HS256"),
        jwt.encode(claims(), SECRET * 2, "HS512"),
        jwt.encode(claims(), "", "none"),
        jwt.encode(claims(), SECRET, "HS256", headers={"kid": "1"}),
        jwt.encode(claims(), SECRET, "HS256", headers={"crit": ["b64"], "b64": False}),
        jwt.encode(claims(), SECRET, "HS256", headers={"jwk": {}}),
        "a.b.c",
        "",
        "é",
        "....",
    ],
)
def test_a_token_that_is_not_ours_is_refused(forged: str) -> None:
    assert read(forged) is None


GOOD = jwt.encode(claims(), SECRET, "HS256")
OURS = read(GOOD)
# Of the same account, but of another secret or algorithm.
OTHERS = [
    jwt.encode(claims(role="owner"), "another secret of thirty-two bytes", "HS256"),
    jwt.encode(claims(role="owner"), SECRET * 2, "HS512"),
    jwt.encode(claims(role="owner"), "", "none"),
]


@bad_input("Tokens (JWT)", 500)
@given(
    spoiled(
        [encoded.encode() for encoded in (GOOD, *OTHERS)], [b".", b"..", b"=", b"A", b"eyJhbGciOiJub25lIn0.", b"\xe9"]
    )
)
def test_a_tampered_token_never_has_other_claims(raw: bytes) -> None:
    assert read(raw.decode("latin-1")) in (OURS, None)


values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=30),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@bad_input("Tokens (JWT)", 200)
@given(some.dictionaries(some.sampled_from([*claims(), "nbf", "alg"]), values, min_size=1, max_size=3))
def test_any_claim_value_is_read_or_refused(changes: dict[str, Any]) -> None:
    """Signed with the right key: only its claims can be wrong."""
    try:
        signed = jwt.encode(claims(**changes), SECRET, "HS256")
    except (TypeError, ValueError):
        return  # what this library doesn't write needn't be read here
    found = read(signed)
    assert found is None or found.expires_at > NOW


def test_a_token_of_any_known_secret_is_read() -> None:
    other = "another secret of the tests, thirty-two bytes"
    assert read(GOOD, secrets=[other, SECRET]) == OURS
    assert read(GOOD, secrets=[other]) is None


def test_the_token_of_an_impersonation_is_not_a_members_and_the_other_way_round() -> None:
    end = NOW + timedelta(minutes=30)
    for is_impersonation in (False, True):
        made = issued(Role.VIEWER, end, is_impersonation=is_impersonation)
        assert (read(made) is None) is is_impersonation
        assert (token.read_impersonation(made, secrets=[SECRET], now=NOW) is None) is not is_impersonation
    assert token.read_impersonation(made, secrets=[SECRET], now=end) is None
