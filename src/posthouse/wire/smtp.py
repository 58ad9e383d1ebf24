"""One outgoing SMTP session: a connection, its greeting and TLS, and the transactions on it one after another.

What the other side says or fails to say comes back as a value, with the stage at which it happened; only a
caller's mistake (an address or a content that could not be written safely) and a cancellation raise.

The final dot is the point of no return. Before it the content has left our buffers and the caller is asked
once more (`before_dot`, its lease); a session that ends before the dot delivered nothing. Once the dot is
written, silence proves nothing: the failure is `ambiguous`. With CHUNKING the part of the dot is played by an
empty last chunk. A failed transaction is reset when the next one begins, so that nobody waits for it.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from posthouse import crash
from posthouse.mail.reply import Reply
from posthouse.rules.outcome import Stage
from posthouse.wire.dialogue import Dialogue, error_text
from posthouse.wire.smtp_content import SmtpContent
from posthouse.wire.tls import TlsDetails, TlsPolicy, TlsUse, verifies

START_CONTENT: Final = 354

# Anything that could end a path or a line early must never reach the wire, whoever checked it before.
_is_path: Final = re.compile(r"[!-;=?-~]{1,320}").fullmatch
_is_hostname: Final = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}").fullmatch


@dataclass(frozen=True, slots=True)
class ClientDeadlines:
    """How long to wait for each thing. A whole reply, or a block of content taken, starts the wait for the next
    anew. Nothing renews the two totals."""

    connect_seconds: float = 30.0
    greeting_seconds: float = 120.0
    command_seconds: float = 120.0
    handshake_seconds: float = 30.0
    block_seconds: float = 180.0
    dot_seconds: float = 600.0  # RFC 5321, 4.5.3.2.6: giving up early here makes duplicates
    opening_seconds_total: float = 240.0
    transaction_seconds_total: float = 900.0


@dataclass(frozen=True, slots=True)
class SmtpAccepted:
    """The server has taken the mail for this recipient; `reply` is its answer to the dot."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class SmtpFailure:
    """`reply` is the server's refusal, or what it said as it hung up; without one, `reason` tells what happened.

    After a failure at STARTTLS an opportunistic caller may open another session in cleartext.
    """

    stage: Stage
    reply: Reply | None
    reason: str
    ambiguous: bool = False


SmtpResult = SmtpAccepted | SmtpFailure


@dataclass(frozen=True, slots=True)
class SmtpTransaction:
    """One result for each recipient, in the order given."""

    results: tuple[SmtpResult, ...]

    @property
    def ambiguous(self) -> bool:
        return any(isinstance(result, SmtpFailure) and result.ambiguous for result in self.results)


def extensions_of(reply: Reply) -> dict[str, str]:
    """What a server offers: keyword in upper case, and its parameters."""
    offered = {}
    for line in reply.lines[1:]:
        # Some servers of old write AUTH=LOGIN.
        keyword, _, parameters = line.replace("=", " ", 1).partition(" ")
        offered[keyword.upper()] = parameters.strip()
    return offered


class SmtpSession:
    """Made by `Session.open`. One transaction at a time; `deliver` again as long as `is_reusable`."""

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
    ) -> "SmtpSession | SmtpFailure":
        """Connect to this IP address and get ready to deliver. `hostname` is what we call ourselves,
        `server_name` the MX name that TLS asks for and verifies."""
        if _is_hostname(hostname) is None:
            raise ValueError(f"{hostname!r} can't be said in EHLO")
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
        failure = await session.introduce(hostname, tls, server_name)
        if failure is None:
            return session
        session.quit()
        return failure

    async def introduce(self, hostname: str, tls: TlsPolicy, server_name: str) -> SmtpFailure | None:
        """What `open` does once connected: greeting, EHLO, STARTTLS as the policy says."""
        greeting = await self._answer(Stage.GREETING, self._deadlines.greeting_seconds)
        if isinstance(greeting, SmtpFailure):
            return greeting
        failure = await self._greet(hostname)
        if failure is not None or tls.context is None:
            return failure
        if "STARTTLS" in self.extensions:
            return await self._secure(tls.context, server_name) or await self._greet(hostname)
        if tls.use is TlsUse.REQUIRED_VERIFIED:
            return SmtpFailure(Stage.STARTTLS, None, "the server does not offer STARTTLS")
        return None

    async def _greet(self, hostname: str) -> SmtpFailure | None:
        self.extensions = {}
        self._dialogue.say(b"EHLO %b\r\n" % hostname.encode(), 1)
        answer = await self._answer(Stage.EHLO, self._deadlines.command_seconds)
        if isinstance(answer, Reply):
            self.extensions = extensions_of(answer)
            return None
        if answer.reply is None or answer.reply.code < 500:
            return answer
        self._dialogue.say(b"HELO %b\r\n" % hostname.encode(), 1)
        answer = await self._answer(Stage.EHLO, self._deadlines.command_seconds)
        return answer if isinstance(answer, SmtpFailure) else None

    async def _secure(self, context: ssl.SSLContext, server_name: str) -> SmtpFailure | None:
        self._dialogue.say(b"STARTTLS\r\n", 1)
        answer = await self._answer(Stage.STARTTLS, self._deadlines.command_seconds)
        if isinstance(answer, SmtpFailure):
            return answer
        secured = await self._dialogue.secure(context, server_name, self._deadlines.handshake_seconds)
        if secured is None:
            return self._lost(Stage.STARTTLS)
        cipher = secured.cipher()
        self.tls = TlsDetails(secured.version() or "", cipher[0] if cipher is not None else "", verifies(context))
        return None

    async def _answer(self, stage: Stage, seconds: float) -> Reply | SmtpFailure:
        heard = await self._dialogue.hear(1, seconds)
        if not heard:
            return self._lost(stage)
        return heard[0] if _is_yes(heard[0]) else self._refused(stage, heard[0])

    # Being open

    @property
    def is_reusable(self) -> bool:
        """Whether another transaction may begin. A server that hung up meanwhile is noticed here."""
        return not self._is_busy and self._dialogue.is_open and self._dialogue.is_silent

    @property
    def unsent_bytes(self) -> int:
        return self._dialogue.unsent_bytes

    def quit(self) -> None:
        """Say goodbye and close, without waiting for the answer. Harmless when already closed."""
        if self._is_busy:
            self._dialogue.end("the session was ended")
        else:
            self._dialogue.close(b"QUIT\r\n")

    # Delivering

    async def deliver(
        self, sender: str, recipients: Sequence[str], message: SmtpContent, before_dot: Callable[[], bool]
    ) -> SmtpTransaction:
        """Carry one mail to these recipients, at least one. An empty `sender` is the null return path.

        A session that was idle may turn out to be closed: then every failure is at MAIL, and nothing was
        delivered. When the task is cancelled the connection is cut; after the dot that is ambiguous.
        """
        if self._is_busy:
            raise RuntimeError("one transaction at a time")
        commands = self._envelope(sender, recipients, message)
        self._is_busy = True
        self._dialogue.begin(self._deadlines.transaction_seconds_total)
        try:
            results = await self._carry(commands, message, before_dot)
        finally:
            self._is_busy = False
        self.transactions += 1
        return SmtpTransaction(tuple(results))

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

    async def _carry(
        self,
        envelope: list[bytes],
        message: SmtpContent,
        before_dot: Callable[[], bool],
    ) -> list[SmtpResult]:
        """The envelope, then the content for those recipients that the server took."""
        recipients = len(envelope) - 1
        if self._needs_reset and not await self._reset():
            return [self._lost(Stage.MAIL)] * recipients
        # Until the server has taken a mail whole, it may hold half a transaction.
        self._needs_reset = True
        in_chunks = "CHUNKING" in self.extensions
        commands = envelope if in_chunks else [*envelope, b"DATA\r\n"]
        if "PIPELINING" in self.extensions:
            self._dialogue.say(b"".join(commands), len(commands))
            heard = await self._dialogue.hear(len(commands), self._deadlines.command_seconds)
        else:
            heard = await self._heard_one_by_one(commands, recipients)
        judged = self._judged(heard, recipients)
        go_ahead = heard[recipients + 1] if len(heard) > recipients + 1 else None
        if None not in judged:
            if go_ahead is not None and go_ahead.code == START_CONTENT:
                await self._close_empty_content(heard)
            return [result for result in judged if result is not None]
        if in_chunks:
            rest = await self._in_chunks(message.content, before_dot)
        elif go_ahead is None:
            rest = self._lost(Stage.DATA)
        elif go_ahead.code != START_CONTENT:
            rest = self._refused(Stage.DATA, go_ahead)
        else:
            rest = await self._dotted(message.stuffed, before_dot)
        return [rest if result is None else result for result in judged]

    async def _reset(self) -> bool:
        self._dialogue.say(b"RSET\r\n", 1)
        heard = await self._dialogue.hear(1, self._deadlines.command_seconds)
        if heard and _is_yes(heard[0]):
            return True
        self._dialogue.end("the server did not reset the session")
        return False

    async def _heard_one_by_one(self, commands: list[bytes], recipients: int) -> list[Reply]:
        """Without PIPELINING: nothing is said any more that can't succeed."""
        heard: list[Reply] = []
        for number, command in enumerate(commands):
            if number == 1 and not _is_yes(heard[0]):
                break
            if number > recipients and not any(map(_is_yes, heard[1:])):
                break
            self._dialogue.say(command, 1)
            heard += await self._dialogue.hear(1, self._deadlines.command_seconds)
            if len(heard) == number:
                break
        return heard

    def _judged(self, heard: list[Reply], recipients: int) -> list[SmtpResult | None]:
        """What the envelope's replies mean for each recipient; None for one that was taken."""
        if not heard:
            return [self._lost(Stage.MAIL)] * recipients
        if not _is_yes(heard[0]):
            return [self._refused(Stage.MAIL, heard[0])] * recipients
        judged: list[SmtpResult | None] = [
            None if _is_yes(reply) else self._refused(Stage.RCPT, reply) for reply in heard[1 : recipients + 1]
        ]
        if len(judged) < recipients:
            judged += [self._lost(Stage.RCPT)] * (recipients - len(judged))
        return judged

    async def _close_empty_content(self, heard: list[Reply]) -> None:
        """The server wants content though nobody is left to get it (RFC 2920, 3.1): a lone dot ends that."""
        if any(map(_is_yes, heard[1:-1])):
            # It refused MAIL and took a recipient all the same, who would get an empty mail.
            self._dialogue.end("the server took a recipient of a transaction that it had refused")
            return
        self._dialogue.say(b".\r\n", 1)
        await self._dialogue.hear(1, self._deadlines.dot_seconds)

    async def _dotted(self, stuffed: bytes, before_dot: Callable[[], bool]) -> SmtpResult:
        if not await self._dialogue.send(stuffed, self._deadlines.block_seconds):
            return self._lost(Stage.DATA)
        if not before_dot():
            return self._withdrawn()
        crash.point("carry.before_dot")
        if not self._dialogue.say(b".\r\n", 1):
            return self._lost(Stage.DATA)
        crash.point("carry.after_dot")
        heard = await self._dialogue.hear(1, self._deadlines.dot_seconds)
        crash.point("carry.answered")
        return self._closed(heard)

    async def _in_chunks(self, content: bytes, before_dot: Callable[[], bool]) -> SmtpResult:
        """RFC 3030: the content as one chunk, then an empty last one in the place of the dot.

        Nothing of it goes out with the envelope: a server that refuses every recipient and does not skip the
        chunk, as it must, would read the content as commands.
        """
        dialogue, deadlines = self._dialogue, self._deadlines
        is_sent = dialogue.say(b"BDAT %d\r\n" % len(content), 1) and await dialogue.send(
            content, deadlines.block_seconds
        )
        # An answer that is there already costs no wait; without PIPELINING it must come first.
        waits = is_sent and "PIPELINING" not in self.extensions
        heard = await dialogue.hear(1 if waits else 0, deadlines.dot_seconds)
        if heard and not _is_yes(heard[0]):
            if not is_sent:
                dialogue.end("the server refused the content before it had all of it")
            return self._refused(Stage.DATA, heard[0])
        if not is_sent or (waits and not heard):
            return self._lost(Stage.DATA)
        if not before_dot():
            return self._withdrawn()
        crash.point("carry.before_dot")
        if not dialogue.say(b"BDAT 0 LAST\r\n", 1):
            return self._lost(Stage.DATA)
        crash.point("carry.after_dot")
        heard += await dialogue.hear(2 - len(heard), deadlines.dot_seconds)
        crash.point("carry.answered")
        if not heard:
            return self._lost(Stage.DOT, ambiguous=True)
        if not _is_yes(heard[0]):
            return self._refused(Stage.DATA, heard[0])
        return self._closed(heard[1:])

    def _closed(self, heard: list[Reply]) -> SmtpResult:
        """What the answer to the dot means; its absence means anything."""
        if not heard:
            return self._lost(Stage.DOT, ambiguous=True)
        if not _is_yes(heard[0]):
            return self._refused(Stage.DOT, heard[0])
        self._needs_reset = False
        return SmtpAccepted(heard[0])

    # Failing

    def _refused(self, stage: Stage, reply: Reply) -> SmtpFailure:
        if reply.code >= 400:
            return SmtpFailure(stage, reply, "the server refused")
        # A yes to something else: nobody knows what it did.
        reason = f"the server answered {stage} with {reply.code}, which means nothing there"
        self._dialogue.end(reason)
        return SmtpFailure(stage, None, reason, ambiguous=stage is Stage.DOT)

    def _lost(self, stage: Stage, *, ambiguous: bool = False) -> SmtpFailure:
        ended = self._dialogue.ended or "the server closed the connection"
        return SmtpFailure(stage, self._dialogue.farewell, ended, ambiguous)

    def _withdrawn(self) -> SmtpFailure:
        """In the middle of the content the only way back is to hang up."""
        self._dialogue.end("withdrawn before the final dot")
        return self._lost(Stage.DATA)


def _is_yes(reply: Reply) -> bool:
    return reply.code // 100 == 2
