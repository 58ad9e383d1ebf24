"""Ids: sixteen bytes that sort by time, one spelling each."""

from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import limits
from posthouse.rules.ids import (
    MESSAGE,
    RANDOM_BYTES,
    RECIPIENT,
    REQUEST,
    lowest_id,
    new_id,
    new_message_id,
    parse,
    recipient_id,
    text,
    time_of,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
ZEROS, ONES = bytes(RANDOM_BYTES), b"\xff" * RANDOM_BYTES

moments = some.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=some.just(UTC))
random_bytes = some.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)
any_uuid = some.integers(0, 2**128 - 1).map(lambda number: UUID(int=number))


@given(any_uuid)
def test_an_id_is_read_back_from_its_text(value: UUID) -> None:
    spelled = text(MESSAGE, value)
    assert len(spelled) == 29
    assert parse(MESSAGE, spelled) == value


@given(any_uuid, any_uuid)
def test_texts_sort_as_their_ids_do(item: UUID, other: UUID) -> None:
    assert (text(MESSAGE, item) < text(MESSAGE, other)) == (item < other)


@pytest.mark.parametrize(
    ("number", "spelled"),
    [
        (0, "em_00000000000000000000000000"),
        (31, "em_0000000000000000000000000z"),
        (32, "em_00000000000000000000000010"),
        (2**128 - 1, "em_7zzzzzzzzzzzzzzzzzzzzzzzzz"),
    ],
)
def test_the_spelling_is_crockfords_in_lower_case(number: int, spelled: str) -> None:
    assert text(MESSAGE, UUID(int=number)) == spelled
    assert parse(MESSAGE, spelled) == UUID(int=number)


@pytest.mark.parametrize(
    "given_text",
    [
        "",
        "em_",
        "00000000000000000000000000",
        "rq_00000000000000000000000000",
        "EM_00000000000000000000000000",
        "em_0000000000000000000000000Z",
        "em_0000000000000000000000000i",
        "em_0000000000000000000000000l",
        "em_0000000000000000000000000o",
        "em_0000000000000000000000000u",
        "em_0000000000000000000000000",
        "em_000000000000000000000000000",
        " em_00000000000000000000000000",
        "em_00000000000000000000000000\n",
        "em_0000000000000000000000000٣",
        "em_0000000000000000000000000\x00",
        "em_80000000000000000000000000",  # 2^128, one more than fits into sixteen bytes
        "em_zzzzzzzzzzzzzzzzzzzzzzzzzz",
        "em_" + "0" * 100_000,
    ],
    ids=lambda given_text: ascii(given_text[:32]),
)
def test_any_other_text_is_not_an_id(given_text: str) -> None:
    assert parse(MESSAGE, given_text) is None


@given(some.text(max_size=40) | some.text("0123456789abcdefghjkmnpqrstvwxyz", min_size=26, max_size=26))
def test_a_parsed_id_is_written_the_same(tail: str) -> None:
    value = parse(REQUEST, "rq_" + tail)
    assert value is None or text(REQUEST, value) == "rq_" + tail


@given(moments, random_bytes)
def test_an_id_is_a_uuid_of_version_seven(now: datetime, random: bytes) -> None:
    value = new_id(now, random)
    assert (value.version, value.variant) == (7, RFC_4122)


@given(random_bytes, random_bytes)
def test_every_free_random_bit_is_used(item: bytes, other: bytes) -> None:
    # 74 of the 80 bits are free in version 7; the six highest are dropped.
    kept = (1 << 74) - 1
    same = int.from_bytes(item, "big") & kept == int.from_bytes(other, "big") & kept
    assert (new_id(NOON, item) == new_id(NOON, other)) == same


@given(moments, some.integers(1, 10**9), random_bytes, random_bytes)
def test_a_later_millisecond_always_sorts_later(now: datetime, gap: int, random: bytes, other: bytes) -> None:
    assert new_id(now, random) < new_id(now + gap * MILLISECOND, other)


@given(moments, random_bytes)
def test_a_message_id_has_space_for_its_recipients(now: datetime, random: bytes) -> None:
    message_id = new_message_id(now, random)
    assert message_id.int % 64 == 0
    ids = [recipient_id(message_id, position) for position in range(63)]
    assert len({message_id, *ids}) == 64 > limits.RECIPIENTS_MAX
    assert sorted(ids) == ids
    assert {item.int >> 6 << 6 for item in ids} == {message_id.int}
    assert parse(RECIPIENT, text(RECIPIENT, ids[0])) == ids[0]


@pytest.mark.parametrize("position", [-1, 63, 64])
def test_a_position_out_of_range_raises(position: int) -> None:
    with pytest.raises(ValueError, match="no recipient number"):
        recipient_id(new_message_id(NOON, ONES), position)


@pytest.mark.parametrize("random", [ZEROS, ONES])
def test_a_day_of_ids_lies_between_its_lowest_and_the_next_days(random: bytes) -> None:
    day, next_day = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)
    last_moment = next_day - timedelta(microseconds=1)
    assert new_id(day - timedelta(microseconds=1), random) < lowest_id(day)
    assert lowest_id(day) <= new_message_id(day, random)
    last = new_message_id(last_moment, random)
    assert lowest_id(day) < recipient_id(last, 62) < lowest_id(next_day)


@given(moments, random_bytes)
def test_an_id_contains_its_creation_time(now: datetime, random: bytes) -> None:
    to_the_millisecond = now.replace(microsecond=now.microsecond // 1_000 * 1_000)
    message_id = new_message_id(now, random)
    assert time_of(new_id(now, random)) == time_of(message_id) == to_the_millisecond
    assert time_of(recipient_id(message_id, 49)) == to_the_millisecond
    assert time_of(lowest_id(now)) == to_the_millisecond
