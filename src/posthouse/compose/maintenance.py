"""The part that maintains the data: partitions, domains, reputation, usage figures, the search index."""

import asyncio
from typing import Final

from posthouse.clock import DatabaseClock
from posthouse.compose.database import MAINTENANCE_SECONDS_MAX, open_database
from posthouse.compose.flows import Flows
from posthouse.compose.periodic_checks import restore_check, synchronize
from posthouse.config import Settings
from posthouse.entrypoints.workers import repeated

CONNECTIONS_MAX: Final = 4
MAINTENANCE_PAUSE_SECONDS: Final = 300.0
# A harmful account can send for this long before its reputation is checked.
REPUTATION_PAUSE_SECONDS: Final = 30.0
# Until a message is indexed, a search finds it only among the account's newest, of which it reads a limited number.
SEARCH_INDEX_PAUSE_SECONDS: Final = 10.0
# How old an account's figures of today may be, besides the minute in which results may still be recorded late.
USAGE_PAUSE_SECONDS: Final = 60.0
ALERTS_PAUSE_SECONDS: Final = 60.0
# The promise is that content is gone within five minutes after its message's last result.
FORGETTING_PAUSE_SECONDS: Final = 60.0
# The pace of erasures, and how often new ones are looked for.
ERASURE_PAUSE_SECONDS: Final = 0.5
ERASURE_IDLE_SECONDS: Final = 10.0
# The pace of resends, and how often new ones are looked for.
RESEND_PAUSE_SECONDS: Final = 1.0
RESEND_IDLE_SECONDS: Final = 5.0


async def run_maintenance(settings: Settings, clock: DatabaseClock, stop: asyncio.Event) -> None:
    async with open_database(
        settings, connections_max=CONNECTIONS_MAX, statement_seconds_max=MAINTENANCE_SECONDS_MAX, clock=clock
    ) as database:
        flows = Flows(settings, database, clock)
        maintenance, erasing, resender = flows.maintenance, flows.erasing, flows.resender
        check = restore_check(settings, flows.context, clock)

        async def maintenance_in_database_time() -> None:
            # Partitions are dropped by age, so never use the clock of a host whose time differs from the database's.
            await synchronize(clock, database, check)
            await maintenance.run()

        async with (
            repeated(maintenance_in_database_time, pause_seconds=MAINTENANCE_PAUSE_SECONDS),
            repeated(flows.sandbox_domain.run, pause_seconds=MAINTENANCE_PAUSE_SECONDS),
            repeated(flows.reputation.run, pause_seconds=REPUTATION_PAUSE_SECONDS),
            repeated(flows.usage_counter.run, pause_seconds=USAGE_PAUSE_SECONDS),
            repeated(flows.provider_delays.run, pause_seconds=USAGE_PAUSE_SECONDS),
            repeated(flows.search_indexer.run, pause_seconds=SEARCH_INDEX_PAUSE_SECONDS),
            repeated(flows.alert_check.run, pause_seconds=ALERTS_PAUSE_SECONDS),
            repeated(maintenance.forget_contents, pause_seconds=FORGETTING_PAUSE_SECONDS),
            repeated(
                erasing.step,
                pause_seconds=ERASURE_PAUSE_SECONDS,
                idle_seconds=ERASURE_IDLE_SECONDS,
                is_idle=erasing.is_idle,
            ),
            repeated(
                resender.step,
                pause_seconds=RESEND_PAUSE_SECONDS,
                idle_seconds=RESEND_IDLE_SECONDS,
                is_idle=resender.is_idle,
            ),
        ):
            await stop.wait()
