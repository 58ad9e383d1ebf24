"""Counts of reasons: their keys come from replies, and are bounded."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.rules.delivery_reason import ADDRESS, without_addresses
from posthouse.rules.delivery_reason import DeliveryReason as R
from posthouse.rules.ids import MessageId, lowest_id
from posthouse.rules.usage import ReasonCount, ReasonKey, bounded_counts, count_sum, reason_key

OLDER, NEWER = (MessageId(lowest_id(datetime(year, 1, 1, tzinfo=UTC))) for year in (2026, 2027))
OTHER = ReasonKey("other", "bounced", "other", R.OTHER)


@pytest.mark.parametrize(
    ("mx_host", "code", "response", "key"),
    [
        ("aspmx.l.google.com", 550, "5.1.1 no such user", ("google", "bounced", "5.1.1", R.UNKNOWN_ADDRESS)),
        ("mx.example.org", 550, "no such user", ("other", "bounced", "550", R.UNKNOWN_ADDRESS)),
        ("mx.example.org", 550, "4.1.1 odd", ("other", "bounced", "550", R.REFUSED)),
        (None, None, "the domain does not exist", ("none", "bounced", "", R.UNKNOWN_DOMAIN)),
        (None, None, None, ("none", "bounced", "", R.DEFERRED)),
    ],
)
def test_a_key_has_the_provider_and_the_status(
    mx_host: str | None, code: int | None, response: str | None, key: tuple[str, str, str, R]
) -> None:
    assert reason_key("bounced", mx_host, code, response) == key


def test_the_newest_message_is_the_example() -> None:
    assert count_sum(ReasonCount(1, NEWER), ReasonCount(2, OLDER)) == (3, NEWER)
    assert count_sum(None, ReasonCount(2, OLDER)) == (2, OLDER)


def keys(*codes: int) -> list[ReasonKey]:
    return [ReasonKey("other", "bounced", str(code), R.REFUSED) for code in codes]


@given(st.sets(st.integers(0, 20)), st.dictionaries(st.integers(0, 20), st.integers(1, 9)), st.integers(0, 12))
def test_new_keys_beyond_the_bound_are_counted_together(known: set[int], found: dict[int, int], bound: int) -> None:
    kept = set(keys(*known))
    counts = {key: ReasonCount(times, OLDER) for key, times in zip(keys(*found), found.values(), strict=True)}
    bounded = bounded_counts(kept, counts, bound)
    assert sum(count.times for count in bounded.values()) == sum(found.values())
    assert len((kept | set(bounded)) - {OTHER}) <= max(bound, len(kept))
    for key in kept & set(counts):
        assert bounded[key] == counts[key]


def test_the_most_frequent_keep_their_own_key() -> None:
    rare, frequent = keys(1, 2)
    counts = {rare: ReasonCount(1, OLDER), frequent: ReasonCount(5, OLDER)}
    assert bounded_counts((), counts, 1) == {frequent: (5, OLDER), OTHER: (1, OLDER)}


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        *[(same, same) for same in ("", "5.7.1 blocked, see https://example.net/a?ip=192.0.2.1")],
        ("5.1.1 <Ada@example.net>: unknown\n5.1.1 try later", f"5.1.1 {ADDRESS} unknown\n5.1.1 try later"),
        ("see https://example.net/?to=ada%40example.net now", f"see {ADDRESS} now"),
    ],
)
def test_what_is_stored_about_a_server_names_no_recipient(reply: str, kept: str) -> None:
    assert without_addresses(reply) == kept
