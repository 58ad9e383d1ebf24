"""The services behind the operator's commands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.compose import account
from posthouse.compose.database import MAINTENANCE_SECONDS_MAX, learn_time, open_database, require_tables
from posthouse.config import Settings
from posthouse.rules.actor import OPERATOR, Actor
from posthouse.rules.refusal import Refusal
from posthouse.store import revision
from posthouse.store.postgres import Database

if TYPE_CHECKING:
    from posthouse.flows.account.captured_mail import CapturedMail
    from posthouse.flows.account.credentials import Credentials
    from posthouse.flows.account.domains import Domains
    from posthouse.flows.account.login_links import LoginLinks
    from posthouse.flows.account.message_search import MessageSearch
    from posthouse.flows.account.passwords import Passwords
    from posthouse.flows.account.resends import Resends
    from posthouse.flows.account.sessions import Sessions
    from posthouse.flows.account.suppressions import Suppressions
    from posthouse.flows.account.team import Team
    from posthouse.flows.account.usage_and_ledger import UsageAndLedger
    from posthouse.flows.operate.accounts import Accounts
    from posthouse.flows.operate.address_warm_ups import AddressWarmUps
    from posthouse.flows.operate.addresses import Addresses
    from posthouse.flows.operate.alert_check import AlertCheck
    from posthouse.flows.operate.audit import Audit
    from posthouse.flows.operate.backups import Backups
    from posthouse.flows.operate.doctor import Doctor
    from posthouse.flows.operate.lanes import Lanes
    from posthouse.flows.operate.message_lookup import MessageLookup
    from posthouse.flows.operate.monitor import Monitor
    from posthouse.flows.operate.nearest_limits import NearestLimits
    from posthouse.flows.operate.operators import Operators
    from posthouse.flows.operate.provider_delays import ProviderDelays
    from posthouse.flows.operate.queue_changes import QueueChanges
    from posthouse.flows.operate.relays import Relays
    from posthouse.flows.operate.restore import Restores
    from posthouse.flows.operate.sandbox_domain import SandboxDomain
    from posthouse.flows.operate.secrets import Secrets
    from posthouse.flows.operate.service_clock import ServiceClock
    from posthouse.flows.operate.upkeep import Upkeep
    from posthouse.flows.operate.usage_counter import UsageCounter
    from posthouse.flows.operate.users import Users
    from posthouse.flows.webhooks.webhook import WebhookEndpoint

CONNECTIONS_MAX: Final = 2


class OperatorServices:
    """Each service is imported and made when a command asks for it: all of them take a second to import."""

    def __init__(self, settings: Settings, database: Database, clock: DatabaseClock, actor: Actor = OPERATOR) -> None:
        """`actor` is who the operator's log names."""
        self._actor = actor
        self._settings = settings
        self._database = database
        self._clock = clock
        self._chance = SystemChance()

    @cached_property
    def accounts(self) -> "Accounts":
        from posthouse.flows.operate.accounts import Accounts

        return Accounts(
            database=self._database,
            clock=self._clock,
            chance=self._chance,
            peppers=self._settings.secrets.peppers,
            sender_account=self._settings.service.sender_account,
            sandbox_domain=self._sandbox_domain,
            actor=self._actor,
        )

    @cached_property
    def addresses(self) -> "Addresses":
        from posthouse.flows.operate.addresses import Addresses

        return Addresses(database=self._database, clock=self._clock, chance=self._chance)

    @cached_property
    def address_warm_ups(self) -> "AddressWarmUps":
        from posthouse.flows.operate.address_warm_ups import AddressWarmUps

        return AddressWarmUps(database=self._database, clock=self._clock)

    @cached_property
    def relays(self) -> "Relays":
        from posthouse.compose.keys import sealer
        from posthouse.flows.operate.relays import Relays

        return Relays(database=self._database, clock=self._clock, chance=self._chance, sealer=sealer(self._settings))

    @cached_property
    def _sandbox_domain(self) -> "SandboxDomain | None":
        if not self._settings.service.sandbox_domain:
            return None
        return account.sandbox_domain(self._settings, self._database, self._clock, self._chance)

    @cached_property
    def domains(self) -> "Domains":
        return account.domains(self._settings, self._database, self._clock, self._chance)

    @cached_property
    def credentials(self) -> "Credentials":
        return account.credentials(self._settings, self._database, self._clock, self._chance)

    @cached_property
    def sessions(self) -> "Sessions":
        return account.sessions(
            self._settings, self._database, self._clock, self._chance, self._passwords, actor=self._actor
        )

    @cached_property
    def users(self) -> "Users":
        from posthouse.flows.operate.users import Users

        return Users(database=self._database, clock=self._clock)

    @cached_property
    def login_links(self) -> "LoginLinks":
        return account.login_links(
            self._settings, self._database, self._clock, self._chance, self._passwords, self.sessions
        )

    @cached_property
    def team(self) -> "Team":
        return account.team(self._settings, self._database, self._clock, self._chance, self._passwords)

    @cached_property
    def doctor(self) -> "Doctor":
        from posthouse.compose.keys import sealer
        from posthouse.compose.outside_checks import outside_checks
        from posthouse.compose.periodic_checks import disk_space
        from posthouse.compose.stream import stream_probes
        from posthouse.compose.upkeep import address_check
        from posthouse.entrypoints.http.dashboard_build import NOT_BUILT, is_built
        from posthouse.flows.operate.doctor import Doctor

        return Doctor(
            database=self._database,
            clock=self._clock,
            sealer=sealer(self._settings),
            disk_space=disk_space(self._settings, self._database),
            stream_probes=stream_probes(self._settings),
            clock_step=lambda: self._clock.step,
            public_url=self._settings.http.public_url,
            trusted_proxies=self._settings.http.trusted_proxies,
            captures=self._settings.delivery.captures,
            dashboard_lack=None if is_built() else NOT_BUILT,
            sandbox_domain=self._sandbox_domain,
            address_check=address_check(self._settings, self._database, self._clock),
            stream_replicas=self._settings.stream.replicas,
            outside=outside_checks(self._settings),
            backup_max=self._settings.doctor.backup_max,
        )

    @cached_property
    def secrets(self) -> "Secrets":
        from posthouse.compose.keys import sealer
        from posthouse.flows.operate.secrets import Secrets

        given = self._settings.secrets
        return Secrets(
            database=self._database,
            clock=self._clock,
            peppers=given.peppers,
            jwt_secret=given.jwt_secrets[0],
            other_jwt_secrets=list(given.other_jwt_secrets),
            sealer=sealer(self._settings),
        )

    @cached_property
    def backups(self) -> "Backups":
        from posthouse.flows.operate.backups import Backups

        return Backups(database=self._database, clock=self._clock, chance=self._chance)

    @cached_property
    def upkeep(self) -> "Upkeep":
        from posthouse.compose.upkeep import upkeep

        return upkeep(self._settings, self._database, self._clock, self._chance)

    @cached_property
    def alert_check(self) -> "AlertCheck":
        from posthouse.compose.upkeep import alert_check

        return alert_check(self._settings, self._database, self._clock, self._chance)

    @cached_property
    def clock(self) -> "ServiceClock":
        from posthouse.flows.operate.service_clock import ServiceClock

        return ServiceClock(database=self._database, clock=self._clock, chance=self._chance)

    @cached_property
    def usage_counter(self) -> "UsageCounter":
        from posthouse.flows.operate.usage_counter import UsageCounter

        return UsageCounter(database=self._database, clock=self._clock)

    @cached_property
    def nearest_limits(self) -> "NearestLimits":
        from posthouse.flows.operate.nearest_limits import NearestLimits

        defaults = account.account_limits(self._settings)
        return NearestLimits(database=self._database, clock=self._clock, defaults=defaults)

    @cached_property
    def provider_delays(self) -> "ProviderDelays":
        from posthouse.flows.operate.provider_delays import ProviderDelays

        return ProviderDelays(database=self._database, clock=self._clock)

    @cached_property
    def usage_and_ledger(self) -> "UsageAndLedger":
        from posthouse.flows.account.usage_and_ledger import UsageAndLedger

        defaults = account.account_limits(self._settings)
        return UsageAndLedger(database=self._database, clock=self._clock, defaults=defaults)

    @cached_property
    def webhook_endpoint(self) -> "WebhookEndpoint":
        """Without a stream: what it adds to the schedule is due at once."""
        from posthouse.compose.connections import target_of
        from posthouse.compose.keys import sealer
        from posthouse.flows.webhooks.webhook import WebhookEndpoint

        return WebhookEndpoint(
            database=self._database,
            clock=self._clock,
            chance=self._chance,
            sealer=sealer(self._settings),
            tickets=None,
            check=target_of(self._settings),
            failing_after=self._settings.webhooks.failing_after,
        )

    @cached_property
    def monitor(self) -> "Monitor":
        from posthouse.flows.operate.monitor import Monitor

        return Monitor(database=self._database, clock=self._clock, ticket_lease=self._settings.workers.ticket_lease)

    @cached_property
    def message_lookup(self) -> "MessageLookup":
        from posthouse.flows.operate.message_lookup import MessageLookup

        return MessageLookup(database=self._database, clock=self._clock, chance=self._chance, actor=self._actor)

    @cached_property
    def lanes(self) -> "Lanes":
        from posthouse.flows.operate.lanes import Lanes

        return Lanes(
            database=self._database,
            clock=self._clock,
            chance=self._chance,
            lane_limits=self._settings.lanes.limits,
            actor=self._actor,
        )

    @cached_property
    def queue_changes(self) -> "QueueChanges":
        from posthouse.compose.connections import resolver
        from posthouse.flows.operate.queue_changes import QueueChanges

        return QueueChanges(
            database=self._database,
            clock=self._clock,
            chance=self._chance,
            resolver=resolver(self._settings),
            retries=self._settings.delivery.retry_schedule,
            actor=self._actor,
        )

    @cached_property
    def resends(self) -> "Resends":
        from posthouse.flows.account.resends import Resends

        return Resends(database=self._database, clock=self._clock, chance=self._chance, actor=self._actor)

    @cached_property
    def operators(self) -> "Operators":
        from posthouse.flows.operate.operators import Operators

        return Operators(database=self._database, clock=self._clock, chance=self._chance)

    @cached_property
    def restores(self) -> "Restores":
        from posthouse.flows.operate.restore import Restores

        return Restores(database=self._database, clock=self._clock, chance=self._chance)

    @cached_property
    def suppressions(self) -> "Suppressions":
        from posthouse.compose.keys import erasure_keys
        from posthouse.flows.account.suppressions import Suppressions

        return Suppressions(
            database=self._database, clock=self._clock, chance=self._chance, erasure_keys=erasure_keys(self._settings)
        )

    @cached_property
    def message_search(self) -> "MessageSearch":
        from posthouse.flows.account.message_search import MessageSearch

        return MessageSearch(database=self._database, clock=self._clock)

    @cached_property
    def captured_mail(self) -> "CapturedMail":
        from posthouse.compose.captured_mail import captured_mail

        return captured_mail(self._settings, self._database, self._clock, self._chance)

    @cached_property
    def audit(self) -> "Audit":
        from posthouse.compose.keys import return_path_keys, sealer
        from posthouse.flows.operate.audit import Audit

        return Audit(
            database=self._database,
            clock=self._clock,
            sealer=sealer(self._settings),
            return_path_domain=self._settings.return_path,
            return_path_keys=return_path_keys(self._settings),
            simulator_domain=self._settings.delivery.simulator_domain,
        )

    @cached_property
    def _passwords(self) -> "Passwords":
        return account.passwords(self._settings, self._database, self._clock, self._chance)


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
        yield OperatorServices(settings, database, clock)


async def migrate(settings: Settings) -> None:
    """Bring the tables up to date; refuses first when PostgreSQL is down or unsafe, or the tables can't be upgraded."""
    from posthouse.store import schema  # takes a second to import, and only this needs it

    async with open_database(settings, connections_max=1) as database, database.connection() as connection:
        await revision.applied(connection)
    await asyncio.to_thread(schema.migrate, settings.database.url)
