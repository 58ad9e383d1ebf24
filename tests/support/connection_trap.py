"""A listener that must see no connection."""

import asyncio


class ConnectionTrap:
    def __init__(self) -> None:
        self.connections = 0
        self.came = asyncio.Event()

    async def __aenter__(self) -> "ConnectionTrap":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.came.set()
        writer.close()
