"""Our SMTP server in its own process, with short deadlines and a recording service; it prints its port.

python -m tests.faults.short_deadline_server
"""

import asyncio

import uvloop

from posthouse.entrypoints.smtp.connection import Bounds, ServerDeadlines
from tests.support.smtp_service import RecordingService, run_smtp_server

DEADLINES = ServerDeadlines(command_seconds=4.0, authentication_seconds=6.0, content_seconds=4.0, check_seconds=0.5)


async def serve() -> None:
    async with run_smtp_server(
        RecordingService(), bounds=Bounds(connections_max=600, connections_per_address_max=450), deadlines=DEADLINES
    ) as server:
        print(server.ports[0], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve())
