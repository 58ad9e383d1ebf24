"""The inbox: mail to postmaster@ and abuse@, kept for the operator until it is forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.credential import peer_network
from posthouse.store.postgres import Connection, storable
from posthouse.store.statement import statement

MAILS_MAX: Final = 1_000
BYTES_MAX: Final = 256 * 1024 * 1024
# Per day, so that a flood leaves room for tomorrow's mail; and per sender, so that there is no flood.
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

# Processes that keep mail at the same moment may pass a bound by as many mails.
_KEEP: Final = statement("""
INSERT INTO inbox (id, recipient, sender, peer, subject, mime, at)
SELECT :id, :recipient, :sender, :peer, :subject, :mime::bytea, :now
FROM (
    SELECT count(*) AS mails, coalesce(sum(octet_length(mime)), 0) AS bytes,
        count(*) FILTER (WHERE at > :day_ago) AS lately
    FROM inbox) kept
WHERE mails < :mails_max AND bytes + octet_length(:mime::bytea) <= :bytes_max AND lately < :mails_a_day_max
RETURNING 1
""")

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
        *_KEEP.bind(
            id=mail_id,
            recipient=storable(recipient),
            sender=storable(sender),
            peer=peer,
            subject=storable(subject),
            mime=mime,
            now=now,
            day_ago=now - DAY,
            mails_max=MAILS_MAX,
            bytes_max=BYTES_MAX,
            mails_a_day_max=MAILS_A_DAY_MAX,
        )
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
