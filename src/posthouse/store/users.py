"""Users of the dashboard, and their roles in accounts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from posthouse.rules import ids, input_checks
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, UserId
from posthouse.store.accounts import touch
from posthouse.store.credentials import LastUse
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement


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
    has_second_factor: bool = False
    last_seen_at: datetime | None = None


# After all members: the beginning of the newest page.
END: Final = (datetime(9999, 1, 1, tzinfo=UTC), UserId(UUID(int=2**128 - 1)))


@dataclass(frozen=True, slots=True)
class AccountOfUser:
    """An account that a user is a member of."""

    account_id: AccountId
    name: str
    role: Role


_INSERT: Final = statement("""
INSERT INTO users (id, email, created_at, password_hash) VALUES (:id, :email, :created_at, :password_hash)
ON CONFLICT (email) DO NOTHING RETURNING id
""")
_BY_EMAIL: Final = "SELECT id, email, created_at, password_hash FROM users WHERE email = $1"
_BY_ID: Final = "SELECT id, email, created_at, password_hash FROM users WHERE id = $1"
_JOIN: Final = statement("""
INSERT INTO memberships (account_id, user_id, role, created_at) VALUES (:account_id, :user_id, :role, :now)
ON CONFLICT DO NOTHING RETURNING 1
""")
_MEMBER_COLUMNS: Final = """
m.user_id, u.email, m.role, m.created_at, m.last_seen_at,
EXISTS (SELECT FROM second_factors f WHERE f.user_id = m.user_id AND f.confirmed_at IS NOT NULL) AS has_second_factor
"""
_MEMBERS: Final = f"""
SELECT {_MEMBER_COLUMNS}
FROM memberships m JOIN users u ON u.id = m.user_id
WHERE m.account_id = $1 ORDER BY m.user_id LIMIT $2
"""
_MEMBER: Final = f"""
SELECT {_MEMBER_COLUMNS}
FROM memberships m JOIN users u ON u.id = m.user_id
WHERE m.account_id = $1 AND m.user_id = $2
"""
_PAGE: Final = statement(f"""
SELECT {_MEMBER_COLUMNS}
FROM memberships m JOIN users u ON u.id = m.user_id
WHERE m.account_id = :account_id AND (m.created_at, m.user_id) < (:before_at, :before_user)
ORDER BY m.created_at DESC, m.user_id DESC LIMIT :limit
""")
_IS_MEMBER: Final = """
SELECT EXISTS (
    SELECT 1 FROM users u JOIN memberships m ON m.user_id = u.id AND m.account_id = $1 WHERE u.email = $2
)
"""
_COUNT: Final = "SELECT count(*) FROM memberships WHERE account_id = $1 AND ($2::text IS NULL OR role = $2)"
_CHANGE_ROLE: Final = "UPDATE memberships SET role = $3 WHERE account_id = $1 AND user_id = $2"
_REMOVE: Final = "DELETE FROM memberships WHERE account_id = $1 AND user_id = $2"
_REMOVE_ALL: Final = """
WITH removed AS (DELETE FROM memberships WHERE account_id = $1 RETURNING user_id) SELECT count(*) FROM removed
"""

_ACCOUNTS: Final = """
SELECT m.account_id, coalesce(a.display_name, a.name) AS name, m.role
FROM memberships m JOIN accounts a ON a.id = m.account_id
WHERE m.user_id = $1 ORDER BY m.created_at, m.account_id LIMIT $2
"""
# The account that was opened last comes first, if the user is still a member of it.
_ACCOUNT_TO_OPEN: Final = """
SELECT m.account_id, coalesce(a.display_name, a.name) AS name, m.role
FROM memberships m JOIN accounts a ON a.id = m.account_id JOIN users u ON u.id = m.user_id
WHERE m.user_id = $1
ORDER BY m.account_id IS NOT DISTINCT FROM u.last_account_id DESC, m.created_at, m.account_id LIMIT 1
"""
_OPENED: Final = "UPDATE users SET last_account_id = $2 WHERE id = $1 AND last_account_id IS DISTINCT FROM $2"
# Every process updates the same rows: all lock them in one order.
_SEEN: Final = """
WITH seen AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) seen (account_id, user_id, at)),
locked AS (
    SELECT m.account_id, m.user_id, s.at
    FROM seen s JOIN memberships m ON m.account_id = s.account_id AND m.user_id = s.user_id
    ORDER BY m.account_id, m.user_id FOR NO KEY UPDATE OF m
)
UPDATE memberships m SET last_seen_at = greatest(m.last_seen_at, l.at)
FROM locked l WHERE m.account_id = l.account_id AND m.user_id = l.user_id
"""
_SET_OPERATOR: Final = """
UPDATE users SET operator_since = CASE WHEN $2::timestamptz IS NULL THEN NULL ELSE coalesce(operator_since, $2) END
WHERE email = $1 RETURNING 1
"""
_IS_OPERATOR: Final = "SELECT operator_since IS NOT NULL FROM users WHERE id = $1"
_ACCESS: Final = """
SELECT u.operator_since,
    EXISTS (SELECT FROM second_factors f WHERE f.user_id = u.id AND f.confirmed_at IS NOT NULL) AS has_second_factor
FROM users u WHERE u.id = $1
"""
_OPERATORS: Final = "SELECT email, operator_since FROM users WHERE operator_since IS NOT NULL ORDER BY email"
_REPLACE_HASH: Final = """
UPDATE users SET password_hash = $3 WHERE id = $1 AND password_hash = $2 RETURNING id
"""


def _member(row: Row) -> MemberRow:
    return MemberRow(**{**dict(row), "role": Role(row["role"])})


async def set_operator(tx: Connection, email: str, since: datetime | None) -> bool:
    """False if there is no such user. For an operator, the first time stays."""
    return await tx.fetchval(_SET_OPERATOR, email, since) is not None


async def is_operator(connection: Connection, user_id: UserId) -> bool:
    return bool(await connection.fetchval(_IS_OPERATOR, user_id))


async def access(connection: Connection, user_id: UserId) -> tuple[datetime | None, bool]:
    """Since when the user is an operator, and whether they have a second factor."""
    row = await connection.fetchrow(_ACCESS, user_id)
    return (None, False) if row is None else (row["operator_since"], row["has_second_factor"])


async def operators(connection: Connection) -> list[tuple[str, datetime]]:
    return [(row["email"], row["operator_since"]) for row in await connection.fetch(_OPERATORS)]


async def insert(tx: Connection, user: UserRow) -> bool:
    """False if the address is taken. The address is in lower case."""
    return (
        await tx.fetchval(
            *_INSERT.bind(id=user.id, email=user.email, created_at=user.created_at, password_hash=user.password_hash)
        )
    ) is not None


async def find_by_email(connection: Connection, email: str) -> UserRow | None:
    row = await connection.fetchrow(_BY_EMAIL, email)
    return None if row is None else UserRow(row["id"], row["email"], row["created_at"], row["password_hash"])


async def find_by_id(connection: Connection, user_id: UserId) -> UserRow | None:
    row = await connection.fetchrow(_BY_ID, user_id)
    return None if row is None else UserRow(row["id"], row["email"], row["created_at"], row["password_hash"])


async def replace_password(tx: Connection, user: UserRow, password_hash: str) -> bool:
    """False if the password is no longer the one that was read."""
    return await tx.fetchval(_REPLACE_HASH, user.id, user.password_hash, password_hash) is not None


async def accounts_of(connection: Connection, user_id: UserId, limit: int) -> Sequence[AccountOfUser]:
    """The user's accounts in the order in which they were joined."""
    rows = await connection.fetch(_ACCOUNTS, user_id, limit)
    return [AccountOfUser(row["account_id"], row["name"], Role(row["role"])) for row in rows]


async def account_to_open(connection: Connection, user_id: UserId) -> AccountOfUser | None:
    """The account that the user opened last, else the one joined first; None if they are a member of none."""
    row = await connection.fetchrow(_ACCOUNT_TO_OPEN, user_id)
    return None if row is None else AccountOfUser(row["account_id"], row["name"], Role(row["role"]))


async def note_opened(tx: Connection, user_id: UserId, account_id: AccountId) -> None:
    await tx.execute(_OPENED, user_id, account_id)


async def join_account(tx: Connection, account_id: AccountId, user_id: UserId, role: Role, now: datetime) -> bool:
    """False if they are a member already, in any role."""
    is_new = await tx.fetchval(*_JOIN.bind(account_id=account_id, user_id=user_id, role=role, now=now)) is not None
    await touch(tx, account_id, now)
    return is_new


async def find_member(connection: Connection, account_id: AccountId, user_id: UserId) -> MemberRow | None:
    row = await connection.fetchrow(_MEMBER, account_id, user_id)
    return None if row is None else _member(row)


async def is_member(connection: Connection, account_id: AccountId, email: str) -> bool:
    return bool(await connection.fetchval(_IS_MEMBER, account_id, email))


async def count_members(connection: Connection, account_id: AccountId, role: Role | None = None) -> int:
    """The number of all members, or of those with one role."""
    count: int = await connection.fetchval(_COUNT, account_id, role)
    return count


async def change_role(tx: Connection, account_id: AccountId, user_id: UserId, role: Role, now: datetime) -> None:
    await tx.execute(_CHANGE_ROLE, account_id, user_id, role)
    await touch(tx, account_id, now)


async def remove_all_members(tx: Connection, account_id: AccountId, now: datetime) -> int:
    """Remove all members. The users stay, and may be members of other accounts. Returns how many there were."""
    removed: int = await tx.fetchval(_REMOVE_ALL, account_id)
    await touch(tx, account_id, now)
    return removed


async def remove_member(tx: Connection, account_id: AccountId, user_id: UserId, now: datetime) -> None:
    """Remove the member. The user stays, and any other memberships too."""
    await tx.execute(_REMOVE, account_id, user_id)
    await touch(tx, account_id, now)


async def page_of_members(
    connection: Connection, account_id: AccountId, before: tuple[datetime, UserId], count: int
) -> list[MemberRow]:
    """The newest member first."""
    return [
        _member(row)
        for row in await connection.fetch(
            *_PAGE.bind(account_id=account_id, before_at=before[0], before_user=before[1], limit=count)
        )
    ]


async def list_members(connection: Connection, account_id: AccountId, limit: int) -> Sequence[MemberRow]:
    return [_member(row) for row in await connection.fetch(_MEMBERS, account_id, limit)]


async def seen(tx: Connection, uses: Mapping[tuple[AccountId, UserId], LastUse]) -> None:
    """When members were last seen; never cached."""
    account_ids = [account_id for account_id, _ in uses]
    user_ids = [user_id for _, user_id in uses]
    await tx.execute(_SEEN, account_ids, user_ids, [use.at for use in uses.values()])


# A user, as named by an operator.


async def named_user(connection: Connection, given: str) -> UserRow | None:
    """The user with this address or id."""
    user_id = ids.parse(ids.USER, given)
    if user_id is not None:
        return await find_by_id(connection, UserId(user_id))
    return await find_by_email(connection, input_checks.user_address(given))
