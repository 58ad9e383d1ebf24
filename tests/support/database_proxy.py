"""A way to PostgreSQL that can be cut and mended."""

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class DatabaseProxy:
    """Carries bytes to the server of `database_url`; `url` is the same database through it."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        host = urlsplit(self._database_url).netloc.rpartition("@")[2]
        return self._database_url.replace(host, f"127.0.0.1:{self._port}")

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """No new connection, and the old ones end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._open):
            writer.transport.abort()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self._database_url)
        far_reader, far_writer = await asyncio.open_connection(parts.hostname, parts.port)
        for one in (
            asyncio.create_task(self._carry(reader, far_writer)),
            asyncio.create_task(self._carry(far_reader, writer)),
        ):
            self._carrying.add(one)
            one.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self._open.discard(writer)
            writer.close()
