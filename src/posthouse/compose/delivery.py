"""The part that delivers mail to other mail servers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from posthouse.chance import Chance, SystemChance
from posthouse.clock import DatabaseClock
from posthouse.compose.connections import may_connect, opportunistic_tls, resolver, verified_tls
from posthouse.compose.database import RECORD_SECONDS_MAX, open_database
from posthouse.compose.keys import erasure_keys, return_path_keys, sealer, unsubscribe_keys
from posthouse.compose.periodic_checks import refreshed
from posthouse.compose.stream import shard_leases, tickets
from posthouse.compose.tracing import open_tracer
from posthouse.config import Settings
from posthouse.entrypoints import workers
from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.deliver.dkim_signing import DkimSigning
from posthouse.flows.deliver.outgoing_mail import Identity, OutgoingMail
from posthouse.flows.deliver.rescue import RescueSettings
from posthouse.rules.rescue import RescueMode
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
    chance = SystemChance()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings, connections_max=CONNECTIONS_MAX, statement_seconds_max=RECORD_SECONDS_MAX, clock=clock
            )
        )
        renewals = await stack.enter_async_context(open_database(settings, connections_max=1))
        control_cache = ControlCache(database, clock.monotonic)
        signing = (
            DkimSigning(control_cache=control_cache, sealer=sealer(settings))
            if settings.delivery.dkim_enabled
            else None
        )
        if signing is not None:
            stack.callback(signing.close)
        names = resolver(settings)
        carrier = await stack.enter_async_context(_open_carrier(settings, names, chance))
        leases = await shard_leases(settings, chance, SHARDS_BUCKET, TicketKind.DELIVER)
        stack.push_async_callback(leases.close)
        await stack.enter_async_context(refreshed(control_cache))
        delivery = Delivery(
            database=database,
            control_cache=control_cache,
            clock=clock,
            chance=chance,
            resolver=names,
            carrier=carrier,
            outgoing_mail=_outgoing_mail(settings, database, clock, signing),
            simulator_domain=settings.delivery.simulator_domain,
            lane_limits=settings.lanes.limits,
            retries=settings.delivery.retry_schedule,
            sessions_max=settings.delivery.sessions_max,
            worker_lease=settings.workers.lease,
            renewals=renewals,
            tickets=tickets(settings, stream),
            captures=settings.delivery.captures,
            leases=leases,
            sealer=sealer(settings),
            tracer=await stack.enter_async_context(open_tracer(settings, "delivery", clock, chance)),
            rescue=RescueSettings(RescueMode(settings.delivery.rescue), settings.delivery.rescue_hours),
            erasure_keys=erasure_keys(settings),
        )
        # After signing, a thread waits for the interpreter. A busy event loop releases it after 5 ms by default:
        # several times as long as a signature takes.
        sys.setswitchinterval(SWITCH_SECONDS)
        await workers.run_delivery(
            delivery,
            stream,
            leases,
            worker_lease=settings.workers.lease,
            stop=stop,
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
            return_path_key=return_path_keys(settings)[0],
            public_url=settings.http.public_url,
            unsubscribe_key=unsubscribe_keys(settings)[0],
            feedback_address=settings.inbound.feedback_address,
        ),
    )


@asynccontextmanager
async def _open_carrier(settings: Settings, names: Resolver, chance: Chance) -> AsyncIterator[SmtpCarrier]:
    carrier = SmtpCarrier(
        resolver=names,
        chance=chance,
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
