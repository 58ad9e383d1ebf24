"""The part that accepts mail from customers over SMTP."""

import asyncio
from contextlib import AsyncExitStack

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.compose import accept
from posthouse.compose.database import open_database
from posthouse.compose.periodic_checks import checked_disk_space, refreshed
from posthouse.compose.smtp_server import serve_smtp
from posthouse.compose.switch_interval import prefer_event_loop
from posthouse.compose.tracing import open_tracer
from posthouse.config import Settings
from posthouse.entrypoints.smtp.server import Listener
from posthouse.entrypoints.smtp.submission import Submission
from posthouse.store.control_cache import ControlCache
from posthouse.wire.stream import Stream


async def run_submission(settings: Settings, stream: Stream | None, clock: DatabaseClock, stop: asyncio.Event) -> None:
    chance = SystemChance()
    prefer_event_loop()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(settings, clock=clock))
        control_cache = await stack.enter_async_context(refreshed(ControlCache(database, clock.monotonic)))
        last_used = await stack.enter_async_context(accept.open_last_used(database))
        disk_space = await stack.enter_async_context(checked_disk_space(settings, database))
        intake = accept.intake(settings, database, control_cache, clock, chance, stream, disk_space)
        stack.push_async_callback(intake.drain)
        submission = Submission(
            admission=accept.admission(settings, control_cache, last_used, clock),
            intake=intake,
            clock=clock,
            chance=chance,
            hostname=settings.service.hostname,
            tracer=await stack.enter_async_context(open_tracer(settings, "submission", clock, chance)),
        )
        listeners = [
            Listener(settings.submission.host, port, is_secure, is_shared=True)
            for port, is_secure in ((settings.submission.port, False), (settings.submission.tls_port, True))
            if port
        ]
        await serve_smtp(settings, submission, listeners, stop)
