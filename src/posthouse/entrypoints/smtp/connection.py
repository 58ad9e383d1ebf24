"""A connection of the SMTP server: its socket, its conversation, and the state that all connections share.

A connection reads ahead while its service is busy, up to a limit, and stops while its client doesn't read. Only replies
and received content of a message count as progress, so that a client can't stay by sending a byte occasionally.

A complete message is accepted even if the connection is lost, so that few clients send it a second time.
"""

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, cast

import structlog

from posthouse import metrics
from posthouse.entrypoints.refusals import smtp_reply
from posthouse.entrypoints.smtp import replies
from posthouse.entrypoints.smtp.commands import AcceptMessage, Close, StartTls, Step
from posthouse.entrypoints.smtp.content import Content, ContentPace, content_memory
from posthouse.entrypoints.smtp.conversation import Conversation
from posthouse.entrypoints.smtp.grammar import Authenticate
from posthouse.entrypoints.smtp.replies import ServerReply
from posthouse.entrypoints.smtp.service import Service
from posthouse.entrypoints.smtp.unauthenticated_connections import UnauthenticatedConnections
from posthouse.flows.shared.principal import Principal
from posthouse.flows.shared.shares import UNLIMITED, FairShare
from posthouse.rules import credential, ids
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Refusal

log = structlog.get_logger(__name__)

# How much a client may send ahead while its last message is being accepted.
WAITING_BYTES_MAX: Final = 64 * 1024
# Replies are short: a client that has this much unread is not reading.
UNREAD_BYTES_MAX: Final = 16 * 1024
ACCEPTED: Final = 250
TLS_SHUTDOWN_SECONDS: Final = 5.0

_MAPPED: Final = "::ffff:"


@dataclass(frozen=True, slots=True)
class Bounds:
    connections_max: int = 2_000
    connections_per_address_max: int = 50
    # The bound for a prefix on sessions without authentication and on those on port 25: as many as for four addresses.
    addresses_per_prefix: int = 4
    # The memory for messages that are being received or accepted: 25 of the largest.
    content_bytes_max: int = 256 * 1024 * 1024
    # For messages that don't arrive in one piece: a tenth of what an event loop can read.
    content_bytes_per_second: float = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerDeadlines:
    command_seconds: float = 300.0  # RFC 5321, 4.5.3.2.7
    # The time until authentication.
    authentication_seconds: float = 120.0
    handshake_seconds: float = 10.0
    # A message that has begun must grow at the rate below over each interval.
    content_seconds: float = 30.0
    content_bytes_per_second: float = 1_024.0
    session_seconds: float = 1_800.0
    # For a client that doesn't read its replies.
    reading_seconds: float = 60.0
    # A client that is still sending needs this long to read why the connection is closed.
    closing_seconds: float = 1.0
    check_seconds: float = 1.0


class ServerState:
    """The state that all connections of a server share, and their number."""

    def __init__(
        self, service: Service, context: ssl.SSLContext | None, bounds: Bounds, deadlines: ServerDeadlines
    ) -> None:
        self.service = service
        # Its name in the metrics.
        self.name = "submission" if service.policy.needs_authentication else "inbound"
        self.context = context
        self.deadlines = deadlines
        self.memory = content_memory(bounds.content_bytes_max, service.policy.message_bytes_max)
        self.pace = ContentPace(bounds.content_bytes_per_second)
        # An account may always have as many sessions as an address, as long as the server accepts any.
        self.account_sessions: FairShare[AccountId] = FairShare(
            bounds.connections_max, least=bounds.connections_per_address_max
        )
        self.is_draining = False
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._bounds = bounds
        self._per_network: FairShare[str] = FairShare(UNLIMITED, holder_max=bounds.connections_per_address_max)
        self._unauthenticated = UnauthenticatedConnections(
            bounds.connections_per_address_max * bounds.addresses_per_prefix
        )

    def add(self, connection: "Connection", network: str, prefix: str) -> ServerReply | None:
        """None if the connection is within the limits."""
        refusal = self._refusal(network, prefix)
        metrics.SMTP_CONNECTIONS.count(
            self.name, "taken" if refusal is None else "draining" if self.is_draining else "too_many"
        )
        if refusal is None:
            self.connections.add(connection)
            metrics.SMTP_SESSIONS.set(len(self.connections), self.name)
            self._unauthenticated.add(connection, prefix)
            self._per_network.take_units(network)
        return refusal

    def _refusal(self, network: str, prefix: str) -> ServerReply | None:
        if self.is_draining:
            return replies.CLOSING
        if not self._per_network.has_capacity(network) or not self._unauthenticated.has_capacity(prefix):
            return replies.TOO_MANY_CONNECTIONS
        if len(self.connections) >= self._bounds.connections_max and not self._unauthenticated.drop_for(prefix):
            return replies.TOO_MANY_CONNECTIONS
        return None

    def authenticated(self, connection: "Connection", prefix: str) -> None:
        self._unauthenticated.remove(connection, prefix)

    def remove(self, connection: "Connection", network: str, prefix: str) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            metrics.SMTP_SESSIONS.set(len(self.connections), self.name)
            self._unauthenticated.remove(connection, prefix)
            self._per_network.release_units(network)


class Connection(asyncio.Protocol):
    __slots__ = (
        "_began_at",
        "_conversation",
        "_is_accepting",
        "_is_closing",
        "_is_half_closed",
        "_is_held",
        "_is_lost",
        "_is_unread",
        "_loop",
        "_network",
        "_pace_at",
        "_pace_bytes",
        "_paced",
        "_peer",
        "_plain",
        "_prefix",
        "_principal",
        "_spoke_at",
        "_starts_secure",
        "_state",
        "_task",
        "_transport",
    )

    def __init__(self, state: ServerState, loop: asyncio.AbstractEventLoop, *, starts_secure: bool) -> None:
        self._state = state
        self._loop = loop
        self._starts_secure = starts_secure
        self._transport: asyncio.Transport | None = None
        self._plain: asyncio.Transport | None = None  # carries the TLS transport, if any
        self._conversation: Conversation | None = None
        self._principal: Principal | None = None
        self._task: asyncio.Task[None] | None = None  # accepts a message, checks a password, or starts TLS
        self._is_held = False  # reading is paused
        self._is_unread = False  # the client doesn't read
        self._is_half_closed = False  # the client sends no more
        self._is_closing = False  # the server sends no more
        self._is_lost = False
        self._is_accepting = False  # a complete message
        self._peer = self._network = self._prefix = ""
        self._began_at = self._spoke_at = self._pace_at = loop.time()
        self._paced: Content | None = None
        self._pace_bytes = 0

    def register(self, address: object) -> ServerReply | None:
        """None if the connection is within the limits."""
        self._peer = _peer_of(address)
        self._network = credential.peer_network(self._peer)
        self._prefix = credential.peer_prefix(self._peer)
        return self._state.add(self, self._network, self._prefix)

    def open_secure(self, accepted: socket.socket) -> None:
        """TLS from the first byte. The connection is already registered, so that no handshake is wasted."""
        self._start(self._handshake(accepted))

    async def _handshake(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=self._state.context,
                ssl_handshake_timeout=self._state.deadlines.handshake_seconds,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
        except OSError as error:
            log.debug("handshake_failed", peer=self._peer, error=str(error))
        finally:
            if self._transport is None:
                self._finished()
                self.connection_lost(None)

    # Events from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = given = cast(asyncio.Transport, transport)
        self._finished()  # the handshake, if there was one
        given.set_write_buffer_limits(UNREAD_BYTES_MAX)
        refusal = None if self._starts_secure else self.register(given.get_extra_info("peername"))
        if refusal is not None:
            given.write(replies.encoded(refusal))
            given.close()
            return
        state = self._state
        self._conversation = Conversation(
            state.service.policy,
            state.service.check_recipient,
            state.memory,
            peer=self._peer,
            holder=self._network,
            is_secure=self._starts_secure,
            can_secure=state.context is not None,
        )
        self._perform(self._conversation.greet())

    def data_received(self, data: bytes) -> None:
        conversation = self._conversation
        if conversation is None or self._is_closing:
            return
        self._perform(conversation.receive(data))
        if conversation.waiting_bytes > WAITING_BYTES_MAX and self._task is not None:
            self._pause_reading()
        elif conversation.content is not None:
            self._keep_pace(len(data))

    def eof_received(self) -> bool | None:
        # A client that sends no more may still wait for the reply to its last message; not under TLS.
        if self._task is not None and self._plain is None and not self._starts_secure:
            self._is_half_closed = True
            return True
        return None

    def pause_writing(self) -> None:
        self._is_unread = True
        self._spoke_at = self._loop.time()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._is_unread = False
        self._resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._state.remove(self, self._network, self._prefix)
        if self._principal is not None and not self._is_lost:
            self._state.account_sessions.release_units(self._principal.account_id)
        self._is_lost = True
        # A complete message is still accepted, and the connection counts until then.
        if not self._is_accepting:
            if self._conversation is not None:
                self._conversation.disconnected()
            self._cancel()

    # Calls from the server

    def end(self) -> None:
        if self._conversation is None or self._plain is self._transport:
            self.abort()  # doesn't wait for a handshake
            return
        if not self._is_accepting:
            self._cancel()
        self._perform(self._conversation.end())

    def close_with(self, reply: ServerReply) -> None:
        if self._conversation is not None:
            self._perform(self._conversation.close_with(reply))

    @property
    def is_accepting(self) -> bool:
        """Whether a complete message is being accepted."""
        return self._is_accepting

    def abort(self) -> None:
        """Close immediately and cancel the running task."""
        if self._transport is not None:
            self._transport.abort()
        # During a handshake the TLS transport doesn't abort the underlying transport.
        if self._plain is not None:
            self._plain.abort()
        self._is_accepting = False
        self.connection_lost(None)

    def check_deadlines(self, now: float) -> None:
        conversation = self._conversation
        if conversation is None or self._task is not None:
            return
        deadlines = self._state.deadlines
        silent_seconds = now - self._spoke_at
        if self._is_closing or self._is_unread:
            if silent_seconds >= (deadlines.closing_seconds if self._is_closing else deadlines.reading_seconds):
                self._cut()
            return
        content = conversation.content
        is_slow = silent_seconds >= deadlines.command_seconds if content is None else self._is_slow(content, now)
        session_seconds = now - self._began_at
        if is_slow or (not conversation.is_authenticated and session_seconds >= deadlines.authentication_seconds):
            self.close_with(replies.TOO_SLOW)
        elif session_seconds >= deadlines.session_seconds:
            self.close_with(replies.TOO_LONG_A_SESSION)

    def _is_slow(self, content: Content, now: float) -> bool:
        """Whether too little of the message arrived during the last seconds, however much arrived before."""
        deadlines = self._state.deadlines
        grown_bytes = content.received_bytes - self._pace_bytes
        if content is not self._paced:
            self._paced = content
            self._pace_at, self._pace_bytes = now, 0
        elif grown_bytes >= deadlines.content_seconds * deadlines.content_bytes_per_second:
            self._pace_at, self._pace_bytes = now, content.received_bytes
        else:
            return now - self._pace_at >= deadlines.content_seconds
        return False

    # Effects of the conversation

    def _perform(self, step: Step) -> None:
        output, effect = step
        transport = self._transport
        # uvloop raises when a closed transport is written to.
        if transport is None or self._is_lost or self._is_closing or transport.is_closing():
            return
        if output:
            self._spoke_at = self._loop.time()
            transport.write(output)
        if self._task is not None:
            return  # the effect is being performed
        if effect is None:
            if self._is_half_closed:
                transport.close()
            elif self._is_held and not self._is_unread:
                self._resume_reading()
        elif type(effect) is AcceptMessage:
            self._is_accepting = True
            self._start(self._accept(effect))
        elif type(effect) is Authenticate:
            self._start(self._authenticate(effect))
        elif type(effect) is StartTls:
            # Only TLS is read from here on: cleartext that was sent ahead would pass as protected.
            transport.pause_reading()
            self._start(self._secure(transport))
        elif type(effect) is Close:
            self._close(transport, is_requested=effect.is_requested)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # The task removes itself when it ends: a callback would cost every message another loop iteration.
        self._task = task = self._loop.create_task(work)
        self._state.tasks.add(task)

    def _finished(self) -> None:
        if self._task is not None:
            self._state.tasks.discard(self._task)
            self._task = None

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._finished()

    async def _accept(self, effect: AcceptMessage) -> None:
        started_at = self._loop.time()
        try:
            reply = await self._state.service.accept(self._principal, effect.envelope, effect.content)
        except Exception:
            log.exception("fault", peer=self._peer)
            reply = replies.FAULT
        finally:
            self._finished()
            self._is_accepting = False
        metrics.SMTP_MESSAGES.count(self._state.name, str(reply.code))
        # An accepted message is in the database; a log line for each would take a tenth of its time.
        write = log.debug if reply.code == ACCEPTED and not self._is_lost else log.info
        write(
            "message",
            peer=self._peer,
            account=None if self._principal is None else ids.text(ids.ACCOUNT, self._principal.account_id),
            recipients=len(effect.envelope.recipients),
            bytes=len(effect.content),
            code=reply.code,
            text=reply.text,
            seconds=round(self._loop.time() - started_at, 4),
            client_disconnected=self._is_lost,
        )
        conversation = self._conversation
        if conversation is not None:
            if self._is_lost:
                conversation.disconnected()
            else:
                self._perform(conversation.message_answered(reply))

    async def _authenticate(self, effect: Authenticate) -> None:
        conversation = self._conversation
        refusal: ServerReply | None = None
        try:
            principal = await self._state.service.authenticate(effect.username, effect.password, self._peer)
            if self._is_lost or not self._state.account_sessions.take_units(principal.account_id):
                refusal = replies.TOO_MANY_SESSIONS
                metrics.SMTP_LOGINS.count("too_many_sessions")
            else:
                metrics.SMTP_LOGINS.count("ok")
                self._principal = principal
                self._state.authenticated(self, self._prefix)
        except Refusal as refused:
            refused.drop_traceback()
            refusal = _login_reply(refused)
            metrics.SMTP_LOGINS.count(refused.code.value)
            log.info("login_refused", peer=self._peer, code=refused.code.value)
        except Exception:
            log.exception("fault", peer=self._peer)
            refusal = replies.LOGIN_FAULT
        finally:
            self._finished()
        if conversation is None or self._is_lost:
            return
        if self._principal is not None:
            self._perform(conversation.authenticated(self._principal.account_id))
        else:
            self._perform(conversation.not_authenticated(refusal or replies.LOGIN_FAULT))

    async def _secure(self, plain: asyncio.Transport) -> None:
        context, conversation = self._state.context, self._conversation
        if context is None or conversation is None:  # then STARTTLS was not offered
            plain.abort()
            return
        self._plain = plain
        try:
            tls = await self._loop.start_tls(
                plain,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._state.deadlines.handshake_seconds,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
        except (OSError, ValueError) as error:
            log.debug("handshake_failed", peer=self._peer, error=str(error))
            tls = None
        finally:
            self._finished()
        if tls is None or self._is_lost:
            self.abort()
            return
        self._transport = tls
        tls.set_write_buffer_limits(UNREAD_BYTES_MAX)
        self._perform(conversation.tls_started())

    # Pausing and closing

    def _keep_pace(self, size: int) -> None:
        holder = self._network if self._principal is None else self._principal.account_id
        seconds = self._state.pace.pause_seconds(holder, size, self._loop.time())
        if seconds:
            self._pause_reading()
            self._loop.call_later(seconds, self._resume_after_pace)

    def _resume_after_pace(self) -> None:
        if self._task is None and not self._is_unread:
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_held and self._transport is not None and not self._transport.is_closing():
            self._is_held = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_held and self._transport is not None and not self._transport.is_closing():
            self._is_held = False
            self._transport.resume_reading()

    def _close(self, transport: asyncio.Transport, *, is_requested: bool) -> None:
        """Send no more; close immediately, or after the client has had time to read why."""
        self._is_closing = True
        if is_requested or self._is_half_closed or self._state.is_draining:
            transport.close()
        else:
            self._resume_reading()

    def _cut(self) -> None:
        """Close when the client doesn't read, or has had its time to read."""
        if self._is_unread or self._transport is None or self._transport.is_closing():
            self.abort()
        else:
            self._transport.close()


def _login_reply(refusal: Refusal) -> ServerReply:
    """The reply to AUTH (RFC 4954, 6): 454 for a temporary failure, 535 for a permanent one."""
    code, status, text = smtp_reply(refusal)
    return ServerReply(454, "4.7.0", text) if code < 500 else ServerReply(535, status, text)


def _peer_of(address: object) -> str:
    """The client's address; an IPv4 address also from a dual-stack socket."""
    if not isinstance(address, tuple) or not address:
        return ""
    peer = str(address[0]).partition("%")[0]
    return peer.removeprefix(_MAPPED) if peer.startswith(_MAPPED) and "." in peer else peer
