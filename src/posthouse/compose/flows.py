"""The flows of a process, each under one name."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar

from posthouse.clock import DatabaseClock
from posthouse.compose.context import context_of
from posthouse.compose.database import MAINTENANCE_SECONDS_MAX, learn_time, open_database, require_tables
from posthouse.config import Settings
from posthouse.config.storage import AUTO
from posthouse.rules.refusal import Refusal
from posthouse.store.postgres import Database

if TYPE_CHECKING:
    from posthouse.flows.accept.admission import Admission
    from posthouse.flows.accept.dry_run import DryRun
    from posthouse.flows.accept.intake import Intake
    from posthouse.flows.accept.last_used import LastUsed
    from posthouse.flows.accept.preparation import Preparation
    from posthouse.flows.accept.resender import Resender
    from posthouse.flows.account.alerts import Alerts
    from posthouse.flows.account.captured_mail import CapturedMail
    from posthouse.flows.account.credentials import Credentials
    from posthouse.flows.account.domains import Domains
    from posthouse.flows.account.erasures import Erasures
    from posthouse.flows.account.exports import Exports
    from posthouse.flows.account.live import Live, NextMessage
    from posthouse.flows.account.login_tokens import LoginLinks, PasswordReset
    from posthouse.flows.account.message_changes import MessageChanges
    from posthouse.flows.account.message_detail import MessageDetail
    from posthouse.flows.account.message_search import MessageSearch
    from posthouse.flows.account.passwords import Passwords
    from posthouse.flows.account.resends import Resends
    from posthouse.flows.account.sessions import Sessions
    from posthouse.flows.account.suppressions import Suppressions
    from posthouse.flows.account.team import Team
    from posthouse.flows.account.templates import Templates
    from posthouse.flows.account.usage_and_ledger import UsageAndLedger
    from posthouse.flows.account.write_rate_limit import WriteRateLimit
    from posthouse.flows.inbound.reports import Reports
    from posthouse.flows.inbound.reputation import Reputation
    from posthouse.flows.inbound.unsubscribe import Unsubscribe
    from posthouse.flows.operate.accounts import Accounts
    from posthouse.flows.operate.address_check import AddressCheck
    from posthouse.flows.operate.alert_check import AlertCheck
    from posthouse.flows.operate.audit import Audit
    from posthouse.flows.operate.doctor import Doctor
    from posthouse.flows.operate.erasing import Erasing
    from posthouse.flows.operate.lanes import Lanes
    from posthouse.flows.operate.maintenance import Maintenance
    from posthouse.flows.operate.message_lookup import MessageLookup
    from posthouse.flows.operate.monitor import Monitor
    from posthouse.flows.operate.operators import Operators
    from posthouse.flows.operate.partitions import Partitions
    from posthouse.flows.operate.queue_changes import QueueChanges
    from posthouse.flows.operate.relays import Relays
    from posthouse.flows.operate.restore import Restores, ServiceClock
    from posthouse.flows.operate.sandbox_domain import SandboxDomain
    from posthouse.flows.operate.search_indexer import SearchIndexer
    from posthouse.flows.operate.secrets import Secrets
    from posthouse.flows.operate.sending_addresses import SendingAddresses
    from posthouse.flows.operate.usage_counter import ProviderDelays, UsageCounter
    from posthouse.flows.shared.account_limits import Defaults
    from posthouse.flows.shared.disk_space import DiskSpace
    from posthouse.flows.shared.service_mail import ServiceMail
    from posthouse.flows.shared.tickets import Tickets
    from posthouse.flows.webhooks.endpoints import Endpoints
    from posthouse.flows.webhooks.event_feed import EventFeed
    from posthouse.store.control_cache import ControlCache
    from posthouse.wire.dns import Resolver
    from posthouse.wire.stream import Stream

COMMAND_CONNECTIONS_MAX: Final = 2

FlowT = TypeVar("FlowT")


class _ContextFlow(cached_property[FlowT]):
    """A flow that needs only the context: its module in `posthouse.flows`, whose class has the attribute's name."""

    def __init__(self, module: str) -> None:
        super().__init__(self._create)
        self._module = f"posthouse.flows.{module}"

    def _create(self, flows: "Flows") -> FlowT:
        kind = getattr(import_module(self._module), (self.attrname or "").title().replace("_", ""))
        flow: FlowT = kind(flows.context)
        return flow


@cache
def _attribute_of(name: str) -> str:
    """That of `EventFeed` is `event_feed`. Each request asks."""
    return re.sub("(?<=.)(?=[A-Z])", "_", name).lower()


class Flows:
    """Each is imported and created when it is first used, because importing all of them takes a second."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        clock: DatabaseClock,
        *,
        intake_database: Database | None = None,
        stream: "Stream | None" = None,
    ) -> None:
        """`intake_database` is for a process that accepts mail."""
        self.context = context_of(settings, database, clock)
        self._settings = settings
        self._database = database
        self._clock = clock
        self._intake_database = intake_database
        self._stream = stream

    def __getitem__(self, kind: type[FlowT]) -> FlowT:
        """The flow of this class."""
        found: FlowT = getattr(self, _attribute_of(kind.__name__))
        return found

    @asynccontextmanager
    async def open_service_mail(self) -> "AsyncIterator[ServiceMail]":
        """For a process that accepts no mail, only while needed, because its cache queries PostgreSQL once a second."""
        from posthouse.compose.periodic_checks import refreshed

        flows = Flows(self._settings, self._database, self._clock, intake_database=self._database, stream=self._stream)
        if not self._settings.service.sender:
            yield flows.service_mail
            return
        async with refreshed(flows.control_cache):
            yield flows.service_mail
            await flows.intake.drain()

    # What flows share.

    @cached_property
    def control_cache(self) -> "ControlCache":
        from posthouse.store.control_cache import ControlCache

        return ControlCache(self._intake_database or self._database, self._clock.monotonic)

    @cached_property
    def disk_space(self) -> "DiskSpace":
        from posthouse.flows.shared.disk_space import DiskSpace, server_volume, size, volume

        settings, gauges = self._settings.disk_space, []
        if settings.directory == AUTO:
            if self._settings.database.is_on_this_machine:
                gauges.append(server_volume(self._database, settings.free_bytes_min))
        elif settings.directory:
            gauges.append(volume(settings.directory, settings.free_bytes_min))
        if settings.database_bytes_max:
            gauges.append(size(self._database, settings.database_bytes_max))
        return DiskSpace(gauges)

    @cached_property
    def last_used(self) -> "LastUsed":
        from posthouse.flows.accept.last_used import LastUsed

        return LastUsed(self._database)

    @cached_property
    def service_mail(self) -> "ServiceMail":
        from posthouse.flows.shared.service_mail import NoServiceMail

        service = self._settings.service
        if self._intake_database is None or not service.sender:
            return NoServiceMail()
        from posthouse.flows.accept.service_mailer import ServiceMailer

        return ServiceMailer(self.context, intake=self.intake, sender=service.sender, account=service.sender_account)

    @cached_property
    def _defaults(self) -> "Defaults":
        from posthouse.flows.shared.account_limits import Defaults
        from posthouse.rules.rate_limit import Rate

        limits = self._settings.limits
        return Defaults(
            rate=Rate(limits.rate_per_second, limits.rate_burst),
            warmup_limits=limits.warmup_limits if limits.warmup_enabled else None,
            stored_bytes_max=limits.stored_bytes_per_day,
        )

    @cached_property
    def _preparation(self) -> "Preparation":
        from posthouse.flows.accept.preparation import Preparation

        settings = self._settings
        return Preparation(
            control_cache=self.control_cache,
            hostname=settings.service.hostname,
            simulator_domain=settings.delivery.simulator_domain,
            offers_one_click=bool(settings.http.public_url),
        )

    @cached_property
    def _resolver(self) -> "Resolver":
        from posthouse.compose.connections import resolver

        return resolver(self._settings)

    @cached_property
    def _tickets(self) -> "Tickets | None":
        """Without a stream, what flows add to a schedule is due immediately."""
        from posthouse.compose.stream import tickets

        return None if self._stream is None else tickets(self._settings, self._stream)

    # Sending.

    @cached_property
    def admission(self) -> "Admission":
        from posthouse.flows.accept.admission import Admission

        return Admission(self.context, control_cache=self.control_cache, last_used=self.last_used)

    @cached_property
    def intake(self) -> "Intake":
        from posthouse.flows.accept.intake import Intake

        return Intake(
            context_of(self._settings, self._intake_database or self._database, self._clock),
            control_cache=self.control_cache,
            defaults=self._defaults,
            preparation=self._preparation,
            tickets=self._tickets,
            captures=self._settings.delivery.captures,
            disk_space=self.disk_space,
        )

    @cached_property
    def dry_run(self) -> "DryRun":
        from posthouse.flows.accept.dry_run import DryRun, Installation

        settings = self._settings
        return DryRun(
            self.context,
            control_cache=self.control_cache,
            resolver=self._resolver,
            defaults=self._defaults,
            preparation=self._preparation,
            installation=Installation(
                return_path_domain=settings.return_path,
                captures=settings.delivery.captures,
                signs=settings.delivery.dkim_enabled,
            ),
        )

    @cached_property
    def resender(self) -> "Resender":
        """Without tickets: mail that it accepts is due immediately, and dispatch finds it."""
        from posthouse.flows.accept.accept_transaction import AcceptTransaction
        from posthouse.flows.accept.resender import Resender

        delivery = self._settings.delivery
        return Resender(
            self.context,
            control_cache=self.control_cache,
            preparation=self._preparation,
            transaction=AcceptTransaction(self.context, defaults=self._defaults, tickets=None),
            captured_by=delivery.simulator_domain if delivery.captures else None,
        )

    # An account.

    credentials: "_ContextFlow[Credentials]" = _ContextFlow("account.credentials")
    erasures: "_ContextFlow[Erasures]" = _ContextFlow("account.erasures")
    event_feed: "_ContextFlow[EventFeed]" = _ContextFlow("webhooks.event_feed")
    live: "_ContextFlow[Live]" = _ContextFlow("account.live")
    message_search: "_ContextFlow[MessageSearch]" = _ContextFlow("account.message_search")
    passwords: "_ContextFlow[Passwords]" = _ContextFlow("account.passwords")
    resends: "_ContextFlow[Resends]" = _ContextFlow("account.resends")
    templates: "_ContextFlow[Templates]" = _ContextFlow("account.templates")
    unsubscribe: "_ContextFlow[Unsubscribe]" = _ContextFlow("inbound.unsubscribe")

    @cached_property
    def alerts(self) -> "Alerts":
        from posthouse.flows.account.alerts import Alerts

        return Alerts(self.context, service_mail=self.service_mail)

    @cached_property
    def captured_mail(self) -> "CapturedMail":
        from posthouse.flows.account.captured_mail import CapturedMail

        return CapturedMail(
            self.context,
            message_detail=self.message_detail,
            message_search=self.message_search,
            captures=self._settings.delivery.captures,
        )

    @cached_property
    def domains(self) -> "Domains":
        from posthouse.flows.account.domains import AHEAD, DkimKeys, Domains

        return Domains(
            self.context,
            resolver=self._resolver,
            return_path=self._settings.return_path,
            # A command ends before it could use keys that were made ahead.
            dkim_keys=DkimKeys(ahead=0 if self._intake_database is None else AHEAD),
        )

    @cached_property
    def endpoints(self) -> "Endpoints":
        from posthouse.compose.connections import target_of
        from posthouse.flows.webhooks.endpoints import Endpoints

        return Endpoints(
            self.context,
            tickets=self._tickets,
            check=target_of(self._settings),
            failing_after=self._settings.webhooks.failing_after,
            is_on=self._settings.webhooks.endpoints,
        )

    @cached_property
    def exports(self) -> "Exports":
        from posthouse.flows.account.exports import Exports

        return Exports(clock=self._clock)

    @cached_property
    def login_links(self) -> "LoginLinks":
        from posthouse.flows.account.login_tokens import LoginLinks

        return LoginLinks(self.context, passwords=self.passwords, sessions=self.sessions)

    @cached_property
    def message_detail(self) -> "MessageDetail":
        from posthouse.flows.account.message_detail import MessageDetail

        return MessageDetail(self.context, bodies_days=self._settings.retention.bodies_days)

    @cached_property
    def message_changes(self) -> "MessageChanges":
        from posthouse.flows.account.message_changes import MessageChanges

        return MessageChanges(
            self.context,
            search=self.message_search,
            defaults=self._defaults,
            retries=self._settings.delivery.retry_schedule,
        )

    @cached_property
    def next_message(self) -> "NextMessage":
        from posthouse.flows.account.live import NextMessage

        return NextMessage(self.context, captures=self._settings.delivery.captures)

    @cached_property
    def password_reset(self) -> "PasswordReset":
        from posthouse.flows.account.login_tokens import PasswordReset

        return PasswordReset(
            self.context,
            passwords=self.passwords,
            sessions=self.sessions,
            service_mail=self.service_mail,
            public_url=self._settings.http.public_url,
        )

    @cached_property
    def sessions(self) -> "Sessions":
        from posthouse.flows.account.login_notices import LoginNotices
        from posthouse.flows.account.sessions import Sessions

        notices = LoginNotices(self.context, service_mail=self.service_mail)
        return Sessions(self.context, passwords=self.passwords, login_notices=notices)

    @cached_property
    def suppressions(self) -> "Suppressions":
        from posthouse.flows.account.suppressions import Suppressions

        return Suppressions(self.context, disk_space=self.disk_space)

    @cached_property
    def team(self) -> "Team":
        from posthouse.flows.account.team import Team

        return Team(
            self.context,
            passwords=self.passwords,
            public_url=self._settings.http.public_url,
            service_mail=self.service_mail,
        )

    @cached_property
    def usage_and_ledger(self) -> "UsageAndLedger":
        from posthouse.flows.account.usage_and_ledger import UsageAndLedger

        return UsageAndLedger(self.context, defaults=self._defaults)

    @cached_property
    def write_rate_limit(self) -> "WriteRateLimit":
        from posthouse.flows.account.write_rate_limit import WriteRateLimit
        from posthouse.rules.rate_limit import Rate

        limits = self._settings.limits
        rate = Rate(limits.writes_per_second, limits.writes_burst)
        return WriteRateLimit(clock=self._clock, rate=rate, disk_space=self.disk_space)

    # What operators do.

    message_lookup: "_ContextFlow[MessageLookup]" = _ContextFlow("operate.message_lookup")
    operators: "_ContextFlow[Operators]" = _ContextFlow("operate.operators")
    relays: "_ContextFlow[Relays]" = _ContextFlow("operate.relays")
    sending_addresses: "_ContextFlow[SendingAddresses]" = _ContextFlow("operate.sending_addresses")

    @cached_property
    def accounts(self) -> "Accounts":
        from posthouse.flows.operate.accounts import Accounts

        service = self._settings.service
        sandbox_domain = self.sandbox_domain if service.sandbox_domain else None
        return Accounts(
            self.context,
            defaults=self._defaults,
            sender_account=service.sender_account,
            sandbox_domain=sandbox_domain,
        )

    @cached_property
    def audit(self) -> "Audit":
        from posthouse.flows.operate.audit import Audit

        return Audit(
            self.context,
            return_path_domain=self._settings.return_path,
            simulator_domain=self._settings.delivery.simulator_domain,
        )

    @property
    def doctor(self) -> "Doctor":
        """Another for each check: a resolver that remembers would show what an operator has just corrected."""
        from posthouse.compose.connections import resolver
        from posthouse.compose.outside_checks import outside_checks
        from posthouse.compose.stream import stream_probes
        from posthouse.entrypoints.http.static_content import NOT_BUILT, is_dashboard_built
        from posthouse.flows.operate.doctor import Doctor, DoctorSettings

        settings = self._settings
        return Doctor(
            self.context,
            DoctorSettings(
                public_url=settings.http.public_url,
                trusted_proxies=settings.http.trusted_proxies,
                sender_account=settings.service.sender_account,
                captures=settings.delivery.captures,
                dashboard_lack=None if is_dashboard_built() else NOT_BUILT,
                stream_replicas=settings.stream.replicas,
                backup_max=settings.doctor.backup_max,
            ),
            disk_space=self.disk_space,
            stream_probes=stream_probes(settings),
            clock_step=lambda: self._clock.step,
            sandbox_domain=self.sandbox_domain if settings.service.sandbox_domain else None,
            address_check=self._address_check(resolver(settings)),
            outside=outside_checks(settings),
        )

    @cached_property
    def lanes(self) -> "Lanes":
        from posthouse.flows.operate.lanes import Lanes

        return Lanes(self.context, lane_limits=self._settings.lanes.limits)

    @cached_property
    def monitor(self) -> "Monitor":
        from posthouse.flows.operate.monitor import Monitor

        return Monitor(self.context, ticket_lease=self._settings.workers.ticket_lease)

    @cached_property
    def queue_changes(self) -> "QueueChanges":
        from posthouse.flows.operate.queue_changes import QueueChanges

        return QueueChanges(self.context, resolver=self._resolver, retries=self._settings.delivery.retry_schedule)

    @cached_property
    def restores(self) -> "Restores":
        from posthouse.flows.operate.restore import Restores

        return Restores(self.context, clock=self._clock)

    @cached_property
    def secrets(self) -> "Secrets":
        from posthouse.flows.operate.secrets import Secrets

        return Secrets(self.context, other_jwt_secrets=list(self._settings.secrets.other_jwt_secrets))

    @cached_property
    def service_clock(self) -> "ServiceClock":
        from posthouse.flows.operate.restore import ServiceClock

        return ServiceClock(self.context, clock=self._clock)

    # What the service does on its own.

    erasing: "_ContextFlow[Erasing]" = _ContextFlow("operate.erasing")
    provider_delays: "_ContextFlow[ProviderDelays]" = _ContextFlow("operate.usage_counter")
    search_indexer: "_ContextFlow[SearchIndexer]" = _ContextFlow("operate.search_indexer")
    usage_counter: "_ContextFlow[UsageCounter]" = _ContextFlow("operate.usage_counter")

    @cached_property
    def address_check(self) -> "AddressCheck":
        return self._address_check(self._resolver)

    def _address_check(self, resolver: "Resolver") -> "AddressCheck":
        from posthouse.flows.operate.address_check import AddressCheck

        return AddressCheck(
            self.context,
            resolver=resolver,
            return_path=self._settings.return_path,
            blocklists=self._settings.delivery.blocklists,
        )

    @cached_property
    def alert_check(self) -> "AlertCheck":
        from posthouse.flows.operate.alert_check import AlertCheck

        return AlertCheck(self.context, open_service_mail=self.open_service_mail)

    @cached_property
    def maintenance(self) -> "Maintenance":
        from posthouse.flows.operate.maintenance import Maintenance

        return Maintenance(
            self.context,
            resolver=self._resolver,
            partitions=self.partitions,
            clock_step=lambda: self._clock.step,
            address_check=self.address_check,
        )

    @cached_property
    def partitions(self) -> "Partitions":
        from posthouse.flows.operate.partitions import Partitions, Retention

        given = self._settings.retention
        retention = Retention(given.messages_days, given.bodies_days, given.webhooks_days)
        return Partitions(self.context, retention=retention, clock_step=lambda: self._clock.step)

    @cached_property
    def reports(self) -> "Reports":
        from posthouse.flows.inbound.reports import ComplaintCheck, Reports

        inbound = self._settings.inbound
        return Reports(
            self.context,
            return_path_domain=self._settings.return_path,
            complaint_check=ComplaintCheck(resolver=self._resolver, loops=inbound.loops),
            feedback_address=inbound.feedback_address,
            disk_space=self.disk_space,
        )

    @cached_property
    def reputation(self) -> "Reputation":
        from posthouse.flows.inbound.reputation import Reputation

        return Reputation(self.context, service_account=self._settings.service.sender_account)

    @cached_property
    def sandbox_domain(self) -> "SandboxDomain":
        from posthouse.flows.operate.sandbox_domain import SandboxDomain

        service = self._settings.service
        return SandboxDomain(self.context, name=service.sandbox_domain, account=service.sender_account)


@asynccontextmanager
async def open_flows(settings: Settings, *, even_if_unusable: bool = False) -> AsyncIterator[Flows]:
    """The flows of a command. `posthouse doctor` opens them even if the database is unusable, to report why."""
    async with open_database(
        settings,
        connections_max=COMMAND_CONNECTIONS_MAX,
        statement_seconds_max=MAINTENANCE_SECONDS_MAX,
        allow_unsafe=even_if_unusable,
    ) as database:
        clock = DatabaseClock()
        # Changes get the database's time, because the caches of other processes compare with it.
        try:
            await learn_time(clock, database)
            await require_tables(database)
        except Refusal:
            if not even_if_unusable:
                raise
        yield Flows(settings, database, clock)
