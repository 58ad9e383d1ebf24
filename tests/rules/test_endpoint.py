"""What an endpoint gets, how it is signed, and what its bodies say."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from standardwebhooks.webhooks import Webhook

from posthouse.rules import endpoint, event, ids
from posthouse.rules.credential import Mode
from posthouse.rules.endpoint import Filters, FurtherType, MailFacts
from posthouse.rules.event import EventType
from posthouse.rules.ids import MessageId
from posthouse.rules.refusal import Refusal

NOW = datetime(2026, 11, 17, 9, 30, tzinfo=UTC)
MESSAGE = MessageId(UUID("01940000-0000-7000-8000-000000000040"))
MAIL = MailFacts("ada@example.org", "Shop <shop@example.com>", "shop@example.com", "Hello", ("a", "b"), None, "api")
TYPE = EventType.BOUNCED


def body(**fields: object) -> bytes:
    given = {"smtp_code": 550, "smtp_response": "no", "sender": "shop@example.com", "subject": "Hello", **fields}
    return event.body(
        event_id=ids.lowest_id(NOW),
        type=TYPE,
        created_at=NOW,
        message_id=MESSAGE,
        position=0,
        to="ada@example.org",
        **given,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("filters", "is_wanted"),
    [
        (Filters((TYPE,)), True),
        (Filters((EventType.DELIVERED,)), False),
        (Filters((TYPE,), sender_domains=("example.org", "example.com")), True),
        (Filters((TYPE,), sender_domains=("shop.example.com",)), False),
        (Filters((TYPE,), tags=("b", "c")), True),
        (Filters((TYPE,), tags=("c",)), False),
        (Filters((TYPE,), mode=Mode.LIVE), True),
        (Filters((TYPE,), mode=Mode.TEST), False),
        (Filters((TYPE,), ("example.com",), ("c",), Mode.LIVE), False),
    ],
)
def test_every_filter_that_is_given_has_to_fit(filters: Filters, is_wanted: bool) -> None:
    assert endpoint.wants(filters, TYPE, MAIL) is is_wanted


def test_an_event_without_a_message_passes_no_message_filter() -> None:
    lost = FurtherType.DOMAIN_LOST
    assert endpoint.wants_of_account(Filters((lost,)), lost, ())
    filtered = (Filters((lost,), ("example.com",)), Filters((lost,), tags=("a",)), Filters((lost,), mode=Mode.LIVE))
    assert not any(endpoint.wants_of_account(filters, lost, ()) for filters in filtered)
    assert endpoint.wants_of_account(Filters((lost,), tags=("a",)), lost, ("a",))


def test_no_types_are_all_types_and_repetitions_are_dropped() -> None:
    assert endpoint.filters(None, None, None, None) == Filters(endpoint.TYPES)
    assert endpoint.filters([], ["EXAMPLE.com", "example.com."], ["a", "a"], "test") == Filters(
        endpoint.TYPES, ("example.com",), ("a",), Mode.TEST
    )


@pytest.mark.parametrize("name", ["email.opened", EventType.TEST, ""])
def test_unknown_types_are_refused(name: str) -> None:
    with pytest.raises(Refusal):
        endpoint.filters([name], None, None, None)


def test_bodies_are_the_webhooks_with_more_fields() -> None:
    plain = body()
    composed = endpoint.mail_body(plain, MAIL, "unknown_address")
    assert composed.startswith(plain[:-2])
    more = {"reason": "unknown_address", "mode": "live", "tags": ["a", "b"]}
    assert json.loads(composed)["data"] == json.loads(plain)["data"] | more


@pytest.mark.parametrize("value", ['"}}', "\\", "ü\u2028", "</script>"])
def test_metadata_can_not_break_out_of_its_field(value: str) -> None:
    facts = MailFacts("a@example.org", "x", "", "", (value,), json.dumps({"k": value}), "test")
    data = json.loads(endpoint.mail_body(body(subject=value), facts, None))["data"]
    assert (data["metadata"], data["tags"], data["mode"], data["subject"]) == ({"k": value}, [value], "test", value)


def test_signatures_with_two_secrets_are_verified_with_either() -> None:
    secrets = [endpoint.new_secret(bytes([number]) * endpoint.SECRET_BYTES) for number in (1, 2)]
    signed = endpoint.signed_headers(secrets, ids.lowest_id(NOW), int(datetime.now(UTC).timestamp()), body())
    for secret in secrets:
        assert Webhook(secret).verify(body(), signed)["type"] == TYPE


def test_ids_of_derived_events_are_the_same_each_time() -> None:
    assert ids.derived_id(NOW, b"a", b"b") == ids.derived_id(NOW, b"a", b"b") != ids.derived_id(NOW, b"a", b"c")
    assert ids.time_of(ids.derived_id(NOW, b"a")) == NOW
