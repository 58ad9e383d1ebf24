"""An outgoing SMTP session: connect, greeting, TLS, then transactions in sequence.

Server replies and connection failures are returned as values, with the stage at which they happened. Only a
programming error (an unsafe address or content) and a cancellation raise.

The final dot is the point of no return. Before it, all content has been sent and `before_dot` checks the lease a
last time; a session that ends before the dot delivered nothing. After the dot, a missing reply proves nothing:
the failure is `ambiguous`. With CHUNKING an empty last chunk replaces the dot. A failed transaction is reset when
the next transaction begins, so that no message waits for the reset.
"""

import asyncio
import base64
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from posthouse import crash
from posthouse.mail.reply import Reply
from posthouse.rules.outcome import AUTHENTICATION_REQUIRED, Stage
from posthouse.wire.dialogue import BLOCK_BYTES_MAX, Dialogue, SmtpContent, error_text
from posthouse.wire.tls import TlsDetails, TlsPolicy, TlsUse, verifies

START_CONTENT: Final = 354
CONTINUE_AUTHENTICATION: Final = 334
AUTHENTICATED: Final = 235

# Last line of defence: no character that ends a path or a line early may reach the wire.
_is_path: Final = re.compile(r"[!-;=?-~]{1,320}").fullmatch
_is_hostname: Final = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}").fullmatch


@dataclass(frozen=True, slots=True)
class ClientDeadlines:
    """How long to wait at each step. A complete reply or a sent block restarts the step's wait; nothing extends
    the totals.

    `destination_seconds_total` is for all addresses of a destination together, until a session is open. A message's
    first attempt at a destination whose servers have never answered has only `first_seconds_total`: the domain may have
    been set up to hold sessions open. A slow server gets the full time at the second attempt.
    """

    connect_seconds: float = 30.0
    greeting_seconds: float = 120.0
    command_seconds: float = 120.0
    handshake_seconds: float = 30.0
    block_seconds: float = 180.0
    dot_seconds: float = 600.0  # RFC 5321, 4.5.3.2.6: giving up early here makes duplicates
    opening_seconds_total: float = 240.0
    destination_seconds_total: float = 240.0
    first_seconds_total: float = 30.0
    transaction_seconds_total: float = 900.0


@dataclass(frozen=True, slots=True)
class Login:
    """Our login at a relay. It is sent only over verified TLS."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SmtpAccepted:
    """The server accepted the message for this recipient; `reply` answers the dot."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class SmtpFailure:
    """`reply` is the server's refusal or its closing reply; without a reply, `reason` says what happened.

    After a failure at STARTTLS, opportunistic delivery may open another session in cleartext.
    """

    stage: Stage
    reply: Reply | None
    reason: str
    ambiguous: bool = False


SmtpResult = SmtpAccepted | SmtpFailure


def extensions_of(reply: Reply) -> dict[str, str]:
    """The extensions a server offers: keyword in upper case, and its parameters."""
    offered = {}
    for line in reply.lines[1:]:
        # Some old servers write AUTH=LOGIN.
        keyword, _, parameters = line.replace("=", " ", 1).partition(" ")
        offered[keyword.upper()] = parameters.strip()
    return offered


class SmtpSession:
    """Created by `SmtpSession.open`. Runs one transaction at a time; call `deliver` again while `is_reusable`."""

    __slots__ = ("_deadlines", "_dialogue", "_is_busy", "_needs_reset", "extensions", "tls", "transactions")

    def __init__(self, dialogue: Dialogue, deadlines: ClientDeadlines) -> None:
        self._dialogue = dialogue
        self._deadlines = deadlines
        self._is_busy = False
        self._needs_reset = False
        self.extensions: dict[str, str] = {}
        self.tls: TlsDetails | None = None
        self.transactions = 0

    # Opening

    @classmethod
    async def open(
        cls,
        address: str,
        port: int,
        *,
        hostname: str,
        tls: TlsPolicy,
        server_name: str,
        deadlines: ClientDeadlines,
        source_address: str | None = None,
        login: Login | None = None,
        is_implicit_tls: bool = False,
    ) -> "SmtpSession | SmtpFailure":
        """Connect to this IP address and prepare to deliver. `hostname` goes into EHLO, `server_name` is the MX name
        that TLS requests and verifies. `is_implicit_tls`: TLS begins before the greeting."""
        if login is not None and tls.use is not TlsUse.REQUIRED_VERIFIED:
            raise ValueError("a login is sent only over verified TLS")
        if _is_hostname(hostname) is None:
            raise ValueError(f"{hostname!r} can't be written in EHLO")
        loop = asyncio.get_running_loop()
        dialogue = Dialogue(loop, deadlines.opening_seconds_total)
        local = None if source_address is None else (source_address, 0)
        try:
            async with asyncio.timeout(min(deadlines.connect_seconds, deadlines.opening_seconds_total)):
                await loop.create_connection(lambda: dialogue, address, port, local_addr=local)
        except TimeoutError:
            return SmtpFailure(Stage.CONNECT, None, "no connection in time")
        except OSError as error:
            return SmtpFailure(Stage.CONNECT, None, f"no connection: {error_text(error)}")
        session = cls(dialogue, deadlines)
        failure = await session.greet_and_secure(hostname, tls, server_name, is_implicit_tls=is_implicit_tls)
        if failure is None and login is not None:
            failure = await session.log_in(login)
        if failure is None:
            return session
        session.quit()
        return failure

    async def greet_and_secure(
        self, hostname: str, tls: TlsPolicy, server_name: str, *, is_implicit_tls: bool = False
    ) -> SmtpFailure | None:
        """After connecting: greeting, EHLO, and STARTTLS according to the policy."""
        if is_implicit_tls and tls.context is not None:
            failure = await self._handshake(tls.context, server_name)
            if failure is not None:
                return failure
        greeting = await self._reply(Stage.GREETING, self._deadlines.greeting_seconds)
        if isinstance(greeting, SmtpFailure):
            return greeting
        failure = await self._ehlo(hostname)
        if failure is not None or tls.context is None or self.tls is not None:
            return failure
        if "STARTTLS" in self.extensions:
            return await self._secure(tls.context, server_name) or await self._ehlo(hostname)
        if tls.use is TlsUse.REQUIRED_VERIFIED:
            return SmtpFailure(Stage.STARTTLS, None, "the server does not offer STARTTLS")
        return None

    async def _ehlo(self, hostname: str) -> SmtpFailure | None:
        self.extensions = {}
        self._dialogue.command(b"EHLO %b\r\n" % hostname.encode(), 1)
        answer = await self._reply(Stage.EHLO, self._deadlines.command_seconds)
        if isinstance(answer, Reply):
            self.extensions = extensions_of(answer)
            return None
        if answer.reply is None or answer.reply.code < 500:
            return answer
        self._dialogue.command(b"HELO %b\r\n" % hostname.encode(), 1)
        answer = await self._reply(Stage.EHLO, self._deadlines.command_seconds)
        return answer if isinstance(answer, SmtpFailure) else None

    async def _secure(self, context: ssl.SSLContext, server_name: str) -> SmtpFailure | None:
        self._dialogue.command(b"STARTTLS\r\n", 1)
        reply = await self._reply(Stage.STARTTLS, self._deadlines.command_seconds)
        if isinstance(reply, SmtpFailure):
            return reply
        return await self._handshake(context, server_name)

    async def _handshake(self, context: ssl.SSLContext, server_name: str) -> SmtpFailure | None:
        secured = await self._dialogue.secure(context, server_name, self._deadlines.handshake_seconds)
        if secured is None:
            return self._lost(Stage.STARTTLS)
        cipher = secured.cipher()
        self.tls = TlsDetails(secured.version() or "", cipher[0] if cipher is not None else "", verifies(context))
        return None

    async def log_in(self, login: Login) -> SmtpFailure | None:
        """AUTH PLAIN, or LOGIN if the server offers only that; only over verified TLS."""
        if self.tls is None or not self.tls.is_verified:
            raise RuntimeError("a login is sent only over verified TLS")
        mechanisms = self.extensions.get("AUTH", "").upper().split()
        if "PLAIN" in mechanisms:
            return await self._auth([b"AUTH PLAIN " + _base64(f"\0{login.username}\0{login.password}")])
        if "LOGIN" in mechanisms:
            return await self._auth([b"AUTH LOGIN", _base64(login.username), _base64(login.password)])
        return SmtpFailure(Stage.AUTH, None, "the server offers neither AUTH PLAIN nor LOGIN")

    async def _auth(self, lines: Sequence[bytes]) -> SmtpFailure | None:
        for number, line in enumerate(lines, start=1):
            self._dialogue.command(line + b"\r\n", 1)
            replies = await self._dialogue.receive(1, self._deadlines.command_seconds)
            if not replies:
                return self._lost(Stage.AUTH)
            if replies[0].code != (AUTHENTICATED if number == len(lines) else CONTINUE_AUTHENTICATION):
                return self._refused(Stage.AUTH, replies[0])
        return None

    async def _reply(self, stage: Stage, seconds: float) -> Reply | SmtpFailure:
        replies = await self._dialogue.receive(1, seconds)
        if not replies:
            return self._lost(stage)
        return replies[0] if _is_success(replies[0]) else self._refused(stage, replies[0])

    # State

    @property
    def is_reusable(self) -> bool:
        """Whether another transaction may begin; False also if the server closed the connection meanwhile."""
        return not self._is_busy and self._dialogue.is_idle

    @property
    def is_leaving(self) -> bool:
        return self._dialogue.is_leaving

    @property
    def unsent_bytes(self) -> int:
        return self._dialogue.unsent_bytes

    def quit(self) -> None:
        """Send QUIT and close without waiting for the reply. Has no effect on a closed session."""
        if self._is_busy:
            self._dialogue.end("the session was ended")
        else:
            self._dialogue.close(b"QUIT\r\n")

    def leave(self) -> None:
        """Send QUIT, and close when the server has answered. Has no effect on a closed session."""
        self._dialogue.leave(b"QUIT\r\n")

    def when_lost(self, lost: Callable[[], None]) -> None:
        """`lost` is called when the connection has ended, or now if it has."""
        self._dialogue.when_lost(lost)

    # Delivering

    async def deliver(
        self, sender: str, recipients: Sequence[str], message: SmtpContent, before_dot: Callable[[], bool]
    ) -> list[SmtpResult]:
        """Send a message to these recipients, at least one; returns their results. An empty `sender` is the null
        return path.

        An idle session may turn out to be closed: then every failure is at MAIL, and nothing was delivered.
        Cancelling the task aborts the connection; after the dot that is ambiguous.
        """
        if self._is_busy:
            raise RuntimeError("one transaction at a time")
        commands = self._envelope(sender, recipients, message)
        self._is_busy = True
        self._dialogue.begin(self._deadlines.transaction_seconds_total)
        try:
            results = await self._transact(commands, message, before_dot)
        finally:
            self._is_busy = False
        self.transactions += 1
        return results

    def _envelope(self, sender: str, recipients: Sequence[str], message: SmtpContent) -> list[bytes]:
        """MAIL and each RCPT."""
        if not recipients:
            raise ValueError("a transaction needs a recipient")
        for path in (sender, *recipients) if sender else recipients:
            if _is_path(path) is None:
                raise ValueError(f"{path!r} can't be written in an SMTP envelope")
        if "SIZE" in self.extensions:
            commands = [b"MAIL FROM:<%b> SIZE=%d\r\n" % (sender.encode(), len(message.content))]
        else:
            commands = [b"MAIL FROM:<%b>\r\n" % sender.encode()]
        commands += [b"RCPT TO:<%b>\r\n" % recipient.encode() for recipient in recipients]
        return commands

    async def _transact(
        self,
        envelope: list[bytes],
        message: SmtpContent,
        before_dot: Callable[[], bool],
    ) -> list[SmtpResult]:
        """Send the envelope, then the content for the recipients that the server accepted."""
        recipients = len(envelope) - 1
        if self._needs_reset and not await self._reset():
            return [self._lost(Stage.MAIL)] * recipients
        # Until the server has accepted a complete message, it may hold half a transaction.
        self._needs_reset = True
        is_chunked = "CHUNKING" in self.extensions
        commands = envelope if is_chunked else [*envelope, b"DATA\r\n"]
        if "PIPELINING" in self.extensions:
            self._dialogue.command(b"".join(commands), len(commands))
            replies = await self._dialogue.receive(len(commands), self._deadlines.command_seconds)
        else:
            replies = await self._replies_one_by_one(commands, recipients)
        results = self._envelope_results(replies, recipients)
        go_ahead = replies[recipients + 1] if len(replies) > recipients + 1 else None
        if None not in results:
            if go_ahead is not None and go_ahead.code == START_CONTENT:
                await self._close_empty_content(replies)
            return [result for result in results if result is not None]
        if is_chunked:
            rest = await self._send_in_chunks(message.content, before_dot)
        elif go_ahead is None:
            rest = self._lost(Stage.DATA)
        elif go_ahead.code != START_CONTENT:
            rest = self._refused(Stage.DATA, go_ahead)
        else:
            rest = await self._send_with_dot(message.stuffed, before_dot)
        return [rest if result is None else result for result in results]

    async def _reset(self) -> bool:
        self._dialogue.command(b"RSET\r\n", 1)
        replies = await self._dialogue.receive(1, self._deadlines.command_seconds)
        if replies and _is_success(replies[0]):
            return True
        self._dialogue.end("the server did not reset the session")
        return False

    async def _replies_one_by_one(self, commands: list[bytes], recipients: int) -> list[Reply]:
        """Without PIPELINING: stop sending commands once none of them can succeed."""
        replies: list[Reply] = []
        for number, command in enumerate(commands):
            if number == 1 and not _is_success(replies[0]):
                break
            if number > recipients and not any(map(_is_success, replies[1:])):
                break
            self._dialogue.command(command, 1)
            replies += await self._dialogue.receive(1, self._deadlines.command_seconds)
            if len(replies) == number:
                break
        return replies

    def _envelope_results(self, replies: list[Reply], recipients: int) -> list[SmtpResult | None]:
        """The envelope's results for each recipient; None for an accepted recipient."""
        if not replies:
            return [self._lost(Stage.MAIL)] * recipients
        if not _is_success(replies[0]):
            # If a recipient was accepted anyway, this is not a refusal of the sender only; a reply that a login is
            # needed is about neither.
            took_one = any(map(_is_success, replies[1 : recipients + 1]))
            is_later = took_one and replies[0].code != AUTHENTICATION_REQUIRED
            return [self._refused(Stage.DATA if is_later else Stage.MAIL, replies[0])] * recipients
        results: list[SmtpResult | None] = [
            None if _is_success(reply) else self._refused(Stage.RCPT, reply) for reply in replies[1 : recipients + 1]
        ]
        if len(results) < recipients:
            results += [self._lost(Stage.RCPT)] * (recipients - len(results))
        return results

    async def _close_empty_content(self, replies: list[Reply]) -> None:
        """The server asks for content though it accepted no recipient (RFC 2920, 3.1): send a lone dot."""
        if any(map(_is_success, replies[1:-1])):
            # It refused MAIL but accepted a recipient, who would get an empty message.
            self._dialogue.end("the server took a recipient of a transaction that it had refused")
            return
        self._dialogue.command(b".\r\n", 1)
        await self._dialogue.receive(1, self._deadlines.dot_seconds)

    async def _send_with_dot(self, stuffed: bytes, before_dot: Callable[[], bool]) -> SmtpResult:
        ending = b".\r\n"
        if len(stuffed) <= BLOCK_BYTES_MAX:
            # A small message goes out with its dot: one write instead of two.
            ending = stuffed + ending
        elif not await self._dialogue.send(stuffed, self._deadlines.block_seconds):
            return self._lost(Stage.DATA)
        if not before_dot():
            return self._withdrawn()
        crash.point("carry.before_dot")
        if not self._dialogue.command(ending, 1):
            return self._lost(Stage.DATA)
        crash.point("carry.after_dot")
        replies = await self._dialogue.receive(1, self._deadlines.dot_seconds)
        crash.point("carry.answered")
        return self._dot_result(replies)

    async def _send_in_chunks(self, content: bytes, before_dot: Callable[[], bool]) -> SmtpResult:
        """RFC 3030: the content as a single chunk, then an empty last chunk in place of the dot.

        No content goes out with the envelope: a server that refuses every recipient and fails to skip the chunk
        would read the content as commands.
        """
        dialogue, deadlines = self._dialogue, self._deadlines
        is_sent = dialogue.command(b"BDAT %d\r\n" % len(content), 1) and await dialogue.send(
            content, deadlines.block_seconds
        )
        # A reply that has arrived already costs no wait; without PIPELINING it must come first.
        waits = is_sent and "PIPELINING" not in self.extensions
        replies = await dialogue.receive(1 if waits else 0, deadlines.dot_seconds)
        if replies and not _is_success(replies[0]):
            if not is_sent:
                dialogue.end("the server refused the content before it had all of it")
            return self._refused(Stage.DATA, replies[0])
        if not is_sent or (waits and not replies):
            return self._lost(Stage.DATA)
        if not before_dot():
            return self._withdrawn()
        crash.point("carry.before_dot")
        if not dialogue.command(b"BDAT 0 LAST\r\n", 1):
            return self._lost(Stage.DATA)
        crash.point("carry.after_dot")
        replies += await dialogue.receive(2 - len(replies), deadlines.dot_seconds)
        crash.point("carry.answered")
        if not replies:
            return self._lost(Stage.DOT, ambiguous=True)
        if not _is_success(replies[0]):
            return self._refused(Stage.DATA, replies[0])
        return self._dot_result(replies[1:])

    def _dot_result(self, replies: list[Reply]) -> SmtpResult:
        """The result from the reply to the dot; no reply is ambiguous."""
        if not replies:
            return self._lost(Stage.DOT, ambiguous=True)
        if not _is_success(replies[0]):
            return self._refused(Stage.DOT, replies[0])
        self._needs_reset = False
        return SmtpAccepted(replies[0])

    # Failures

    def _refused(self, stage: Stage, reply: Reply) -> SmtpFailure:
        if reply.code >= 400:
            return SmtpFailure(stage, reply, "the server refused")
        # A success code that does not fit this stage: what the server did is unknown.
        reason = f"the server answered {stage} with {reply.code}, which has no meaning there"
        self._dialogue.end(reason)
        return SmtpFailure(stage, None, reason, ambiguous=stage is Stage.DOT)

    def _lost(self, stage: Stage, *, ambiguous: bool = False) -> SmtpFailure:
        ended = self._dialogue.end_reason or "the server closed the connection"
        return SmtpFailure(stage, self._dialogue.closing_reply, ended, ambiguous)

    def _withdrawn(self) -> SmtpFailure:
        """In the middle of the content, the only way to withdraw is to close the connection."""
        self._dialogue.end("withdrawn before the final dot")
        return self._lost(Stage.DATA)


def _base64(text: str) -> bytes:
    return base64.b64encode(text.encode())


def _is_success(reply: Reply) -> bool:
    return reply.code // 100 == 2
