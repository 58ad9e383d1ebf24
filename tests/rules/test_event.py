"""Events: the contract's envelope, in bytes that any JSON reader takes."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import ids
from posthouse.rules.event import Type, body
from posthouse.rules.ids import EVENT, MESSAGE, RECIPIENT, MessageId, parse

NOON = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
MESSAGE_ID = ids.new_message_id(NOON, bytes(10))
EVENT_ID = ids.new_id(NOON, b"\x01" * 10)


def written(**given: Any) -> bytes:
    usual: dict[str, Any] = {
        "event_id": EVENT_ID,
        "type": Type.DELIVERED,
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


def test_the_json_is_compact_and_in_one_order() -> None:
    assert written().startswith(b'{"id":"ev_')
    assert written() == written()
    assert b" " not in written(subject="", smtp_response="")


@pytest.mark.parametrize(("type_", "spelled"), [
    (Type.DELIVERED, "email.delivered"), (Type.BOUNCED, "email.bounced"), (Type.FAILED, "email.failed"),
])  # fmt: skip
def test_each_type_is_spelled_as_customers_know_it(type_: Type, spelled: str) -> None:
    assert json.loads(written(type=type_))["type"] == spelled


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
def test_an_empty_field_is_left_out(empty: dict[str, Any], absent: str) -> None:
    whole, data = json.loads(written())["data"], json.loads(written(**empty))["data"]
    assert whole.keys() - data.keys() == {absent}


def test_an_ordinary_event_is_no_test() -> None:
    assert "test" not in json.loads(written())["data"]


@pytest.mark.parametrize(
    ("field", "given_as", "kept"), [("subject", "subject", 200), ("smtp_response", "smtp_response", 500)]
)
def test_long_texts_are_cut(field: str, given_as: str, kept: int) -> None:
    text = "é" * (kept - 1) + "💌" + "rest"
    assert json.loads(written(**{given_as: text}))["data"][field] == "é" * (kept - 1) + "💌"


def test_text_is_utf_8_and_not_escaped() -> None:
    assert "Grüße 💌".encode() in written(subject="Grüße 💌")


def test_any_time_zone_becomes_utc() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=-7)))
    assert written(created_at=elsewhere) == written()


def test_a_whole_second_has_its_milliseconds() -> None:
    assert json.loads(written(created_at=NOON.replace(microsecond=0)))["created_at"] == "2026-03-01T12:00:00.000Z"


@pytest.mark.parametrize(
    "odd", ["\ud800", "a\udfffb", "\x00\x01\x1b[31m", 'quote " and \\', "\u2028\u2029", "\r\nBcc: x"]
)
def test_odd_text_is_told_without_failing(odd: str) -> None:
    data = json.loads(written(subject=odd, smtp_response=odd, sender=odd, to=odd))["data"]
    told = odd.encode("utf-8", "replace").decode()
    assert [data[name] for name in ("subject", "smtp_response", "from", "to")] == [told] * 4


@given(some.text(), some.text(), some.text(), some.integers(0, 49))
def test_whatever_the_texts_the_event_is_json_that_leads_back(
    subject: str, response: str, sender: str, position: int
) -> None:
    data = json.loads(written(subject=subject, smtp_response=response, sender=sender, position=position))["data"]
    message_id = parse(MESSAGE, data["email_id"])
    assert message_id == MESSAGE_ID
    assert parse(RECIPIENT, data["recipient_id"]) == ids.recipient_id(MessageId(UUID(int=MESSAGE_ID.int)), position)
