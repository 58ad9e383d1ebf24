"""The part that writes a ticket for each delivery and each webhook request that is due."""

import asyncio
from typing import Final

from posthouse.clock import DatabaseClock
from posthouse.compose.database import open_database
from posthouse.compose.stream import tickets
from posthouse.config import Settings
from posthouse.entrypoints import workers
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.wire.stream import Stream

CONNECTIONS_MAX: Final = 2


async def run_dispatch(
    settings: Settings, stream: Stream, clock: DatabaseClock, stop: asyncio.Event, *, with_webhooks: bool
) -> None:
    async with open_database(settings, connections_max=CONNECTIONS_MAX, clock=clock) as database:
        dispatch = Dispatch(
            database=database,
            clock=clock,
            tickets=tickets(settings, stream),
            worker_lease=settings.workers.lease,
        )
        await workers.run_dispatch(dispatch, stop, with_webhooks=with_webhooks)
