"""How the recipients' results make the message's."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import message
from posthouse.rules.message import (
    BillingStatus,
    Fingerprint,
    MessageStatus,
    RecipientStatus,
    billing_of,
    check_metadata,
    message_state,
    read_metadata,
    stored_metadata,
)
from posthouse.rules.refusal import Refusal

OPEN = {RecipientStatus.QUEUED, RecipientStatus.DEFERRED}
# The credit of these is returned.
RETURNED = {RecipientStatus.BOUNCED, RecipientStatus.CANCELLED}


def folded(recipients: list[RecipientStatus]) -> tuple[MessageStatus, BillingStatus]:
    count = Counter(recipients)
    return message_state(
        open=sum(count[status] for status in OPEN),
        delivered=count[RecipientStatus.DELIVERED],
        released=sum(count[status] for status in RETURNED),
        total=len(recipients),
    )


@given(some.lists(some.sampled_from(RecipientStatus), min_size=1, max_size=50))
def test_the_message_state_is_the_contracts(recipients: list[RecipientStatus]) -> None:
    status, billing = folded(recipients)
    present = set(recipients)
    still_open = bool(present & OPEN)
    assert (status is MessageStatus.QUEUED) == still_open
    assert (billing is BillingStatus.RESERVED) == still_open
    assert (status is MessageStatus.DELIVERED) == (present == {RecipientStatus.DELIVERED})
    assert (status is MessageStatus.FAILED) == (present <= RETURNED | {RecipientStatus.FAILED})
    assert (billing is BillingStatus.RELEASED) == (present <= RETURNED)


@pytest.mark.parametrize(
    ("open_count", "delivered", "released", "total"),
    [(0, 0, 0, 0), (-1, 1, 1, 1), (0, -1, 0, 1), (0, 0, -1, 1), (1, 1, 0, 1), (0, 2, 1, 2)],
)
def test_impossible_counts_raise(open_count: int, delivered: int, released: int, total: int) -> None:
    with pytest.raises(ValueError, match="impossible counts"):
        message_state(open_count, delivered, released, total)


@pytest.mark.parametrize(
    ("status", "billing"),
    [
        (RecipientStatus.QUEUED, BillingStatus.RESERVED),
        (RecipientStatus.DEFERRED, BillingStatus.RESERVED),
        (RecipientStatus.DELIVERED, BillingStatus.SETTLED),
        (RecipientStatus.FAILED, BillingStatus.SETTLED),
        (RecipientStatus.BOUNCED, BillingStatus.RELEASED),
    ],
)
def test_only_a_bounce_returns_the_credit(status: RecipientStatus, billing: BillingStatus) -> None:
    assert billing_of(status) is billing
    # Only what failed can be released without having bounced.
    may_be_released = BillingStatus.RELEASED if status is RecipientStatus.FAILED else billing
    assert billing_of(status, is_released=True) is may_be_released


# Fingerprints of bodies


OLD, NEW = b"o" * 32, b"n" * 32


def test_a_body_is_recognised_by_its_stored_fingerprint_under_any_known_key() -> None:
    before, rotating, after = Fingerprint((OLD,)), Fingerprint((NEW, OLD)), Fingerprint((NEW,))
    stored = message.stored_fingerprint(before(b"body"))
    assert message.is_same_body(rotating(b"body"), stored)
    assert not message.is_same_body(rotating(b"another"), stored)
    assert not message.is_same_body(after(b"body"), stored)
    assert message.stored_fingerprint(rotating(b"body")) == after(b"body")


def test_test_mail_is_never_the_mail_itself() -> None:
    rotating = Fingerprint((NEW, OLD))
    in_test_mode = message.fingerprint_of_test_mode(rotating(b"body"))
    assert message.is_same_body(
        in_test_mode, message.stored_fingerprint(message.fingerprint_of_test_mode(Fingerprint((OLD,))(b"body")))
    )
    assert not message.is_same_body(in_test_mode, message.stored_fingerprint(rotating(b"body")))


# Metadata


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"order": "1001", "a.b-c_D9": "", "x" * 64: "y" * 500},
        {f"n{number}": "ü💌" for number in range(20)},
        {"__proto__": "x", "..": "-"},
    ],
)
def test_pairs_are_stored_as_given(given: dict[str, str]) -> None:
    assert list(read_metadata(stored_metadata(check_metadata(given))).items()) == list(given.items())


def test_nothing_is_stored_of_none() -> None:
    assert stored_metadata({}) is None


@pytest.mark.rule("META-01")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({f"n{number}": "" for number in range(21)}, "21 pairs"),
        ({"": "x"}, "name"),
        ({"x" * 65: "x"}, "name"),
        ({"a b": "x"}, "'a b'"),
        ({"ä": "x"}, "name"),
        ({"a\n": "x"}, "name"),
        ({"a": "x" * 501}, "501"),
        ({"a": "x\ny"}, "`metadata.a`"),
        ({"a": "\0"}, "`metadata.a`"),
        ({"a": "\u2028"}, "`metadata.a`"),
    ],
)
def test_other_pairs_are_refused_and_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(Refusal, match=f"^invalid_request: .*{re.escape(named)}"):
        check_metadata(given)


# The time to send


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ("2026-03-01T12:00:00Z", NOON),
        ("2026-03-01t12:00:00z", NOON),
        ("2026-03-01T14:00:00+02:00", NOON),
        ("2026-03-01T06:30:00-05:30", NOON),
        ("2026-03-01T12:00:00.25Z", NOON + timedelta(milliseconds=250)),
        ("2026-03-01T12:00:00.000001Z", NOON + MOMENT),
    ],
)
def test_a_time_with_its_offset_is_read(given: str, at: datetime) -> None:
    assert message.parse_send_time(given) == at


@pytest.mark.parametrize(
    "given",
    [
        *("", "tomorrow", "1772366400", "2026-03-01", "2026-03-01T12:00:00", "2026-03-01 12:00:00Z"),
        *("20260301T120000Z", "2026-W09-7T12:00:00Z", "2026-02-30T12:00:00Z", "2026-03-01T24:00:01Z"),
        *("2026-03-01T12:00:00+99:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
        *("2026-03-01T12:00:00.1234567Z", "２026-03-01T12:00:00Z", "2026-03-01T12:00:00Z\n"),
    ],
)
def test_anything_else_is_refused(given: str) -> None:
    with pytest.raises(Refusal, match="`send_at` is a time"):
        message.parse_send_time(given)


@pytest.mark.rule("LATER-01")
def test_up_to_30_days_ahead_are_accepted_and_a_sender_with_a_late_clock() -> None:
    for at in (None, NOON + timedelta(days=30), NOON, NOON - timedelta(minutes=5)):
        message.check_send_time(at, NOON)
    with pytest.raises(Refusal, match="30 days"):
        message.check_send_time(NOON + timedelta(days=30) + MOMENT, NOON)
    with pytest.raises(Refusal, match="past"):
        message.check_send_time(NOON - timedelta(minutes=5) - MOMENT, NOON)
