"""The backlog: how much of the calendar is due, taken, put off or held, counted no further than a bound.

A calendar of a million rows is looked at every second by whoever watches it, so each count ends at the bound
and says that there is more.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.store.postgres import Connection

COUNTED_MAX: Final = 10_000
# In the statement itself: a limit that the planner doesn't know is to it a tenth of the table.
_LOOKED_AT_MAX: Final = COUNTED_MAX + 1


class Count(NamedTuple):
    """So many; or, where the bound was reached, at least so many."""

    number: int
    is_more: bool


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is not final, each recipient in one count.

    A lease leaves no mark but a time that is near: `leased` has also what was deferred until about then.
    """

    due: Count
    leased: Count
    claimed: Count
    later: Count
    held: Count
    oldest_due_at: datetime | None


# Each inner query walks one index in its order and stops at the bound. What doesn't belong to a count is taken
# out afterwards: to search on for what does could take as long as the calendar.
_BACKLOG: Final = f"""
SELECT due.*, leased.*, claimed.*, later.*, held.* FROM
    (SELECT count(*) FILTER (WHERE worker_id IS NULL AND held_since IS NULL), count(*) AS looked_at,
        min(next_at) FILTER (WHERE worker_id IS NULL AND held_since IS NULL) AS oldest_due_at
     FROM (SELECT worker_id, held_since, next_at FROM schedule WHERE next_at <= $1
        ORDER BY next_at LIMIT {_LOOKED_AT_MAX}) looked) due,
    (SELECT count(*) FILTER (WHERE worker_id IS NULL AND held_since IS NULL), count(*) AS looked_at
     FROM (SELECT worker_id, held_since FROM schedule WHERE next_at > $1 AND next_at <= $2
        ORDER BY next_at LIMIT {_LOOKED_AT_MAX}) looked) leased,
    (SELECT count(*), count(*) AS looked_at
     FROM (SELECT FROM schedule WHERE worker_id IS NOT NULL ORDER BY worker_id LIMIT {_LOOKED_AT_MAX}) looked) claimed,
    (SELECT count(*) FILTER (WHERE worker_id IS NULL AND held_since IS NULL), count(*) AS looked_at
     FROM (SELECT worker_id, held_since FROM schedule WHERE next_at > $2
        ORDER BY next_at LIMIT {_LOOKED_AT_MAX}) looked) later,
    (SELECT count(*), count(*) AS looked_at
     FROM (SELECT FROM schedule WHERE held_since IS NOT NULL ORDER BY held_since LIMIT {_LOOKED_AT_MAX}) looked) held
"""


async def backlog(connection: Connection, now: datetime, leases_end: datetime) -> Backlog:
    """What is leased now is due again before `leases_end`."""
    due, due_looked_at, oldest_due_at, *others = await connection.fetchrow(_BACKLOG, now, leases_end)
    leased, claimed, later, held = map(_count, others[::2], others[1::2])
    return Backlog(
        due=_count(due, due_looked_at),
        leased=leased,
        claimed=claimed,
        later=later,
        held=held,
        oldest_due_at=oldest_due_at,
    )


def _count(number: int, looked_at: int) -> Count:
    return Count(min(number, COUNTED_MAX), looked_at > COUNTED_MAX)
