"""The services behind the operator's commands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.compose import account
from posthouse.compose.connections import target_of
from posthouse.compose.database import MAINTENANCE_SECONDS_MAX, disk_space, learn_time, open_database, require_tables
from posthouse.compose.keys import return_path_key, sealer
from posthouse.compose.stream import stream_probes
from posthouse.compose.upkeep import upkeep
from posthouse.config import Settings
from posthouse.flows.account.credentials import Credentials
from posthouse.flows.account.domains import Domains
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.account.suppressions import Suppressions
from posthouse.flows.account.team import Team
from posthouse.flows.operate.accounts import Accounts
from posthouse.flows.operate.audit import Audit
from posthouse.flows.operate.doctor import Doctor
from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.service_clock import ServiceClock
from posthouse.flows.operate.upkeep import Upkeep
from posthouse.flows.operate.usage_counter import UsageCounter
from posthouse.flows.webhooks.endpoint import WebhookEndpoint
from posthouse.rules.refusal import Refusal

CONNECTIONS_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class OperatorServices:
    accounts: Accounts
    domains: Domains
    credentials: Credentials
    sessions: Sessions
    team: Team
    doctor: Doctor
    upkeep: Upkeep
    clock: ServiceClock
    usage_counter: UsageCounter
    monitor: Monitor
    suppressions: Suppressions
    webhook_endpoint: WebhookEndpoint
    audit: Audit


@asynccontextmanager
async def operator_services(settings: Settings, *, even_if_unusable: bool = False) -> AsyncIterator[OperatorServices]:
    """The operator's services. `posthouse doctor` opens them even if the database is unusable, to report why."""
    async with open_database(
        settings,
        connections_max=CONNECTIONS_MAX,
        statement_seconds_max=MAINTENANCE_SECONDS_MAX,
        allow_unsafe=even_if_unusable,
    ) as database:
        clock = DatabaseClock()
        # Changes are stamped with the time that the servers' caches compare with: the database's.
        try:
            await learn_time(clock, database)
            await require_tables(database)
        except Refusal:
            if not even_if_unusable:
                raise
        chance = SystemChance()
        passwords = account.passwords(settings, database, clock, chance)
        yield OperatorServices(
            accounts=Accounts(database=database, clock=clock, chance=chance, pepper=settings.secrets.pepper_bytes),
            domains=account.domains(settings, database, clock, chance),
            credentials=account.credentials(settings, database, clock, chance),
            sessions=account.sessions(settings, database, clock, chance, passwords),
            team=account.team(settings, database, clock, chance, passwords),
            doctor=Doctor(
                database=database,
                clock=clock,
                sealer=sealer(settings),
                disk_space=disk_space(settings, database),
                stream_probes=stream_probes(settings),
                clock_step=lambda: clock.step,
                public_url=settings.http.public_url,
                trusted_proxies=settings.http.trusted_proxies,
                captures=settings.delivery.captures,
            ),
            upkeep=upkeep(settings, database, clock, chance),
            clock=ServiceClock(database=database, clock=clock),
            usage_counter=UsageCounter(database=database, clock=clock),
            monitor=Monitor(database=database, clock=clock, ticket_lease=settings.workers.ticket_lease),
            suppressions=Suppressions(database=database, clock=clock, chance=chance),
            webhook_endpoint=WebhookEndpoint(
                database=database,
                clock=clock,
                chance=chance,
                sealer=sealer(settings),
                tickets=None,
                check=target_of(settings),
                failing_after=settings.webhooks.failing_after,
            ),
            audit=Audit(
                database=database,
                clock=clock,
                sealer=sealer(settings),
                return_path_domain=settings.return_path,
                return_path_key=return_path_key(settings),
                simulator_domain=settings.delivery.simulator_domain,
            ),
        )


async def migrate(settings: Settings) -> None:
    """Bring the tables up to date; refuses first when PostgreSQL is down or unsafe."""
    from posthouse.store import schema  # takes a second to import, and only this needs it

    async with open_database(settings, connections_max=1) as database, database.connection():
        pass
    await asyncio.to_thread(schema.migrate, settings.database.url)
