"""What accepts mail, over HTTP and over SMTP alike: authentication, limits, and the intake."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.compose import account
from posthouse.compose.periodic_checks import refreshed
from posthouse.compose.stream import tickets
from posthouse.config import Settings
from posthouse.entrypoints.workers import repeated
from posthouse.flows.accept.accept_transaction import AcceptTransaction
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.intake import Intake
from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.accept.preparation import Preparation
from posthouse.flows.accept.resender import Resender
from posthouse.flows.accept.service_mailer import ServiceMailer
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.service_mail import NoServiceMail, ServiceMail
from posthouse.rules.limits import LAST_USED_SECONDS
from posthouse.rules.refusal import Refusal
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from posthouse.wire.stream import Stream


@asynccontextmanager
async def open_last_used(database: Database) -> AsyncIterator[LastUsed]:
    """Times of last use, written at intervals and at the end."""
    last_used = LastUsed(database)
    try:
        async with repeated(last_used.write, pause_seconds=LAST_USED_SECONDS):
            yield last_used
    finally:
        with suppress(Refusal):  # PostgreSQL may be down by then, and these times are not worth waiting for it
            await last_used.write()


def admission(settings: Settings, control_cache: ControlCache, last_used: LastUsed, clock: Clock) -> Admission:
    return Admission(
        control_cache=control_cache,
        last_used=last_used,
        clock=clock,
        peppers=settings.secrets.peppers,
        token_secrets=settings.secrets.jwt_secrets,
    )


def intake(
    settings: Settings,
    database: Database,
    control_cache: ControlCache,
    clock: Clock,
    chance: Chance,
    stream: Stream | None,
    disk_space: DiskSpace | None = None,
) -> Intake:
    return Intake(
        database=database,
        control_cache=control_cache,
        clock=clock,
        chance=chance,
        defaults=account.account_limits(settings),
        hostname=settings.service.hostname,
        fingerprint_keys=settings.secrets.peppers.keys,
        simulator_domain=settings.delivery.simulator_domain,
        tickets=None if stream is None else tickets(settings, stream),
        offers_one_click=bool(settings.http.public_url),
        captures=settings.delivery.captures,
        disk_space=disk_space,
    )


def resender(
    settings: Settings,
    database: Database,
    control_cache: ControlCache,
    clock: Clock,
    chance: Chance,
    disk_space: DiskSpace | None = None,
) -> Resender:
    """What it accepts is due at once, and dispatch finds it."""
    return Resender(
        database=database,
        control_cache=control_cache,
        clock=clock,
        chance=chance,
        preparation=Preparation(
            control_cache=control_cache,
            hostname=settings.service.hostname,
            offers_one_click=bool(settings.http.public_url),
            simulator_domain=settings.delivery.simulator_domain,
        ),
        transaction=AcceptTransaction(
            database=database, clock=clock, defaults=account.account_limits(settings), tickets=None
        ),
        captured_by=settings.delivery.simulator_domain if settings.delivery.captures else None,
        disk_space=disk_space,
    )


def service_mail(settings: Settings, intake: Intake, database: Database, clock: Clock, chance: Chance) -> ServiceMail:
    if not settings.service.sender:
        return NoServiceMail()
    return ServiceMailer(
        intake=intake,
        database=database,
        clock=clock,
        chance=chance,
        sender=settings.service.sender,
        account=settings.service.sender_account,
    )


@asynccontextmanager
async def open_service_mail(
    settings: Settings, database: Database, clock: Clock, chance: Chance, stream: Stream | None = None
) -> AsyncIterator[ServiceMail]:
    """For a process without an intake, only where it is needed: its cache asks PostgreSQL once a second."""
    if not settings.service.sender:
        yield NoServiceMail()
        return
    async with refreshed(ControlCache(database, clock.monotonic)) as control_cache:
        own_intake = intake(settings, database, control_cache, clock, chance, stream)
        yield service_mail(settings, own_intake, database, clock, chance)
        await own_intake.drain()
