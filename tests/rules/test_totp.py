"""The second factor's codes: as the two RFCs print them, good for about now and once."""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from posthouse.rules import totp

# RFC 4226, appendix D, and RFC 6238, appendix B, whose eight digits end with the six of ours.
SECRET = b"12345678901234567890"
BY_COUNTER = ["755224", "287082", "359152", "969429", "338314", "254676", "287922", "162583", "399871", "520489"]
BY_TIME = [
    (59, "94287082"),
    (1111111109, "07081804"),
    (1111111111, "14050471"),
    (1234567890, "89005924"),
    (2000000000, "69279037"),
    (20000000000, "65353130"),
]
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
STEP = totp.step_at(NOON)
RANDOM = bytes(range(100))


@pytest.mark.parametrize(("counter", "code"), list(enumerate(BY_COUNTER)))
def test_codes_are_those_of_rfc_4226(counter: int, code: str) -> None:
    assert totp.code_of(SECRET, counter) == code


@pytest.mark.parametrize(("seconds", "code"), BY_TIME)
def test_codes_are_those_of_rfc_6238(seconds: int, code: str) -> None:
    now = datetime.fromtimestamp(seconds, UTC)
    assert totp.code_of(SECRET, totp.step_at(now)) == code[-6:]
    assert totp.matching_step(SECRET, code[-6:], now, last_step=0) == seconds // 30


@pytest.mark.rule("TOTP-04")
@pytest.mark.parametrize(("off", "is_good"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_a_code_is_valid_for_one_step_around_now(off: int, is_good: bool) -> None:
    found = totp.matching_step(SECRET, totp.code_of(SECRET, STEP + off), NOON, last_step=0)
    assert found == (STEP + off if is_good else None)


def test_a_step_ends_where_the_next_begins() -> None:
    end = NOON + timedelta(seconds=30)
    assert totp.step_at(end - timedelta(microseconds=1)) == STEP
    assert totp.step_at(end) == STEP + 1


@pytest.mark.rule("TOTP-04")
def test_a_used_step_and_earlier_steps_are_invalid() -> None:
    for off in (-1, 0):
        assert totp.matching_step(SECRET, totp.code_of(SECRET, STEP + off), NOON, last_step=STEP) is None
    assert totp.matching_step(SECRET, totp.code_of(SECRET, STEP + 1), NOON, last_step=STEP) == STEP + 1


def test_spaces_and_hyphens_in_a_code_do_not_matter() -> None:
    code = totp.code_of(SECRET, STEP)
    for given in (f" {code[:3]} {code[3:]} ", f"{code[:3]}-{code[3:]}"):
        assert totp.matching_step(SECRET, given, NOON, last_step=0) == STEP


@pytest.mark.parametrize("given", ["", "1", "12345", "1234567", "abcdef", "٣٣٣٣٣٣", "\0" * 6, "9" * 100_000, "é"])
def test_a_malformed_code_is_refused(given: str) -> None:
    assert totp.matching_step(SECRET, given, NOON, last_step=0) is None


def test_an_app_gets_the_secret_in_base_32() -> None:
    uri = urlsplit(totp.secret_uri(SECRET, "ada+x@example.com"))
    assert (uri.scheme, uri.netloc, uri.path) == ("otpauth", "totp", "/Posthouse:ada%2Bx@example.com")
    assert parse_qs(uri.query) == {"secret": ["GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"], "issuer": ["Posthouse"]}
    assert totp.secret_text(SECRET) == "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"


def test_ten_recovery_codes_of_eighty_bits_each() -> None:
    codes = totp.new_recovery_codes(RANDOM)
    assert len(set(codes)) == len(codes) == totp.RECOVERY_CODES
    assert all(len(code) == 19 and code.count("-") == 3 for code in codes)
    with pytest.raises(ValueError, match="random bytes"):
        totp.new_recovery_codes(RANDOM[1:])


def test_a_recovery_code_matches_in_any_format() -> None:
    first, second = totp.new_recovery_codes(RANDOM)[:2]
    kept = totp.recovery_code(first)
    assert kept is not None
    for typed in (first.upper(), first.replace("-", ""), f" {first.replace('-', ' ')} "):
        assert totp.recovery_code(typed) == kept
    assert totp.recovery_code(second) != kept


@pytest.mark.parametrize("given", ["", "287082", "abcd-efgh-ijkl", "abcd-efgh-ijkl-mno1", "é" * 16, "a" * 17])
def test_a_malformed_recovery_code_has_no_hash(given: str) -> None:
    assert totp.recovery_code(given) is None
