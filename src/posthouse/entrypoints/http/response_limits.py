"""Limits the memory of large responses: they are sent in pieces, and only so many bytes of them at a time.

Bytes written to a connection stay in memory until the client reads them. A piece is written when the one before it
has gone, and a connection whose client reads too slowly is closed (`connection`). Each address has a share of them, so
that clients that read slowly take nothing from others.
"""

from typing import Final

from starlette.types import Message, Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.peer import network_of
from posthouse.rules.fair_share import FairShare
from posthouse.rules.refusal import Code, Refusal

PIECE_BYTES: Final = 64 * 1024
SENDING_BYTES_MAX: Final = 96 * 1024 * 1024
# An address may always have a single answer of this size, while there is room.
ANSWER_BYTES: Final = 16 * 1024 * 1024


class ResponseLimits:
    """Of one process."""

    def __init__(self) -> None:
        self._sending: FairShare[str] = FairShare(SENDING_BYTES_MAX, least=ANSWER_BYTES)

    def limited(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """A `send` for one response. A large response that finds no room is refused before its first byte is sent."""
        network = network_of(scope)
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
            is_counted = is_large and self._sending.take(network, len(body))
            if is_large and start is not None and not is_counted:
                is_refused = True
                await responses.error_response(scope, _no_room())(scope, receive, send)
                return
            if start is not None:
                await send(start)
                start = None
            try:
                await (_send_in_pieces(send, message, body) if is_large else send(message))
            finally:
                if is_counted:
                    self._sending.give_back(network, len(body))

        return send_limited


async def _send_in_pieces(send: Send, message: Message, body: bytes) -> None:
    for begin in range(0, len(body), PIECE_BYTES):
        is_last = begin + PIECE_BYTES >= len(body)
        more = message.get("more_body", False) if is_last else True
        await send({"type": "http.response.body", "body": body[begin : begin + PIECE_BYTES], "more_body": more})


def _no_room() -> Refusal:
    return Refusal(Code.SERVICE_UNAVAILABLE, "Too many large answers are on their way: try again soon.", 5)
