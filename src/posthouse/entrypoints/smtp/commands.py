"""SMTP commands of a session: when each is allowed, its reply, and the limits on a client that makes no progress.

`Conversation` splits the client's bytes into commands and content.
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple

from posthouse.entrypoints.smtp import grammar, replies
from posthouse.entrypoints.smtp.content import TOO_LARGE, Content, ContentMemory
from posthouse.entrypoints.smtp.grammar import Authenticate, AuthExchange
from posthouse.entrypoints.smtp.replies import (
    CLOSING,
    ServerReply,
    encoded,
)
from posthouse.entrypoints.smtp.service import Envelope, Policy

# Per session: a client with more errors will not do better.
MISTAKES_MAX: Final = 20
# Per session: limits the search for existing addresses.
RECIPIENTS_REJECTED_MAX: Final = 100
# Since the last message: enough for a thousand recipients, most of which get a temporary refusal.
COMMANDS_MAX: Final = 1_100
# Smaller chunks count as commands, since they hardly advance a message.
CHUNK_BYTES_MIN: Final = 1_024
# After this many, the client needs a new session, which may reach another process.
TRANSACTIONS_MAX: Final = 1_000
LOGINS_FAILED_MAX: Final = 3
# Refused content is read to its end, up to this limit, so that the client reads the reply.
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024

_is_client_name: Final = re.compile(r"[!-;=?-~]{1,255}+\Z").match

# Sent by web browsers and proxies, which a web page can trick into sending SMTP commands: the session ends.
_OTHER_PROTOCOLS: Final = frozenset({b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"PATCH", b"DELETE"})

_OK: Final = encoded(ServerReply(250, "2.0.0", "OK"))
_SENDER_OK: Final = encoded(ServerReply(250, "2.1.0", "Sender OK"))
_RECIPIENT_OK: Final = encoded(ServerReply(250, "2.1.5", "Recipient OK"))
_CHUNK_OK: Final = encoded(ServerReply(250, "2.0.0", "Chunk received"))
_START_DATA: Final = b"354 End data with <CR><LF>.<CR><LF>\r\n"
_START_TLS: Final = encoded(ServerReply(220, "2.0.0", "Ready to start TLS"))
_BYE: Final = encoded(ServerReply(221, "2.0.0", "Bye"))
_HELP: Final = encoded(ServerReply(214, "2.0.0", "EHLO STARTTLS AUTH MAIL RCPT DATA BDAT RSET NOOP VRFY HELP QUIT"))
_NOT_VERIFIED: Final = encoded(ServerReply(252, "2.5.0", "Send a message, and see whether it is accepted"))

# What the next bytes belong to.
LINES, REFUSED_LINE, CREDENTIALS, DOTTED, CHUNK, NOTHING = range(6)


@dataclass(frozen=True, slots=True)
class StartTls:
    """To be done after the output is written. Its result is `tls_started`."""


class AcceptMessage(NamedTuple):
    """Its result is `message_answered`."""

    envelope: Envelope
    content: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """To be done after the output is written. If the client did not request it, it may still be sending."""

    is_requested: bool = False


# What a conversation asks its connection to do.
Effect = StartTls | Authenticate | AcceptMessage | Close


class Step(NamedTuple):
    """The output to write, then the effect to perform, if any."""

    output: bytes
    effect: Effect | None


class Commands:
    """The state of a session, and its commands. Replies are added to `_output`, the effect is set in `_effect`."""

    __slots__ = (
        "_can_secure",
        "_check_recipient",
        "_chunk_left",
        "_chunk_refusal",
        "_client_name",
        "_commands_left",
        "_content",
        "_discarded_bytes",
        "_effect",
        "_exchange",
        "_expected",
        "_holder",
        "_is_authenticated",
        "_is_chunk_last",
        "_is_ending",
        "_is_secure",
        "_logins_failed",
        "_memory",
        "_mistakes",
        "_output",
        "_peer",
        "_policy",
        "_recipients",
        "_rejected",
        "_sender",
        "_transactions",
        "_waiting",
    )

    def __init__(
        self,
        policy: Policy,
        check_recipient: Callable[[str, int], ServerReply | None],
        memory: ContentMemory,
        *,
        peer: str,
        holder: Hashable = None,
        is_secure: bool,
        can_secure: bool,
    ) -> None:
        self._policy = policy
        self._check_recipient = check_recipient
        self._memory = memory
        self._peer = peer
        self._holder = holder
        self._is_secure = is_secure
        self._can_secure = can_secure
        self._expected = LINES
        self._output: list[bytes] = []
        self._waiting = b""
        self._effect: Effect | None = None
        self._is_ending = False
        self._client_name = ""
        self._is_authenticated = False
        self._exchange: AuthExchange | None = None
        self._sender: str | None = None
        self._recipients: list[str] = []
        self._content: Content | None = None
        self._chunk_left = 0
        self._chunk_refusal: ServerReply | None = None
        self._is_chunk_last = False
        self._commands_left = COMMANDS_MAX
        self._transactions = self._mistakes = self._rejected = self._logins_failed = self._discarded_bytes = 0

    def _run_command(self, line: bytes) -> None:
        verb, _, argument = line.partition(b" ")
        verb = verb.upper()
        command = _COMMANDS.get(verb)
        self._commands_left -= 1
        if self._commands_left < 0:
            self._close(replies.TOO_MANY_COMMANDS)
        elif command is not None:
            command(self, argument.decode("latin-1").strip(" "))
        elif verb in _OTHER_PROTOCOLS or verb.endswith(b":"):
            self._close(replies.NO_BROWSERS)
        else:
            self._refuse_mistake(replies.UNKNOWN)

    def _ehlo(self, argument: str) -> None:
        if self._name_client(argument):
            self._output.append(self._extensions())

    def _helo(self, argument: str) -> None:
        if self._name_client(argument):
            self._output.append(f"250 {self._policy.hostname}\r\n".encode())

    def _name_client(self, argument: str) -> bool:
        # Some clients have a name with an umlaut; the name is only used in logs and Received fields.
        name = argument if argument.isascii() else argument.encode("ascii", "replace").decode()
        if not _is_client_name(name):
            self._refuse_mistake(replies.NAME_YOURSELF)
            return False
        self._client_name = name
        self._reset_transaction()
        return True

    def _extensions(self) -> bytes:
        lines = [self._policy.hostname, "PIPELINING", f"SIZE {self._policy.message_bytes_max}", "8BITMIME"]
        if self._can_secure and not self._is_secure:
            lines.append("STARTTLS")
        if self._policy.needs_authentication and self._is_secure:
            lines.append("AUTH PLAIN LOGIN")
        lines += ["ENHANCEDSTATUSCODES", "CHUNKING"]
        return ("".join([f"250-{line}\r\n" for line in lines[:-1]]) + f"250 {lines[-1]}\r\n").encode()

    def _starttls(self, argument: str) -> None:
        if argument:
            self._refuse_mistake(replies.NO_ARGUMENT)
        elif self._is_secure:
            self._refuse_mistake(replies.TLS_ALREADY)
        elif not self._can_secure:
            self._refuse_mistake(replies.NOT_HERE)
        else:
            self._output.append(_START_TLS)
            self._effect = StartTls()

    def _mail(self, argument: str) -> None:
        if refusal := self._missing_step():
            self._refuse_mistake(refusal)
        elif self._sender is not None:
            self._refuse_mistake(replies.MAIL_AGAIN)
        elif self._transactions >= TRANSACTIONS_MAX:
            self._close(replies.TOO_MANY_TRANSACTIONS)
        else:
            sender = grammar.read_sender(argument)
            if isinstance(sender, ServerReply):
                self._refuse_mistake(sender)
            elif sender.size > self._policy.message_bytes_max:
                self._refuse_mistake(TOO_LARGE)
            else:
                self._sender = sender.path
                self._transactions += 1
                self._output.append(_SENDER_OK)

    def _missing_step(self) -> ServerReply | None:
        if self._policy.needs_authentication:
            if not self._is_secure:
                return replies.TLS_FIRST
            if not self._is_authenticated:
                return replies.LOGIN_FIRST
        return None if self._client_name else replies.EHLO_FIRST

    def _rcpt(self, argument: str) -> None:
        if self._sender is None:
            self._refuse_mistake(self._missing_step() or replies.MAIL_FIRST)
            return
        if self._content is not None:
            self._refuse_mistake(replies.CHUNKS_BEGUN)
            return
        address = grammar.read_recipient(argument)
        if not isinstance(address, ServerReply):
            count = len(self._recipients)
            if count >= self._policy.recipients_max:
                self._output.append(encoded(replies.TOO_MANY_RECIPIENTS))
                return
            refusal = self._check_recipient(address, count)
            if refusal is None:
                self._recipients.append(address)
                self._output.append(_RECIPIENT_OK)
                return
            address = refusal
        self._output.append(encoded(address))
        self._rejected += 1
        if self._rejected >= RECIPIENTS_REJECTED_MAX:
            self._close(replies.TOO_MANY_REJECTED)

    def _data(self, argument: str) -> None:
        if argument:
            self._refuse_mistake(replies.NO_ARGUMENT)
        elif self._sender is None:
            self._refuse_mistake(self._missing_step() or replies.MAIL_FIRST)
        elif self._content is not None:
            self._refuse_mistake(replies.CHUNKS_BEGUN)
        elif not self._recipients:
            # Doesn't count as a mistake: a pipelining client doesn't know the replies to RCPT yet.
            self._output.append(encoded(replies.NO_RECIPIENTS))
        else:
            self._content = Content(self._policy.message_bytes_max, self._memory, self._holder)
            self._expected = DOTTED
            self._output.append(_START_DATA)

    def _bdat(self, argument: str) -> None:
        chunk = grammar.read_chunk(argument)
        if chunk is None:
            self._close(replies.CHUNK_UNREADABLE)
            return
        if self._sender is None:
            self._chunk_refusal = self._missing_step() or replies.MAIL_FIRST
        elif not self._recipients:
            self._chunk_refusal = replies.NO_RECIPIENTS
        else:
            content = self._content
            if content is None:
                self._content = content = Content(self._policy.message_bytes_max, self._memory, self._holder)
            if content.received_bytes + chunk.size > self._policy.message_bytes_max:
                self._chunk_refusal = TOO_LARGE
            else:
                self._chunk_refusal = None
                if chunk.size >= CHUNK_BYTES_MIN:
                    self._commands_left += 1
        if self._chunk_refusal is not None and chunk.size > DISCARDED_BYTES_MAX:
            self._close(self._chunk_refusal)
            return
        self._chunk_left = chunk.size
        self._is_chunk_last = chunk.is_last
        self._expected = CHUNK
        if not chunk.size:
            self._end_chunk()

    def _end_chunk(self) -> None:
        self._expected = LINES
        content = self._content
        refusal = self._chunk_refusal
        if refusal is None and content is not None:
            refusal = content.fault
        if refusal is not None:
            self._chunk_refusal = None
            self._output.append(encoded(refusal))
            if content is not None:
                self._reset_transaction()
        elif content is not None and self._is_chunk_last:
            self._hand_over(content.chunked())
        else:
            self._output.append(_CHUNK_OK)

    def _hand_over(self, content: bytes | ServerReply) -> None:
        if isinstance(content, ServerReply):
            self._output.append(encoded(content))
            self._reset_transaction()
            if self._is_ending:
                self._close(CLOSING)
            return
        envelope = Envelope(self._sender or "", tuple(self._recipients), self._is_secure, self._peer, self._client_name)
        self._effect = AcceptMessage(envelope, content)

    def _rset(self, argument: str) -> None:
        if argument:
            self._refuse_mistake(replies.NO_ARGUMENT)
        else:
            self._reset_transaction()
            self._output.append(_OK)

    def _noop(self, _: str) -> None:
        self._output.append(_OK)

    def _vrfy(self, _: str) -> None:
        self._output.append(_NOT_VERIFIED)

    def _expn(self, _: str) -> None:
        self._refuse_mistake(replies.NOT_HERE)

    def _help(self, _: str) -> None:
        self._output.append(_HELP)

    def _quit(self, argument: str) -> None:
        if argument:
            self._refuse_mistake(replies.NO_ARGUMENT)
        else:
            self._end_session(_BYE, is_requested=True)

    def _auth(self, argument: str) -> None:
        mechanism, _, initial = argument.partition(" ")
        if not self._policy.needs_authentication:
            self._refuse_mistake(replies.NOT_HERE)
        elif not self._is_secure:
            self._refuse_mistake(replies.TLS_FOR_PASSWORDS)
        elif not self._client_name:
            self._refuse_mistake(replies.EHLO_FIRST)
        elif self._is_authenticated:
            self._refuse_mistake(replies.LOGIN_ALREADY)
        elif self._sender is not None:
            self._refuse_mistake(replies.LOGIN_NOT_NOW)
        else:
            exchange = AuthExchange.named(mechanism)
            if exchange is None:
                self._refuse_mistake(replies.LOGIN_MECHANISM)
            elif initial:
                self._exchange = exchange
                self._read_credentials(initial.encode("latin-1"))
            else:
                self._prompt(exchange, exchange.prompt)

    def _read_credentials(self, line: bytes) -> None:
        exchange = self._exchange
        self._expected = LINES
        self._exchange = None
        answer = replies.LOGIN_CANCELLED if exchange is None else exchange.read(line)
        if isinstance(answer, ServerReply):
            self._refuse_mistake(answer)
        elif isinstance(answer, Authenticate):
            self._effect = answer
        else:
            self._prompt(exchange, answer)

    def _prompt(self, exchange: AuthExchange | None, prompt: bytes) -> None:
        self._expected = CREDENTIALS
        self._exchange = exchange
        self._output.append(prompt)

    def _refuse_mistake(self, reply: ServerReply) -> None:
        self._output.append(encoded(reply))
        self._mistakes += 1
        if self._mistakes >= MISTAKES_MAX:
            self._close(replies.TOO_MANY_MISTAKES)

    def _close(self, reply: ServerReply) -> None:
        self._end_session(encoded(reply))

    def _end_session(self, output: bytes, *, is_requested: bool = False) -> None:
        if self._expected != NOTHING:
            self._output.append(output)
        self._effect = Close(is_requested)
        self._reset_transaction()
        self._expected = NOTHING

    def _reset_transaction(self) -> None:
        self._sender = None
        if self._recipients:
            self._recipients = []
        if self._content is not None:
            self._content.discard()
            self._content = None


_COMMANDS: Final[dict[bytes, Callable[[Commands, str], None]]] = {
    b"EHLO": Commands._ehlo,  # noqa: SLF001 (its own table)
    b"HELO": Commands._helo,  # noqa: SLF001
    b"STARTTLS": Commands._starttls,  # noqa: SLF001
    b"AUTH": Commands._auth,  # noqa: SLF001
    b"MAIL": Commands._mail,  # noqa: SLF001
    b"RCPT": Commands._rcpt,  # noqa: SLF001
    b"DATA": Commands._data,  # noqa: SLF001
    b"BDAT": Commands._bdat,  # noqa: SLF001
    b"RSET": Commands._rset,  # noqa: SLF001
    b"NOOP": Commands._noop,  # noqa: SLF001
    b"VRFY": Commands._vrfy,  # noqa: SLF001
    b"EXPN": Commands._expn,  # noqa: SLF001
    b"HELP": Commands._help,  # noqa: SLF001
    b"QUIT": Commands._quit,  # noqa: SLF001
}
