"""Who has left which mailing list of an account."""

from datetime import datetime
from typing import Final

from posthouse.rules.unsubscribe import ListMember
from posthouse.store.postgres import Connection

# Whoever has left already left when they first did.
_LEAVE: Final = """
INSERT INTO unsubscriptions (account_id, mailing_list, email, at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
"""


async def leave(tx: Connection, leaver: ListMember, now: datetime) -> None:
    await tx.execute(_LEAVE, *leaver, now)
