"""The SMTP protocol on a connection: send commands, receive replies, send content, each with a deadline.

Pipelined commands and their replies are matched by counting. So a reply to no command, or bytes that are not a
reply, end the dialogue. Afterwards `end_reason` says why; sending then has no effect, and receiving returns the
replies that had arrived. Only a cancellation raises.
"""

import asyncio
import functools
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

from posthouse.mail.reply import Reply, ReplyError, ReplyParser

# How much is written to the transport in one call: bounds how much TLS encrypts in a step, and how much waits in our
# buffers for a slow server.
BLOCK_BYTES_MAX: Final = 64 * 1024
# A server that says nothing to QUIT is left after this.
QUIT_SECONDS_MAX: Final = 2.0
# A TLS shutdown is not worth a long wait.
TLS_SHUTDOWN_SECONDS: Final = 5.0
# Under TLS no callback reports that the socket's buffer is empty: poll it.
SOCKET_POLL_SECONDS: Final = 0.005
# uvloop's timers count in whole milliseconds and may fire that much early.
TIMER_SECONDS_EARLY: Final = 0.002

# Servers repeat the same replies to envelopes, so short replies are cached.
REMEMBERED_BYTES_MAX: Final = 256

SERVICE_CLOSING: Final = 421


class Dialogue(asyncio.Protocol):
    __slots__ = (
        "_awaited",
        "_deadline",
        "_ends_at",
        "_loop",
        "_lost",
        "_parser",
        "_replies",
        "_socket",
        "_timeout_seconds",
        "_timer",
        "_timer_at",
        "_transport",
        "_waiter",
        "_wanted",
        "closing_reply",
        "end_reason",
        "is_leaving",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds_total: float) -> None:
        self.end_reason: str | None = None
        self.closing_reply: Reply | None = None  # the reply with which the server ended the dialogue
        self._loop = loop
        self._parser = ReplyParser()
        self._transport: asyncio.Transport | None = None
        self._socket: asyncio.Transport | None = None  # below the TLS transport, if there is TLS
        self._replies: list[Reply] = []
        self._awaited = 1  # replies the server still owes; the first is the greeting
        self._wanted = 0  # how many of them the waiting task needs
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timeout_seconds = 0.0
        self._ends_at = loop.time() + seconds_total
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.is_leaving = False
        self._lost: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        return self.end_reason is None and self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether it is open, and no reply, whole or partial, is waiting to be read."""
        return self.is_open and not self._replies and self._parser.is_between_replies

    @property
    def unsent_bytes(self) -> int:
        """Bytes in our buffers that a slow server has not taken yet."""
        size = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return size if self._socket is None else size + self._socket.get_write_buffer_size()

    def begin(self, seconds_total: float) -> None:
        """Start a transaction with a total time that nothing extends."""
        self._ends_at = self._loop.time() + seconds_total

    def end(self, reason: str) -> None:
        """Abort the connection. Nothing is sent or received afterwards; the first reason stays."""
        if self.end_reason is None:
            self.end_reason = reason
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def close(self, last_command: bytes) -> None:
        """Send a last command and close, without waiting for the reply."""
        if not self.is_open or self._transport is None:
            self.end("the connection was closed")
            return
        self._transport.write(last_command)
        self.end_reason = "the session was ended"
        self._transport.close()
        self._stop_timer()

    def when_lost(self, lost: Callable[[], None]) -> None:
        """`lost` is called when the connection has ended, or now if it has."""
        if self._transport is None:
            lost()
        else:
            self._lost = lost

    def leave(self, last_command: bytes) -> None:
        """Send a last command, and close when the server has answered it, or takes too long for that."""
        if not self.is_open or self._transport is None:
            self.end("the connection was closed")
            return
        self.is_leaving = True
        self._transport.write(last_command)
        self.end_reason = "the session was ended"
        self._stop_timer()
        self._timer = self._loop.call_later(QUIT_SECONDS_MAX, self._transport.abort)

    # Sending

    def command(self, commands: bytes, replies: int) -> bool:
        """Write commands that call for this many replies; False if the connection is closed."""
        transport = self._transport
        # uvloop raises when a closed transport is written to.
        if self.end_reason is not None or transport is None or transport.is_closing():
            self.end("the server closed the connection")
            return False
        if not self._awaited and not self._parser.is_between_replies:
            self.end("the server sent a reply that answers nothing")
            return False
        self._awaited += replies
        transport.write(commands)
        return True

    async def send(self, content: bytes, block_seconds: float) -> bool:
        """Write content block by block; True once our buffers are empty. A refusal stops it."""
        transport = self._transport
        for start in range(0, len(content), BLOCK_BYTES_MAX):
            if self.end_reason is not None or transport is None or transport.is_closing():
                self.end("the server closed the connection")
                return False
            if start and self._replies and self._replies[0].code >= 400:
                return False
            transport.write(content[start : start + BLOCK_BYTES_MAX])
            if transport.get_write_buffer_size() or self._socket is not None:
                await self._drained(transport, block_seconds)
        return self.end_reason is None

    async def _drained(self, transport: asyncio.Transport, seconds: float) -> None:
        self._wanted = self._awaited + len(self._replies) + 1  # an expected reply must not wake the task
        self._timeout_seconds = seconds
        self._wait_for(seconds)
        while self.end_reason is None and transport.get_write_buffer_size():
            await self._pause()
        while self.end_reason is None and self._socket is not None and self._socket.get_write_buffer_size():
            if self._loop.time() >= self._deadline:
                self.end("no answer in time")
            await asyncio.sleep(SOCKET_POLL_SECONDS)

    # Receiving

    async def receive(self, count: int, seconds: float) -> list[Reply]:
        """The next replies; fewer than `count` if the dialogue has ended. Each complete reply restarts the wait;
        single bytes don't."""
        if len(self._replies) < count and self.end_reason is None:
            self._wanted = count
            self._timeout_seconds = seconds
            self._wait_for(seconds)
            await self._pause()
            # An emptied write buffer wakes the task too.
            while len(self._replies) < count and self.end_reason is None:
                await self._pause()
        replies = self._replies
        self._replies = []
        return replies

    async def secure(self, context: ssl.SSLContext, server_name: str, seconds: float) -> ssl.SSLObject | None:
        """Start TLS; None if that ended the dialogue."""
        plain = self._transport
        if plain is None or not self.is_open:
            self.end("the server closed the connection")
            return None
        # Cleartext after the reply to STARTTLS would be read as if TLS had protected it.
        if not self.is_idle:
            self.end("the server continued in cleartext after STARTTLS")
            return None
        if context.check_hostname and not server_name:
            # Python checks this only when it wraps a socket, not a transport.
            self._fail_handshake(plain, "the TLS handshake failed: there is no name to verify")
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
            self._fail_handshake(plain, f"the server's certificate is not valid: {error.verify_message}")
            return None
        except (OSError, ValueError) as error:
            self._fail_handshake(plain, f"the TLS handshake failed: {error_text(error)}")
            return None
        except asyncio.CancelledError:
            self._fail_handshake(plain, "the session was cut off")
            raise
        if secured is None or self.end_reason is not None:
            self._fail_handshake(plain, "the TLS handshake failed: the server closed the connection")
            return None
        self._socket, self._transport = plain, secured
        secured.set_write_buffer_limits(0)
        return cast(ssl.SSLObject, secured.get_extra_info("ssl_object"))

    def _fail_handshake(self, plain: asyncio.Transport, reason: str) -> None:
        self.end_reason = reason  # more precise than what the event loop reported meanwhile
        plain.abort()

    # Waiting. A single timer serves the whole dialogue: when it fires before the current deadline, it is set again.
    # Deadlines mostly move later, so the timer is rarely set.

    async def _pause(self) -> None:
        """Wait until the wanted replies have arrived, or the dialogue has ended."""
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
            self._timer = self._loop.call_at(deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None or self.end_reason is not None:
            return
        if self._loop.time() < self._deadline - TIMER_SECONDS_EARLY:
            self._timer_at = self._deadline
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        elif self._deadline >= self._ends_at:
            self.end("not done within the time in all")
        else:
            self.end("no answer in time")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # With a limit of 0, any non-empty buffer pauses the transport, and `resume_writing` reports that it is empty.
        self._transport.set_write_buffer_limits(0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self.end_reason is None:
            self.end_reason = f"the connection broke: {error_text(exc)}" if exc else "the server closed the connection"
        self._wake()
        self._transport = None
        if self._lost is not None:
            self._lost()

    def resume_writing(self) -> None:
        self._wake()

    def data_received(self, data: bytes) -> None:
        if self.end_reason is not None:
            if self.is_leaving and self._transport is not None:
                self._transport.close()
            return
        fault = ""
        # Parsing is a third of a delivery's cost. Replies to the dot are not cached: each has a new queue id.
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
                self._unsolicited(reply)
                return
            self._awaited -= 1
            self._replies.append(reply)
            if reply.code == SERVICE_CLOSING:
                self.closing_reply = reply
                self.end("the server ended the session")
                return
        if fault:
            self.end(fault)
        elif replies and self._waiter is not None:
            if len(self._replies) >= self._wanted:
                self._wake()
            else:
                self._deadline = min(self._loop.time() + self._timeout_seconds, self._ends_at)

    def _unsolicited(self, reply: Reply) -> None:
        """An unsolicited refusal (421 while idle, 552 in the middle of the content) closes the session.

        Only a refusal during a transaction may be final for the message: a 5xx to an idle session is about the session.
        """
        if reply.code < 400:
            self.end("the server sent a reply that answers nothing")
            return
        if reply.code < 500 or self._waiter is not None:
            self.closing_reply = reply
        self.end("the server ended the session")


@functools.lru_cache(maxsize=1024)
def _whole_replies(data: bytes) -> tuple[Reply, ...] | None:
    """The replies in these bytes, if all are complete; None if a parser with state is needed."""
    parser = ReplyParser()
    try:
        replies = parser.feed(data)
    except ReplyError:
        return None
    return tuple(replies) if parser.is_between_replies else None


def error_text(error: Exception) -> str:
    """The operating system's or TLS library's text for an error, the same for every event loop."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


# The content of an outgoing message as SMTP carries it: 7-bit, CRLF, dot-stuffed.


class SmtpContent:
    """A finished message: 7-bit, every line ends with CRLF. Dot-stuffed once, however many sessions send it."""

    __slots__ = ("_stuffed", "content")

    def __init__(self, content: bytes) -> None:
        if not content.endswith(b"\r\n") or not content.isascii():
            raise ValueError("the content must be 7-bit and end with CRLF")
        ends = content.count(b"\r\n")
        # A bare CR or LF before a dot is how SMTP smuggling hides a second message.
        if content.count(b"\n") != ends or content.count(b"\r") != ends:
            raise ValueError("the content has a CR or LF outside a CRLF")
        self.content = content
        self._stuffed: bytes | None = None

    @property
    def stuffed(self) -> bytes:
        if self._stuffed is None:
            self._stuffed = dot_stuffed(self.content)
        return self._stuffed


def dot_stuffed(content: bytes) -> bytes:
    """Double the dot at the start of each line that begins with a dot (RFC 5321, 4.5.2)."""
    if content.startswith(b"."):
        content = b"." + content
    return content.replace(b"\r\n.", b"\r\n..") if b"\r\n." in content else content
