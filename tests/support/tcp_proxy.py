"""A strait between a process and a server: what passes can be slowed, held back, or sunk."""

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

PIECE_BYTES: Final = 65_536


class TcpProxy:
    """Carries bytes to `port` on the loopback; its own is `here`."""

    def __init__(self, port: int) -> None:
        self.here = 0
        self.delay_seconds = 0.0
        self._port = port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.here = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.sink()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def close(self) -> None:
        """Nothing passes; connections stay, and new ones are taken and left alone."""
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def sink(self) -> None:
        """Every connection is reset."""
        for writer in tuple(self._ways):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        for way in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._carry(*way))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ways.add(writer)
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
            self._ways.discard(writer)
            with contextlib.suppress(RuntimeError):
                writer.close()
