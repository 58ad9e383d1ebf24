"""The composition root: settings in, working objects out."""

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from posthouse import config
from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.compose import pieces
from posthouse.config import Settings
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from posthouse.entrypoints.smtp.service import Service
from posthouse.entrypoints.workers import repeated, run_delivery, run_dispatch, run_notification
from posthouse.flows.account.credentials import Credentials
from posthouse.flows.account.domains import Domains
from posthouse.flows.account.message_detail import MessageDetail
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.account.suppressions import Suppressions
from posthouse.flows.account.team import Team
from posthouse.flows.account.templates import Templates
from posthouse.flows.account.usage_and_ledger import UsageAndLedger
from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.deliver.dkim_signing import DkimSigning
from posthouse.flows.deliver.outgoing_mail import Identity, OutgoingMail
from posthouse.flows.inbound.reputation import Reputation
from posthouse.flows.inbound.unsubscribe import Unsubscribe
from posthouse.flows.operate.accounts import Accounts
from posthouse.flows.operate.audit import Audit
from posthouse.flows.operate.doctor import Doctor
from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.search_indexer import SearchIndexer
from posthouse.flows.operate.upkeep import Upkeep
from posthouse.flows.operate.usage_counter import UsageCounter
from posthouse.flows.webhooks.endpoint import WebhookEndpoint
from posthouse.rules.refusal import Refusal
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import UnsafeDatabase as UnsafeDatabase
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Stream

if TYPE_CHECKING:
    from posthouse.entrypoints.http.frame import Frame

UPKEEP_PAUSE_SECONDS: Final = 300.0
# How much an account that does harm may send before anybody looks.
CONDUCT_PAUSE_SECONDS: Final = 30.0
# Until then a message is found by a look at the account's newest, of which only so many are looked at.
CATALOGUE_PAUSE_SECONDS: Final = 10.0
# How old an account's figures of today are, beside the minute after which nothing comes to light any more.
RECKONING_PAUSE_SECONDS: Final = 60.0
SMTP_DRAIN_SECONDS_MAX: Final = 15.0
SWITCH_SECONDS: Final = 0.0002
DELIVERY_BUCKET: Final = "SHARDS"
NOTIFICATION_BUCKET: Final = "NOTIFY_SHARDS"
# Nobody waits for an answer when partitions are dropped or keys forgotten.
CHORE_SECONDS_MAX: Final = 30.0
# Nor when outcomes are recorded; but what takes longer than this holds up everything behind it.
RECORD_SECONDS_MAX: Final = 10.0
DELIVERY_CONNECTIONS_MAX: Final = 6
DISPATCH_CONNECTIONS_MAX: Final = 2
INBOUND_CONNECTIONS_MAX: Final = 4


class NotServing(RuntimeError):  # noqa: N818 (reads as what it says)
    """Nobody can be served at the address given."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What an operator works with."""

    accounts: Accounts
    domains: Domains
    credentials: Credentials
    sessions: Sessions
    team: Team
    health: Doctor
    upkeep: Upkeep
    usage_counter: UsageCounter
    monitor: Monitor
    suppression: Suppressions
    audit: Audit


@asynccontextmanager
async def operator(settings: Settings, *, for_check_up: bool = False) -> AsyncIterator[Desk]:
    """The operator's desk; a check-up may look even at a database that mail may not use."""
    async with pieces.database(
        settings, connections_max=2, statement_seconds_max=CHORE_SECONDS_MAX, allow_unsafe=for_check_up
    ) as database:
        clock = DatabaseClock()
        # Changes are stamped with the time that the servers' caches compare with: the database's.
        try:
            await pieces.anchor(clock, database)
            await pieces.require_tables(database)
        except Refusal:
            if not for_check_up:  # which wants to report this, among the rest
                raise
        chance = SystemChance()
        sealer = pieces.sealer(settings)
        resolver = Resolver(settings.resolver_endpoints)
        credentials = pieces.credentials(settings, database, clock, chance)
        passwords = pieces.passwords(settings, database, clock, chance)
        yield Desk(
            accounts=Accounts(database=database, clock=clock, chance=chance, pepper=settings.pepper_bytes),
            domains=pieces.domains(settings, database, clock, chance),
            credentials=credentials,
            sessions=pieces.sessions(settings, database, clock, chance, passwords),
            team=pieces.team(settings, database, clock, chance, passwords),
            health=Doctor(
                database=database,
                clock=clock,
                sealer=sealer,
                storage=pieces.storage(settings, database),
                stream_probes=pieces.stream_probes(settings),
            ),
            upkeep=pieces.upkeep(settings, database, clock, resolver, sealer),
            usage_counter=UsageCounter(database=database, clock=clock),
            monitor=Monitor(database=database, clock=clock),
            suppression=Suppressions(database=database, clock=clock, chance=chance),
            audit=Audit(
                database=database,
                clock=clock,
                sealer=sealer,
                return_path_domain=settings.return_path,
                return_path_key=pieces.return_path_key(settings),
                simulator_domain=settings.simulator_domain,
            ),
        )


async def migrate(settings: Settings) -> None:
    """Brings the tables up to date; refuses first when PostgreSQL is away or unsafe."""
    from posthouse.store import schema  # it takes a second to import, and nothing else here needs it

    async with pieces.database(settings, connections_max=1) as database, database.connection():
        pass
    await asyncio.to_thread(schema.migrate, settings.database_url)


def http_app() -> "Frame":
    """The HTTP application of a process that does nothing else, from the settings; uvicorn calls it."""
    settings = config.load()
    configure_logging(settings.log_level)
    # Without a stream between processes, nobody would get its tickets: its mail is due at once.
    return _http_app(settings, lambda: pieces.stream(settings, "http", or_memory=False))


def serve_http(settings: Settings, address: tuple[str, int], processes: int) -> None:
    """HTTP alone, in so many processes, until a signal says stop."""
    from posthouse.entrypoints.http.server import Listening, serve

    serve(
        "posthouse.compose.processes:http_app",
        Listening(*address, settings.trusted_proxies, settings.log_level),
        processes,
    )


async def run(
    settings: Settings, parts: frozenset[str], http_address: tuple[str, int] | None, stop: asyncio.Event
) -> None:
    """The parts of the service in one process, on one event loop and one stream, until told to stop.

    When one part ends, for whatever reason, all end, each in its own order; then the first fault is raised.
    """
    configure_logging(settings.log_level)
    needs_stream = parts - {"inbound", "upkeep"}
    async with (
        pieces.stream(settings, "-".join(sorted(needs_stream)), or_memory="delivery" in parts)
        if needs_stream
        else nullcontext()
    ) as stream:
        running: list[Coroutine[object, object, None]] = []
        if http_address is not None:
            running.append(_run_http(settings, stream, http_address, stop))
        if "submission" in parts:
            running.append(_run_submission(settings, stream, stop))
        if "inbound" in parts:
            running.append(_run_inbound(settings, stop))
        if "dispatch" in parts and stream is not None:
            # In the memory of this process, tickets are for whoever is here.
            with_calls = bool(settings.stream_servers) or "notification" in parts
            running.append(_run_dispatch(settings, stream, stop, with_calls=with_calls))
        if "delivery" in parts and stream is not None:
            running.append(_run_delivery(settings, stream, stop))
        if "notification" in parts and stream is not None:
            running.append(_run_notification(settings, stream, stop))
        if "upkeep" in parts:
            running.append(_run_upkeep(settings, stop))
        _calm_garbage_collection()
        ends = await asyncio.gather(*(_stopping(part, stop) for part in running), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _stopping(part: Coroutine[object, object, None], stop: asyncio.Event) -> None:
    try:
        await part
    finally:
        stop.set()


def _http_app(settings: Settings, open_stream: "Callable[[], AbstractAsyncContextManager[Stream | None]]") -> "Frame":
    # The web framework takes half a second to import, which no other command should wait for.
    from posthouse.entrypoints.http.app import create_app
    from posthouse.entrypoints.http.services import Services

    clock = DatabaseClock()
    chance = SystemChance()

    @asynccontextmanager
    async def open_services() -> AsyncIterator[Services]:
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(open_stream())
            database = await stack.enter_async_context(pieces.database(settings, clock=clock))
            await stack.enter_async_context(pieces.anchored(clock, database))
            control_cache = await stack.enter_async_context(pieces.fresh(ControlCache(database, clock.monotonic)))
            uses = await stack.enter_async_context(pieces.uses(database))
            storage = await stack.enter_async_context(pieces.watched_storage(settings, database))
            passwords = pieces.passwords(settings, database, clock, chance)
            _calm_garbage_collection()
            yield Services(
                admission=pieces.admission(settings, control_cache, uses, clock),
                intake=pieces.intake(settings, database, control_cache, clock, chance, stream, storage),
                message_detail=MessageDetail(
                    database=database, clock=clock, bodies_days=settings.retention_days_bodies
                ),
                templates=Templates(database=database, clock=clock, chance=chance, storage=storage),
                webhook_endpoint=WebhookEndpoint(
                    database=database,
                    clock=clock,
                    chance=chance,
                    sealer=pieces.sealer(settings),
                    tickets=None if stream is None else pieces.tickets(settings, stream),
                    check=pieces.target_of(settings),
                ),
                unsubscribe=Unsubscribe(database=database, clock=clock, key=pieces.unsubscribe_key(settings)),
                sessions=pieces.sessions(settings, database, clock, chance, passwords),
                team=pieces.team(settings, database, clock, chance, passwords),
                usage_and_ledger=UsageAndLedger(database=database, clock=clock, defaults=pieces.defaults(settings)),
                domains=pieces.domains(settings, database, clock, chance),
                credentials=pieces.credentials(settings, database, clock, chance),
                message_search=MessageSearch(database=database, clock=clock),
                suppression=Suppressions(database=database, clock=clock, chance=chance, storage=storage),
                dry_run=pieces.dry_run(settings, database, control_cache, clock, chance),
            )

    return create_app(open_services, clock, chance)


async def _run_http(settings: Settings, stream: Stream | None, address: tuple[str, int], stop: asyncio.Event) -> None:
    from posthouse.entrypoints.http.server import Listening, serve_beside

    listening = Listening(*address, settings.trusted_proxies, settings.log_level)
    if not await serve_beside(_http_app(settings, lambda: nullcontext(stream)), listening, stop):
        raise NotServing(
            f"HTTP can't be served at {listening.host}, port {listening.port}; the log says why. Choose another "
            "address with --host and --port, or http_host and http_port."
        )


async def _run_submission(settings: Settings, stream: Stream | None, stop: asyncio.Event) -> None:
    from posthouse.entrypoints.smtp.submission import Submission

    clock = DatabaseClock()
    chance = SystemChance()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(pieces.database(settings, clock=clock))
        await stack.enter_async_context(pieces.anchored(clock, database))
        control_cache = await stack.enter_async_context(pieces.fresh(ControlCache(database, clock.monotonic)))
        uses = await stack.enter_async_context(pieces.uses(database))
        storage = await stack.enter_async_context(pieces.watched_storage(settings, database))
        intake = pieces.intake(settings, database, control_cache, clock, chance, stream, storage)
        stack.push_async_callback(intake.drain)
        submission = Submission(
            admission=pieces.admission(settings, control_cache, uses, clock),
            intake=intake,
            clock=clock,
            chance=chance,
            hostname=settings.hostname,
        )
        listeners = [
            Listener(settings.submission_host, port, is_secure, is_shared=True)
            for port, is_secure in ((settings.submission_port, False), (settings.submission_tls_port, True))
            if port
        ]
        await _serve_smtp(settings, submission, listeners, stop)


async def _run_inbound(settings: Settings, stop: asyncio.Event) -> None:
    from posthouse.entrypoints.smtp.inbound import Inbound
    from posthouse.flows.inbound.reports import Reports

    clock = DatabaseClock()
    async with (
        pieces.database(settings, connections_max=INBOUND_CONNECTIONS_MAX, clock=clock) as database,
        pieces.anchored(clock, database),
        pieces.watched_storage(settings, database) as storage,
    ):
        inbound = Inbound(
            feedback=Reports(
                database=database,
                clock=clock,
                chance=SystemChance(),
                return_path_domain=settings.return_path,
                keys=[pieces.return_path_key(settings)],
                storage=storage,
            ),
            hostname=settings.hostname,
            return_path_domain=settings.return_path,
            feedback_address=settings.feedback_address,
        )
        listener = Listener(settings.inbound_host, settings.inbound_port, is_shared=True)
        await _serve_smtp(settings, inbound, [listener], stop)


async def _serve_smtp(settings: Settings, service: Service, listeners: Sequence[Listener], stop: asyncio.Event) -> None:
    try:
        tls = pieces.smtp_tls(settings)
        server = SmtpServer(service, tls=tls, bounds=pieces.smtp_bounds(settings))
        await server.listen(listeners)
    except OSError as error:
        raise NotServing(
            f"SMTP can't be served: {error}. See to the address and the certificate, in the settings submission_…, "
            "inbound_… and tls_…; ports below 1024 are for root, or a process with CAP_NET_BIND_SERVICE."
        ) from error
    await stop.wait()
    await server.drain(SMTP_DRAIN_SECONDS_MAX)


async def _run_dispatch(settings: Settings, stream: Stream, stop: asyncio.Event, *, with_calls: bool) -> None:
    clock = DatabaseClock()
    async with (
        pieces.database(settings, connections_max=DISPATCH_CONNECTIONS_MAX, clock=clock) as database,
        pieces.anchored(clock, database),
    ):
        dispatch = Dispatch(
            database=database,
            clock=clock,
            tickets=pieces.tickets(settings, stream),
            worker_lease=settings.worker_lease,
        )
        await run_dispatch(dispatch, stop, with_calls=with_calls)


async def _run_delivery(settings: Settings, stream: Stream, stop: asyncio.Event) -> None:
    clock = DatabaseClock()
    chance = SystemChance()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            pieces.database(
                settings,
                connections_max=DELIVERY_CONNECTIONS_MAX,
                statement_seconds_max=RECORD_SECONDS_MAX,
                clock=clock,
            )
        )
        renewals = await stack.enter_async_context(pieces.database(settings, connections_max=1))
        control_cache = ControlCache(database, clock.monotonic)
        signing = (
            DkimSigning(control_cache=control_cache, sealer=pieces.sealer(settings)) if settings.dkim_enabled else None
        )
        if signing is not None:
            stack.callback(signing.close)
        resolver = Resolver(settings.resolver_endpoints)
        carrier = await stack.enter_async_context(pieces.carrier(settings, resolver, chance))
        leases = await pieces.leases(settings, chance, DELIVERY_BUCKET)
        stack.push_async_callback(leases.close)
        await stack.enter_async_context(pieces.anchored(clock, database))
        await stack.enter_async_context(pieces.fresh(control_cache))
        delivery = Delivery(
            database=database,
            control_cache=control_cache,
            clock=clock,
            chance=chance,
            resolver=resolver,
            carrier=carrier,
            outgoing_mail=OutgoingMail(
                database=database,
                clock=clock,
                signing=signing,
                identity=Identity(
                    hostname=settings.hostname,
                    return_path_domain=settings.return_path,
                    return_path_key=pieces.return_path_key(settings),
                    public_url=settings.public_url,
                    unsubscribe_key=pieces.unsubscribe_key(settings),
                    feedback_address=settings.feedback_address,
                ),
            ),
            simulator_domain=settings.simulator_domain,
            lane_limits=settings.lane_limits,
            retries=settings.delivery_schedule,
            sessions_max=settings.delivery_sessions_max,
            worker_lease=settings.worker_lease,
            renewals=renewals,
            tickets=pieces.tickets(settings, stream),
        )
        # A thread that has signed waits for its turn with the interpreter. By default the event loop, when it is busy,
        # lets go of it after 5 ms: several times as long as a signature takes.
        sys.setswitchinterval(SWITCH_SECONDS)
        await run_delivery(
            delivery,
            stream,
            leases,
            shards=settings.stream_shards,
            worker_lease=settings.worker_lease,
            stop=stop,
        )


async def _run_notification(settings: Settings, stream: Stream, stop: asyncio.Event) -> None:
    from posthouse.flows.webhooks.sender import WebhookSender
    from posthouse.wire.webhook_client import (  # the HTTP client takes half a second to import
        HttpWebhookClient,
        public_tls,
    )

    clock = DatabaseClock()
    chance = SystemChance()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            pieces.database(
                settings,
                connections_max=DELIVERY_CONNECTIONS_MAX,
                statement_seconds_max=RECORD_SECONDS_MAX,
                clock=clock,
            )
        )
        renewals = await stack.enter_async_context(pieces.database(settings, connections_max=1))
        await stack.enter_async_context(pieces.anchored(clock, database))
        leases = await pieces.leases(settings, chance, NOTIFICATION_BUCKET)
        stack.push_async_callback(leases.close)
        caller = HttpWebhookClient(
            resolver=Resolver(settings.resolver_endpoints),
            may_connect=pieces.may_connect(settings, allow_loopback=settings.allow_loopback_webhooks),
            tls=public_tls(settings.webhook_authority_pem),
        )
        stack.push_async_callback(caller.close)
        notification = WebhookSender(
            database=database,
            clock=clock,
            chance=chance,
            caller=caller,
            sealer=pieces.sealer(settings),
            target_of=pieces.target_of(settings),
            worker_lease=settings.worker_lease,
            renewals=renewals,
        )
        await run_notification(notification, stream, leases, worker_lease=settings.worker_lease, stop=stop)


async def _run_upkeep(settings: Settings, stop: asyncio.Event) -> None:
    clock = DatabaseClock()
    async with pieces.database(
        settings, connections_max=4, statement_seconds_max=CHORE_SECONDS_MAX, clock=clock
    ) as database:
        resolver = Resolver(settings.resolver_endpoints)
        upkeep = pieces.upkeep(settings, database, clock, resolver, pieces.sealer(settings))

        async def round_in_database_time() -> None:
            # Days are dropped by the clock: never by that of a host whose time the database doesn't share.
            await pieces.anchor(clock, database)
            await upkeep.round()

        conduct = Reputation(database=database, clock=clock, chance=SystemChance())
        usage_counter = UsageCounter(database=database, clock=clock)
        search_indexer = SearchIndexer(database=database, clock=clock)
        async with (
            repeated(round_in_database_time, pause_seconds=UPKEEP_PAUSE_SECONDS),
            repeated(conduct.round, pause_seconds=CONDUCT_PAUSE_SECONDS),
            repeated(usage_counter.round, pause_seconds=RECKONING_PAUSE_SECONDS),
            repeated(search_indexer.round, pause_seconds=CATALOGUE_PAUSE_SECONDS),
        ):
            await stop.wait()


def _calm_garbage_collection() -> None:
    """What was loaded stays for good, and requests and mails make no cycles: look rarely, and only at what is new."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def configure_logging(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        cache_logger_on_first_use=True,
    )
    # It would log, with a traceback, what strangers wrote into their bounces.
    logging.getLogger("flufl.bounce").setLevel(logging.CRITICAL)
