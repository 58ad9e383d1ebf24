"""Statements on a day's partition: which day it is, and what the statement then says."""

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest

from posthouse.rules.ids import new_id
from posthouse.store.statement import PARTITION_USED_FOR, DayStatement, common_day

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 11, 17, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def id_at(time: datetime) -> UUID:
    return new_id(time, bytes(10))


@pytest.mark.parametrize(
    ("first", "last", "now", "day"),
    [
        (NOON, NOON, NOON, date(2026, 11, 17)),
        (MIDNIGHT, MIDNIGHT + timedelta(days=1) - MILLISECOND, NOON, date(2026, 11, 17)),
        (MIDNIGHT - MILLISECOND, MIDNIGHT, NOON, None),
        (NOON, NOON, MIDNIGHT + PARTITION_USED_FOR - MILLISECOND, date(2026, 11, 17)),
        (NOON, NOON, MIDNIGHT + PARTITION_USED_FOR, None),
        (NOON, NOON, MIDNIGHT - timedelta(hours=1), date(2026, 11, 17)),
    ],
)
def test_ids_of_one_recent_day_have_it_in_common(
    first: datetime, last: datetime, now: datetime, day: date | None
) -> None:
    assert common_day(id_at(first), id_at(last), now) == day


def test_a_statement_names_the_tables_or_a_days_partitions() -> None:
    made = DayStatement("UPDATE <messages> AS messages SET a = :a FROM <bodies> WHERE b < :b AND c > :c")
    assert made.for_days(None).text == "UPDATE messages AS messages SET a = $1 FROM bodies WHERE b < $2 AND c > $3"
    assert made.for_days(date(2026, 1, 2)).text.startswith(
        "UPDATE messages_20260102 AS messages SET a = $1 FROM bodies_2026"
    )
    assert made.for_days(date(2026, 1, 2)) is made.for_days(date(2026, 1, 2))


def test_the_statements_of_past_days_are_forgotten() -> None:
    made = DayStatement("SELECT FROM <messages>")
    first = made.for_days(date(2026, 1, 1))
    for day in range(2, 9):
        made.for_days(date(2026, 1, day))
    assert made.for_days(date(2026, 1, 1)) is not first
