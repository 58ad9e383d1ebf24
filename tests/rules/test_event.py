"""Events: the contract's envelope, in bytes that any JSON reader takes; and the signature over them."""

import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import event, ids
from posthouse.rules.event import EventType, SignatureVerdict, body, sign, verify
from posthouse.rules.ids import EVENT, MESSAGE, RECIPIENT, parse

NOON = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
MESSAGE_ID = ids.new_message_id(NOON, bytes(10))
EVENT_ID = ids.new_id(NOON, b"\x01" * 10)


def written(**given: Any) -> bytes:
    usual: dict[str, Any] = {
        "event_id": EVENT_ID,
        "type": EventType.DELIVERED,
        "created_at": NOON,
        "message_id": MESSAGE_ID,
        "position": 0,
        "to": "ada@example.org",
        "sender": "billing@example.com",
        "subject": "Your receipt",
        "smtp_code": 250,
        "smtp_response": "2.0.0 Ok",
    }
    return body(**{**usual, **given})


def test_an_event_has_the_fields_of_the_contract() -> None:
    assert json.loads(written()) == {
        "id": ids.text(EVENT, EVENT_ID),
        "type": "email.delivered",
        "created_at": "2026-03-01T12:00:00.123Z",
        "data": {
            "email_id": ids.text(MESSAGE, MESSAGE_ID),
            "recipient_id": ids.text(RECIPIENT, ids.recipient_id(MESSAGE_ID, 0)),
            "to": "ada@example.org",
            "from": "billing@example.com",
            "subject": "Your receipt",
            "smtp_code": 250,
            "smtp_response": "2.0.0 Ok",
        },
    }


def test_the_json_is_compact_and_ordered() -> None:
    assert written().startswith(b'{"id":"ev_')
    assert written() == written()
    assert b" " not in written(subject="", smtp_response="")


def test_the_type_names_are_stable() -> None:
    types = (EventType.DELIVERED, EventType.BOUNCED, EventType.FAILED)
    names = [json.loads(written(type=type_))["type"] for type_ in types]
    assert names == ["email.delivered", "email.bounced", "email.failed"]


@pytest.mark.parametrize(
    ("empty", "absent"),
    [
        ({"sender": ""}, "from"),
        ({"subject": ""}, "subject"),
        ({"smtp_code": None}, "smtp_code"),
        ({"smtp_response": None}, "smtp_response"),
        ({"smtp_response": ""}, "smtp_response"),
    ],
)
def test_an_empty_field_is_omitted(empty: dict[str, Any], absent: str) -> None:
    whole, data = json.loads(written())["data"], json.loads(written(**empty))["data"]
    assert whole.keys() - data.keys() == {absent}


@pytest.mark.parametrize(("field", "kept"), [("subject", 200), ("smtp_response", 500)])
def test_long_texts_are_truncated(field: str, kept: int) -> None:
    text = "é" * (kept - 1) + "💌"
    assert json.loads(written(**{field: text + "rest"}))["data"][field] == text


def test_text_is_utf_8_and_not_escaped() -> None:
    assert "Grüße 💌".encode() in written(subject="Grüße 💌")


def test_times_are_in_utc_with_milliseconds() -> None:
    assert written(created_at=NOON.astimezone(timezone(timedelta(hours=-7)))) == written()
    assert json.loads(written(created_at=NOON.replace(microsecond=0)))["created_at"] == "2026-03-01T12:00:00.000Z"


@pytest.mark.parametrize(
    "odd", ["\ud800", "a\udfffb", "\x00\x01\x1b[31m", 'quote " and \\', "\u2028\u2029", "\r\nBcc: x"]
)
def test_odd_text_does_not_raise(odd: str) -> None:
    data = json.loads(written(subject=odd, smtp_response=odd, sender=odd, to=odd))["data"]
    shown = odd.encode("utf-8", "replace").decode()
    assert [data[name] for name in ("subject", "smtp_response", "from", "to")] == [shown] * 4


@given(some.text(), some.text(), some.text(), some.integers(0, 49))
def test_any_text_makes_valid_json(subject: str, response: str, sender: str, position: int) -> None:
    data = json.loads(written(subject=subject, smtp_response=response, sender=sender, position=position))["data"]
    assert parse(MESSAGE, data["email_id"]) == MESSAGE_ID
    assert parse(RECIPIENT, data["recipient_id"]) == ids.recipient_id(MESSAGE_ID, position)


# The test event


def test_a_test_event_is_about_no_message() -> None:
    assert json.loads(event.test_body(event_id=EVENT_ID, created_at=NOON)) == {
        "id": ids.text(EVENT, EVENT_ID),
        "type": "webhook.test",
        "created_at": "2026-03-01T12:00:00.123Z",
        "data": {"subject": "This is a test of your webhook.", "test": True},
    }


# The request's outside

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
T = 1_772_366_400


def received(secret: str, header: str, raw_body: bytes, now: int) -> bool:
    """A receiver written only from the contract's words."""
    fields = dict(field.split("=", 1) for field in header.split(","))
    assert list(fields) == ["t", "v1"]
    signed = fields["t"].encode() + b"." + raw_body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, fields["v1"]) and abs(now - int(fields["t"])) <= 300


def test_the_signature_is_stable() -> None:
    """So that a change of ours, or of a library's, is noticed: every receiver would have to follow."""
    assert sign("whsec_test", b'{"id":"ev_1"}', 1_700_000_000) == (
        "t=1700000000,v1=0ef8441954c7c510c78f6c063ddfba5a6f746285701338504e3a77d1811f2fa6"
    )


@given(some.text(alphabet="abcXYZ019", min_size=1).map("whsec_".__add__), some.binary(), some.integers(0, 2**33))
def test_a_receiver_by_the_contract_accepts_our_signature(secret: str, raw_body: bytes, t: int) -> None:
    header = sign(secret, raw_body, t)
    assert received(secret, header, raw_body, t)
    assert verify(secret, header, raw_body, t) is SignatureVerdict.GENUINE


@given(some.binary(), some.integers(-1_000, 1_000))
def test_our_check_agrees_with_that_receiver(raw_body: bytes, late_seconds: int) -> None:
    header = sign(SECRET, raw_body, T)
    is_genuine = verify(SECRET, header, raw_body, T + late_seconds) is SignatureVerdict.GENUINE
    assert is_genuine is received(SECRET, header, raw_body, T + late_seconds)


@pytest.mark.parametrize(("late_seconds", "verdict"), [
    (-301, SignatureVerdict.STALE), (-300, SignatureVerdict.GENUINE), (300, SignatureVerdict.GENUINE),
    (301, SignatureVerdict.STALE),
    (86_400, SignatureVerdict.STALE),
])  # fmt: skip
def test_a_signature_is_valid_for_five_minutes_either_way(late_seconds: int, verdict: SignatureVerdict) -> None:
    assert verify(SECRET, sign(SECRET, b"{}", T), b"{}", T + late_seconds) is verdict


def test_another_secret_time_or_body_is_forged() -> None:
    header = sign(SECRET, b'{"a":1}', T)
    assert verify(SECRET.removeprefix("whsec_"), header, b'{"a":1}', T) is SignatureVerdict.FORGED
    assert verify(SECRET, header, b'{"a": 1}', T) is SignatureVerdict.FORGED
    assert verify(SECRET, header.replace(str(T), str(T + 1)), b'{"a":1}', T) is SignatureVerdict.FORGED
    assert verify(SECRET, header.replace(str(T), f"0{T}"), b'{"a":1}', T) is SignatureVerdict.FORGED
    # A forgery stays one, however old.
    assert verify(SECRET, header, b"", T + 86_400) is SignatureVerdict.FORGED
    # The point between time and body is part of what is signed: nothing can be moved across it.
    assert sign(SECRET, b"2.x", 1) != sign(SECRET, b"x", 12)


@pytest.mark.parametrize(
    "header",
    [
        "", "t=1", "v1=" + "a" * 64, "t=,v1=" + "a" * 64, "t=1,v1=", "t=1,v1=" + "a" * 63, "t=1,v1=" + "a" * 65,
        "t=1,v1=" + "A" * 64, "t=-1,v1=" + "a" * 64, "t=1.5,v1=" + "a" * 64, "t=\u0661,v1=" + "a" * 64, "v1=a,t=1",
        "t=1,v1=" + "a" * 64 + "\n", " t=1,v1=" + "a" * 64, "t=" + "9" * 5_000 + ",v1=" + "a" * 64,
        "t=1,v0=" + "a" * 64, "t=1,v1=" + "\ud800" * 64,
    ],
)  # fmt: skip
def test_a_malformed_signature_is_unreadable(header: str) -> None:
    assert verify(SECRET, header, b"{}", 1) is SignatureVerdict.UNREADABLE


@pytest.mark.parametrize("type_", [EventType.DELIVERED, EventType.BOUNCED, EventType.FAILED])
def test_an_event_with_a_new_id_equals_a_new_event(type_: EventType) -> None:
    later, another = NOON + timedelta(hours=3, milliseconds=7), ids.new_id(NOON, b"\x02" * 10)
    odd = {"subject": '{"id":"ev_1","type":"x","created_at":"y"', "smtp_response": None, "type": type_}
    assert event.with_new_id(written(**odd), another, later) == written(event_id=another, created_at=later, **odd)


def test_other_bytes_get_no_new_id() -> None:
    with pytest.raises(ValueError, match="no event"):
        event.with_new_id(b'{"type":"email.delivered"}', EVENT_ID, NOON)
