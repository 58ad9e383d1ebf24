"""A client of `GET /v1/live`: reads the events of a stream one by one."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from tests.support.eventually import HANG_SECONDS
from tests.support.service import Service

PATH: Final = "/v1/live"


@dataclass(slots=True)
class LiveStream:
    response: aiohttp.ClientResponse

    async def comment(self) -> bytes:
        async with asyncio.timeout(HANG_SECONDS):
            return await self.response.content.readuntil(b"\n\n")

    async def event(self) -> tuple[str, dict[str, Any]]:
        """The next event's name and content; comments are skipped."""
        while True:
            async with asyncio.timeout(HANG_SECONDS):
                lines = (await self.response.content.readuntil(b"\n\n")).decode().splitlines()
            fields = dict(line.split(": ", 1) for line in lines if line and not line.startswith(":"))
            if fields:
                return fields["event"], json.loads(fields["data"])

    async def ready(self) -> None:
        assert (await self.event())[0] == "ready"

    async def is_closed(self) -> bool:
        """Once it has ended; nothing may come any more."""
        async with asyncio.timeout(HANG_SECONDS):
            return await self.response.content.read() == b""


@asynccontextmanager
async def open_stream(
    service: Service, authorization: str, headers: Mapping[str, str] | None = None
) -> AsyncIterator[LiveStream]:
    given = {"Authorization": authorization, **(headers or {})}
    timeout = aiohttp.ClientTimeout(total=None)
    async with service.client.get(service.url + PATH, headers=given, timeout=timeout) as response:
        yield LiveStream(response)
