"""The composition root: settings in, working objects out."""

import asyncio
import gc
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import structlog

from posthouse import config
from posthouse.chance import Chance, SystemChance
from posthouse.clock import Clock, DatabaseClock
from posthouse.config import Settings
from posthouse.entrypoints.workers import repeated, run_delivery, run_dispatch, run_notification
from posthouse.flows.administration import Administration
from posthouse.flows.admission import Admission
from posthouse.flows.authoring import Authoring
from posthouse.flows.delivery import Delivery
from posthouse.flows.dispatch import Dispatch
from posthouse.flows.health import Health
from posthouse.flows.inquiry import Inquiry
from posthouse.flows.intake import Defaults, Intake
from posthouse.flows.letters import Identity, Letters
from posthouse.flows.oversight import Oversight
from posthouse.flows.signing import Signing
from posthouse.flows.subscription import Subscription
from posthouse.flows.tickets import Tickets
from posthouse.flows.upkeep import Retention, Upkeep
from posthouse.rules.endpoint import Address, Target, check_url, is_public
from posthouse.rules.pace import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import health
from posthouse.store.directory import Directory
from posthouse.store.postgres import STATEMENT_SECONDS_MAX, Database
from posthouse.store.postgres import UnsafeDatabase as UnsafeDatabase
from posthouse.store.seal import Sealer
from posthouse.wire.carrier import SmtpCarrier
from posthouse.wire.dns import Resolver
from posthouse.wire.smtp import TlsPolicy, TlsUse
from posthouse.wire.stream import Leases, Stream, StreamSettings
from posthouse.wire.stream.memory import AllShards, MemoryStream

if TYPE_CHECKING:
    from posthouse.entrypoints.http.frame import Frame

DIRECTORY_PAUSE_SECONDS: Final = 1.0
CLOCK_PAUSE_SECONDS: Final = 5.0
UPKEEP_PAUSE_SECONDS: Final = 300.0
SWITCH_SECONDS: Final = 0.0002
DELIVERY_BUCKET: Final = "SHARDS"
NOTIFICATION_BUCKET: Final = "NOTIFY_SHARDS"
URLS_JUDGED_MAX: Final = 10_000
IDLE_PAUSE_SECONDS: Final = 5.0
# Nobody waits for an answer when partitions are dropped or keys forgotten.
CHORE_SECONDS_MAX: Final = 30.0
# Nor when outcomes are recorded; but what takes longer than this holds up everything behind it.
RECORD_SECONDS_MAX: Final = 10.0
DELIVERY_CONNECTIONS_MAX: Final = 6
DISPATCH_CONNECTIONS_MAX: Final = 2
# Workers say that they are still at it every 20 seconds; a ticket whose worker is gone comes again after this.
ACK_WAIT_SECONDS: Final = 90.0
WORKER_NAME_BYTES: Final = 8


class NotServing(RuntimeError):  # noqa: N818 (reads as what it says)
    """HTTP can't be served at the address given."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What an operator works with."""

    administration: Administration
    health: Health
    upkeep: Upkeep
    oversight: Oversight


@asynccontextmanager
async def operator(settings: Settings, *, for_check_up: bool = False) -> AsyncIterator[Desk]:
    """The operator's desk; a check-up may look even at a database that mail may not use."""
    async with _database(
        settings, connections_max=2, statement_seconds_max=CHORE_SECONDS_MAX, allow_unsafe=for_check_up
    ) as database:
        clock = DatabaseClock()
        # Changes are stamped with the time that the servers' caches compare with: the database's.
        try:
            await _anchor(clock, database)
            await _require_tables(database)
        except Refusal:
            if not for_check_up:  # which wants to report this, among the rest
                raise
        chance = SystemChance()
        sealer = _sealer(settings)
        resolver = Resolver(settings.resolver_endpoints)
        yield Desk(
            administration=Administration(
                database=database,
                clock=clock,
                chance=chance,
                sealer=sealer,
                pepper=settings.pepper_bytes,
                resolver=resolver,
            ),
            health=Health(database=database, clock=clock, sealer=sealer),
            upkeep=_upkeep(settings, database, clock, resolver, sealer),
            oversight=Oversight(database=database, clock=clock),
        )


async def migrate(settings: Settings) -> None:
    """Brings the tables up to date; refuses first when PostgreSQL is away or unsafe."""
    from posthouse.store import schema  # it takes a second to import, and nothing else here needs it

    async with _database(settings, connections_max=1) as database, database.connection():
        pass
    await asyncio.to_thread(schema.migrate, settings.database_url)


def http_app() -> "Frame":
    """The HTTP application of a process that does nothing else, from the settings; uvicorn calls it."""
    settings = config.load()
    configure_logging(settings.log_level)
    # Without a stream between processes, nobody would get its tickets: its mail is due at once.
    return _http_app(settings, lambda: _stream(settings, "http", or_memory=False))


def serve_http(settings: Settings, address: tuple[str, int], processes: int) -> None:
    """HTTP alone, in so many processes, until a signal says stop."""
    from posthouse.entrypoints.http.server import Listening, serve

    serve("posthouse.bootstrap:http_app", Listening(*address, settings.trusted_proxies, settings.log_level), processes)


async def run(
    settings: Settings, parts: frozenset[str], http_address: tuple[str, int] | None, stop: asyncio.Event
) -> None:
    """The parts of the service in one process, on one event loop and one stream, until told to stop.

    When one part ends, for whatever reason, all end, each in its own order; then the first fault is raised.
    """
    configure_logging(settings.log_level)
    needs_stream = parts - {"upkeep"}
    async with (
        _stream(settings, "-".join(sorted(needs_stream)), or_memory="delivery" in parts)
        if needs_stream
        else nullcontext()
    ) as stream:
        running: list[Coroutine[object, object, None]] = []
        if http_address is not None:
            running.append(_run_http(settings, stream, http_address, stop))
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
            database = await stack.enter_async_context(_database(settings, clock=clock))
            directory = Directory(database, clock.monotonic)
            await stack.enter_async_context(_anchored(clock, database))
            await stack.enter_async_context(repeated(directory.forget_changes, pause_seconds=DIRECTORY_PAUSE_SECONDS))
            _calm_garbage_collection()
            yield Services(
                admission=Admission(
                    database=database,
                    directory=directory,
                    clock=clock,
                    chance=chance,
                    pepper=settings.pepper_bytes,
                    token_secret=settings.jwt_secret.get_secret_value(),
                ),
                intake=Intake(
                    database=database,
                    directory=directory,
                    clock=clock,
                    chance=chance,
                    defaults=Defaults(
                        rate=Rate(settings.rate_per_second, settings.rate_burst),
                        warmup_limits=settings.warmup_limits if settings.warmup_enabled else None,
                    ),
                    hostname=settings.hostname,
                    fingerprint_key=settings.pepper_bytes,
                    simulator_domain=settings.simulator_domain,
                    tickets=None if stream is None else _tickets(settings, stream),
                ),
                inquiry=Inquiry(database=database),
                authoring=Authoring(database=database, clock=clock),
                subscription=Subscription(
                    database=database,
                    clock=clock,
                    chance=chance,
                    sealer=_sealer(settings),
                    tickets=None if stream is None else _tickets(settings, stream),
                    check=target_of(settings),
                ),
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


async def _run_dispatch(settings: Settings, stream: Stream, stop: asyncio.Event, *, with_calls: bool) -> None:
    clock = DatabaseClock()
    async with (
        _database(settings, connections_max=DISPATCH_CONNECTIONS_MAX, clock=clock) as database,
        _anchored(clock, database),
    ):
        dispatch = Dispatch(
            database=database, clock=clock, tickets=_tickets(settings, stream), worker_lease=settings.worker_lease
        )
        await run_dispatch(dispatch, stop, with_calls=with_calls)


async def _run_delivery(settings: Settings, stream: Stream, stop: asyncio.Event) -> None:
    clock = DatabaseClock()
    chance = SystemChance()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            _database(
                settings,
                connections_max=DELIVERY_CONNECTIONS_MAX,
                statement_seconds_max=RECORD_SECONDS_MAX,
                clock=clock,
            )
        )
        directory = Directory(database, clock.monotonic)
        signing = Signing(directory=directory, sealer=_sealer(settings)) if settings.dkim_enabled else None
        if signing is not None:
            stack.callback(signing.close)
        resolver = Resolver(settings.resolver_endpoints)
        carrier = await stack.enter_async_context(_carrier(settings, resolver, chance))
        leases = await _leases(settings, chance, DELIVERY_BUCKET)
        stack.push_async_callback(leases.close)
        await stack.enter_async_context(_anchored(clock, database))
        await stack.enter_async_context(repeated(directory.forget_changes, pause_seconds=DIRECTORY_PAUSE_SECONDS))
        delivery = Delivery(
            database=database,
            directory=directory,
            clock=clock,
            chance=chance,
            resolver=resolver,
            carrier=carrier,
            letters=Letters(
                database=database,
                clock=clock,
                signing=signing,
                identity=Identity(
                    hostname=settings.hostname,
                    return_path_domain=settings.return_path,
                    return_path_key=_return_path_key(settings),
                ),
            ),
            simulator_domain=settings.simulator_domain,
            lane_limits=settings.lane_limits,
            retries=settings.delivery_schedule,
            sessions_max=settings.delivery_sessions_max,
            worker_lease=settings.worker_lease,
            tickets=_tickets(settings, stream),
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
    from posthouse.flows.notification import Notification
    from posthouse.wire.caller import HttpCaller, public_tls  # the HTTP client takes half a second to import

    clock = DatabaseClock()
    chance = SystemChance()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            _database(
                settings,
                connections_max=DELIVERY_CONNECTIONS_MAX,
                statement_seconds_max=RECORD_SECONDS_MAX,
                clock=clock,
            )
        )
        await stack.enter_async_context(_anchored(clock, database))
        leases = await _leases(settings, chance, NOTIFICATION_BUCKET)
        stack.push_async_callback(leases.close)
        caller = HttpCaller(
            resolver=Resolver(settings.resolver_endpoints),
            may_connect=_may_connect(settings, allow_loopback=settings.allow_loopback_webhooks),
            tls=public_tls(settings.webhook_authority_pem),
        )
        stack.push_async_callback(caller.close)
        notification = Notification(
            database=database,
            clock=clock,
            chance=chance,
            caller=caller,
            sealer=_sealer(settings),
            target_of=target_of(settings),
            worker_lease=settings.worker_lease,
        )
        await run_notification(notification, stream, leases, worker_lease=settings.worker_lease, stop=stop)


def target_of(settings: Settings) -> Callable[[str], Target]:
    """How a webhook's URL is judged, when it is saved and whenever it is called."""
    own_domains = (settings.hostname, settings.return_path, *settings.own_domains)
    own_addresses = frozenset(map(ip_address, settings.own_addresses))

    @lru_cache(URLS_JUDGED_MAX)
    def judge(url: str) -> Target:
        return check_url(url, own_domains=own_domains, own_addresses=own_addresses, ports=settings.webhook_ports)

    return judge


async def _run_upkeep(settings: Settings, stop: asyncio.Event) -> None:
    clock = DatabaseClock()
    async with _database(settings, connections_max=2, statement_seconds_max=CHORE_SECONDS_MAX, clock=clock) as database:
        resolver = Resolver(settings.resolver_endpoints)
        upkeep = _upkeep(settings, database, clock, resolver, _sealer(settings))

        async def round_in_database_time() -> None:
            # Days are dropped by the clock: never by that of a host whose time the database doesn't share.
            await _anchor(clock, database)
            await upkeep.round()

        async with repeated(round_in_database_time, pause_seconds=UPKEEP_PAUSE_SECONDS):
            await stop.wait()


@asynccontextmanager
async def _stream(settings: Settings, name: str, *, or_memory: bool) -> AsyncIterator[Stream | None]:
    """The stream between processes, if there is one; else the one within this process, if that is of use."""
    chosen = StreamSettings(replicas=settings.stream_replicas, ack_wait_seconds=ACK_WAIT_SECONDS)
    stream: Stream
    if settings.stream_servers:
        from posthouse.wire.stream.jetstream import JetStream  # its client takes a while to import

        stream = await JetStream.open(settings.stream_servers, chosen, name=f"posthouse-{name}")
    elif or_memory:
        stream = MemoryStream(chosen)
    else:
        yield None
        return
    try:
        yield stream
    finally:
        await stream.close()


def _tickets(settings: Settings, stream: Stream) -> Tickets:
    return Tickets(stream, settings.stream_shards, settings.ticket_lease)


async def _leases(settings: Settings, chance: Chance, bucket: str) -> Leases:
    if not settings.stream_servers:
        return AllShards(settings.stream_shards)
    from posthouse.wire.stream.leases import LeaseSettings, ShardLeases

    return await ShardLeases.open(
        settings.stream_servers,
        chance.bytes(WORKER_NAME_BYTES).hex(),
        settings.stream_shards,
        LeaseSettings(replicas=settings.stream_replicas, bucket=bucket),
    )


@asynccontextmanager
async def _carrier(settings: Settings, resolver: Resolver, chance: Chance) -> AsyncIterator[SmtpCarrier]:
    carrier = SmtpCarrier(
        resolver=resolver,
        chance=chance,
        hostname=settings.hostname,
        tls=_opportunistic_tls(),
        may_connect=_may_connect(settings, allow_loopback=settings.allow_loopback_destinations),
        port=settings.smtp_port,
    )
    loop = asyncio.get_running_loop()

    async def close_idle() -> None:
        carrier.close_idle(loop.time())

    async with repeated(close_idle, pause_seconds=IDLE_PAUSE_SECONDS):
        yield carrier
    carrier.close_idle(loop.time(), all_of_them=True)


def _may_connect(settings: Settings, *, allow_loopback: bool) -> Callable[[Address], bool]:
    ours = frozenset(map(ip_address, settings.own_addresses))

    def may_connect(address: Address) -> bool:
        return is_public(address, ours) or (allow_loopback and address.is_loopback)

    return may_connect


def _opportunistic_tls() -> TlsPolicy:
    """Whoever listens is better than everybody who listens: no certificate is asked for what nobody demanded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return TlsPolicy(TlsUse.OPPORTUNISTIC, context)


def _return_path_key(settings: Settings) -> bytes:
    """Of its own, so that a return path tells nothing about what else the pepper keys."""
    return blake2b(key=blake2b(settings.pepper_bytes).digest(), person=b"return path", digest_size=32).digest()


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


@asynccontextmanager
async def _database(
    settings: Settings,
    *,
    connections_max: int | None = None,
    statement_seconds_max: float = STATEMENT_SECONDS_MAX,
    allow_unsafe: bool = False,
    clock: DatabaseClock | None = None,
) -> AsyncIterator[Database]:
    database = await Database.open(
        settings.database_url,
        connections_max=connections_max or settings.database_pool_max,
        statement_seconds_max=statement_seconds_max,
        allow_unsafe=allow_unsafe or settings.allow_unsafe_database,
        learn_time=None if clock is None else clock.anchor,
    )
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def _anchored(clock: DatabaseClock, database: Database) -> AsyncIterator[None]:
    async def anchor() -> None:
        await _anchor(clock, database)

    async with repeated(anchor, pause_seconds=CLOCK_PAUSE_SECONDS):
        yield


async def _anchor(clock: DatabaseClock, database: Database) -> None:
    async with database.connection() as connection:
        asked_at = clock.monotonic()
        clock.anchor(await connection.fetchval("SELECT clock_timestamp()"), asked_at)


async def _require_tables(database: Database) -> None:
    async with database.connection() as connection:
        if not (await health.server(connection)).has_tables:
            raise Refusal(Code.SERVICE_UNAVAILABLE, "The database has no tables yet: run `posthouse migrate`.")


def _sealer(settings: Settings) -> Sealer:
    return Sealer(settings.seal_key_bytes, settings.seal_key_active)


def _upkeep(settings: Settings, database: Database, clock: Clock, resolver: Resolver, sealer: Sealer) -> Upkeep:
    return Upkeep(
        sealer=sealer,
        database=database,
        clock=clock,
        resolver=resolver,
        retention=Retention(
            settings.retention_days_messages, settings.retention_days_bodies, settings.retention_days_webhooks
        ),
    )
