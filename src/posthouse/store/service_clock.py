"""Service time as the processes last noted it, and the operator's acceptance of the database's time."""

from datetime import datetime
from typing import Final, NamedTuple

import asyncpg

from posthouse.rules.service_time import TimeNote
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement

_READ: Final = "SELECT clock_timestamp() AS database_time, service_time, noted_at, acceptances FROM service_clock"
_DATABASE_TIME: Final = "SELECT clock_timestamp()"

# A process that does not know of an acceptance yet must not overwrite it with the time before.
_NOTE: Final = statement("""
UPDATE service_clock SET service_time = :service_time, noted_at = clock_timestamp()
WHERE acceptances = :acceptances AND (service_time IS NULL OR service_time < :service_time)
""")

_ACCEPT: Final = """
UPDATE service_clock SET service_time = clock_timestamp(), noted_at = clock_timestamp(), acceptances = acceptances + 1
"""


class ClockReading(NamedTuple):
    database_time: datetime
    note: TimeNote | None


async def read(connection: Connection) -> ClockReading:
    """Without a note while there is none, or while the tables are of an older version."""
    try:
        row = await connection.fetchrow(_READ)
    except asyncpg.UndefinedTableError:
        row = None
    if row is None:
        return ClockReading(await connection.fetchval(_DATABASE_TIME), None)
    if row["service_time"] is None:
        return ClockReading(row["database_time"], None)
    return ClockReading(row["database_time"], TimeNote(row["service_time"], row["noted_at"], row["acceptances"]))


async def note(connection: Connection, service_time: datetime, acceptances: int) -> None:
    await connection.execute(*_NOTE.bind(service_time=service_time, acceptances=acceptances))


async def accept(connection: Connection) -> None:
    """From now on, the database's time is service time."""
    await connection.execute(_ACCEPT)
