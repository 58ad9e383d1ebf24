"""Statements on tables that have a partition for each day: on the whole table, or on one day's partition alone.

Before PostgreSQL finds that a prepared statement needs one partition, it has locked all of them, and made ready to read
each of them where no range of ids excludes it. With a month of days, that is most of what a small batch costs.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.ids import time_of
from posthouse.store.partitions import Partition
from posthouse.store.statement import Statement, statement

# Today, and yesterday until noon. Older days may be reduced or dropped soon, by a process whose clock is ahead.
RECENT: Final = timedelta(hours=36)
_DAYS_KEPT: Final = 3
_TABLE: Final = re.compile(r"<(?P<table>\w+)>")


class DayStatement:
    """`<messages>` in its text is the table, or the partition of a day."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._whole = statement(_TABLE.sub(r"\g<table>", sql))
        self._by_day: dict[date, Statement] = {}

    def of(self, day: date | None) -> Statement:
        """None: of any days."""
        if day is None:
            return self._whole
        found = self._by_day.get(day)
        if found is None:
            if len(self._by_day) >= _DAYS_KEPT:
                self._by_day.clear()
            sql = _TABLE.sub(lambda named: Partition(day, named["table"]).name, self._sql)
            found = self._by_day[day] = statement(sql)
        return found


def common_day(low: UUID, high: UUID, now: datetime) -> date | None:
    """The day of all ids from the lowest to the highest; None if they are of several, or it is not recent."""
    day = time_of(low).date()
    if time_of(high).date() != day:
        return None
    return day if now - datetime.combine(day, time(), UTC) < RECENT else None
