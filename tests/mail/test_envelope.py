"""The return path and the token for complaints: found again in any case, and never forged."""

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.mail.address import parse_mailbox
from posthouse.mail.envelope import MailReference, feedback_token, parse_feedback_token, parse_return_path, return_path
from tests.support.bad_input import bad_input

DOMAIN = "bounce.example.com"
KEY, OLD_KEY = b"k" * 32, b"o" * 32
MESSAGE_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8000")
ACCOUNT_ID = UUID("01890a5d-0000-7000-8000-0000deadbeef")
ORIGIN = MailReference.of(ACCOUNT_ID, MESSAGE_ID, 3)

origins = some.builds(MailReference.of, some.uuids(), some.uuids(), some.none() | some.integers(0, 254))
keys = some.binary(min_size=1, max_size=64)


@given(origins, keys)
def test_a_return_path_is_read_back_in_any_case(origin: MailReference, key: bytes) -> None:
    address = return_path(origin, DOMAIN, key)
    for spelling in (address, address.upper(), address.title()):
        assert parse_return_path(spelling, DOMAIN, [key]) == origin


@given(origins)
def test_a_return_path_is_an_ordinary_address(origin: MailReference) -> None:
    address = return_path(origin, DOMAIN, KEY)
    assert parse_mailbox(address).address == address
    assert re.fullmatch(rf"bounces\+.{{48}}@{re.escape(DOMAIN)}", address)


def test_the_token_format_is_stable() -> None:
    # Mail under way for days comes back to the next version.
    assert return_path(ORIGIN, DOMAIN, KEY).startswith("bounces+aqayscs5vslhos54z2zqecm2qaan5ln6")
    assert ORIGIN.account_tail == bytes.fromhex("deadbeef")


def test_recipients_that_shared_an_envelope_share_its_return_path() -> None:
    shared = MailReference.of(ACCOUNT_ID, MESSAGE_ID, None)
    address = return_path(shared, DOMAIN, KEY)
    assert address != return_path(MailReference.of(ACCOUNT_ID, MESSAGE_ID, 0), DOMAIN, KEY)
    assert parse_return_path(address, DOMAIN, [KEY]) == shared


def test_a_key_can_be_replaced_while_mail_is_in_transit() -> None:
    address = return_path(ORIGIN, DOMAIN, OLD_KEY)
    assert parse_return_path(address, DOMAIN, [KEY, OLD_KEY]) == ORIGIN
    assert parse_return_path(address, DOMAIN, [KEY]) is None
    assert parse_return_path(address, DOMAIN, []) is None


@given(origins, some.integers(0, 47), some.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_a_changed_token_is_invalid(origin: MailReference, index: int, digit: str) -> None:
    address = return_path(origin, DOMAIN, KEY)
    at = len("bounces+") + index
    changed = address[:at] + digit + address[at + 1 :]
    assert (parse_return_path(changed, DOMAIN, [KEY]) is None) == (changed != address)


GENUINE = return_path(ORIGIN, DOMAIN, KEY)
TOKEN = GENUINE.removeprefix("bounces+").partition("@")[0]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "@",
        "bounces+@" + DOMAIN,
        TOKEN,
        f"{TOKEN}@{DOMAIN}",
        f"bounces-{TOKEN}@{DOMAIN}",
        f"bounces+{TOKEN}",
        f"bounces+{TOKEN}@example.com",
        f"bounces+{TOKEN}@{DOMAIN}.example",
        f"bounces+{TOKEN[:-1]}@{DOMAIN}",
        f"bounces+{TOKEN}a@{DOMAIN}",
        f"bounces+{TOKEN[:-1]}=@{DOMAIN}",
        f"bounces+{TOKEN[:-8]}========@{DOMAIN}",
        f"bounces+{TOKEN[:-1]}1@{DOMAIN}",
        f"bounces+{TOKEN[:-1]}é@{DOMAIN}",
        f"bounces+{TOKEN[:-1]}\u212a@{DOMAIN}",  # the Kelvin sign, which is a k in lower case
        f" {GENUINE}",
        f"<{GENUINE}>",
        "a" * 100_000 + "@" + DOMAIN,
    ],
    ids=lambda address: ascii(address[:24]),
)
def test_any_other_address_is_not_a_return_path(address: str) -> None:
    assert parse_return_path(address, DOMAIN, [KEY]) is None


@bad_input("Return paths", 500)
@given(some.text(max_size=80))
def test_no_text_raises(text: str) -> None:
    assert parse_return_path(text, DOMAIN, [KEY]) is None
    assert parse_return_path(f"bounces+{text}@{DOMAIN}", DOMAIN, [KEY]) is None


@pytest.mark.parametrize("position", [-1, 255])
def test_a_position_out_of_range_raises(position: int) -> None:
    with pytest.raises(ValueError, match="no recipient number"):
        return_path(MailReference.of(ACCOUNT_ID, MESSAGE_ID, position), DOMAIN, KEY)


@given(origins, keys)
def test_a_complaint_token_identifies_the_message_in_any_case(origin: MailReference, key: bytes) -> None:
    token = feedback_token(origin, key)
    for spelling in (token, token.upper()):
        assert parse_feedback_token(spelling, [b"another", key]) == MailReference(
            origin.message_id, None, origin.account_tail
        )
    assert len(token) == 48


@given(origins)
def test_a_token_is_invalid_for_another_purpose(origin: MailReference) -> None:
    assert parse_return_path(f"bounces+{feedback_token(origin, KEY)}@{DOMAIN}", DOMAIN, [KEY]) is None
    assert parse_feedback_token(return_path(origin, DOMAIN, KEY)[8:56], [KEY]) is None


@bad_input("Return paths", 500)
@given(some.text(max_size=80) | some.text("abcdefghijklmnopqrstuvwxyz234567=", min_size=48, max_size=48))
def test_a_complaint_token_can_not_be_forged(text: str) -> None:
    assert parse_feedback_token(text, [KEY]) is None
    assert parse_feedback_token(feedback_token(ORIGIN, OLD_KEY), [KEY]) is None
