"""Assembly: what the parts of the service are put together from, each piece made from the settings."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock, DatabaseClock
from posthouse.config import Settings
from posthouse.entrypoints.smtp.connection import Bounds
from posthouse.entrypoints.smtp.tls import TlsFiles
from posthouse.entrypoints.workers import repeated
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.dry_run import DryRun, Surroundings
from posthouse.flows.accept.intake import Intake
from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.account.credentials import Credentials
from posthouse.flows.account.domains import Domains
from posthouse.flows.account.passwords import Passwords
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.account.team import Team
from posthouse.flows.operate.upkeep import Retention, Upkeep
from posthouse.flows.shared.account_limits import Defaults
from posthouse.flows.shared.disk_space import DiskSpace, size, volume
from posthouse.flows.shared.tickets import Tickets
from posthouse.rules.limits import LAST_USED_SECONDS
from posthouse.rules.public_address import Address, is_public
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.webhook_url import WebhookTarget, check_url
from posthouse.store import revision
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import STATEMENT_SECONDS_MAX, Database
from posthouse.store.seal import Sealer
from posthouse.wire.carrier import SmtpCarrier
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Leases, Stream, StreamSettings, without_password
from posthouse.wire.stream.memory import AllShards, MemoryStream
from posthouse.wire.tls import TlsPolicy, TlsUse

CLOCK_PAUSE_SECONDS: Final = 5.0
DIRECTORY_PAUSE_SECONDS: Final = 1.0
# What comes in meanwhile has to find room below the mark.
STORAGE_PAUSE_SECONDS: Final = 3.0
IDLE_PAUSE_SECONDS: Final = 5.0
URLS_JUDGED_MAX: Final = 10_000
# Workers say that they are still at it every 20 seconds; a ticket whose worker is gone comes again after this.
ACK_WAIT_SECONDS: Final = 90.0
WORKER_NAME_BYTES: Final = 8


def target_of(settings: Settings) -> Callable[[str], WebhookTarget]:
    """How a webhook's URL is judged, when it is saved and whenever it is called."""
    own_domains = (settings.hostname, settings.return_path, *settings.own_domains)
    own_addresses = frozenset(map(ip_address, settings.own_addresses))

    @lru_cache(URLS_JUDGED_MAX)
    def judge(url: str) -> WebhookTarget:
        return check_url(url, own_domains=own_domains, own_addresses=own_addresses, ports=settings.webhook_ports)

    return judge


@asynccontextmanager
async def stream(settings: Settings, name: str, *, or_memory: bool) -> AsyncIterator[Stream | None]:
    """The stream between processes, if there is one; else the one within this process, if that is of use."""
    chosen = StreamSettings(replicas=settings.stream_replicas, ack_wait_seconds=ACK_WAIT_SECONDS)
    opened: Stream
    if settings.stream_servers:
        from posthouse.wire.stream.jetstream import JetStream  # its client takes a while to import

        opened = await JetStream.open(settings.stream_servers, chosen, name=f"posthouse-{name}")
    elif or_memory:
        opened = MemoryStream(chosen)
    else:
        yield None
        return
    try:
        yield opened
    finally:
        await opened.close()


def stream_probes(settings: Settings) -> Mapping[str, Callable[[], Awaitable[str]]]:
    """What asks each server of the stream whether it can be used; none for a stream in memory."""

    async def ask(server: str) -> str:
        from posthouse.wire.stream.probe import probe

        return await probe(server)

    return {without_password(server): partial(ask, server) for server in settings.stream_servers}


def tickets(settings: Settings, stream: Stream) -> Tickets:
    return Tickets(stream, settings.stream_shards, settings.ticket_lease)


async def leases(settings: Settings, chance: Chance, bucket: str) -> Leases:
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
async def carrier(settings: Settings, resolver: Resolver, chance: Chance) -> AsyncIterator[SmtpCarrier]:
    made = SmtpCarrier(
        resolver=resolver,
        chance=chance,
        hostname=settings.hostname,
        tls=opportunistic_tls(),
        may_connect=may_connect(settings, allow_loopback=settings.allow_loopback_destinations),
        port=settings.smtp_port,
    )
    loop = asyncio.get_running_loop()

    async def close_idle() -> None:
        made.close_idle(loop.time())

    async with repeated(close_idle, pause_seconds=IDLE_PAUSE_SECONDS):
        yield made
    made.close_idle(loop.time(), all_of_them=True)


def may_connect(settings: Settings, *, allow_loopback: bool) -> Callable[[Address], bool]:
    ours = frozenset(map(ip_address, settings.own_addresses))

    def may(address: Address) -> bool:
        return is_public(address, ours) or (allow_loopback and address.is_loopback)

    return may


def smtp_tls(settings: Settings) -> TlsFiles | None:
    """The certificate of our SMTP servers; an OSError when its files can't be used."""
    if not settings.tls_certificate_file:
        return None
    return TlsFiles(Path(settings.tls_certificate_file), Path(settings.tls_key_file))


def smtp_bounds(settings: Settings) -> Bounds:
    return Bounds(
        connections_max=settings.smtp_connections_max,
        connections_per_address_max=settings.smtp_connections_per_address_max,
    )


def opportunistic_tls() -> TlsPolicy:
    """Whoever listens is better than everybody who listens: no certificate is asked for what nobody demanded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return TlsPolicy(TlsUse.OPPORTUNISTIC, context)


def return_path_key(settings: Settings) -> bytes:
    return _key_for(b"return path", settings)


def unsubscribe_key(settings: Settings) -> bytes:
    return _key_for(b"unsubscribe", settings)


def _key_for(purpose: bytes, settings: Settings) -> bytes:
    """Of its own, so that what it signs tells nothing about what else the pepper keys."""
    return blake2b(key=blake2b(settings.pepper_bytes).digest(), person=purpose, digest_size=32).digest()


@asynccontextmanager
async def database(
    settings: Settings,
    *,
    connections_max: int | None = None,
    statement_seconds_max: float = STATEMENT_SECONDS_MAX,
    allow_unsafe: bool = False,
    clock: DatabaseClock | None = None,
) -> AsyncIterator[Database]:
    opened = await Database.open(
        settings.database_url,
        connections_max=connections_max or settings.database_pool_max,
        statement_seconds_max=statement_seconds_max,
        patience=settings.database_patience,
        allow_unsafe=allow_unsafe or settings.allow_unsafe_database,
        learn_time=None if clock is None else clock.anchor,
    )
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def anchored(clock: DatabaseClock, database: Database) -> AsyncIterator[None]:
    async def again() -> None:
        await anchor(clock, database)

    async with repeated(again, pause_seconds=CLOCK_PAUSE_SECONDS):
        yield


async def anchor(clock: DatabaseClock, database: Database) -> None:
    async with database.connection() as connection:
        asked_at = clock.monotonic()
        clock.anchor(await connection.fetchval("SELECT clock_timestamp()"), asked_at)


async def require_tables(database: Database) -> None:
    async with database.connection() as connection:
        applied, newest = await revision.applied(connection), revision.newest()
    if applied is None:
        raise Refusal(Code.SERVICE_UNAVAILABLE, "The database has no tables yet: run `posthouse migrate`.")
    if applied < newest:
        text = f"The database's tables are older than this version ({applied}, not {newest}): run `posthouse migrate`."
        raise Refusal(Code.SERVICE_UNAVAILABLE, text)


@asynccontextmanager
async def fresh(control_cache: ControlCache) -> AsyncIterator[ControlCache]:
    """The directory, which hears of changes within a second or two."""
    async with repeated(control_cache.forget_changes, pause_seconds=DIRECTORY_PAUSE_SECONDS):
        yield control_cache


@asynccontextmanager
async def uses(database: Database) -> AsyncIterator[LastUsed]:
    """What is remembered of uses is written now and then, and at the end."""
    remembered = LastUsed(database)
    try:
        async with repeated(remembered.write, pause_seconds=LAST_USED_SECONDS):
            yield remembered
    finally:
        with suppress(Refusal):  # PostgreSQL may be away by then, and this isn't worth waiting for it
            await remembered.write()


def storage(settings: Settings, database: Database) -> DiskSpace:
    gauges = []
    if settings.storage_directory:
        gauges.append(volume(settings.storage_directory, settings.storage_free_bytes_min))
    if settings.storage_bytes_max:
        gauges.append(size(database, settings.storage_bytes_max))
    return DiskSpace(gauges)


@asynccontextmanager
async def watched_storage(settings: Settings, database: Database) -> AsyncIterator[DiskSpace]:
    """Storage that knows whether there is room, give or take a few seconds."""
    made = storage(settings, database)
    if not made.gauges:
        yield made
        return
    async with repeated(made.check, pause_seconds=STORAGE_PAUSE_SECONDS):
        yield made


def admission(settings: Settings, control_cache: ControlCache, uses: LastUsed, clock: Clock) -> Admission:
    return Admission(
        control_cache=control_cache,
        uses=uses,
        clock=clock,
        pepper=settings.pepper_bytes,
        token_secret=settings.jwt_secret.get_secret_value(),
    )


def passwords(settings: Settings, database: Database, clock: Clock, chance: Chance) -> Passwords:
    return Passwords(
        database=database, clock=clock, chance=chance, sealer=sealer(settings), pepper=settings.pepper_bytes
    )


def sessions(settings: Settings, database: Database, clock: Clock, chance: Chance, passwords: Passwords) -> Sessions:
    return Sessions(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        sealer=sealer(settings),
        pepper=settings.pepper_bytes,
        token_secret=settings.jwt_secret.get_secret_value(),
    )


def team(settings: Settings, database: Database, clock: Clock, chance: Chance, passwords: Passwords) -> Team:
    return Team(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        pepper=settings.pepper_bytes,
        public_url=settings.public_url,
    )


def defaults(settings: Settings) -> Defaults:
    return Defaults(
        rate=Rate(settings.rate_per_second, settings.rate_burst),
        warmup_limits=settings.warmup_limits if settings.warmup_enabled else None,
    )


def intake(
    settings: Settings,
    database: Database,
    control_cache: ControlCache,
    clock: Clock,
    chance: Chance,
    stream: Stream | None,
    storage: DiskSpace | None = None,
) -> Intake:
    return Intake(
        database=database,
        control_cache=control_cache,
        clock=clock,
        chance=chance,
        defaults=defaults(settings),
        hostname=settings.hostname,
        fingerprint_key=settings.pepper_bytes,
        simulator_domain=settings.simulator_domain,
        tickets=None if stream is None else tickets(settings, stream),
        offers_one_click=bool(settings.public_url),
        storage=storage,
    )


def dry_run(
    settings: Settings, database: Database, control_cache: ControlCache, clock: Clock, chance: Chance
) -> DryRun:
    return DryRun(
        database=database,
        control_cache=control_cache,
        clock=clock,
        chance=chance,
        resolver=Resolver(settings.resolver_endpoints),
        defaults=defaults(settings),
        surroundings=Surroundings(
            hostname=settings.hostname,
            return_path_domain=settings.return_path,
            simulator_domain=settings.simulator_domain,
            offers_one_click=bool(settings.public_url),
            signs=settings.dkim_enabled,
        ),
    )


def sealer(settings: Settings) -> Sealer:
    return Sealer(settings.seal_key_bytes, settings.seal_key_active)


def domains(settings: Settings, database: Database, clock: Clock, chance: Chance) -> Domains:
    return Domains(
        database=database,
        clock=clock,
        chance=chance,
        sealer=sealer(settings),
        resolver=Resolver(settings.resolver_endpoints),
        return_path=settings.return_path,
    )


def credentials(settings: Settings, database: Database, clock: Clock, chance: Chance) -> Credentials:
    return Credentials(database=database, clock=clock, chance=chance, pepper=settings.pepper_bytes)


def upkeep(settings: Settings, database: Database, clock: Clock, resolver: Resolver, sealer: Sealer) -> Upkeep:
    return Upkeep(
        sealer=sealer,
        database=database,
        clock=clock,
        resolver=resolver,
        retention=Retention(
            settings.retention_days_messages, settings.retention_days_bodies, settings.retention_days_webhooks
        ),
    )
