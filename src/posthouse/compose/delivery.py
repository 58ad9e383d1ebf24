"""The parts that publish tickets of what is due, and deliver mail to other mail servers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from posthouse.clock import DatabaseClock
from posthouse.compose.connections import may_connect, opportunistic_tls, resolver, verified_tls
from posthouse.compose.context import keys
from posthouse.compose.database import RECORD_SECONDS_MAX, open_database
from posthouse.compose.periodic_checks import refreshed
from posthouse.compose.stream import shard_leases, tickets
from posthouse.compose.tracing import open_tracer
from posthouse.config import Settings
from posthouse.entrypoints import workers
from posthouse.flows.deliver.delivery import Delivery, DeliveryContext, DeliverySettings
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.deliver.dkim_signing import DkimSigning
from posthouse.flows.deliver.lane_table import LaneSettings
from posthouse.flows.deliver.outgoing_mail import Identity, OutgoingMail
from posthouse.flows.deliver.reroute import RerouteSettings
from posthouse.randomness import Randomness, SystemRandomness
from posthouse.rules.reroute import RerouteMode
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from posthouse.wire.carrier import SmtpCarrier
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Stream, TicketKind

CONNECTIONS_MAX: Final = 6
IDLE_PAUSE_SECONDS: Final = 5.0
SHARDS_BUCKET: Final = "SHARDS"
SWITCH_SECONDS: Final = 0.0002


async def run_delivery(settings: Settings, stream: Stream, clock: DatabaseClock, stop: asyncio.Event) -> None:
    randomness = SystemRandomness()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings, connections_max=CONNECTIONS_MAX, statement_seconds_max=RECORD_SECONDS_MAX, clock=clock
            )
        )
        renewals = await stack.enter_async_context(open_database(settings, connections_max=1))
        control_cache = ControlCache(database, clock.monotonic)
        signing = (
            DkimSigning(control_cache=control_cache, sealer=keys(settings).sealer)
            if settings.delivery.dkim_enabled
            else None
        )
        if signing is not None:
            stack.callback(signing.close)
        names = resolver(settings)
        carrier = await stack.enter_async_context(_open_carrier(settings, names, randomness))
        leases = await shard_leases(settings, randomness, SHARDS_BUCKET, TicketKind.DELIVER)
        stack.push_async_callback(leases.close)
        await stack.enter_async_context(refreshed(control_cache))
        context = DeliveryContext(
            database,
            clock,
            randomness,
            keys(settings),
            control_cache=control_cache,
            renewals=renewals,
            tracer=await stack.enter_async_context(open_tracer(settings, "delivery", clock, randomness)),
        )
        delivery = Delivery(
            context,
            _settings(settings),
            resolver=names,
            carrier=carrier,
            outgoing_mail=_outgoing_mail(settings, database, clock, signing),
            tickets=tickets(settings, stream),
            leases=leases,
        )
        # After signing, a thread waits for the interpreter lock. A busy event loop releases it after 5 ms by default,
        # several times as long as a signature takes.
        sys.setswitchinterval(SWITCH_SECONDS)
        await workers.run_delivery(
            delivery,
            stream,
            leases,
            worker_lease=settings.workers.lease,
            stop=stop,
        )


def _settings(settings: Settings) -> DeliverySettings:
    delivery = settings.delivery
    return DeliverySettings(
        LaneSettings(settings.lanes.limits, delivery.simulator_domain, delivery.sessions_max),
        retries=delivery.retry_schedule,
        worker_lease=settings.workers.lease,
        captures=delivery.captures,
        reroute=RerouteSettings(RerouteMode(delivery.reroute), delivery.reroute_hours),
    )


def _outgoing_mail(
    settings: Settings, database: Database, clock: DatabaseClock, signing: DkimSigning | None
) -> OutgoingMail:
    return OutgoingMail(
        database=database,
        clock=clock,
        signing=signing,
        identity=Identity(
            hostname=settings.service.hostname,
            return_path_domain=settings.return_path,
            return_path_key=keys(settings).return_path[0],
            public_url=settings.http.public_url,
            unsubscribe_key=keys(settings).unsubscribe[0],
            feedback_address=settings.inbound.feedback_address,
        ),
    )


@asynccontextmanager
async def _open_carrier(settings: Settings, names: Resolver, randomness: Randomness) -> AsyncIterator[SmtpCarrier]:
    carrier = SmtpCarrier(
        resolver=names,
        randomness=randomness,
        hostname=settings.service.hostname,
        tls=opportunistic_tls(),
        may_connect=may_connect(settings, allow_loopback=settings.delivery.allow_loopback),
        port=settings.delivery.port,
        relay_tls=verified_tls,
    )
    loop = asyncio.get_running_loop()

    async def close_idle() -> None:
        carrier.close_idle(loop.time())

    async with workers.repeated(close_idle, pause_seconds=IDLE_PAUSE_SECONDS):
        yield carrier
    carrier.close_idle(loop.time(), all_of_them=True)


# The part that publishes a ticket for each delivery and each webhook request that is due.


DISPATCH_CONNECTIONS_MAX: Final = 2


async def run_dispatch(
    settings: Settings, stream: Stream, clock: DatabaseClock, stop: asyncio.Event, *, with_webhooks: bool
) -> None:
    async with open_database(settings, connections_max=DISPATCH_CONNECTIONS_MAX, clock=clock) as database:
        dispatch = Dispatch(
            database=database,
            clock=clock,
            tickets=tickets(settings, stream),
            worker_lease=settings.workers.lease,
        )
        await workers.run_dispatch(dispatch, stop, with_webhooks=with_webhooks)
