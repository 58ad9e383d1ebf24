"""A dialogue over one connection: commands out, replies in, content out, each within its time.

Replies are matched to commands by counting, since commands go out together. Hence a reply that nothing asked
for ends the dialogue, and so does anything that is no reply. Once ended, `ended` says why; speaking is then
without effect and listening returns what had come before. Nothing but a cancellation raises.
"""

import asyncio
import functools
import os
import ssl
from collections.abc import Sequence
from typing import Final, cast

from posthouse.mail.reply import Reply, ReplyError, ReplyParser

# What is handed to the transport at once: bounds what TLS encrypts in one go and what a slow server holds here.
BLOCK_BYTES_MAX: Final = 64 * 1024
# A TLS goodbye isn't worth waiting long for.
TLS_SHUTDOWN_SECONDS: Final = 5.0
# Under TLS the socket's own buffer announces nothing when it empties: look again after this long.
SOCKET_LOOK_SECONDS: Final = 0.005
# Timers of uvloop count in whole milliseconds and may come that much early.
TIMER_SECONDS_EARLY: Final = 0.002

# What a server says to an envelope it says again and again: longer things are not worth remembering.
REMEMBERED_BYTES_MAX: Final = 256

SERVICE_CLOSING: Final = 421


class Dialogue(asyncio.Protocol):
    __slots__ = (
        "_awaited",
        "_deadline",
        "_ends_at",
        "_heard",
        "_loop",
        "_parser",
        "_patience_seconds",
        "_socket",
        "_timer",
        "_timer_at",
        "_transport",
        "_waiter",
        "_wanted",
        "ended",
        "farewell",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds_total: float) -> None:
        self.ended: str | None = None  # why
        self.farewell: Reply | None = None  # what the server said as it ended the dialogue
        self._loop = loop
        self._parser = ReplyParser()
        self._transport: asyncio.Transport | None = None
        self._socket: asyncio.Transport | None = None  # what carries the TLS transport, when there is one
        self._heard: list[Reply] = []
        self._awaited = 1  # replies owed to us; the first is the greeting
        self._wanted = 0  # how many of them the waiter waits for
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._patience_seconds = 0.0
        self._ends_at = loop.time() + seconds_total
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def is_open(self) -> bool:
        return self.ended is None and self._transport is not None and not self._transport.is_closing()

    @property
    def is_silent(self) -> bool:
        """Whether nothing was said that has not been asked for and heard."""
        return not self._heard and self._parser.is_between_replies

    @property
    def unsent_bytes(self) -> int:
        """What we hold back for a server that is slow to take it."""
        size = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return size if self._socket is None else size + self._socket.get_write_buffer_size()

    def begin(self, seconds_total: float) -> None:
        """A new piece of the dialogue, with a time in all that nothing renews."""
        self._ends_at = self._loop.time() + seconds_total

    def end(self, reason: str) -> None:
        """Cut it off. From here on nothing is said or heard; the first reason stays."""
        if self.ended is None:
            self.ended = reason
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def close(self, last_command: bytes) -> None:
        """End it politely, without waiting for an answer."""
        if not self.is_open or self._transport is None:
            self.end("the connection was closed")
            return
        self._transport.write(last_command)
        self.ended = "the session was ended"
        self._transport.close()
        self._stop_timer()

    # Speaking

    def say(self, commands: bytes, replies: int) -> bool:
        """Write commands that so many replies are owed for; False when nobody is there to hear them."""
        transport = self._transport
        # uvloop raises when a closed transport is written to.
        if self.ended is not None or transport is None or transport.is_closing():
            self.end("the server closed the connection")
            return False
        if not self._awaited and not self._parser.is_between_replies:
            self.end("the server sent a reply that answers nothing")
            return False
        self._awaited += replies
        transport.write(commands)
        return True

    async def send(self, content: bytes, block_seconds: float) -> bool:
        """Write content, block by block; True once none of it is left in our buffers. A refusal stops it."""
        transport = self._transport
        for start in range(0, len(content), BLOCK_BYTES_MAX):
            if self.ended is not None or transport is None or transport.is_closing():
                self.end("the server closed the connection")
                return False
            if start and self._heard and self._heard[0].code >= 400:
                return False
            transport.write(content[start : start + BLOCK_BYTES_MAX])
            if transport.get_write_buffer_size() or self._socket is not None:
                await self._drained(transport, block_seconds)
        return self.ended is None

    async def _drained(self, transport: asyncio.Transport, seconds: float) -> None:
        self._wanted = self._awaited + len(self._heard) + 1  # a reply that is owed is no reason to wake
        self._patience_seconds = seconds
        self._wait_for(seconds)
        while self.ended is None and transport.get_write_buffer_size():
            await self._pause()
        while self.ended is None and self._socket is not None and self._socket.get_write_buffer_size():
            if self._loop.time() >= self._deadline:
                self.end("no answer in time")
            await asyncio.sleep(SOCKET_LOOK_SECONDS)

    # Listening

    async def hear(self, count: int, seconds: float) -> list[Reply]:
        """The next replies; fewer than asked for when the dialogue has ended. Each whole reply starts the wait for
        the next anew; single bytes don't."""
        if len(self._heard) < count and self.ended is None:
            self._wanted = count
            self._patience_seconds = seconds
            self._wait_for(seconds)
            # A buffer that empties wakes too.
            while len(self._heard) < count and self.ended is None:
                await self._pause()
        heard = self._heard
        self._heard = []
        return heard

    async def secure(self, context: ssl.SSLContext, server_name: str, seconds: float) -> ssl.SSLObject | None:
        """Go on under TLS; None when that ended the dialogue."""
        # What came in the clear after the go-ahead would be read as if TLS had protected it.
        if not self.is_silent:
            self.end("the server went on in cleartext after STARTTLS")
        plain = self._transport
        if plain is None or not self.is_open:
            self.end("the server closed the connection")
            return None
        if context.check_hostname and not server_name:
            # The interpreter's own check is missing where a transport, not a socket, is wrapped.
            self._failed_handshake(plain, "the TLS handshake failed: there is no name to verify")
            return None
        try:
            secured = await self._loop.start_tls(
                plain,
                self,
                context,
                server_hostname=server_name,
                ssl_handshake_timeout=max(0.001, min(seconds, self._ends_at - self._loop.time())),
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
        except ssl.SSLCertVerificationError as error:
            self._failed_handshake(plain, f"the server's certificate is not valid: {error.verify_message}")
            return None
        except (OSError, ValueError) as error:
            self._failed_handshake(plain, f"the TLS handshake failed: {error_text(error)}")
            return None
        except asyncio.CancelledError:
            self._failed_handshake(plain, "the session was cut off")
            raise
        if secured is None or self.ended is not None:
            self._failed_handshake(plain, "the TLS handshake failed: the server closed the connection")
            return None
        self._socket, self._transport = plain, secured
        secured.set_write_buffer_limits(0)
        return cast(ssl.SSLObject, secured.get_extra_info("ssl_object"))

    def _failed_handshake(self, plain: asyncio.Transport, reason: str) -> None:
        self.ended = reason  # what the loop told meanwhile says less
        plain.abort()

    # Waiting. One timer serves the whole dialogue: it looks up when the earliest deadline it knew has come, and
    # goes back to sleep until the present one. Deadlines mostly move away, so that it is hardly ever set.

    async def _pause(self) -> None:
        """Until what is wanted has come, or the dialogue has ended."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.end("the session was cut off")
            raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wait_for(self, seconds: float) -> None:
        self._deadline = deadline = min(self._loop.time() + seconds, self._ends_at)
        if self._timer is None or deadline < self._timer_at:
            self._stop_timer()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._look_up)

    def _look_up(self) -> None:
        self._timer = None
        if self._waiter is None or self.ended is not None:
            return
        if self._loop.time() < self._deadline - TIMER_SECONDS_EARLY:
            self._timer_at = self._deadline
            self._timer = self._loop.call_at(self._deadline, self._look_up)
        elif self._deadline >= self._ends_at:
            self.end("not done within the time in all")
        else:
            self.end("no answer in time")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Then a buffer that isn't empty is a paused one, and we hear when it is empty again.
        self._transport.set_write_buffer_limits(0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self.ended is None:
            self.ended = f"the connection broke: {error_text(exc)}" if exc else "the server closed the connection"
        self._wake()

    def resume_writing(self) -> None:
        self._wake()

    def data_received(self, data: bytes) -> None:
        if self.ended is not None:
            return
        fault = ""
        # Parsing is a third of a delivery's cost. Answers to the dot carry a new queue id each and come alone.
        replies: Sequence[Reply] | None = None
        if self._awaited > 1 and len(data) <= REMEMBERED_BYTES_MAX and self._parser.is_between_replies:
            replies = _whole_replies(data)
        if replies is None:
            try:
                replies = self._parser.feed(data)
            except ReplyError as error:
                replies, fault = error.replies, str(error)
        for reply in replies:
            if not self._awaited:
                self._interrupted(reply)
                return
            self._awaited -= 1
            self._heard.append(reply)
            if reply.code == SERVICE_CLOSING:
                self.farewell = reply
                self.end("the server ended the session")
                return
        if fault:
            self.end(fault)
        elif replies and self._waiter is not None:
            if len(self._heard) >= self._wanted:
                self._wake()
            else:
                self._deadline = min(self._loop.time() + self._patience_seconds, self._ends_at)

    def _interrupted(self, reply: Reply) -> None:
        """A refusal nobody asked for (421 while idle, 552 in the middle of the content) is a farewell.

        Only what is said while we are busy may be final for the mail: a 5xx to an idle session is about itself.
        """
        if reply.code < 400:
            self.end("the server sent a reply that answers nothing")
            return
        if reply.code < 500 or self._waiter is not None:
            self.farewell = reply
        self.end("the server ended the session")


@functools.lru_cache(maxsize=1024)
def _whole_replies(data: bytes) -> tuple[Reply, ...] | None:
    """The replies that these bytes are, all of them whole; None when it takes a parser that remembers."""
    parser = ReplyParser()
    try:
        replies = parser.feed(data)
    except ReplyError:
        return None
    return tuple(replies) if parser.is_between_replies else None


def error_text(error: Exception) -> str:
    """An error in the system's own words, whichever loop brings it."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
