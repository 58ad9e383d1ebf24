"""Trace fields: each is a single field, whatever its input."""

from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.mail.header_writer import HeaderError
from posthouse.mail.trace import (
    FEEDBACK_ID,
    complaints,
    feedback_id,
    has_field,
    received,
    unsubscribe,
    unsubscribe_post,
)

AT = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)
ID = "em_01jn8q2kxw00000000000000c0"


def trace(**given: Any) -> bytes:
    return received(**{"hostname": "mail.example.com", "protocol": "HTTP", "id_text": ID, "at": AT, **given})


def test_received_names_host_protocol_and_time() -> None:
    assert trace() == (
        b"Received: by mail.example.com\r\n"
        b" (Posthouse) with HTTP id em_01jn8q2kxw00000000000000c0;\r\n"
        b" Sun, 1 Mar 2026 12:30:05 +0000\r\n"
    )


@pytest.mark.parametrize("hostname", ["a.example", "mail.example.com", "m" * 40 + ".example.com", "[192.0.2.1]"])
def test_received_is_a_single_folded_field(hostname: str) -> None:
    field = trace(hostname=hostname)
    assert max(map(len, field.splitlines())) <= 78
    assert field.endswith(b"\r\n")
    parsed = message_from_bytes(field + b"Subject: x\r\n\r\nbody\r\n")
    assert parsed.keys() == ["Received", "Subject"]
    clauses, _, date = parsed["Received"].replace("\r\n", "").rpartition("; ")
    assert clauses == f"by {hostname} (Posthouse) with HTTP id {ID}"
    assert parsedate_to_datetime(date) == AT


def test_the_longest_host_name_fits_a_line() -> None:
    assert max(map(len, trace(hostname="a" * 255).splitlines())) < 998


def test_received_is_in_utc() -> None:
    assert trace(at=AT.astimezone(timezone(timedelta(hours=9)))) == trace()


@pytest.mark.parametrize(
    "given_as",
    [
        *[
            {"hostname": name}
            for name in ("mail.example.com\r\nBcc: x", "", "mail example", "mail.example.com\n", "ü.example", "a" * 256)
        ],
        *[{"protocol": name} for name in ("HTTP\r\n", "")],
        *[{"id_text": text} for text in ("em_1; x", "em_1\n", "é")],
    ],
)
def test_a_value_that_would_break_the_field_is_refused(given_as: dict[str, str]) -> None:
    with pytest.raises(HeaderError):
        trace(**given_as)


def test_a_feedback_id_has_four_parts_and_the_sender_last() -> None:
    field = feedback_id(domain="example.com", account="ac_01jn8q2kxw0000000000000000", source="api")
    assert field == b"Feedback-ID: example.com:ac_01jn8q2kxw0000000000000000:api:posthouse\r\n"


@given(some.text(max_size=400))
def test_a_feedback_id_always_has_four_parts(domain: str) -> None:
    field = feedback_id(domain=domain, account="ac_01jn8q2kxw0000000000000000", source="smtp")
    assert field.count(b"\r\n") == field.count(b"\n") == field.count(b"\r") == 1
    assert len(field) < 998
    name, value = field.removesuffix(b"\r\n").split(b": ")
    assert name == FEEDBACK_ID
    assert value.count(b":") == 3
    assert value.endswith(b":posthouse")


@pytest.mark.parametrize(
    ("message", "is_there"),
    [
        (b"Feedback-ID: a:b\r\n\r\nbody", True),
        (b"From: x\r\nfeedback-id: a\r\n\r\nbody", True),
        (b"From: x\r\nFEEDBACK-ID:a\r\nTo: y\r\n\r\n", True),
        (b"From: x\r\nFeedback-ID : a\r\n\r\n", True),
        (b"From: x\r\nFeedback-ID\t :\r\n\r\n", True),
        (b"From: x\r\nFeedback-ID: a", True),
        (b"Feedback-ID-Not: a\r\nFeedback-ID: a\r\n\r\n", True),
        (b"Feedback-ID\r\nFeedback-ID: a\r\n\r\n", True),
        (b"From: x\r\n\r\nFeedback-ID: a\r\n", False),
        (b"\r\nFeedback-ID: a\r\n\r\n", False),
        (b"From: x\r\nX-Feedback-ID: a\r\n\r\n", False),
        (b"From: x\r\nFeedback-IDs: a\r\n\r\n", False),
        (b"Subject: x\r\n Feedback-ID: folded\r\n\r\n", False),
        (b"Subject: Feedback-ID: a\r\n\r\n", False),
        (b"Feedback-ID\r\n : a\r\n\r\n", False),
        (b"Feedback-ID\r\n\r\n: a", False),
        (b"From: x", False),
        (b"", False),
    ],
)
def test_a_field_is_found_in_the_header_only(message: bytes, is_there: bool) -> None:
    assert has_field(message, FEEDBACK_ID) is is_there


def test_an_unsubscribe_link_is_never_folded() -> None:
    link = "https://mail.example.com/unsubscribe/" + "x" * 468
    assert unsubscribe(link) == f"List-Unsubscribe: <{link}>\r\n".encode()
    assert unsubscribe_post() == b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"


@pytest.mark.parametrize(
    "link",
    ["", "mailto:a@b", "https://", "https://a b", "https://a>", "https://a\r\nBcc: x", "https://é", "https://a\n"],
)
def test_an_invalid_link_is_refused(link: str) -> None:
    with pytest.raises(HeaderError):
        unsubscribe(link)


def test_the_complaint_fields_have_address_and_token() -> None:
    fields = complaints(address="fbl@bounces.example.com", token="abc234")
    assert fields == b"CFBL-Address: fbl@bounces.example.com; report=arf\r\nCFBL-Feedback-ID: abc234\r\n"


@pytest.mark.parametrize(
    ("address", "token"), [("a; report=xarf", "a"), ("", "a"), ("a@b", ""), ("a@b", "a\r\nBcc: x")]
)
def test_an_unsafe_complaint_address_is_refused(address: str, token: str) -> None:
    with pytest.raises(HeaderError):
        complaints(address=address, token=token)


def test_a_large_header_is_searched_quickly() -> None:
    assert not has_field(b": x\r\n\r\n", b"")
    assert not has_field(b"Feedback-ID\r\n" * 100_000, FEEDBACK_ID)
    assert not has_field(b"Feedback-ID" + b" " * 1_000_000, FEEDBACK_ID)
