"""Large answers on their way out: in pieces, and not too many at once, since a client that doesn't read holds them.

What is written to a connection stays in memory until the client takes it. A piece is written when the one before it
has gone, and a connection that takes nothing for long is closed (`connection`). Of the answers themselves only so many
bytes are on their way at a time.
"""

from typing import Final

from starlette.types import Message, Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.rules.refusal import Code, Refusal

PIECE_BYTES: Final = 64 * 1024
ON_THEIR_WAY_BYTES_MAX: Final = 96 * 1024 * 1024


class Outgoing:
    """Of one process."""

    def __init__(self) -> None:
        self._bytes = 0

    def way(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """The way out for one answer. A large one that finds no room is refused before its first byte was sent."""
        start: Message | None = None
        is_refused = False

        async def passed(message: Message) -> None:
            nonlocal start, is_refused
            if is_refused:
                return
            if message["type"] == "http.response.start":
                # Until the body is seen, it can still become a refusal.
                start = message
                return
            body = message.get("body", b"")
            is_large = len(body) > PIECE_BYTES
            if is_large and start is not None and self._bytes + len(body) > ON_THEIR_WAY_BYTES_MAX:
                is_refused = True
                await responses.error_response(scope, _no_room())(scope, receive, send)
                return
            if start is not None:
                await send(start)
                start = None
            if is_large:
                await self._in_pieces(send, message, body)
            else:
                await send(message)

        return passed

    async def _in_pieces(self, send: Send, message: Message, body: bytes) -> None:
        self._bytes += len(body)
        try:
            for begin in range(0, len(body), PIECE_BYTES):
                is_last = begin + PIECE_BYTES >= len(body)
                more = message.get("more_body", False) if is_last else True
                piece = body[begin : begin + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._bytes -= len(body)


def _no_room() -> Refusal:
    return Refusal(Code.SERVICE_UNAVAILABLE, "Too many large answers are on their way: try again soon.", 5)
