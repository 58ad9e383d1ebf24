"""How long transactions of this service are open: what they write may appear behind what is visible already."""

from datetime import datetime
from typing import Final

from posthouse.store.postgres import SETTINGS, Connection

_OLDEST: Final = """
SELECT min(xact_start) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()
"""


async def oldest_began(connection: Connection) -> datetime | None:
    """When the oldest of them began; None when there is none.

    Ask before rows are read: a transaction that ends between the two is then seen by the read.
    """
    began: datetime | None = await connection.fetchval(_OLDEST, SETTINGS["application_name"])
    return began
