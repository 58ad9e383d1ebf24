"""Limits the memory of large responses: they are sent in pieces, and only so many bytes of them at a time.

Bytes written to a connection stay in memory until the client reads them. A piece is written when the one before it
has gone, and a connection whose client reads too slowly is closed (`connection`).
"""

from typing import Final

from starlette.types import Message, Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.rules.refusal import Code, Refusal

PIECE_BYTES: Final = 64 * 1024
SENDING_BYTES_MAX: Final = 96 * 1024 * 1024


class ResponseLimits:
    """Of one process."""

    def __init__(self) -> None:
        self._sending_bytes = 0

    def limited(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """A `send` for one response. A large response that finds no room is refused before its first byte is sent."""
        start: Message | None = None
        is_refused = False

        async def send_limited(message: Message) -> None:
            nonlocal start, is_refused
            if is_refused:
                return
            if message["type"] == "http.response.start":
                # Held back until the size of the body is known: it may still become a refusal.
                start = message
                return
            body = message.get("body", b"")
            is_large = len(body) > PIECE_BYTES
            if is_large and start is not None and self._sending_bytes + len(body) > SENDING_BYTES_MAX:
                is_refused = True
                await responses.error_response(scope, _no_room())(scope, receive, send)
                return
            if start is not None:
                await send(start)
                start = None
            if is_large:
                await self._send_in_pieces(send, message, body)
            else:
                await send(message)

        return send_limited

    async def _send_in_pieces(self, send: Send, message: Message, body: bytes) -> None:
        self._sending_bytes += len(body)
        try:
            for begin in range(0, len(body), PIECE_BYTES):
                is_last = begin + PIECE_BYTES >= len(body)
                more = message.get("more_body", False) if is_last else True
                piece = body[begin : begin + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._sending_bytes -= len(body)


def _no_room() -> Refusal:
    return Refusal(Code.SERVICE_UNAVAILABLE, "Too many large answers are on their way: try again soon.", 5)
