"""The time before which a message is not sent: its form, and how far away it may be."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules import message
from posthouse.rules.refusal import Refusal

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


def test_up_to_30_days_ahead_are_accepted_and_a_sender_with_a_late_clock() -> None:
    for at in (None, NOON + timedelta(days=30), NOON, NOON - timedelta(minutes=5)):
        message.check_send_time(at, NOON)
    with pytest.raises(Refusal, match="30 days"):
        message.check_send_time(NOON + timedelta(days=30) + MOMENT, NOON)
    with pytest.raises(Refusal, match="past"):
        message.check_send_time(NOON - timedelta(minutes=5) - MOMENT, NOON)
