"""Who has unsubscribed from which mailing list of an account."""

from datetime import datetime
from typing import Final

from posthouse.rules.unsubscribe import ListMember
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement

# The first time is kept.
_UNSUBSCRIBE: Final = statement("""
INSERT INTO unsubscriptions (account_id, mailing_list, email, at) VALUES (:account_id, :mailing_list, :email,
    :now) ON CONFLICT DO NOTHING
RETURNING 1
""")


async def unsubscribe(tx: Connection, leaver: ListMember, now: datetime) -> bool:
    """Whether it is the first time."""
    account_id, mailing_list, email = leaver
    arguments = _UNSUBSCRIBE.bind(account_id=account_id, mailing_list=mailing_list, email=email, now=now)
    return await tx.fetchval(*arguments) is not None
