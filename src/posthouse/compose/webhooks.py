"""The part that sends events to webhooks: `posthouse run notification`.

The HTTP client takes half a second to import: commands that send no webhooks must not import this module.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.compose import accept
from posthouse.compose.connections import may_connect, resolver, target_of
from posthouse.compose.database import RECORD_SECONDS_MAX, open_database
from posthouse.compose.keys import sealer
from posthouse.compose.stream import shard_leases
from posthouse.compose.tracing import open_tracer
from posthouse.config import Settings
from posthouse.entrypoints import workers
from posthouse.flows.webhooks.failing_notices import FailingNotices
from posthouse.flows.webhooks.sender import WebhookSender
from posthouse.wire.stream import Stream, TicketKind
from posthouse.wire.webhook_client import HttpWebhookClient, public_tls

CONNECTIONS_MAX: Final = 6
SHARDS_BUCKET: Final = "NOTIFY_SHARDS"


async def run_webhooks(settings: Settings, stream: Stream, clock: DatabaseClock, stop: asyncio.Event) -> None:
    chance = SystemChance()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings, connections_max=CONNECTIONS_MAX, statement_seconds_max=RECORD_SECONDS_MAX, clock=clock
            )
        )
        renewals = await stack.enter_async_context(open_database(settings, connections_max=1))
        leases = await shard_leases(settings, chance, SHARDS_BUCKET, TicketKind.NOTIFY)
        stack.push_async_callback(leases.close)
        client = HttpWebhookClient(
            resolver=resolver(settings),
            may_connect=may_connect(settings, allow_loopback=settings.webhooks.allow_loopback),
            tls=public_tls(settings.webhooks.authority_pem),
        )
        stack.push_async_callback(client.close)
        notices = FailingNotices(
            database=database,
            clock=clock,
            chance=chance,
            service_mail=await stack.enter_async_context(
                accept.open_service_mail(settings, database, clock, chance, stream)
            ),
            failing_after=settings.webhooks.failing_after,
        )
        sender = WebhookSender(
            database=database,
            clock=clock,
            chance=chance,
            client=client,
            sealer=sealer(settings),
            target_of=target_of(settings),
            worker_lease=settings.workers.lease,
            renewals=renewals,
            notices=notices,
            failing_after=settings.webhooks.failing_after,
            with_endpoints=settings.webhooks.endpoints,
            tracer=await stack.enter_async_context(open_tracer(settings, "notification", clock, chance)),
        )
        await workers.run_webhooks(sender, stream, leases, worker_lease=settings.workers.lease, stop=stop)
