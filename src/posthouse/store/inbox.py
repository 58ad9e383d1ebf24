"""The inbox: mail to postmaster@ and abuse@, kept for the operator until it is forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.credential import peer_network
from posthouse.store.postgres import Connection, storable

MAILS_MAX: Final = 1_000
BYTES_MAX: Final = 256 * 1024 * 1024
# A day's, so that a flood doesn't take the place of what comes tomorrow; and one sender's, so that there is no flood.
MAILS_A_DAY_MAX: Final = 200
MAILS_A_DAY_OF_ONE_PEER_MAX: Final = 20
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class InboxMail:
    id: UUID
    recipient: str
    sender: str
    peer: str
    subject: str
    mime_bytes: int
    at: datetime


_PEERS: Final = "SELECT peer FROM inbox WHERE at > $1"

# What several processes keep at the same moment may pass a bound by as many.
_KEEP: Final = """
INSERT INTO inbox (id, recipient, sender, peer, subject, mime, at)
SELECT $1, $2, $3, $4, $5, $6::bytea, $7
FROM (
    SELECT count(*) AS mails, coalesce(sum(octet_length(mime)), 0) AS bytes, count(*) FILTER (WHERE at > $8) AS lately
    FROM inbox) kept
WHERE mails < $9 AND bytes + octet_length($6::bytea) <= $10 AND lately < $11
RETURNING 1
"""

_LIST: Final = """
SELECT id, recipient, sender, peer, subject, octet_length(mime) AS mime_bytes, at FROM inbox
ORDER BY at DESC, id DESC LIMIT $1
"""

_FIND: Final = """
SELECT id, recipient, sender, peer, subject, octet_length(mime) AS mime_bytes, at, mime FROM inbox WHERE id = $1
"""

_FORGET: Final = "DELETE FROM inbox WHERE id = ANY($1::uuid[]) RETURNING 1"
_FORGET_ALL: Final = "DELETE FROM inbox RETURNING 1"


async def keep(
    tx: Connection, mail_id: UUID, recipient: str, sender: str, peer: str, subject: str, mime: bytes, now: datetime
) -> bool:
    """Whether there was room for it."""
    peers = [peer_network(row["peer"]) for row in await tx.fetch(_PEERS, now - DAY)]
    if peers.count(peer_network(peer)) >= MAILS_A_DAY_OF_ONE_PEER_MAX:
        return False
    kept = await tx.fetchval(
        _KEEP,
        mail_id,
        storable(recipient),
        storable(sender),
        peer,
        storable(subject),
        mime,
        now,
        now - DAY,
        MAILS_MAX,
        BYTES_MAX,
        MAILS_A_DAY_MAX,
    )
    return kept is not None


async def list_all(connection: Connection, limit: int = MAILS_MAX) -> list[InboxMail]:
    """Newest first."""
    return [InboxMail(**row) for row in await connection.fetch(_LIST, limit)]


async def find(connection: Connection, mail_id: UUID) -> tuple[InboxMail, bytes] | None:
    row = await connection.fetchrow(_FIND, mail_id)
    if row is None:
        return None
    *about, mime = row
    return InboxMail(*about), mime


async def forget(tx: Connection, mail_ids: Sequence[UUID]) -> int:
    return len(await tx.fetch(_FORGET, list(mail_ids)))


async def forget_all(tx: Connection) -> int:
    return len(await tx.fetch(_FORGET_ALL))
