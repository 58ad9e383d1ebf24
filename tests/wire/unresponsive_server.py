"""A server that never answers: clients wait for a connection until they give up."""

import socket
from types import TracebackType
from typing import Final, Self

SHOWN_SECONDS: Final = 0.5
FILLING_MAX: Final = 8


class UnresponsiveServer:
    """Listens with a full accept queue: the kernel answers no further connection."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._host = host
        self.port = port
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        listening = socket.socket()
        self._sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((self._host, self.port))
        self.port = listening.getsockname()[1]
        listening.listen(0)
        for _ in range(FILLING_MAX):
            if self.hangs():
                return self
        self._close()
        raise RuntimeError(f"connections to {self._host} don't hang; this needs Linux")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def hangs(self) -> bool:
        """Whether a connection hangs now; one that doesn't stays open and fills the queue."""
        connecting = socket.socket()
        connecting.settimeout(SHOWN_SECONDS)
        try:
            connecting.connect((self._host, self.port))
        except TimeoutError:
            connecting.close()
            return True
        self._sockets.append(connecting)
        return False

    def _close(self) -> None:
        for opened in self._sockets:
            opened.close()
