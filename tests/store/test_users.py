"""Users as rows: an address names one person, who has a role in an account."""

from datetime import UTC, datetime
from uuid import uuid4

from posthouse.rules.ids import UserId
from posthouse.store.users import UserRow

# Ahead of the database's clock, which no stamp is before.
NOW = datetime(2126, 11, 15, 12, tzinfo=UTC)


def test_a_password_hash_is_not_shown() -> None:
    assert "argon2" not in repr(UserRow(UserId(uuid4()), "ada@example.com", NOW, "$argon2id$hash"))
