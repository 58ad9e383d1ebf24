"""Keeps migrations from stopping the service: they wait only briefly for a table, and build indexes concurrently."""

from collections.abc import Mapping
from typing import Final

from alembic import op

# Everything else waits behind a migration that waits for a table: so it gives up soon, and tries again.
LOCK_MILLISECONDS_MAX: Final = 50
SET_LOCK_TIMEOUT: Final = f"SET lock_timeout = {LOCK_MILLISECONDS_MAX}"


def create_indexes(indexes: Mapping[str, str]) -> None:
    """`indexes` are names, each with its table and columns; they need a separate migration.

    Each statement is its own transaction, and can be repeated: an index whose build was interrupted is built again. It
    may wait for as long as other transactions last: none of them waits for it meanwhile.
    """
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        for name, over in indexes.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {over}")
        op.execute(SET_LOCK_TIMEOUT)
