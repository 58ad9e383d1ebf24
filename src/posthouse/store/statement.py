"""SQL statements whose parameters have names: `:now` in the text becomes `$1`, and `now=` gives its value.

    _RENEW: Final = statement("UPDATE workers SET expires_at = :until WHERE id = :worker_id")
    await tx.execute(*_RENEW.bind(worker_id=worker_id, until=until))
    await tx.execute(*_INSERT.bind_row(worker, now=now))

The text is compiled once, when its module is imported. `bind` is a function made for the statement, so that Python
itself refuses a name that is missing or unknown, and a call costs hardly more than by position.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

from posthouse.rules.ids import time_of
from posthouse.store.partitions import Partition

# Literals, quoted names, line comments, casts and array slices contain no parameters, but may contain colons. An
# unclosed quote runs to the end, so that the search takes linear time; PostgreSQL refuses such a text.
_TOKEN: Final = re.compile(
    r"""
    [eE]'(?:[^'\\]++|\\.)*'?
    | '[^']*+'?
    | "[^"]*+"?
    | --[^\n]*+
    | ::
    | (?P<forbidden> \$\w*+ | /\* | (?<![\w\]]): (?!\w) )
    | (?<![\w\]]) : (?P<name>[A-Za-z_]\w*+)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """`text` is what PostgreSQL gets; `bind` returns the text and the values in the order of `names`."""

    text: str
    names: tuple[str, ...]
    bind: Callable[..., tuple[Any, ...]]

    def bind_row(self, row: object, **values: Any) -> tuple[Any, ...]:
        """As `bind`; values that are not given are the row's fields of that name. Slower: not for hot paths."""
        return self.bind(**{name: getattr(row, name) for name in self.names if name not in values}, **values)


def statement(sql: str) -> Statement:
    """Raises ValueError for a text with `$` parameters or quotes, a block comment, or a stray colon."""
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        if found["forbidden"]:
            raise ValueError(f"a statement may only have :name parameters and line comments, not {found[0]!r}: {sql}")
        name = found["name"]
        return found[0] if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    text = _TOKEN.sub(numbered, sql)
    names = tuple(numbers)
    listed = ", ".join(names)
    # The text is a literal, so that no parameter's name can hide it. Both come from our own source; a keyword among the
    # names is a SyntaxError here.
    bind = eval(f"lambda *, {listed}: ({text!r}, {listed})" if names else f"lambda: ({text!r},)", {})  # noqa: S307
    return Statement(text, names, bind)


def delete_some(table: str, key: str, chosen: str) -> str:
    """Deletes up to $2 of the chosen rows; rows that another process has locked stay for the next time.

    They are chosen in a WITH, since PostgreSQL may run a subquery several times, and so exceed its LIMIT.
    """
    same = " AND ".join(f"{table}.{column} = old.{column}" for column in key.split(", "))
    return f"""
WITH old AS (SELECT {key} FROM {table} WHERE {chosen} LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM {table} USING old WHERE {same}
"""


# Today, and yesterday until noon. Older days may be reduced or dropped soon, by a process whose clock is ahead.
PARTITION_USED_FOR: Final = timedelta(hours=36)
_DAYS_KEPT: Final = 3
_TABLE: Final = re.compile(r"<(?P<table>\w+)>")


class DayStatement:
    """A statement on the whole table, or on one day's partition: `<messages>` in its text stands for either.

    Before PostgreSQL finds that a prepared statement needs only one partition, it has locked all of them, and prepared
    to read each that no range of ids excludes. With a month of days, that is most of the cost of a small group commit.
    """

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._whole = statement(_TABLE.sub(r"\g<table>", sql))
        self._by_day: dict[date, Statement] = {}

    def for_days(self, day: date | None) -> Statement:
        """The statement for this day; None: for any days."""
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
    """The day of all ids from the lowest to the highest; None if they belong to several days, or to one not recent."""
    day = time_of(low).date()
    if time_of(high).date() != day:
        return None
    return day if now - datetime.combine(day, time(), UTC) < PARTITION_USED_FOR else None
