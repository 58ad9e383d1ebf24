"""One SMTP conversation seen from the server, without a socket: bytes in, replies and wishes out.

What the conversation can't do itself it asks for: TLS, a check of a password, a message to be taken, the end.
While a wish is open it only collects what comes in, and goes on with it once it hears the result. How the bytes
were cut into pieces on their way makes no difference to what is said and asked for.

A line ends in CRLF alone. One that holds a control character (a bare CR or LF among them) or is too long is
refused whole, to its true end; so no part of it can be taken for a command of its own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from posthouse.entrypoints.smtp import grammar, replies
from posthouse.entrypoints.smtp.content import NO_ROOM, TOO_LARGE, Content, Room
from posthouse.entrypoints.smtp.login import Authenticate, AuthExchange
from posthouse.entrypoints.smtp.replies import CLOSING, ServerReply, encoded
from posthouse.entrypoints.smtp.service import Envelope, Policy

# RFC 5321 has 512; the parameters of AUTH, DSN, SIZE and 8BITMIME add up to another 1,200.
LINE_BYTES_MAX: Final = 2_048
# RFC 4954, 4.
AUTHENTICATION_LINE_BYTES_MAX: Final = 12_288
# A client that makes so many mistakes is not one, or will not do better.
MISTAKES_MAX: Final = 20
# Of one session: nobody searches for addresses here.
RECIPIENTS_REJECTED_MAX: Final = 100
# Since the last message: enough for one to a thousand recipients, most of which are told to come again.
COMMANDS_MAX: Final = 1_100
# Chunks below this count as commands, since nothing much gets done by them.
CHUNK_BYTES_MIN: Final = 1_024
# Then a new session, which may go to another process.
TRANSACTIONS_MAX: Final = 1_000
LOGINS_FAILED_MAX: Final = 3
# What is refused is read to its end, so that its sender hears why; but not for ever.
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024

_find_control: Final = re.compile(rb"[\x00-\x1f\x7f]").search
_is_client_name: Final = re.compile(r"[!-;=?-~]{1,255}+\Z").match

# What web browsers and proxies say; they can be made to say more, so that they are not listened to.
_OTHER_PROTOCOLS: Final = frozenset({b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"PATCH", b"DELETE"})

_OK: Final = encoded(ServerReply(250, "2.0.0", "OK"))
_SENDER_OK: Final = encoded(ServerReply(250, "2.1.0", "Sender OK"))
_RECIPIENT_OK: Final = encoded(ServerReply(250, "2.1.5", "Recipient OK"))
_CHUNK_OK: Final = encoded(ServerReply(250, "2.0.0", "Chunk received"))
_GO_ON: Final = b"354 End data with <CR><LF>.<CR><LF>\r\n"
_GO_SECURE: Final = encoded(ServerReply(220, "2.0.0", "Ready to start TLS"))
_ADMITTED: Final = encoded(ServerReply(235, "2.7.0", "Authentication successful"))
_BYE: Final = encoded(ServerReply(221, "2.0.0", "Bye"))
_HELP: Final = encoded(ServerReply(214, "2.0.0", "EHLO STARTTLS AUTH MAIL RCPT DATA BDAT RSET NOOP VRFY HELP QUIT"))
_NOT_VERIFIED: Final = encoded(ServerReply(252, "2.5.0", "Send a message, and see whether it is taken"))


@dataclass(frozen=True, slots=True)
class StartTls:
    """Go on under TLS once the reply is written; then `secured`."""


class Take(NamedTuple):
    """Then `taken`."""

    envelope: Envelope
    content: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Once the reply is written. When the client has not asked for it, it may still be sending."""

    is_agreed: bool = False


Effect = StartTls | Authenticate | Take | Close


class Step(NamedTuple):
    """Write the output; then, if there is a wish, see to it."""

    output: bytes
    wish: Effect | None


# What the next bytes are.
_LINES, _REFUSED_LINE, _CREDENTIALS, _DOTTED, _CHUNK, _NOTHING = range(6)


class Conversation:
    __slots__ = (
        "_admitted",
        "_can_secure",
        "_chunk_left",
        "_chunk_refusal",
        "_client_name",
        "_commands_left",
        "_content",
        "_discarded_bytes",
        "_exchange", "_expected",
        "_is_chunk_last",
        "_is_ending",
        "_is_secure",
        "_logins_failed",
        "_mistakes",
        "_output",
        "_peer",
        "_recipient",
        "_recipients",
        "_rejected",
        "_room",
        "_sender",
        "_terms",
        "_transactions",

        "_waiting",
        "_wish",
    )  # fmt: skip

    def __init__(
        self,
        terms: Policy,
        recipient: Callable[[str, int], ServerReply | None],
        room: Room,
        *,
        peer: str,
        is_secure: bool,
        can_secure: bool,
    ) -> None:
        self._terms = terms
        self._recipient = recipient
        self._room = room
        self._peer = peer
        self._is_secure = is_secure
        self._can_secure = can_secure
        self._expected = _LINES
        self._output: list[bytes] = []
        self._waiting = b""
        self._wish: Effect | None = None
        self._is_ending = False
        self._client_name = ""
        self._admitted = False
        self._exchange: AuthExchange | None = None
        self._sender: str | None = None
        self._recipients: list[str] = []
        self._content: Content | None = None
        self._chunk_left = 0
        self._chunk_refusal: ServerReply | None = None
        self._is_chunk_last = False
        self._commands_left = COMMANDS_MAX
        self._transactions = self._mistakes = self._rejected = self._logins_failed = self._discarded_bytes = 0

    # What the server asks

    @property
    def received_bytes(self) -> int | None:
        """How much of a message's content has come; None when none is being sent."""
        if self._content is None or self._wish is not None or self._expected not in (_DOTTED, _CHUNK):
            return None
        return self._content.received_bytes

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)

    @property
    def is_admitted(self) -> bool:
        return self._admitted or not self._terms.needs_authentication

    # What the server tells

    def greet(self) -> Step:
        self._output.append(f"220 {self._terms.hostname} ESMTP\r\n".encode())
        return self._said()

    def receive(self, data: bytes) -> Step:
        if self._waiting:
            data = self._waiting + data
            self._waiting = b""
        return self._read(data)

    def secured(self) -> Step:
        """TLS is on: whatever was said before is forgotten (RFC 3207, 4.2)."""
        self._is_secure = True
        self._client_name = ""
        self._forget()
        return self._go_on()

    def admitted(self) -> Step:
        self._admitted = True
        self._output.append(_ADMITTED)
        return self._go_on()

    def not_admitted(self, reply: ServerReply) -> Step:
        if reply.code >= 500:
            self._logins_failed += 1
        if self._logins_failed >= LOGINS_FAILED_MAX:
            self._close(replies.TOO_MANY_LOGINS)
            return self._said()
        self._output.append(encoded(reply))
        return self._go_on()

    def taken(self, reply: ServerReply) -> Step:
        """Also when it was not: the reply is what is said to it."""
        self._forget()
        self._commands_left = COMMANDS_MAX
        self._output.append(encoded(reply))
        return self._go_on()

    def end(self, reply: ServerReply = CLOSING) -> Step:
        """Close; but a message that is being sent or taken is heard to its end first."""
        if isinstance(self._wish, Take) or self._content is not None:
            self._is_ending = True
        else:
            self._close(reply)
        return self._said()

    def break_off(self, reply: ServerReply) -> Step:
        """Close at once; only what is being taken gets its answer."""
        if isinstance(self._wish, Take):
            self._is_ending = True
        else:
            self._close(reply)
        return self._said()

    def let_go(self) -> None:
        """The client has gone."""
        self._forget()
        self._expected = _NOTHING

    # Reading

    def _go_on(self) -> Step:
        self._wish = None
        if self._is_ending:
            self._close(CLOSING)
        data = self._waiting
        self._waiting = b""
        return self._read(data)

    def _read(self, data: bytes) -> Step:
        position, size = 0, len(data)
        while position < size:
            if self._wish is not None:
                if position and isinstance(self._wish, StartTls):
                    # Said in the clear, it would be heard as if TLS had protected it.
                    self._output.pop()
                    self._close(replies.TLS_INJECTED)
                elif self._expected != _NOTHING:
                    self._waiting = data[position:]
                break
            expected = self._expected
            if expected == _DOTTED:
                position = self._read_dotted(data, position)
            elif expected == _CHUNK:
                position = self._read_chunk(data, position)
            elif expected == _REFUSED_LINE:
                position = self._skip_line(data, position)
            else:
                position = self._read_line(data, position)
        return self._said()

    def _said(self) -> Step:
        output = self._output
        if not output:
            return Step(b"", self._wish)
        self._output = []
        return Step(output[0] if len(output) == 1 else b"".join(output), self._wish)

    def _read_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\r\n", position)
        if end < 0:
            length = len(data) - position - data.endswith(b"\r")
            is_short = length <= LINE_BYTES_MAX or length <= self._line_bytes_max(data, position)
            if is_short and data.find(b"\n", position) < 0:
                self._waiting = data[position:]
                return len(data)
            self._refuse_line(_REFUSED_LINE)
            return position
        line = data[position:end]
        size = end - position
        if _find_control(line) or (size > LINE_BYTES_MAX and size > self._line_bytes_max(data, position)):
            self._refuse_line(_LINES)
        elif self._expected == _CREDENTIALS:
            self._credentials(line)
        else:
            self._command(line)
        return end + 2

    def _line_bytes_max(self, data: bytes, position: int) -> int:
        if self._expected == _CREDENTIALS or data[position : position + 5].upper() == b"AUTH ":
            return AUTHENTICATION_LINE_BYTES_MAX
        return LINE_BYTES_MAX

    def _refuse_line(self, expected: int) -> None:
        self._expected = expected
        self._exchange = None
        self._mistaken(replies.MALFORMED)

    def _skip_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\r\n", position)
        if end >= 0:
            self._expected = _LINES
            return end + 2
        self._discard(len(data) - position)
        if data.endswith(b"\r"):
            self._waiting = b"\r"
        return len(data)

    def _read_dotted(self, data: bytes, position: int) -> int:
        content = self._content
        if content is None:  # pragma: no cover (there is one whenever it is expected)
            return len(data)
        end = content.add_dotted(data, position)
        if end < 0:
            if content.fault is not None:
                self._discard(len(data) - position)
            return len(data)
        self._expected = _LINES
        self._offer(content.dotted())
        return end

    def _read_chunk(self, data: bytes, position: int) -> int:
        stop = min(len(data), position + self._chunk_left)
        self._chunk_left -= stop - position
        if self._chunk_refusal is not None:
            self._discard(stop - position)
        elif self._content is not None:
            self._content.add_chunk(data, position, stop)
        if not self._chunk_left and self._wish is None:
            self._end_chunk()
        return stop

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self._close(replies.TOO_MUCH)

    # Commands

    def _command(self, line: bytes) -> None:
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
            self._mistaken(replies.UNKNOWN)

    def _ehlo(self, argument: str) -> None:
        if self._name_client(argument):
            self._output.append(self._offers())

    def _helo(self, argument: str) -> None:
        if self._name_client(argument):
            self._output.append(f"250 {self._terms.hostname}\r\n".encode())

    def _name_client(self, argument: str) -> bool:
        # Some call themselves by a name with an umlaut; it goes no further than our log.
        name = argument if argument.isascii() else argument.encode("ascii", "replace").decode()
        if not _is_client_name(name):
            self._mistaken(replies.NAME_YOURSELF)
            return False
        self._client_name = name
        self._forget()
        return True

    def _offers(self) -> bytes:
        lines = [self._terms.hostname, "PIPELINING", f"SIZE {self._terms.message_bytes_max}", "8BITMIME"]
        if self._can_secure and not self._is_secure:
            lines.append("STARTTLS")
        if self._terms.needs_authentication and self._is_secure:
            lines.append("AUTH PLAIN LOGIN")
        lines += ["ENHANCEDSTATUSCODES", "CHUNKING", "DSN"]
        return ("".join([f"250-{line}\r\n" for line in lines[:-1]]) + f"250 {lines[-1]}\r\n").encode()

    def _starttls(self, argument: str) -> None:
        if argument:
            self._mistaken(replies.NO_ARGUMENT)
        elif self._is_secure:
            self._mistaken(replies.TLS_ALREADY)
        elif not self._can_secure:
            self._mistaken(replies.NOT_HERE)
        else:
            self._output.append(_GO_SECURE)
            self._wish = StartTls()

    def _mail(self, argument: str) -> None:
        if refusal := self._fault_of_client():
            self._mistaken(refusal)
        elif self._sender is not None:
            self._mistaken(replies.MAIL_AGAIN)
        elif self._transactions >= TRANSACTIONS_MAX:
            self._close(replies.TOO_MANY_TRANSACTIONS)
        else:
            sender = grammar.read_sender(argument)
            if isinstance(sender, ServerReply):
                self._mistaken(sender)
            elif sender.size > self._terms.message_bytes_max:
                self._mistaken(TOO_LARGE)
            elif not self._room.has(sender.size):
                self._output.append(encoded(NO_ROOM))
            else:
                self._sender = sender.path
                self._transactions += 1
                self._output.append(_SENDER_OK)

    def _fault_of_client(self) -> ServerReply | None:
        if self._terms.needs_authentication:
            if not self._is_secure:
                return replies.TLS_FIRST
            if not self._admitted:
                return replies.LOGIN_FIRST
        return None if self._client_name else replies.EHLO_FIRST

    def _rcpt(self, argument: str) -> None:
        if self._sender is None:
            self._mistaken(self._fault_of_client() or replies.MAIL_FIRST)
            return
        if self._content is not None:
            self._mistaken(replies.CHUNKS_BEGUN)
            return
        address = grammar.read_recipient(argument)
        if not isinstance(address, ServerReply):
            count = len(self._recipients)
            if count >= self._terms.recipients_max:
                self._output.append(encoded(replies.TOO_MANY_RECIPIENTS))
                return
            refusal = self._recipient(address, count)
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
            self._mistaken(replies.NO_ARGUMENT)
        elif self._sender is None:
            self._mistaken(self._fault_of_client() or replies.MAIL_FIRST)
        elif self._content is not None:
            self._mistaken(replies.CHUNKS_BEGUN)
        elif not self._recipients:
            # No mistake: whoever sends commands together can't know yet.
            self._output.append(encoded(replies.NO_RECIPIENTS))
        else:
            self._content = Content(self._terms.message_bytes_max, self._room)
            self._expected = _DOTTED
            self._output.append(_GO_ON)

    def _bdat(self, argument: str) -> None:
        chunk = grammar.read_chunk(argument)
        if chunk is None:
            self._close(replies.CHUNK_UNREADABLE)
            return
        if self._sender is None:
            self._chunk_refusal = self._fault_of_client() or replies.MAIL_FIRST
        elif not self._recipients:
            self._chunk_refusal = replies.NO_RECIPIENTS
        else:
            content = self._content
            if content is None:
                self._content = content = Content(self._terms.message_bytes_max, self._room)
            if content.received_bytes + chunk.size > self._terms.message_bytes_max:
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
        self._expected = _CHUNK
        if not chunk.size:
            self._end_chunk()

    def _end_chunk(self) -> None:
        self._expected = _LINES
        content = self._content
        refusal = self._chunk_refusal
        if refusal is None and content is not None:
            refusal = content.fault
        if refusal is not None:
            self._chunk_refusal = None
            self._output.append(encoded(refusal))
            if content is not None:
                self._forget()
        elif content is not None and self._is_chunk_last:
            self._offer(content.chunked())
        else:
            self._output.append(_CHUNK_OK)

    def _offer(self, content: bytes | ServerReply) -> None:
        if isinstance(content, ServerReply):
            self._output.append(encoded(content))
            self._forget()
            if self._is_ending:
                self._close(CLOSING)
            return
        envelope = Envelope(self._sender or "", tuple(self._recipients), self._is_secure, self._peer, self._client_name)
        self._wish = Take(envelope, content)

    def _rset(self, argument: str) -> None:
        if argument:
            self._mistaken(replies.NO_ARGUMENT)
        else:
            self._forget()
            self._output.append(_OK)

    def _noop(self, _: str) -> None:
        self._output.append(_OK)

    def _vrfy(self, _: str) -> None:
        self._output.append(_NOT_VERIFIED)

    def _expn(self, _: str) -> None:
        self._mistaken(replies.NOT_HERE)

    def _help(self, _: str) -> None:
        self._output.append(_HELP)

    def _quit(self, argument: str) -> None:
        if argument:
            self._mistaken(replies.NO_ARGUMENT)
        else:
            self._finish(_BYE, is_agreed=True)

    # AUTH (RFC 4954)

    def _auth(self, argument: str) -> None:
        mechanism, _, initial = argument.partition(" ")
        if not self._terms.needs_authentication:
            self._mistaken(replies.NOT_HERE)
        elif not self._is_secure:
            self._mistaken(replies.TLS_FOR_PASSWORDS)
        elif not self._client_name:
            self._mistaken(replies.EHLO_FIRST)
        elif self._admitted:
            self._mistaken(replies.LOGIN_ALREADY)
        elif self._sender is not None:
            self._mistaken(replies.LOGIN_NOT_NOW)
        else:
            exchange = AuthExchange.named(mechanism)
            if exchange is None:
                self._mistaken(replies.LOGIN_MECHANISM)
            elif initial:
                self._exchange = exchange
                self._credentials(initial.encode("latin-1"))
            else:
                self._ask(exchange, exchange.prompt)

    def _credentials(self, line: bytes) -> None:
        exchange = self._exchange
        self._expected = _LINES
        self._exchange = None
        heard = replies.LOGIN_CANCELLED if exchange is None else exchange.hear(line)
        if isinstance(heard, ServerReply):
            self._mistaken(heard)
        elif isinstance(heard, Authenticate):
            self._wish = heard
        else:
            self._ask(exchange, heard)

    def _ask(self, exchange: AuthExchange | None, prompt: bytes) -> None:
        self._expected = _CREDENTIALS
        self._exchange = exchange
        self._output.append(prompt)

    # Ending

    def _mistaken(self, reply: ServerReply) -> None:
        self._output.append(encoded(reply))
        self._mistakes += 1
        if self._mistakes >= MISTAKES_MAX:
            self._close(replies.TOO_MANY_MISTAKES)

    def _close(self, reply: ServerReply) -> None:
        self._finish(encoded(reply))

    def _finish(self, output: bytes, *, is_agreed: bool = False) -> None:
        if self._expected != _NOTHING:
            self._output.append(output)
        self._wish = Close(is_agreed)
        self._forget()
        self._expected = _NOTHING

    def _forget(self) -> None:
        """The transaction, if there is one."""
        self._sender = None
        if self._recipients:
            self._recipients = []
        if self._content is not None:
            self._content.let_go()
            self._content = None


_COMMANDS: Final[dict[bytes, Callable[[Conversation, str], None]]] = {
    b"EHLO": Conversation._ehlo,  # noqa: SLF001 (its own table)
    b"HELO": Conversation._helo,  # noqa: SLF001
    b"STARTTLS": Conversation._starttls,  # noqa: SLF001
    b"AUTH": Conversation._auth,  # noqa: SLF001
    b"MAIL": Conversation._mail,  # noqa: SLF001
    b"RCPT": Conversation._rcpt,  # noqa: SLF001
    b"DATA": Conversation._data,  # noqa: SLF001
    b"BDAT": Conversation._bdat,  # noqa: SLF001
    b"RSET": Conversation._rset,  # noqa: SLF001
    b"NOOP": Conversation._noop,  # noqa: SLF001
    b"VRFY": Conversation._vrfy,  # noqa: SLF001
    b"EXPN": Conversation._expn,  # noqa: SLF001
    b"HELP": Conversation._help,  # noqa: SLF001
    b"QUIT": Conversation._quit,  # noqa: SLF001
}
