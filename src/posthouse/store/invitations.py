"""Open invitations: to whom, in which role, and by whom; the token itself is never stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from posthouse.rules.credential import Actor, Role
from posthouse.rules.ids import AccountId, MessageId
from posthouse.store.postgres import Connection, Row, row_count
from posthouse.store.statement import delete_some, statement


@dataclass(frozen=True, slots=True)
class InvitationRow:
    account_id: AccountId
    id: UUID
    email: str
    role: Role
    inviter: Actor
    created_at: datetime
    expires_at: datetime


# Above every id: the beginning of the newest page.
END: Final = UUID(int=2**128 - 1)

# An expired invitation that was not deleted yet doesn't count.
_OPEN: Final = """
SELECT account_id, id, email, role, inviter_id, inviter, created_at, expires_at FROM invitations
WHERE token_hash = ANY($1::bytea[]) AND expires_at > $2
"""
_PAGE: Final = statement("""
SELECT account_id, id, email, role, inviter_id, inviter, created_at, expires_at FROM invitations
WHERE account_id = :account_id AND expires_at > :now AND id < :before ORDER BY id DESC LIMIT :limit
""")
_COUNT: Final = "SELECT count(*) FROM invitations WHERE account_id = $1 AND expires_at > $2"
_INSERT: Final = statement("""
INSERT INTO invitations (account_id, id, email, role, token_hash, inviter_id, inviter, created_at, expires_at)
VALUES (:account_id, :id, :email, :role, :token_hash, :inviter_id, :inviter, :created_at, :expires_at)
""")
_REVOKE: Final = """
DELETE FROM invitations WHERE account_id = $1 AND id = $2 AND expires_at > $3
RETURNING account_id, id, email, role, inviter_id, inviter, created_at, expires_at
"""
_CLEAR: Final = "DELETE FROM invitations WHERE account_id = $1 AND email = $2"
_CLEAR_ALL: Final = "DELETE FROM invitations WHERE account_id = $1"
_FORGET: Final = delete_some("invitations", "account_id, id", "expires_at <= $1 ORDER BY expires_at")

_NOTE_MAILED: Final = """
INSERT INTO mailed_invitations (account_id, message_id, sender_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
"""
_FORGET_MAILED: Final = """
DELETE FROM mailed_invitations WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM mailed_invitations WHERE message_id < $1 LIMIT $2))
"""


def _invitation(row: Row) -> InvitationRow:
    return InvitationRow(
        account_id=row["account_id"],
        id=row["id"],
        email=row["email"],
        role=Role(row["role"]),
        inviter=Actor(row["inviter_id"], row["inviter"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


async def find_open(connection: Connection, token_hashes: Sequence[bytes], now: datetime) -> InvitationRow | None:
    """The invitation of any account whose token has this hash."""
    row = await connection.fetchrow(_OPEN, token_hashes, now)
    return None if row is None else _invitation(row)


async def page(
    connection: Connection, account_id: AccountId, before: UUID, count: int, now: datetime
) -> list[InvitationRow]:
    """The newest first."""
    return [
        _invitation(row)
        for row in await connection.fetch(*_PAGE.bind(account_id=account_id, now=now, before=before, limit=count))
    ]


async def count_open(connection: Connection, account_id: AccountId, now: datetime) -> int:
    count: int = await connection.fetchval(_COUNT, account_id, now)
    return count


async def insert(tx: Connection, row: InvitationRow, token_hash: bytes) -> None:
    """The address has no other invitation in the account: `clear` was called before."""
    inviter = row.inviter
    await tx.execute(*_INSERT.bind_row(row, token_hash=token_hash, inviter_id=inviter.user_id, inviter=inviter.name))


async def revoke(tx: Connection, account_id: AccountId, invitation_id: UUID, now: datetime) -> InvitationRow | None:
    """None if the account has no such open invitation."""
    row = await tx.fetchrow(_REVOKE, account_id, invitation_id, now)
    return None if row is None else _invitation(row)


async def clear(tx: Connection, account_id: AccountId, email: str) -> None:
    """Delete any invitation of the address to this account."""
    await tx.execute(_CLEAR, account_id, email)


async def clear_all(tx: Connection, account_id: AccountId) -> None:
    await tx.execute(_CLEAR_ALL, account_id)


async def forget_expired(tx: Connection, now: datetime, count_max: int) -> int:
    """Delete expired invitations of every account."""
    return row_count(await tx.execute(_FORGET, now, count_max))


async def note_mailed(tx: Connection, account_id: AccountId, message_id: MessageId, sender_id: AccountId) -> None:
    """Note that the message is an invitation to this account, and counts for its reputation."""
    await tx.execute(_NOTE_MAILED, account_id, message_id, sender_id)


async def forget_mailed(tx: Connection, before: UUID, limit: int) -> int:
    """Delete those of older messages."""
    return row_count(await tx.execute(_FORGET_MAILED, before, limit))
