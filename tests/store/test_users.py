"""Users as rows: an address names one person, who has a role in an account."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, UserId
from posthouse.store import accounts, users
from posthouse.store.postgres import Database
from posthouse.store.users import MemberRow, UserRow

# Ahead of the database's clock, which no stamp is before.
NOW = datetime(2126, 11, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


async def test_a_member_is_listed_with_their_role(database: Database) -> None:
    user = UserRow(UserId(uuid4()), "ada@example.com", NOW, "argon2 hash")
    async with database.transaction() as tx:
        account_id = AccountId(uuid4())
        await accounts.insert(tx, account_id, "Acme", NOW)
        assert await users.insert(tx, user)
        await users.join_account(tx, account_id, user.id, Role.ADMIN, LATER)
        assert await users.list_members(tx, account_id, 10) == [MemberRow(user.id, user.email, Role.ADMIN, LATER)]
        assert (await accounts.lock(tx, account_id)).changed_at == LATER


async def test_an_address_is_taken_once(database: Database) -> None:
    async with database.transaction() as tx:
        assert await users.insert(tx, UserRow(UserId(uuid4()), "ada@example.com", NOW, "one"))
        assert not await users.insert(tx, UserRow(UserId(uuid4()), "ada@example.com", NOW, "two"))


def test_a_password_hash_is_not_shown() -> None:
    assert "argon2" not in repr(UserRow(UserId(uuid4()), "ada@example.com", NOW, "$argon2id$hash"))
