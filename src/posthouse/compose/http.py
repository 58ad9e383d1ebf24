"""The process that serves the HTTP API.

The web framework takes half a second to import: commands that don't serve HTTP must not import this module.
"""

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from typing import Final

from posthouse import config
from posthouse.chance import Chance, SystemChance
from posthouse.clock import Clock, DatabaseClock
from posthouse.compose import accept, account
from posthouse.compose.captured_mail import captured_mail
from posthouse.compose.connections import resolver, target_of
from posthouse.compose.database import divided, open_database
from posthouse.compose.errors import CannotListen
from posthouse.compose.garbage_collection import collect_rarely
from posthouse.compose.keys import erasure_keys, sealer, unsubscribe_keys
from posthouse.compose.logging_setup import configure_logging, log_capture
from posthouse.compose.monitoring import monitored
from posthouse.compose.operator import OperatorServices
from posthouse.compose.periodic_checks import checked_disk_space, refreshed, synchronized
from posthouse.compose.stream import open_stream, tickets
from posthouse.compose.switch_interval import prefer_event_loop
from posthouse.compose.tracing import open_tracer
from posthouse.config import Settings
from posthouse.entrypoints.http.access_log import AccessLog, LineWriter
from posthouse.entrypoints.http.app import create_app
from posthouse.entrypoints.http.frame import Frame
from posthouse.entrypoints.http.server import ServerOptions, serve, serve_on_running_loop
from posthouse.entrypoints.http.services import ServiceInfo, Services, SmtpSubmission
from posthouse.entrypoints.workers import repeated
from posthouse.flows.accept.dry_run import DryRun, Installation
from posthouse.flows.account import dkim_keys
from posthouse.flows.account.alerts import Alerts
from posthouse.flows.account.erasures import Erasures
from posthouse.flows.account.exports import Exports
from posthouse.flows.account.live import Live
from posthouse.flows.account.login_notices import LoginNotices
from posthouse.flows.account.message_cancellation import MessageCancellation
from posthouse.flows.account.message_detail import MessageDetail
from posthouse.flows.account.message_retry import MessageRetry
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.account.next_message import NextMessage
from posthouse.flows.account.progress import Progress
from posthouse.flows.account.resends import Resends
from posthouse.flows.account.suppressions import Suppressions
from posthouse.flows.account.templates import Templates
from posthouse.flows.account.unsent_mail import UnsentMail
from posthouse.flows.account.usage_and_ledger import UsageAndLedger
from posthouse.flows.account.writes import Writes
from posthouse.flows.inbound.unsubscribe import Unsubscribe
from posthouse.flows.operate.operators import Operators
from posthouse.flows.shared.shared_database import SharedDatabase
from posthouse.flows.webhooks.endpoints import Endpoints
from posthouse.flows.webhooks.webhook import WebhookEndpoint
from posthouse.rules.rate_limit import Rate
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from posthouse.wire.stream import Stream

# uvicorn imports it anew in each of several processes.
APPLICATION: Final = f"{__name__}:application"
# For what requests wait for.
LOOK_PAUSE_SECONDS: Final = 1.0


def application() -> Frame:
    """The HTTP application of a process that runs nothing else; uvicorn calls it."""
    settings = config.load()
    configure_logging(settings.service.log_level)
    log_capture(settings)
    stop = asyncio.Event()

    @asynccontextmanager
    async def monitored_stream() -> AsyncIterator[Stream | None]:
        # No other process reads a stream in this process's memory: without NATS, mail is due at once.
        async with (
            monitored(settings, {"http"}, stop.is_set),
            open_stream(settings, "http", or_memory=False) as stream,
        ):
            yield stream

    return _application(settings, monitored_stream, on_stop=stop.set)


def serve_http(settings: Settings, address: tuple[str, int], processes: int) -> None:
    """Serve HTTP alone, in this many processes, until a signal to stop."""
    configure_logging(settings.service.log_level)
    serve(APPLICATION, ServerOptions(*address, settings.http.trusted_proxies, settings.service.log_level), processes)


async def run_http(
    settings: Settings, stream: Stream | None, clock: DatabaseClock, address: tuple[str, int], stop: asyncio.Event
) -> None:
    """Serve HTTP beside other parts of the service, whose clock it shares."""
    options = ServerOptions(*address, settings.http.trusted_proxies, settings.service.log_level)
    if not await serve_on_running_loop(_application(settings, lambda: nullcontext(stream), clock), options, stop):
        raise CannotListen(
            f"HTTP can't be served at {options.host}, port {options.port}; the log says why. Choose another "
            "address with --host and --port, or http.host and http.port."
        )


def _application(
    settings: Settings,
    open_stream: Callable[[], AbstractAsyncContextManager[Stream | None]],
    shared_clock: DatabaseClock | None = None,
    on_stop: Callable[[], None] = lambda: None,
) -> Frame:
    clock = shared_clock or DatabaseClock()
    chance = SystemChance()

    @asynccontextmanager
    async def open_services() -> AsyncIterator[Services]:
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(open_stream())
            for_intake, for_others = divided(settings.database.pool_max)
            intake_database = await stack.enter_async_context(
                open_database(settings, connections_max=for_intake, clock=clock)
            )
            database = await stack.enter_async_context(
                open_database(settings, connections_max=for_others, clock=clock, kind=SharedDatabase)
            )
            if shared_clock is None:
                await stack.enter_async_context(synchronized(settings, clock, intake_database))
            control_cache = await stack.enter_async_context(refreshed(ControlCache(intake_database, clock.monotonic)))
            last_used = await stack.enter_async_context(accept.open_last_used(database))
            disk_space = await stack.enter_async_context(checked_disk_space(settings, database))
            tracer = await stack.enter_async_context(open_tracer(settings, "http", clock, chance))
            passwords = account.passwords(settings, database, clock, chance)
            intake = accept.intake(settings, intake_database, control_cache, clock, chance, stream, disk_space)
            service_mail = accept.service_mail(settings, intake, database, clock, chance)
            login_notices = LoginNotices(database=database, clock=clock, service_mail=service_mail)
            sessions = account.sessions(settings, database, clock, chance, passwords, login_notices)
            message_search = MessageSearch(database=database, clock=clock)
            unsent_mail = UnsentMail(database=database, clock=clock, defaults=account.account_limits(settings))
            collect_rarely()
            prefer_event_loop()
            webhook_endpoint = WebhookEndpoint(
                database=database,
                clock=clock,
                chance=chance,
                sealer=sealer(settings),
                tickets=None if stream is None else tickets(settings, stream),
                check=target_of(settings),
            )
            yield Services(
                service_info=service_info(settings),
                admission=accept.admission(settings, control_cache, last_used, clock),
                intake=intake,
                message_detail=MessageDetail(
                    database=database, clock=clock, bodies_days=settings.retention.bodies_days
                ),
                templates=Templates(database=database, clock=clock, chance=chance),
                webhook_endpoint=webhook_endpoint,
                endpoints=Endpoints(
                    database=database,
                    clock=clock,
                    chance=chance,
                    sealer=sealer(settings),
                    tickets=None if stream is None else tickets(settings, stream),
                    check=target_of(settings),
                    log=webhook_endpoint,
                    failing_after=settings.webhooks.failing_after,
                    is_on=settings.webhooks.endpoints,
                ),
                unsubscribe=Unsubscribe(database=database, clock=clock, keys=unsubscribe_keys(settings)),
                sessions=sessions,
                login_links=account.login_links(settings, database, clock, chance, passwords, sessions),
                kept_sessions=account.kept_sessions(settings, database, clock, chance),
                password_reset=account.password_reset(
                    settings, database, clock, chance, passwords, sessions, service_mail
                ),
                team=account.team(settings, database, clock, chance, passwords, service_mail),
                progress=Progress(database=database),
                usage_and_ledger=UsageAndLedger(
                    database=database, clock=clock, defaults=account.account_limits(settings)
                ),
                alerts=Alerts(database=database, clock=clock, chance=chance, service_mail=service_mail),
                domains=account.domains(settings, database, clock, chance, keys_ahead=dkim_keys.AHEAD),
                credentials=account.credentials(settings, database, clock, chance),
                message_search=message_search,
                message_retry=MessageRetry(
                    database=database, clock=clock, chance=chance, retries=settings.delivery.retry_schedule
                ),
                unsent_mail=unsent_mail,
                message_cancellation=MessageCancellation(
                    database=database, clock=clock, chance=chance, search=message_search, unsent_mail=unsent_mail
                ),
                resends=Resends(database=database, clock=clock, chance=chance),
                erasures=Erasures(database=database, clock=clock, chance=chance, keys=erasure_keys(settings)),
                captured_mail=captured_mail(settings, database, clock, chance),
                next_message=await stack.enter_async_context(_next_message(settings, database, clock)),
                live=await stack.enter_async_context(_live(database, clock)),
                exports=Exports(clock=clock),
                suppression=Suppressions(
                    database=database,
                    clock=clock,
                    chance=chance,
                    disk_space=disk_space,
                    erasure_keys=erasure_keys(settings),
                ),
                dry_run=_dry_run(settings, database, control_cache, clock, chance),
                writes=Writes(
                    clock=clock,
                    rate=Rate(settings.limits.writes_per_second, settings.limits.writes_burst),
                    disk_space=disk_space,
                ),
                operators=Operators(
                    database=database, clock=clock, chance=chance, token_secrets=settings.secrets.jwt_secrets
                ),
                operator_flows=partial(OperatorServices, settings, database, clock),
                now=clock.now,
                tracer=tracer,
            )

    rate = Rate(settings.http.unauthenticated_per_second, settings.http.unauthenticated_burst)
    return create_app(
        open_services,
        clock,
        chance,
        rate,
        names_proxies=bool(settings.http.trusted_proxies),
        captures=settings.delivery.captures,
        connections_max=_connections_max(settings),
        on_stop=on_stop,
        access_log=_access_log(settings),
    )


@asynccontextmanager
async def _next_message(settings: Settings, database: Database, clock: Clock) -> AsyncIterator[NextMessage]:
    next_message = NextMessage(database=database, clock=clock, captures=settings.delivery.captures)
    async with repeated(next_message.look, pause_seconds=LOOK_PAUSE_SECONDS):
        yield next_message


@asynccontextmanager
async def _live(database: Database, clock: Clock) -> AsyncIterator[Live]:
    live = Live(database=database, clock=clock)
    async with repeated(live.look, pause_seconds=LOOK_PAUSE_SECONDS):
        yield live


def service_info(settings: Settings) -> ServiceInfo:
    submission = settings.submission
    return ServiceInfo(
        name="Posthouse",
        version=version("posthouse"),
        docs_url=f"{settings.http.public_url}/docs",
        sends_own_mail=bool(settings.service.sender),
        submission=SmtpSubmission(settings.service.hostname, submission.port or None, submission.tls_port or None)
        if settings.smtp.tls_certificate_file
        else None,
        captures=settings.delivery.captures,
        simulator_domain=settings.delivery.simulator_domain,
    )


def _access_log(settings: Settings) -> AccessLog | None:
    is_logged = settings.http.access_log and settings.service.log_level in ("debug", "info")
    return AccessLog(LineWriter(sys.stdout)) if is_logged else None


def _connections_max(settings: Settings) -> int:
    """Every connection is an open file, and the process needs others."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.http.connections_max
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files * 3 // 4))


def _dry_run(
    settings: Settings, database: Database, control_cache: ControlCache, clock: Clock, chance: Chance
) -> DryRun:
    return DryRun(
        database=database,
        control_cache=control_cache,
        clock=clock,
        chance=chance,
        resolver=resolver(settings),
        defaults=account.account_limits(settings),
        installation=Installation(
            hostname=settings.service.hostname,
            return_path_domain=settings.return_path,
            simulator_domain=settings.delivery.simulator_domain,
            captures=settings.delivery.captures,
            offers_one_click=bool(settings.http.public_url),
            signs=settings.delivery.dkim_enabled,
        ),
    )
