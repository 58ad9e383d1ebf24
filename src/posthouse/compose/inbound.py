"""The part that receives bounces and complaints over SMTP."""

import asyncio
from typing import Final

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.compose.connections import resolver
from posthouse.compose.database import open_database
from posthouse.compose.keys import return_path_keys
from posthouse.compose.periodic_checks import checked_disk_space
from posthouse.compose.smtp_server import serve_smtp
from posthouse.config import Settings
from posthouse.entrypoints.smtp.inbound import Inbound
from posthouse.entrypoints.smtp.server import Listener
from posthouse.flows.inbound.complaint_check import ComplaintCheck
from posthouse.flows.inbound.reports import Reports

CONNECTIONS_MAX: Final = 4


async def run_inbound(settings: Settings, clock: DatabaseClock, stop: asyncio.Event) -> None:
    async with (
        open_database(settings, connections_max=CONNECTIONS_MAX, clock=clock) as database,
        checked_disk_space(settings, database) as disk_space,
    ):
        inbound = Inbound(
            reports=Reports(
                database=database,
                clock=clock,
                chance=SystemChance(),
                return_path_domain=settings.return_path,
                keys=return_path_keys(settings),
                complaint_check=ComplaintCheck(resolver=resolver(settings), loops=settings.inbound.loops),
                feedback_address=settings.inbound.feedback_address,
                disk_space=disk_space,
            ),
            hostname=settings.service.hostname,
            return_path_domain=settings.return_path,
            feedback_address=settings.inbound.feedback_address,
        )
        listener = Listener(settings.inbound.host, settings.inbound.port, is_shared=True)
        await serve_smtp(settings, inbound, [listener], stop)
