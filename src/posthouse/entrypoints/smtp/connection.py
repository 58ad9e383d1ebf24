"""One connection of the SMTP server: its socket, its conversation, and what it shares with the others.

A connection reads on while its service is busy, up to a bound, and no further while its client doesn't read. Only
what is answered (or, in a message, what has come of it) counts as progress, so that a byte now and then keeps
nothing open.

Once a message is complete it is taken to its end, whatever becomes of the connection, so that as few clients as
possible send one again that we have.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, cast

import structlog

from posthouse.entrypoints.refusals import smtp_reply
from posthouse.entrypoints.smtp import replies
from posthouse.entrypoints.smtp.content import Room
from posthouse.entrypoints.smtp.conversation import Close, Conversation, StartTls, Step, Take
from posthouse.entrypoints.smtp.login import Authenticate
from posthouse.entrypoints.smtp.replies import ServerReply
from posthouse.entrypoints.smtp.service import Service
from posthouse.flows.shared.principal import Principal
from posthouse.rules import credential
from posthouse.rules.refusal import Refusal

log = structlog.get_logger(__name__)

# What a client may send ahead while its last message is being taken; then it waits.
WAITING_BYTES_MAX: Final = 64 * 1024
# Replies are short: a client that leaves so much unread is not reading.
UNREAD_BYTES_MAX: Final = 16 * 1024
TAKEN: Final = 250
# A TLS goodbye isn't worth waiting long for.
TLS_SHUTDOWN_SECONDS: Final = 5.0

_MAPPED: Final = "::ffff:"


@dataclass(frozen=True, slots=True)
class Bounds:
    connections_max: int = 2_000
    connections_per_address_max: int = 50
    # Of messages that are being received or taken: 25 of the largest.
    content_bytes_max: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerDeadlines:
    command_seconds: float = 300.0  # RFC 5321, 4.5.3.2.7
    # Whoever has not authenticated is not a client yet.
    admission_seconds: float = 120.0
    handshake_seconds: float = 10.0
    # A message may take this long, and as much longer as it is large.
    content_seconds: float = 60.0
    content_bytes_per_second: float = 1_024.0
    session_seconds: float = 1_800.0
    # For a client that doesn't read what it is told.
    reading_seconds: float = 60.0
    # Who is still sending when it is left must be let finish for a moment, or it never reads why.
    parting_seconds: float = 1.0
    look_seconds: float = 1.0


class ServerState:
    """What the connections of a server share, and how many of them there are."""

    def __init__(
        self, service: Service, context: ssl.SSLContext | None, bounds: Bounds, deadlines: ServerDeadlines
    ) -> None:
        self.service = service
        self.context = context
        self.deadlines = deadlines
        self.room = Room(bounds.content_bytes_max)
        self.is_draining = False
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._bounds = bounds
        self._per_place: Counter[str] = Counter()

    def enter(self, connection: "Connection", place: str) -> ServerReply | None:
        """None when there is room for one more from there."""
        if self.is_draining:
            return replies.CLOSING
        if (
            len(self.connections) >= self._bounds.connections_max
            or self._per_place[place] >= self._bounds.connections_per_address_max
        ):
            return replies.TOO_MANY_CONNECTIONS
        self.connections.add(connection)
        self._per_place[place] += 1
        return None

    def leave(self, connection: "Connection", place: str) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            self._per_place[place] -= 1
            if not self._per_place[place]:
                del self._per_place[place]


class Connection(asyncio.Protocol):
    __slots__ = (
        "_began_at",
        "_caller",
        "_conversation",
        "_is_half_closed",
        "_is_held",
        "_is_leaving",
        "_is_lost",
        "_is_taking",
        "_is_unread",
        "_lobby",
        "_loop",
        "_peer",
        "_place",
        "_plain",
        "_spoke_at",
        "_starts_secure",
        "_task",
        "_transport",
    )

    def __init__(self, lobby: ServerState, loop: asyncio.AbstractEventLoop, *, starts_secure: bool) -> None:
        self._lobby = lobby
        self._loop = loop
        self._starts_secure = starts_secure
        self._transport: asyncio.Transport | None = None
        self._plain: asyncio.Transport | None = None  # what carries the TLS transport, when there is one
        self._conversation: Conversation | None = None
        self._caller: Principal | None = None
        self._task: asyncio.Task[None] | None = None  # takes a message, checks a password, or begins TLS
        self._is_held = False  # nothing is read for now
        self._is_unread = False  # the client doesn't read
        self._is_half_closed = False  # the client says no more
        self._is_leaving = False  # we say no more
        self._is_lost = False
        self._is_taking = False  # a message that is complete
        self._peer = self._place = ""
        self._began_at = self._spoke_at = loop.time()

    def arrive(self, address: object) -> ServerReply | None:
        """None when there is room for it."""
        self._peer = _peer_of(address)
        self._place = credential.peer_network(self._peer)
        return self._lobby.enter(self, self._place)

    def open_secure(self, accepted: socket.socket) -> None:
        """TLS from the first byte on. It has arrived before, so that a handshake is not had for nothing."""
        self._start(self._shake_hands(accepted))

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=self._lobby.context,
                ssl_handshake_timeout=self._lobby.deadlines.handshake_seconds,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
        except OSError as error:
            log.debug("handshake_failed", peer=self._peer, error=str(error))
        finally:
            if self._transport is None:
                self._finished()
                self.connection_lost(None)

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = given = cast(asyncio.Transport, transport)
        self._finished()  # with the handshake, if there was one
        given.set_write_buffer_limits(UNREAD_BYTES_MAX)
        refusal = None if self._starts_secure else self.arrive(given.get_extra_info("peername"))
        if refusal is not None:
            given.write(replies.encoded(refusal))
            given.close()
            return
        lobby = self._lobby
        self._conversation = Conversation(
            lobby.service.terms,
            lobby.service.recipient,
            lobby.room,
            peer=self._peer,
            is_secure=self._starts_secure,
            can_secure=lobby.context is not None,
        )
        self._perform(self._conversation.greet())

    def data_received(self, data: bytes) -> None:
        conversation = self._conversation
        if conversation is None or self._is_leaving:
            return
        self._perform(conversation.receive(data))
        if conversation.waiting_bytes > WAITING_BYTES_MAX and self._task is not None:
            self._hold()

    def eof_received(self) -> bool | None:
        # Whoever says no more may still listen, for the answer to its last message. TLS knows no such thing.
        if self._task is not None and self._plain is None and not self._starts_secure:
            self._is_half_closed = True
            return True
        return None

    def pause_writing(self) -> None:
        self._is_unread = True
        self._spoke_at = self._loop.time()
        self._hold()

    def resume_writing(self) -> None:
        self._is_unread = False
        self._release()

    def connection_lost(self, _: Exception | None) -> None:
        self._lobby.leave(self, self._place)
        self._is_lost = True
        # A message that is complete is taken all the same, and counted until then.
        if not self._is_taking:
            if self._conversation is not None:
                self._conversation.let_go()
            self._cancel()

    # What the server tells

    def end(self) -> None:
        if self._conversation is None or self._plain is self._transport:
            self.abort()  # no handshake is waited for
            return
        if not self._is_taking:
            self._cancel()
        self._perform(self._conversation.end())

    def break_off(self, reply: ServerReply) -> None:
        if self._conversation is not None:
            self._perform(self._conversation.break_off(reply))

    def abort(self) -> None:
        """At once, with whatever it is busy with."""
        if self._transport is not None:
            self._transport.abort()
        # The one that carries it doesn't follow while a handshake is under way.
        if self._plain is not None:
            self._plain.abort()
        self._is_taking = False
        self.connection_lost(None)

    def look(self, now: float) -> None:
        """Whether the client is still in time."""
        conversation = self._conversation
        if conversation is None or self._task is not None:
            return
        deadlines = self._lobby.deadlines
        silent_seconds = now - self._spoke_at
        if self._is_leaving or self._is_unread:
            if silent_seconds >= (deadlines.parting_seconds if self._is_leaving else deadlines.reading_seconds):
                self._cut()
            return
        received_bytes = conversation.received_bytes
        if received_bytes is None:
            allowed_seconds = deadlines.command_seconds
        else:
            allowed_seconds = deadlines.content_seconds + received_bytes / deadlines.content_bytes_per_second
        session_seconds = now - self._began_at
        if silent_seconds >= allowed_seconds or (
            not conversation.is_admitted and session_seconds >= deadlines.admission_seconds
        ):
            self.break_off(replies.TOO_SLOW)
        elif session_seconds >= deadlines.session_seconds:
            self.break_off(replies.TOO_LONG_A_SESSION)

    # What the conversation wishes

    def _perform(self, step: Step) -> None:
        output, wish = step
        transport = self._transport
        # uvloop raises when a closed transport is written to.
        if transport is None or self._is_lost or self._is_leaving or transport.is_closing():
            return
        if output:
            self._spoke_at = self._loop.time()
            transport.write(output)
        if self._task is not None:
            return  # the wish is being seen to
        if wish is None:
            if self._is_half_closed:
                transport.close()
            elif self._is_held and not self._is_unread:
                self._release()
        elif type(wish) is Take:
            self._is_taking = True
            self._start(self._take(wish))
        elif type(wish) is Authenticate:
            self._start(self._authenticate(wish))
        elif type(wish) is StartTls:
            # From here on only TLS is read: what else has come would pass for protected.
            transport.pause_reading()
            self._start(self._secure(transport))
        elif type(wish) is Close:
            self._leave(transport, is_agreed=wish.is_agreed)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # Forgotten by itself at its end: a callback would cost every message one more turn of the loop.
        self._task = task = self._loop.create_task(work)
        self._lobby.tasks.add(task)

    def _finished(self) -> None:
        if self._task is not None:
            self._lobby.tasks.discard(self._task)
            self._task = None

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._finished()

    async def _take(self, wish: Take) -> None:
        started_at = self._loop.time()
        try:
            reply = await self._lobby.service.take(self._caller, wish.envelope, wish.content)
        except Exception:
            log.exception("fault", peer=self._peer)
            reply = replies.FAULT
        finally:
            self._finished()
            self._is_taking = False
        # A message that was taken is on record; a line for each would take a tenth of the time that it takes.
        tell = log.debug if reply.code == TAKEN and not self._is_lost else log.info
        tell(
            "message",
            peer=self._peer,
            account=None if self._caller is None else str(self._caller.account_id),
            recipients=len(wish.envelope.recipients),
            bytes=len(wish.content),
            code=reply.code,
            text=reply.text,
            seconds=round(self._loop.time() - started_at, 4),
            client_left=self._is_lost,
        )
        conversation = self._conversation
        if conversation is not None:
            if self._is_lost:
                conversation.let_go()
            else:
                self._perform(conversation.taken(reply))

    async def _authenticate(self, wish: Authenticate) -> None:
        conversation = self._conversation
        refusal: ServerReply | None = None
        try:
            self._caller = await self._lobby.service.authenticate(wish.username, wish.password, self._peer)
        except Refusal as refused:
            refused.drop_traceback()
            refusal = _login_reply(refused)
            log.info("login_refused", peer=self._peer, code=refused.code.value)
        except Exception:
            log.exception("fault", peer=self._peer)
            refusal = replies.LOGIN_FAULT
        finally:
            self._finished()
        if conversation is not None and not self._is_lost:
            self._perform(conversation.admitted() if refusal is None else conversation.not_admitted(refusal))

    async def _secure(self, plain: asyncio.Transport) -> None:
        context, conversation = self._lobby.context, self._conversation
        if context is None or conversation is None:  # then nobody was told to begin
            plain.abort()
            return
        self._plain = plain
        try:
            secured = await self._loop.start_tls(
                plain,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._lobby.deadlines.handshake_seconds,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
        except (OSError, ValueError) as error:
            log.debug("handshake_failed", peer=self._peer, error=str(error))
            secured = None
        finally:
            self._finished()
        if secured is None or self._is_lost:
            self.abort()
            return
        self._transport = secured
        secured.set_write_buffer_limits(UNREAD_BYTES_MAX)
        self._perform(conversation.secured())

    # Reading, and no more of it

    def _hold(self) -> None:
        if not self._is_held and self._transport is not None and not self._transport.is_closing():
            self._is_held = True
            self._transport.pause_reading()

    def _release(self) -> None:
        if self._is_held and self._transport is not None and not self._transport.is_closing():
            self._is_held = False
            self._transport.resume_reading()

    def _leave(self, transport: asyncio.Transport, *, is_agreed: bool) -> None:
        """Say no more; hang up at once, or when the client has had the time to read why."""
        self._is_leaving = True
        if is_agreed or self._is_half_closed or self._lobby.is_draining:
            transport.close()
        else:
            self._release()

    def _cut(self) -> None:
        """The client doesn't read; or has read all it will."""
        if self._is_unread or self._transport is None or self._transport.is_closing():
            self.abort()
        else:
            self._transport.close()


def _login_reply(refusal: Refusal) -> ServerReply:
    """As AUTH has it (RFC 4954, 6): 454 for what may pass, 535 for what won't."""
    code, status, text = smtp_reply(refusal)
    return ServerReply(454, "4.7.0", text) if code < 500 else ServerReply(535, status, text)


def _peer_of(address: object) -> str:
    """The client's address; one of IPv4 as such, also at a socket that serves both families."""
    if not isinstance(address, tuple) or not address:
        return ""
    peer = str(address[0]).partition("%")[0]
    return peer.removeprefix(_MAPPED) if peer.startswith(_MAPPED) and "." in peer else peer
