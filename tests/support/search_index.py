"""The search index, written as maintenance does within a minute."""

from datetime import UTC, datetime

from posthouse.flows.operate.search_indexer import SETTLED_AFTER, SearchIndexer
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.eventually import eventually
from tests.support.fresh_database import PATIENCE, open_database
from tests.support.service import Service

_IS_INDEXED = """
SELECT NOT EXISTS (
    SELECT FROM messages WHERE NOT EXISTS (
        SELECT FROM search_index WHERE search_index.account_id = messages.account_id AND message_id = messages.id))
"""


async def index_search(service: Service) -> None:
    """All stored messages are in the index."""
    async with open_database(service.database_url, connections_max=2, timeout_factor=PATIENCE) as database:

        async def is_indexed() -> bool:
            clock = SettableClock(datetime.now(UTC) + SETTLED_AFTER)
            await SearchIndexer(context(database, clock)).run()
            found: bool = await service.value(_IS_INDEXED)
            return found

        # Not while another transaction is open.
        await eventually(is_indexed)
