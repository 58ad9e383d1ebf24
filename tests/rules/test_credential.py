"""Secrets: made without bias, stored as hashes, parsed strictly, never shown."""

import base64
import re
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import credential, limits
from posthouse.rules.credential import (
    SECRET_RANDOM_BYTES,
    USERNAME_RANDOM_BYTES,
    ApiKeySecret,
    BasicCredentials,
    BearerToken,
    Mode,
    Role,
    Scope,
    is_allowed,
    may_send,
    new_api_key,
    new_smtp_password,
    new_smtp_username,
    parse_authorization,
    role_includes,
    secret_hash,
)
from posthouse.rules.refusal import Code, Refusal
from tests.support.bad_input import bad_input

FROM_LEAST = [Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER]
LIVE_KEY = "ph_live_" + "0" * 43
secret_bytes = some.binary(min_size=SECRET_RANDOM_BYTES, max_size=SECRET_RANDOM_BYTES)


def basic(pair: str | bytes) -> str:
    return "Basic " + base64.b64encode(pair.encode() if isinstance(pair, str) else pair).decode()


def refused(header: str | None) -> str:
    with pytest.raises(Refusal) as caught:
        parse_authorization(header)
    assert caught.value.code is Code.UNAUTHORIZED
    return caught.value.text


@pytest.mark.rule("CRED-02")
@pytest.mark.parametrize(("mode", "prefix"), [(Mode.LIVE, "ph_live_"), (Mode.TEST, "ph_test_")])
@pytest.mark.parametrize("byte", [b"\x00", b"\x7f", b"\xff"])
def test_an_api_key_is_its_prefix_and_43_characters(mode: Mode, prefix: str, byte: bytes) -> None:
    assert re.fullmatch(prefix + "[0-9A-Za-z]{43}", new_api_key(mode, byte * SECRET_RANDOM_BYTES))


def test_the_largest_secret_still_fits_its_characters() -> None:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    number = 0
    for character in new_smtp_password(b"\xff" * SECRET_RANDOM_BYTES):
        number = number * 62 + digits.index(character)
    assert number == 2**256 - 1


@given(secret_bytes, secret_bytes)
def test_different_random_bytes_make_different_secrets(item: bytes, other: bytes) -> None:
    assert (new_smtp_password(item) == new_smtp_password(other)) == (item == other)


@given(some.binary(min_size=USERNAME_RANDOM_BYTES, max_size=USERNAME_RANDOM_BYTES))
def test_a_username_has_no_colon_and_can_be_typed(random: bytes) -> None:
    assert re.fullmatch("smtp_[a-z2-7]{16}", new_smtp_username(random))


def test_too_little_randomness_raises() -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        new_api_key(Mode.LIVE, b"short")
    with pytest.raises(ValueError, match="10 random bytes"):
        new_smtp_username(b"short")


@pytest.mark.rule("CRED-01")
def test_a_hash_is_hmac_sha_256() -> None:
    # RFC 4231, test case 2.
    assert secret_hash("what do ya want for nothing?", b"Jefe").hex() == (
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )


@pytest.mark.rule("AUTH-12")
@pytest.mark.parametrize(
    ("header", "presented"),
    [
        (basic("user:pass"), BasicCredentials("user", "pass")),
        (basic("user:pa:ss:"), BasicCredentials("user", "pa:ss:")),
        (basic("user:pässwörd"), BasicCredentials("user", "pässwörd")),
        (basic("user:a"), BasicCredentials("user", "a")),
        (basic("user:pass").replace("Basic", "bAsIc"), BasicCredentials("user", "pass")),
        (basic("user:pass").replace(" ", "   ") + " \t", BasicCredentials("user", "pass")),
        (f"Bearer {LIVE_KEY}", ApiKeySecret(LIVE_KEY)),
        ("BEARER ph_test_x", ApiKeySecret("ph_test_x")),
        ("bearer aaa.bbb.ccc-_", BearerToken("aaa.bbb.ccc-_")),
        ("Bearer ph_other_x", BearerToken("ph_other_x")),
        ("Bearer PH_LIVE_x", BearerToken("PH_LIVE_x")),
    ],
)
def test_the_accepted_forms_are_read(header: str, presented: BasicCredentials | ApiKeySecret | BearerToken) -> None:
    assert parse_authorization(header) == presented


@pytest.mark.rule("AUTH-05")
@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, "is missing"),
        ("", "is missing"),
        ("   ", "unknown scheme"),
        ("Digest username=x", "unknown scheme"),
        ("aaa.bbb.ccc", "unknown scheme"),
        ("Basic", "neither of them empty"),
        ("Basic !!!!", "not base64"),
        ("Basic dXNlcjpwYXNz=", "not base64"),
        ("Basic dXNlcjpwYXM", "not base64"),
        ("Basic dXNlcjpwYXN=", "not base64"),
        ("Basic dXNl cjpwYXNz", "not base64"),
        ("Basic dXNlcjp-_w==", "not base64"),
        ("Basic dXNlcjpwÄXNz", "not base64"),
        (basic(b"user:\xff\xfe"), "not base64 of UTF-8"),
        (basic("no colon"), "username:password"),
        (basic(":password"), "neither of them empty"),
        (basic("username:"), "neither of them empty"),
        (basic("user\x00:pass"), "control characters"),
        (basic("user:pass\r\n"), "control characters"),
        ("Bearer", "not a key or token"),
        ("Bearer two words", "not a key or token"),
        ("Bearer tökén", "not a key or token"),
        ("Bearer token\n", "not a key or token"),
        ("Bearer " + "a" * limits.AUTHORIZATION_CHARACTERS_MAX, "longer than 8192"),
    ],
    ids=lambda case: ascii(case)[:30],
)
def test_any_other_form_is_refused_with_the_accepted_forms(header: str | None, says: str) -> None:
    text = refused(header)
    assert says in text
    assert "'Basic' with base64 of SMTP username:password" in text
    assert "'Bearer' with an API key" in text


@pytest.mark.parametrize(
    "header", ["Basic hunter2hunter2!", "Bearer hunter2 hunter2", "hunter2 hunter2", basic("hunter2hunter2")]
)
def test_a_refusal_never_repeats_the_secret(header: str) -> None:
    assert "hunter2" not in refused(header)


@pytest.mark.parametrize(
    "presented", [BasicCredentials("hunter2", "hunter2"), ApiKeySecret("hunter2"), BearerToken("hunter2")]
)
def test_a_presented_secret_is_not_in_its_repr(presented: BasicCredentials | ApiKeySecret | BearerToken) -> None:
    assert "hunter2" not in repr(presented) + str(presented)


@given(some.text(min_size=1).filter(lambda name: ":" not in name), some.text(min_size=1), some.integers(1, 5))
def test_every_username_and_password_is_read_back(username: str, password: str, spaces: int) -> None:
    header = basic(f"{username}:{password}").replace(" ", " " * spaces)
    if re.search(r"[\x00-\x1f\x7f-\x9f]", username + password):
        refused(header)
    else:
        assert parse_authorization(header) == BasicCredentials(username, password)


@bad_input("Credentials", 500)
@given(some.text(max_size=200) | some.builds("{} {}".format, some.sampled_from(["Basic", "Bearer"]), some.text()))
def test_any_header_is_parsed_or_refused(header: str) -> None:
    with suppress(Refusal):
        parse_authorization(header)


@pytest.mark.parametrize(
    ("role", "sends"), [(Role.OWNER, True), (Role.ADMIN, True), (Role.MEMBER, True), (Role.VIEWER, False)]
)
def test_every_role_but_viewer_may_send(role: Role, sends: bool) -> None:
    assert may_send(role) is sends


@pytest.mark.parametrize(
    ("networks", "peer", "allowed"),
    [
        ("", "192.0.2.1", True),
        ("", "not an address", True),
        ("192.0.2.0/24", "192.0.2.1", True),
        ("192.0.2.0/24", "::ffff:192.0.2.1", True),
        ("192.0.2.0/24", "192.0.3.1", False),
        ("192.0.2.0/24", "::ffff:192.0.3.1", False),
        ("192.0.2.0/24", "not an address", False),
        ("192.0.2.0/24", "", False),
        ("192.0.2.0/24", "2001:db8::1", False),
        ("192.0.2.0/24 2001:db8::/32", "2001:db8::1", True),
        ("2001:db8::1/128", "2001:db8:0:0:0:0:0:1", True),
        ("2001:db8::1/128", "2001:db8::2", False),
        ("fe80::/10", "fe80::1%eth0", True),
        ("::/0", "::ffff:192.0.2.1", False),
        ("0.0.0.0/0", "::ffff:192.0.2.1", True),
    ],
)
def test_an_allow_list_admits_its_networks(networks: str, peer: str, allowed: bool) -> None:
    listed: list[IPv4Network | IPv6Network] = [ip_network(network) for network in networks.split()]
    assert is_allowed(listed, peer) is allowed


def test_each_role_includes_the_lower_roles() -> None:
    for position, needed in enumerate(FROM_LEAST):
        assert [item for item in FROM_LEAST if role_includes(item, needed)] == FROM_LEAST[position:]


@pytest.mark.parametrize(
    ("given", "needed", "said"),
    [
        (Role.VIEWER, Role.ADMIN, "the role of an admin, and yours is viewer"),
        (Role.VIEWER, Role.MEMBER, "the role of a member, and yours is viewer"),
        (Role.ADMIN, Role.OWNER, "the role of an owner, and yours is admin"),
    ],
)
def test_a_refusal_names_the_needed_role(given: Role, needed: Role, said: str) -> None:
    with pytest.raises(Refusal, match=f"^forbidden: .*{re.escape(said)}"):
        credential.require_role(given, needed)


@pytest.mark.parametrize("given", ["", "Owner", "root", "owner ", "own\0er"])
def test_only_the_four_names_are_roles(given: str) -> None:
    with pytest.raises(Refusal, match="invalid_request: "):
        credential.parse_role(given)
    assert [credential.parse_role(item) for item in ("owner", "viewer")] == [Role.OWNER, Role.VIEWER]


@pytest.mark.parametrize(
    ("mode", "scopes", "domains", "is_allowed"),
    [
        (Mode.LIVE, [Scope.SEND, Scope.EVENTS], [], True),
        (Mode.LIVE, [Scope.SEND, Scope.READ], ["shop.example"], True),
        (Mode.TEST, [Scope.SEND, Scope.READ], ["shop.example"], True),
        (Mode.TEST, [Scope.EVENTS], [], False),
        (Mode.LIVE, [Scope.MESSAGES], ["shop.example"], False),
    ],
)
def test_a_key_sees_no_more_than_its_mode_and_domains(
    mode: Mode, scopes: list[Scope], domains: list[str], is_allowed: bool
) -> None:
    if is_allowed:
        return credential.require_combination(mode, scopes, domains)
    with pytest.raises(Refusal):
        credential.require_combination(mode, scopes, domains)
    return None


def test_domains_are_stored_once_and_as_a_labels() -> None:
    assert credential.sender_domains(["B\u00fccher.example", "xn--bcher-kva.example.", "shop.example"]) == (
        "xn--bcher-kva.example",
        "shop.example",
    )
    assert credential.sender_domains(None) == ()
