"""The composition root: settings in, working objects out."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from posthouse import config
from posthouse.chance import SystemChance
from posthouse.clock import Clock, DatabaseClock
from posthouse.config import Settings
from posthouse.entrypoints.workers import repeat, repeated
from posthouse.flows.administration import Administration
from posthouse.flows.admission import Admission
from posthouse.flows.authoring import Authoring
from posthouse.flows.health import Health
from posthouse.flows.inquiry import Inquiry
from posthouse.flows.intake import Defaults, Intake
from posthouse.flows.upkeep import Retention, Upkeep
from posthouse.rules.pace import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import health
from posthouse.store.directory import Directory
from posthouse.store.postgres import STATEMENT_SECONDS_MAX, Database
from posthouse.store.postgres import UnsafeDatabase as UnsafeDatabase
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver

if TYPE_CHECKING:
    from posthouse.entrypoints.http.frame import Frame

DIRECTORY_PAUSE_SECONDS: Final = 1.0
CLOCK_PAUSE_SECONDS: Final = 5.0
UPKEEP_PAUSE_SECONDS: Final = 300.0
# Nobody waits for an answer when partitions are dropped or keys forgotten.
CHORE_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class Desk:
    """What an operator works with."""

    administration: Administration
    health: Health
    upkeep: Upkeep


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
        )


async def migrate(settings: Settings) -> None:
    """Brings the tables up to date; refuses first when PostgreSQL is away or unsafe."""
    from posthouse.store import schema  # it takes a second to import, and nothing else here needs it

    async with _database(settings, connections_max=1) as database, database.connection():
        pass
    await asyncio.to_thread(schema.migrate, settings.database_url)


def http_app() -> "Frame":
    """The HTTP application of one process, from the settings; uvicorn calls it."""
    # The web framework takes half a second to import, which no other command should wait for.
    from posthouse.entrypoints.http.app import create_app
    from posthouse.entrypoints.http.services import Services

    settings = config.load()
    configure_logging(settings.log_level)
    clock = DatabaseClock()
    chance = SystemChance()

    @asynccontextmanager
    async def open_services() -> AsyncIterator[Services]:
        async with AsyncExitStack() as stack:
            database = await stack.enter_async_context(_database(settings, clock=clock))
            directory = Directory(database, clock.monotonic)

            async def anchor() -> None:
                await _anchor(clock, database)

            await stack.enter_async_context(repeated(anchor, pause_seconds=CLOCK_PAUSE_SECONDS))
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
                ),
                inquiry=Inquiry(database=database),
                authoring=Authoring(database=database, clock=clock),
            )

    return create_app(open_services, clock, chance)


async def run_upkeep(settings: Settings) -> None:
    """Keep house until cancelled."""
    clock = DatabaseClock()
    async with _database(settings, connections_max=2, statement_seconds_max=CHORE_SECONDS_MAX, clock=clock) as database:
        resolver = Resolver(settings.resolver_endpoints)
        upkeep = _upkeep(settings, database, clock, resolver, _sealer(settings))

        async def round_in_database_time() -> None:
            # Days are dropped by the clock: never by that of a host whose time the database doesn't share.
            await _anchor(clock, database)
            await upkeep.round()

        await repeat(round_in_database_time, pause_seconds=UPKEEP_PAUSE_SECONDS)


def _calm_garbage_collection() -> None:
    """What was loaded stays for good, and a request makes no cycles: look rarely, and only at what is new."""
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
        retention=Retention(settings.retention_days_messages, settings.retention_days_bodies),
    )
