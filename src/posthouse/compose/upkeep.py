"""The part that maintains the data: partitions, domains, reputation, usage figures, the search index."""

import asyncio
from typing import Final

from posthouse.chance import Chance, SystemChance
from posthouse.clock import Clock, DatabaseClock
from posthouse.compose import accept, account
from posthouse.compose.connections import resolver
from posthouse.compose.database import MAINTENANCE_SECONDS_MAX, open_database
from posthouse.compose.keys import sealer
from posthouse.compose.periodic_checks import restore_check, synchronize
from posthouse.config import Settings
from posthouse.entrypoints.workers import repeated
from posthouse.flows.inbound.reputation import Reputation
from posthouse.flows.operate.address_check import AddressCheck
from posthouse.flows.operate.alert_check import AlertCheck
from posthouse.flows.operate.erasing import Erasing
from posthouse.flows.operate.provider_delays import ProviderDelays
from posthouse.flows.operate.search_indexer import SearchIndexer
from posthouse.flows.operate.upkeep import Retention, Upkeep
from posthouse.flows.operate.usage_counter import UsageCounter
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database

CONNECTIONS_MAX: Final = 4
UPKEEP_PAUSE_SECONDS: Final = 300.0
# A harmful account may send for this long before its reputation is checked.
REPUTATION_PAUSE_SECONDS: Final = 30.0
# Until a message is indexed, a search finds it only among the account's newest, of which it reads a limited number.
SEARCH_INDEX_PAUSE_SECONDS: Final = 10.0
# The age of an account's figures of today, beside the minute after which nothing is recorded late any more.
USAGE_PAUSE_SECONDS: Final = 60.0
ALERTS_PAUSE_SECONDS: Final = 60.0
# Content is promised to be gone within five minutes after its message's last result.
FORGETTING_PAUSE_SECONDS: Final = 60.0
# The pace of erasures, and how often new ones are looked for.
ERASURE_PAUSE_SECONDS: Final = 0.5
ERASURE_IDLE_SECONDS: Final = 10.0
# The pace of resends, and how often new ones are looked for.
RESEND_PAUSE_SECONDS: Final = 1.0
RESEND_IDLE_SECONDS: Final = 5.0


async def run_upkeep(settings: Settings, clock: DatabaseClock, stop: asyncio.Event) -> None:
    chance = SystemChance()
    async with open_database(
        settings, connections_max=CONNECTIONS_MAX, statement_seconds_max=MAINTENANCE_SECONDS_MAX, clock=clock
    ) as database:
        maintenance = upkeep(settings, database, clock, chance)
        check = restore_check(settings, clock, database)

        async def upkeep_in_database_time() -> None:
            # Partitions are dropped by age: never by the clock of a host whose time differs from the database's.
            await synchronize(clock, database, check)
            await maintenance.run()

        reputation = Reputation(
            database=database, clock=clock, chance=chance, service_account=settings.service.sender_account
        )
        usage_counter = UsageCounter(database=database, clock=clock)
        provider_delays = ProviderDelays(database=database, clock=clock)
        sandbox_domain = account.sandbox_domain(settings, database, clock, chance)
        search_indexer = SearchIndexer(database=database, clock=clock)
        alerts = alert_check(settings, database, clock, chance)
        erasing = Erasing(database=database, clock=clock)
        resender = accept.resender(settings, database, ControlCache(database, clock.monotonic), clock, chance)
        async with (
            repeated(upkeep_in_database_time, pause_seconds=UPKEEP_PAUSE_SECONDS),
            repeated(sandbox_domain.run, pause_seconds=UPKEEP_PAUSE_SECONDS),
            repeated(reputation.run, pause_seconds=REPUTATION_PAUSE_SECONDS),
            repeated(usage_counter.run, pause_seconds=USAGE_PAUSE_SECONDS),
            repeated(provider_delays.run, pause_seconds=USAGE_PAUSE_SECONDS),
            repeated(search_indexer.run, pause_seconds=SEARCH_INDEX_PAUSE_SECONDS),
            repeated(alerts.run, pause_seconds=ALERTS_PAUSE_SECONDS),
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


def alert_check(settings: Settings, database: Database, clock: Clock, chance: Chance) -> AlertCheck:
    return AlertCheck(
        database=database,
        clock=clock,
        chance=chance,
        open_service_mail=lambda: accept.open_service_mail(settings, database, clock, chance),
    )


def upkeep(settings: Settings, database: Database, clock: DatabaseClock, chance: Chance) -> Upkeep:
    return Upkeep(
        sealer=sealer(settings),
        database=database,
        clock=clock,
        chance=chance,
        resolver=resolver(settings),
        retention=Retention(
            settings.retention.messages_days, settings.retention.bodies_days, settings.retention.webhooks_days
        ),
        clock_step=lambda: clock.step,
        address_check=address_check(settings, database, clock),
    )


def address_check(settings: Settings, database: Database, clock: Clock) -> AddressCheck:
    return AddressCheck(
        database=database,
        clock=clock,
        resolver=resolver(settings),
        return_path=settings.return_path,
        blocklists=settings.delivery.blocklists,
    )
