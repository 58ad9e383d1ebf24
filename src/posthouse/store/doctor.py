"""What `posthouse doctor` reads of PostgreSQL and of what is stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.store.postgres import Connection, required

_SERVER: Final = """
SELECT current_setting('server_version_num')::integer AS version_number,
       current_setting('server_version') AS version,
       clock_timestamp() AS clock,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('max_locks_per_transaction')::integer AS locks_per_transaction_max
"""

# The key's id is readable in the sealed value: a version byte, a length, the id.
_SEALED: Final = """
SELECT convert_from(substring(sealed FROM 3 FOR get_byte(sealed, 1)), 'UTF8') AS key_id, count(*) AS uses
FROM (SELECT dkim_sealed, ed25519_sealed FROM domains
      UNION ALL SELECT dkim_sealed, ed25519_sealed FROM domain_keys WHERE retired_at IS NULL
      UNION ALL SELECT secret_sealed, NULL FROM webhook_endpoints
      UNION ALL SELECT secret_sealed, NULL FROM second_factors) keys
CROSS JOIN LATERAL (VALUES (dkim_sealed), (ed25519_sealed)) secret(sealed)
WHERE sealed IS NOT NULL GROUP BY 1
"""

# Without a row if this database user may not know it.
_DATA_DIRECTORY: Final = "SELECT setting FROM pg_settings WHERE name = 'data_directory'"
_DATABASE_BYTES: Final = "SELECT pg_database_size(current_database())"


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    version_number: int
    version: str
    clock: datetime
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    locks_per_transaction_max: int


async def server(connection: Connection) -> DatabaseServer:
    return DatabaseServer(**required(await connection.fetchrow(_SERVER)))


async def data_directory(connection: Connection) -> str | None:
    """Where PostgreSQL stores its data; None if this database user may not know it."""
    found: str | None = await connection.fetchval(_DATA_DIRECTORY)
    return found


async def database_bytes(connection: Connection) -> int:
    found: int = await connection.fetchval(_DATABASE_BYTES)
    return found


async def sealing_key_uses(connection: Connection) -> Mapping[str, int]:
    """How many stored secrets each seal key's id sealed."""
    return {row["key_id"]: row["uses"] for row in await connection.fetch(_SEALED)}
