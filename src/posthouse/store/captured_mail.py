"""Links to the page of captured mail, which work once, and the sessions that they open; only hashes are stored."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Connection

# A new secret makes room: what has ended is of no use, and there is no other work on this table.
_ADD: Final = """
WITH ended AS (DELETE FROM captured_mail_secrets WHERE expires_at <= $5)
INSERT INTO captured_mail_secrets (secret_hash, account_id, is_link, expires_at) VALUES ($1, $2, $3, $4)
"""
_USE_LINK: Final = """
DELETE FROM captured_mail_secrets WHERE secret_hash = ANY($1::bytea[]) AND is_link AND expires_at > $2
RETURNING account_id
"""
_SESSION: Final = """
SELECT account_id FROM captured_mail_secrets WHERE secret_hash = ANY($1::bytea[]) AND NOT is_link AND expires_at > $2
"""


async def add(
    tx: Connection, secret_hash: bytes, account_id: AccountId, *, is_link: bool, expires_at: datetime, now: datetime
) -> None:
    await tx.execute(_ADD, secret_hash, account_id, is_link, expires_at, now)


async def use_link(tx: Connection, secret_hashes: Sequence[bytes], now: datetime) -> AccountId | None:
    """The link's account, the first time."""
    found: AccountId | None = await tx.fetchval(_USE_LINK, secret_hashes, now)
    return found


async def session_account(connection: Connection, secret_hashes: Sequence[bytes], now: datetime) -> AccountId | None:
    found: AccountId | None = await connection.fetchval(_SESSION, secret_hashes, now)
    return found
