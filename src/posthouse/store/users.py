"""Users of the dashboard, and their roles in accounts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, UserId
from posthouse.store.accounts import touch
from posthouse.store.postgres import Connection, Row


@dataclass(frozen=True, slots=True)
class UserRow:
    id: UserId
    email: str
    created_at: datetime
    password_hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A user as a member of one account."""

    user_id: UserId
    email: str
    role: Role
    created_at: datetime


_INSERT: Final = """
INSERT INTO users (id, email, created_at, password_hash) VALUES ($1, $2, $3, $4)
ON CONFLICT (email) DO NOTHING RETURNING id
"""
_JOIN: Final = "INSERT INTO memberships (account_id, user_id, role, created_at) VALUES ($1, $2, $3, $4)"
_MEMBERS: Final = """
SELECT m.user_id, u.email, m.role, m.created_at
FROM memberships m JOIN users u ON u.id = m.user_id
WHERE m.account_id = $1 ORDER BY m.user_id LIMIT $2
"""


def _member(row: Row) -> MemberRow:
    return MemberRow(row["user_id"], row["email"], Role(row["role"]), row["created_at"])


async def insert(tx: Connection, user: UserRow) -> bool:
    """False when the address is taken. The address is in lower case."""
    return (await tx.fetchval(_INSERT, user.id, user.email, user.created_at, user.password_hash)) is not None


async def join_account(tx: Connection, account_id: AccountId, user_id: UserId, role: Role, now: datetime) -> None:
    await tx.execute(_JOIN, account_id, user_id, role, now)
    await touch(tx, account_id, now)


async def list_members(connection: Connection, account_id: AccountId, limit: int) -> Sequence[MemberRow]:
    return [_member(row) for row in await connection.fetch(_MEMBERS, account_id, limit)]
