"""A TCP proxy on the loopback whose connections a test can slow down, pause, reset or refuse."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from posthouse.rules.refusal import Refusal
from posthouse.store.postgres import Connection, Database
from tests.support.eventually import eventually

PIECE_BYTES: Final = 65_536


class TcpProxy:
    """Copies bytes to `host:server_port` and back; clients connect to `port`."""

    def __init__(self, server_port: int, host: str = "127.0.0.1") -> None:
        self.port = 0
        self.delay_seconds = 0.0
        self._host = host
        self._server_port = server_port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._copying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_listening()
        self.reset()
        for task in self._copying:
            task.cancel()
        await asyncio.gather(*self._copying, return_exceptions=True)

    async def cut(self) -> None:
        """Refuses new connections and resets those that are open."""
        self._stop_listening()
        self.reset()
        await asyncio.gather(*self._copying, return_exceptions=True)

    async def restore(self) -> None:
        """Listens again, at the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def pause(self) -> None:
        """Copies nothing; connections stay open, and new ones are accepted."""
        self._is_open.clear()

    def resume(self) -> None:
        self._is_open.set()

    def reset(self) -> None:
        """Resets every connection."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(self._host, self._server_port)
        except OSError:
            writer.transport.abort()
            return
        for streams in ((reader, server_writer), (server_reader, writer)):
            task = asyncio.create_task(self._copy(*streams))
            self._copying.add(task)
            task.add_done_callback(self._copying.discard)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(PIECE_BYTES):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()
        except (OSError, RuntimeError):
            pass
        finally:
            self._writers.discard(writer)
            with contextlib.suppress(RuntimeError):
                writer.close()


class DatabaseProxy(TcpProxy):
    """In front of PostgreSQL; `url` leads through it to the database of `database_url`."""

    def __init__(self, database_url: str) -> None:
        address = urlsplit(database_url)
        super().__init__(address.port or 5432, address.hostname or "127.0.0.1")
        self._database_url = database_url

    @property
    def url(self) -> str:
        host = urlsplit(self._database_url).netloc.rpartition("@")[2]
        return self._database_url.replace(host, f"127.0.0.1:{self.port}")


class FarDatabase(Database):
    """The database at the other end of a way that can be cut; counts how often it could not be reached."""

    refusals = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        try:
            async with super().connection() as connection:
                yield connection
        except Refusal:
            self.refusals += 1
            raise

    async def refuses(self, times: int = 1) -> None:
        """Returns when it could not be reached this many times more."""
        wanted = self.refusals + times
        await eventually(lambda: self.refusals, lambda number: number >= wanted, within=times * 5.0)


@asynccontextmanager
async def open_far_database(proxy: DatabaseProxy) -> AsyncIterator[FarDatabase]:
    far = await FarDatabase.open(proxy.url)
    assert isinstance(far, FarDatabase)
    try:
        yield far
    finally:
        await far.close()


async def _copy_forever(port: int, server_port: int) -> None:
    proxy = TcpProxy(server_port)
    proxy.port = port
    async with proxy:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_copy_forever(int(sys.argv[1]), int(sys.argv[2])))
