"""Searching: what a message is found by, what can be asked for, and cursors that belong to what was asked."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from posthouse.rules import ids, search
from posthouse.rules.refusal import Refusal
from posthouse.rules.search import SearchField, SearchFilters, search_query, term, terms_of, words

CREDENTIAL = UUID("019a0000-0000-7000-8000-000000000001")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Your order 1023 has shipped", ["your", "order", "1023", "has", "shipped"]),
        ("ORDER order Order", ["order"]),
        ("a b cd", ["cd"]),
        ("Rechnung Nr. 77/B für Straße", ["rechnung", "nr", "77", "für", "strasse"]),
        ("ＦＵＬＬ width", ["full", "width"]),
        ("don't", ["don"]),
        ("", []),
        ("!?", []),
        ("x" * 100, ["x" * search.WORD_CHARACTERS_MAX]),
    ],
)
def test_words_ignore_case_width_and_punctuation(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_terms_are_stable() -> None:
    assert term(SearchField.TAG, "order") != term(SearchField.WORD, "order")
    # Part of what is stored.
    assert term(SearchField.TAG, "order") == 4188347331936372685
    assert all(-(2**63) <= term(SearchField.WORD, str(number)) < 2**63 for number in range(1_000))


def test_a_message_is_found_by_each_of_its_parts() -> None:
    found = terms_of(
        sender="Acme <Hello@Example.com>",
        recipients=["Ada@example.net", "bob@example.net"],
        subject="Your order 1023",
        tags=["Order", "vip"],
        template="order-shipped",
        source="api",
        credential_id=CREDENTIAL,
        metadata={"order": "1001", "Shop": "north"},
    )
    credential = ids.text(ids.CREDENTIAL, CREDENTIAL)
    for filters in (
        SearchFilters(sender="hello@example.com"),
        SearchFilters(recipient="ADA@example.net"),
        SearchFilters(recipient="Bob <bob@example.net>"),
        SearchFilters(subject="1023 YOUR"),
        SearchFilters(tag="Order"),
        SearchFilters(template="order-shipped"),
        SearchFilters(source="api"),
        SearchFilters(credential_id=credential),
        SearchFilters(tag="vip", subject="order", source="api"),
        SearchFilters(metadata=(("order", "1001"),)),
        SearchFilters(metadata=(("Shop", "north"), ("order", "1001")), tag="vip"),
    ):
        assert search_query(filters).has(found, "queued"), filters
    for filters in (
        SearchFilters(tag="order"),
        SearchFilters(subject="shipped"),
        SearchFilters(source="smtp"),
        SearchFilters(tag="Order", subject="no"),
        SearchFilters(metadata=(("order", "north"),)),
        SearchFilters(metadata=(("shop", "north"),)),
        SearchFilters(metadata=(("order", "1001"), ("order", "1002"))),
    ):
        assert not search_query(filters).has(found, "queued"), filters


def test_only_the_first_words_of_a_subject_are_indexed() -> None:
    subject = " ".join(f"word{number}" for number in range(30))
    found = terms_of(
        sender="a@b.example", recipients=[], subject=subject, tags=None, template=None, source="api",
        credential_id=CREDENTIAL,
    )  # fmt: skip
    assert search_query(SearchFilters(subject="word11")).has(found, "queued")
    assert not search_query(SearchFilters(subject="word12")).has(found, "queued")


@pytest.mark.parametrize(("status", "asked", "is_found"), [
    ("queued", "queued", True), ("delivered", "queued", False), ("delivered", "delivered", True),
    ("failed", "delivered", False), ("partial", "partial", True),
])  # fmt: skip
def test_a_status_is_one_of_four(status: str, asked: str, is_found: bool) -> None:
    assert search_query(SearchFilters(status=asked)).has(set(), status) is is_found


@pytest.mark.rule("MSL-10")
@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (SearchFilters(status="sent"), "status"),
        (SearchFilters(source="fax"), "source"),
        (SearchFilters(recipient="ada"), "recipient"),
        (SearchFilters(recipient=""), "recipient"),
        (SearchFilters(sender="@" * 300), "sender"),
        (SearchFilters(subject=""), "subject"),
        (SearchFilters(subject="a ! b"), "subject"),
        (SearchFilters(subject="one two three four five six"), "subject"),
        (SearchFilters(tag=""), "tag"),
        (SearchFilters(tag="x" * 129), "tag"),
        (SearchFilters(template=""), "template"),
        (SearchFilters(credential_id="cr_1"), "credential_id"),
        (SearchFilters(after="yesterday"), "after"),
        (SearchFilters(before="2026-11-15T09:30:00"), "before"),
    ],
)
def test_an_invalid_filter_is_refused_by_name(filters: SearchFilters, names: str) -> None:
    with pytest.raises(Refusal) as refused:
        search_query(filters)
    assert f"`{names}`" in refused.value.text


def test_times_are_bounds_of_ids() -> None:
    moment = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
    asked = search_query(SearchFilters(after="2026-11-15T10:30:00+01:00", before="9999-12-31T23:59:59Z"))
    assert asked.lowest == ids.lowest_id(moment)
    assert asked.before > ids.lowest_id(datetime(9999, 1, 1, tzinfo=UTC))
    for far_off in ("0001-01-01T00:00:00+14:00", "1969-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"):
        assert search_query(SearchFilters(after=far_off)).lowest >= UUID(int=0)


@pytest.mark.rule("MSL-10")
def test_a_cursor_is_valid_for_its_query_only() -> None:
    asked = search_query(SearchFilters(tag="order", subject="Your order"))
    position = ids.new_message_id(datetime.now(UTC), bytes(range(10)))
    cursor = asked.cursor(position)
    assert asked.position(cursor) == position
    assert search_query(SearchFilters(subject="ORDER your", tag="order")).position(cursor) == position
    for other in (
        SearchFilters(),
        SearchFilters(tag="order"),
        SearchFilters(tag="order", subject="Your order", status="queued"),
    ):
        with pytest.raises(Refusal, match="another search"):
            search_query(other).position(cursor)


@pytest.mark.parametrize("cursor", ["", "x", "é", "A" * 28 + "=", "A" * 27 + "+", "A" * 5_000, "em_0000", "\0" * 28])
def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(Refusal):
        search_query(SearchFilters()).position(cursor)
