"""A page of a list, and the cursors by which a client asks for the next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.refusal import unreadable_cursor

Item = TypeVar("Item")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """`next_cursor` is None on the last page."""

    items: Sequence[Item]
    next_cursor: str | None


def page_of(rows: Sequence[Item], limit: int, cursor_of: Callable[[Item], str]) -> Page[Item]:
    """`rows` contains one row more than the limit if there is another page."""
    return Page(rows[:limit], cursor_of(rows[limit - 1]) if len(rows) > limit else None)


def id_position(prefix: str, cursor: str, parameter: str = "cursor") -> UUID:
    """The id that a cursor encodes."""
    position = ids.parse(prefix, cursor)
    if position is None:
        raise unreadable_cursor(parameter)
    return position


def time_cursor(at: datetime, key: str) -> str:
    """The cursor of a list ordered by time, and by a key if times are equal."""
    return f"{(at - _EPOCH) // _MICROSECOND:x}.{key}"


def time_position(cursor: str) -> tuple[datetime, str]:
    """The time and the key of a `time_cursor`; whether the key can be one is for the caller to check."""
    microseconds, dot, key = cursor.partition(".")
    try:
        if not dot:
            raise ValueError(cursor)
        return _EPOCH + int(microseconds, 16) * _MICROSECOND, key
    except (ValueError, OverflowError) as error:
        raise unreadable_cursor() from error
