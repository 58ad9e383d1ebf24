"""External relays and our logins there, whose passwords are sealed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class RelayRow:
    """`pools` are the pools that use it."""

    name: str
    host: str
    port: int
    username: str
    password_sealed: bytes = field(repr=False)
    per_second: float
    per_day: int | None
    created_at: datetime
    pools: tuple[str, ...] = ()


_LIST: Final = """
SELECT name, host, port, username, password_sealed, per_second, per_day, created_at,
    ARRAY(SELECT name FROM pools WHERE relay = relays.name ORDER BY name) AS pools
FROM relays ORDER BY name
"""

_PUT: Final = statement("""
INSERT INTO relays (name, host, port, username, password_sealed, per_second, per_day, created_at)
VALUES (:name, :host, :port, :username, :password_sealed, :per_second, :per_day, :created_at)
ON CONFLICT (name) DO UPDATE SET host = excluded.host, port = excluded.port, username = excluded.username,
    password_sealed = excluded.password_sealed, per_second = excluded.per_second,
    per_day = excluded.per_day
""")

_REMOVE: Final = "DELETE FROM relays WHERE name = $1"
_LOCK: Final = "SELECT name FROM relays FOR UPDATE"

# The key's id is readable in the sealed value: a version byte, a length, the id.
_SEALED_WITH: Final = """
SELECT name, password_sealed FROM relays
WHERE convert_from(substring(password_sealed FROM 3 FOR get_byte(password_sealed, 1)), 'UTF8') = ANY($1::text[])
LIMIT $2
"""
_RESEAL: Final = "UPDATE relays SET password_sealed = $2 WHERE name = $1 AND password_sealed = $3"


def password_purpose(name: str) -> bytes:
    return b"relay password " + name.encode()


async def list_all(connection: Connection) -> list[RelayRow]:
    return [RelayRow(**{**row, "pools": tuple(row["pools"])}) for row in await connection.fetch(_LIST)]


async def lock(tx: Connection) -> frozenset[str]:
    """The names of all relays, locked until the transaction ends."""
    return frozenset(row["name"] for row in await tx.fetch(_LOCK))


async def put(tx: Connection, relay: RelayRow) -> None:
    """Add a relay, or change the one of this name. Its pools stay as they are."""
    await tx.execute(*_PUT.bind_row(relay))


async def remove(tx: Connection, name: str) -> None:
    await tx.execute(_REMOVE, name)


async def sealed_with(connection: Connection, key_ids: Sequence[str], limit: int) -> list[tuple[str, bytes]]:
    """Names and sealed passwords of relays whose password was sealed with one of these keys."""
    return [tuple(row) for row in await connection.fetch(_SEALED_WITH, list(key_ids), limit)]


async def reseal(tx: Connection, name: str, password_sealed: bytes, before: bytes) -> None:
    """The same password under another seal, unless it was changed since it was read."""
    await tx.execute(_RESEAL, name, password_sealed, before)
