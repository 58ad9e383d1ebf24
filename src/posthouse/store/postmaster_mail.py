"""Postmaster mail: mail to postmaster@ and abuse@, stored for the operator for a limited time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.credential import peer_network
from posthouse.store.postgres import Connection, storable
from posthouse.store.statement import statement

MESSAGES_MAX: Final = 1_000
BYTES_MAX: Final = 256 * 1024 * 1024
# Per day, so that a flood leaves space for tomorrow's mail; and per sender, so that no single sender causes a flood.
MESSAGES_A_DAY_MAX: Final = 200
MESSAGES_A_DAY_OF_ONE_PEER_MAX: Final = 20
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PostmasterMessage:
    id: UUID
    recipient: str
    sender: str
    peer: str
    subject: str
    mime_bytes: int
    at: datetime


_PEERS: Final = "SELECT peer FROM postmaster_mail WHERE at > $1"

# Processes that store mail at the same moment may exceed a bound by one message each.
_KEEP: Final = statement("""
INSERT INTO postmaster_mail (id, recipient, sender, peer, subject, mime, at)
SELECT :id, :recipient, :sender, :peer, :subject, :mime::bytea, :now
FROM (
    SELECT count(*) AS messages, coalesce(sum(octet_length(mime)), 0) AS bytes,
        count(*) FILTER (WHERE at > :day_ago) AS lately
    FROM postmaster_mail) kept
WHERE messages < :messages_max AND bytes + octet_length(:mime::bytea) <= :bytes_max AND lately < :messages_a_day_max
RETURNING 1
""")

_LIST: Final = """
SELECT id, recipient, sender, peer, subject, octet_length(mime) AS mime_bytes, at FROM postmaster_mail
ORDER BY at DESC, id DESC LIMIT $1
"""

_FIND: Final = """
SELECT id, recipient, sender, peer, subject, octet_length(mime) AS mime_bytes, at, mime FROM postmaster_mail
    WHERE id = $1
"""

_FORGET: Final = "DELETE FROM postmaster_mail WHERE id = ANY($1::uuid[]) RETURNING 1"
_FORGET_ALL: Final = "DELETE FROM postmaster_mail RETURNING 1"


async def keep(
    tx: Connection, mail_id: UUID, recipient: str, sender: str, peer: str, subject: str, mime: bytes, now: datetime
) -> bool:
    """Store the message; False if a bound is reached."""
    peers = [peer_network(row["peer"]) for row in await tx.fetch(_PEERS, now - DAY)]
    if peers.count(peer_network(peer)) >= MESSAGES_A_DAY_OF_ONE_PEER_MAX:
        return False
    kept = await tx.fetchval(
        *_KEEP.bind(
            id=mail_id,
            recipient=storable(recipient),
            sender=storable(sender),
            peer=peer,
            subject=storable(subject),
            mime=mime,
            now=now,
            day_ago=now - DAY,
            messages_max=MESSAGES_MAX,
            bytes_max=BYTES_MAX,
            messages_a_day_max=MESSAGES_A_DAY_MAX,
        )
    )
    return kept is not None


async def list_all(connection: Connection, limit: int = MESSAGES_MAX) -> list[PostmasterMessage]:
    """Newest first."""
    return [PostmasterMessage(**row) for row in await connection.fetch(_LIST, limit)]


async def find(connection: Connection, mail_id: UUID) -> tuple[PostmasterMessage, bytes] | None:
    row = await connection.fetchrow(_FIND, mail_id)
    if row is None:
        return None
    *about, mime = row
    return PostmasterMessage(*about), mime


async def forget(tx: Connection, mail_ids: Sequence[UUID]) -> int:
    return len(await tx.fetch(_FORGET, list(mail_ids)))


async def forget_all(tx: Connection) -> int:
    return len(await tx.fetch(_FORGET_ALL))
