"""Which lanes an operator sees first, of thousands: the busiest. What is known of each is read apart."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.store.postgres import Connection
from posthouse.store.statement import statement

# Each part gives no more than are asked for, so that only these are put together; the last only if they are too few.
_FIRST: Final = statement("""
WITH reported AS MATERIALIZED (
    SELECT lane, sum(waiting) AS waiting FROM lane_reports
    WHERE reported_at > :since AND (:part::text = '' OR strpos(lane, :part) > 0)
    GROUP BY lane ORDER BY sum(waiting) DESC, lane LIMIT :limit)
SELECT lane, (SELECT count(*) FROM lane_reports) + (SELECT count(*) FROM standings) AS rows_read FROM (
    (SELECT lane, 0 AS rank, 0::bigint AS waiting FROM standings
     WHERE :stopped_first AND standing ->> 'state' IN ('resting', 'blocked')
       AND (:part::text = '' OR strpos(lane, :part) > 0)
     ORDER BY changed_at DESC LIMIT :limit)
    UNION ALL
    SELECT lane, 1, waiting FROM reported
    UNION ALL
    (SELECT DISTINCT lane, 2, 0::bigint FROM standings
     WHERE (SELECT count(*) FROM reported) < :limit AND (:part::text = '' OR strpos(lane, :part) > 0)
     ORDER BY lane LIMIT :limit)) found
GROUP BY lane ORDER BY min(rank), max(waiting) DESC, lane LIMIT :limit
""")


class FirstLanes(NamedTuple):
    """The first, of so many rows that were read."""

    names: Sequence[str]
    rows_read: int


async def first(connection: Connection, since: datetime, limit: int, *, part: str, stopped_first: bool) -> FirstLanes:
    """Those whose names have the part and that have reports after `since` or have learnt something."""
    rows = await connection.fetch(*_FIRST.bind(since=since, limit=limit, part=part, stopped_first=stopped_first))
    return FirstLanes([row["lane"] for row in rows], rows[0]["rows_read"] if rows else 0)
