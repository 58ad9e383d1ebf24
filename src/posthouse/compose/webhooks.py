"""The part that sends events to webhooks: `posthouse run notification`.

The HTTP client takes half a second to import: commands that send no webhooks must not import this module.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from posthouse.clock import DatabaseClock
from posthouse.compose.connections import may_connect, resolver, target_of
from posthouse.compose.context import context_of
from posthouse.compose.database import RECORD_SECONDS_MAX, open_database
from posthouse.compose.flows import Flows
from posthouse.compose.stream import shard_leases
from posthouse.compose.tracing import open_tracer
from posthouse.config import Settings
from posthouse.entrypoints import workers
from posthouse.flows.webhooks.failing_notices import FailingNotices
from posthouse.flows.webhooks.sender import WebhookPolicy, WebhookSender
from posthouse.randomness import SystemRandomness
from posthouse.wire.stream import Stream, TicketKind
from posthouse.wire.webhook_client import HttpWebhookClient, public_tls

CONNECTIONS_MAX: Final = 6
SHARDS_BUCKET: Final = "NOTIFY_SHARDS"


async def run_webhooks(settings: Settings, stream: Stream, clock: DatabaseClock, stop: asyncio.Event) -> None:
    randomness = SystemRandomness()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings, connections_max=CONNECTIONS_MAX, statement_seconds_max=RECORD_SECONDS_MAX, clock=clock
            )
        )
        renewals = await stack.enter_async_context(open_database(settings, connections_max=1))
        leases = await shard_leases(settings, randomness, SHARDS_BUCKET, TicketKind.NOTIFY)
        stack.push_async_callback(leases.close)
        client = HttpWebhookClient(
            resolver=resolver(settings),
            may_connect=may_connect(settings, allow_loopback=settings.webhooks.allow_loopback),
            tls=public_tls(settings.webhooks.authority_pem),
        )
        stack.push_async_callback(client.close)
        context = context_of(settings, database, clock)
        notices = FailingNotices(
            context,
            service_mail=await stack.enter_async_context(
                Flows(settings, database, clock, stream=stream).open_service_mail()
            ),
            failing_after=settings.webhooks.failing_after,
        )
        sender = WebhookSender(
            context,
            client=client,
            target_of=target_of(settings),
            policy=WebhookPolicy(
                worker_lease=settings.workers.lease,
                failing_after=settings.webhooks.failing_after,
                with_endpoints=settings.webhooks.endpoints,
            ),
            renewals=renewals,
            notices=notices,
            tracer=await stack.enter_async_context(open_tracer(settings, "notification", clock, randomness)),
        )
        await workers.run_webhooks(sender, stream, leases, worker_lease=settings.workers.lease, stop=stop)
