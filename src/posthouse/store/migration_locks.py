"""What keeps a migration from stopping the service: it waits for a table briefly, and makes indexes beside the work."""

from collections.abc import Mapping
from typing import Final

from alembic import op

# All others wait behind a migration that waits for a table: it gives up soon, and tries again.
LOCK_MILLISECONDS_MAX: Final = 50
SET_LOCK_TIMEOUT: Final = f"SET lock_timeout = {LOCK_MILLISECONDS_MAX}"


def create_indexes(indexes: Mapping[str, str]) -> None:
    """`indexes` are names, each with its table and columns; they are a migration of their own.

    Each statement is its own transaction, and can be repeated: an index that was begun and broken off is made anew. It
    may wait for as long as other transactions last: none of them waits for it meanwhile.
    """
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        for name, over in indexes.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {over}")
        op.execute(SET_LOCK_TIMEOUT)
