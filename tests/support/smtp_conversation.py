"""One connection to the SMTP receiver: reads commands and content, and replies as the behaviour says."""

import asyncio
import contextlib
import functools
import re
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from tests.support.certificates import NAME
from tests.support.smtp_behaviour import Behaviour, behaviours_of_address

if TYPE_CHECKING:
    from tests.support.smtp_receiver import SmtpReceiver

GREYLISTED_TRIES: Final = 2
DRIP_SECONDS: Final = 0.05
LINE_BYTES_MAX: Final = 2_048
# At the dot these accept the message, in an odd way.
TAKEN: Final = ("lose", "drip", "endless", "flood", "overlong", "twice")

_path: Final = re.compile(rb"(MAIL FROM|RCPT TO):<([^<>\r\n]*)>((?: [!-~]+)*)\Z", re.IGNORECASE).match
_chunk: Final = re.compile(rb"BDAT ([0-9]{1,9})( LAST)?\Z", re.IGNORECASE).match

TEXTS: Final = {
    421: "4.3.2 going down",
    450: "4.2.1 try again",
    451: "4.3.0 try again",
    452: "4.2.2 mailbox full",
    500: "5.5.1 what",
    502: "5.5.1 not here",
    550: "5.1.1 no such user",
    551: "not here, and no status with it",
    552: "5.2.2 mailbox full",
    554: "5.7.1 not wanted",
}
# As Microsoft words it.
BLOCKED: Final = (
    "550 5.7.1 Unfortunately, messages from [{}] weren't sent. Please contact your Internet service provider since "
    "part of their network is on our block list (S3150)."
)
# As Google words it.
THROTTLED: Final = (
    "421 4.7.28 Our system has detected an unusual rate of unsolicited mail originating from your IP address [{}]. "
    "To protect our users from spam, mail sent from your IP address has been temporarily rate limited."
)


@dataclass(frozen=True, slots=True)
class Delivered:
    """One accepted recipient; those of one transaction share its number.

    `source` is the address that the mail came from, `greeting` the name in its EHLO or HELO.
    """

    recipient: str
    sender: str
    message: bytes
    tls: str | None
    transaction: int
    source: str
    greeting: str


class SmtpConversation(asyncio.Protocol):
    """Handles the received bytes; `_held` while something must come first (the disk, TLS, a lasting act)."""

    def __init__(self, receiver: "SmtpReceiver", behaviour: Behaviour) -> None:
        self._receiver = receiver
        self._behaviour = behaviour
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._tls: str | None = None
        self._source = ""
        self._greeting = ""
        self._is_logged_in = False
        self._auth_lines = 0
        self._buffer = bytearray()
        self._answers: list[bytes] = []
        self._held = False
        self._task: asyncio.Task[None] | None = None
        self._forget()

    def _forget(self) -> None:
        self._sender: str | None = None
        self._recipients: list[str] = []
        self._acts: dict[str, str] = {}
        self._content: bytearray | None = None  # being received
        self._searched = 0
        self._chunk: tuple[int, bool] | None = None
        self._chunks = bytearray()
        self._in_chunks = False

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._source = transport.get_extra_info("peername")[0]
        self._receiver.connections += 1
        self._receiver.conversations.add(self)
        self._reply("connect", f"220 {NAME} ESMTP")
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the loop's own signature)
        self._receiver.conversations.discard(self)
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._work()

    def cut(self) -> None:
        self._held = True
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    # The buffer

    def _work(self) -> None:
        while not self._held and self._transport is not None:
            if self._content is not None:
                if not self._take_content():
                    break
            elif self._chunk is not None:
                if not self._take_chunk():
                    break
            else:
                line, end, _ = self._buffer.partition(b"\r\n")
                if not end:
                    if len(line) > LINE_BYTES_MAX:
                        self._say("500 5.5.2 line too long")
                        self._close()
                    break
                del self._buffer[: len(line) + 2]
                self._command(bytes(line))
        self._flush()

    def _take_content(self) -> bool:
        buffer = self._buffer
        if buffer and "body" in self._acts:
            self._content = None
            self._act("body", self._acts["body"], 250)
            # The rest of this content is not read as commands.
            self._held = True
            return False
        if buffer.startswith(b".\r\n"):
            end, length = 0, 3
        else:
            end, length = buffer.find(b"\r\n.\r\n", self._searched) + 2, 3
            if end == 1:
                self._searched = max(0, len(buffer) - 4)
                return False
        stuffed = bytes(buffer[:end])
        del buffer[: end + length]
        if stuffed.startswith(b"."):
            stuffed = stuffed[1:]
        self._close_content(stuffed.replace(b"\r\n.", b"\r\n"))
        return True

    def _take_chunk(self) -> bool:
        assert self._chunk is not None
        size, is_last = self._chunk
        if size and self._buffer and "body" in self._acts:
            self._chunk = None
            self._act("body", self._acts["body"], 250)
            self._held = True
            return False
        if len(self._buffer) < size:
            return False
        self._chunks += self._buffer[:size]
        del self._buffer[:size]
        self._chunk = None
        if not self._recipients:
            self._say("503 5.5.1 no recipients")
        elif self._acts.get("data", "").isdigit() and not is_last:
            self._recipients.clear()  # RFC 3030, 2: after a refused chunk only RSET helps
            self._act("data", self._acts["data"], 250)
        elif is_last:
            self._close_content(bytes(self._chunks))
        else:
            self._reply("data", f"250 2.0.0 {size} bytes")
        return True

    def _close_content(self, message: bytes) -> None:
        recipients, sender = self._recipients, self._sender or ""
        act = self._acts.get("dot", "")
        size_max = self._behaviour.size_bytes_max
        self._forget()
        if not recipients:
            self._receiver.strays.append(message)
            self._say("554 5.5.1 no valid recipients")
        elif len(message) > size_max:
            self._say("552 5.3.4 message too big")
        elif act and act not in TAKEN:
            self._act("dot", act, 250)
        else:
            number = self._receiver.next_number()
            delivered = [
                Delivered(recipient, sender, message, self._tls, number, self._source, self._greeting)
                for recipient in recipients
            ]
            self._held = True
            self._receiver.accept(delivered, functools.partial(self._accepted, number, act))

    def _accepted(self, number: int, act: str) -> None:
        self._held = False
        if act == "lose":
            self.cut()
            return
        if act:
            self._act("dot", act, 250)
        else:
            self._say(f"250 2.0.0 taken as {number}")
        # After the wait for the disk only this call continues with the buffer.
        self._loop.call_soon(self._work)

    def _command(self, line: bytes) -> None:
        receiver = self._receiver
        if receiver.keeps_mail:
            receiver.commands.append(line.decode("latin-1"))
        verb = line[:4].upper()
        if self._auth_lines or verb == b"AUTH":
            self._authenticate(line)
        elif verb == b"MAIL" and self._behaviour.auth and not self._is_logged_in:
            self._say("530 5.7.0 authentication required")
        elif verb == b"MAIL" or verb == b"RCPT":
            self._envelope(line)
        elif verb == b"DATA":
            self._data()
        elif verb == b"BDAT" and self._behaviour.chunking and (match := _chunk(line)):
            self._chunk = int(match[1]), bool(match[2])
        elif verb == b"EHLO":
            self._forget()
            self._greeting = line[5:].decode("latin-1")
            self._reply("ehlo", "\r\n250-".join([f"250-{NAME}", *self._offers()]) + "\r\n250 ENHANCEDSTATUSCODES")
        elif verb == b"HELO":
            self._forget()
            self._greeting = line[5:].decode("latin-1")
            self._reply("helo", f"250 {NAME}")
        elif verb == b"RSET":
            self._forget()
            self._say("250 2.0.0 forgotten")
        elif verb == b"NOOP":
            self._say("250 2.0.0 yes")
        elif verb == b"QUIT" and self._behaviour.acts.get("quit") == "hang":
            self._act("quit", "hang", 221)
        elif verb == b"QUIT":
            self._say("221 2.0.0 bye")
            self._close()
        elif line.upper() == b"STARTTLS" and self._behaviour.starttls and self._tls is None:
            self._starttls(self._behaviour.starttls)
        else:
            self._say("500 5.5.1 unknown")

    def _offers(self) -> list[str]:
        behaviour = self._behaviour
        offers = [f"SIZE {behaviour.size_bytes_max}"]
        if behaviour.pipelining:
            offers.append("PIPELINING")
        if behaviour.chunking:
            offers.append("CHUNKING")
        if behaviour.starttls and self._tls is None:
            offers.append("STARTTLS")
        if behaviour.auth and self._tls is not None:
            offers.append("AUTH LOGIN" if behaviour.auth == "login" else "AUTH PLAIN LOGIN")
        return offers

    def _authenticate(self, line: bytes) -> None:
        """Any login but that of `auth-refused` is right; the commands show which it was."""
        if self._tls is None or not self._behaviour.auth:
            self._say("502 5.5.1 not here")
            return
        if line.upper() == b"AUTH LOGIN":
            self._auth_lines = 2
        else:
            self._auth_lines = max(0, self._auth_lines - 1)
        if self._auth_lines:
            self._say("334 VXNlcm5hbWU6")
        elif self._behaviour.auth == "refused":
            self._say("535 5.7.8 authentication failed")
        else:
            self._is_logged_in = True
            self._say("235 2.7.0 welcome")

    def _envelope(self, line: bytes) -> None:
        match = _path(line)
        if match is None:
            self._say("501 5.5.4 not an envelope")
            return
        path = match[2].decode("latin-1")
        if line[:4].upper() == b"MAIL":
            size = re.search(rb" SIZE=([0-9]+)", match[3], re.IGNORECASE)
            if self._sender is not None:
                self._say("503 5.5.1 one at a time")
            elif size and int(size[1]) > self._behaviour.size_bytes_max:
                self._say("552 5.3.4 message too big")
            else:
                if not (self._act_at("mail") or "2").startswith(("4", "5", "blocked")):
                    self._sender = path
                self._reply("mail", "250 2.1.0 sender")
        elif self._sender is None:
            self._say("503 5.5.1 MAIL first")
        else:
            self._rcpt(path)

    def _rcpt(self, path: str) -> None:
        acts = dict(self._behaviour.acts)
        greylists = self._behaviour.greylists
        for behaviour in behaviours_of_address(path):
            acts |= behaviour.acts
            greylists = greylists or behaviour.greylists
        if greylists:
            self._receiver.tries[path] += 1
            if self._receiver.tries[path] <= GREYLISTED_TRIES:
                self._say("450 4.7.1 greylisted")
                return
        act = acts.get("rcpt") or self._act_at("rcpt")
        if act is not None:
            self._act("rcpt", act, 250)
            return
        self._acts = acts | self._acts
        self._recipients.append(path)
        self._say("250 2.1.5 recipient")

    def _data(self) -> None:
        if not self._recipients and not self._behaviour.data_anyway:
            self._say("554 5.5.1 no valid recipients" if self._sender is not None else "503 5.5.1 MAIL first")
            return
        act = self._acts.get("data", "")
        if not act.startswith(("4", "5")):
            self._content = bytearray()
            self._searched = 0
        self._reply("data", "354 go ahead")

    # Replies

    def _say(self, text: str) -> None:
        self._answers.append(text.encode() + b"\r\n")

    def _reply(self, stage: str, normally: str) -> None:
        act = self._act_at(stage)
        if act is None:
            self._say(normally)
        else:
            self._act(stage, act, int(normally[:3]), normally)

    def _act_at(self, stage: str) -> str | None:
        if self._source in self._receiver.blocked and stage == self._receiver.blocked_at:
            return "blocked"
        return self._acts.get(stage) or self._behaviour.acts.get(stage)

    def _act(self, stage: str, act: str, code: int, normally: str = "") -> None:
        if act.isdigit():
            self._say(f"{act} {TEXTS.get(int(act), f'{act[0]}.0.0 so be it')}")
            if act == "421":
                self._close()
        elif act == "blocked":
            self._say(BLOCKED.format(self._source))
        elif act == "throttled":
            self._say(THROTTLED.format(self._source))
            self._close()
        elif act == "drop":
            self._flush()
            self.cut()
        elif act == "hang":
            self._held = True
            self._flush()
            if stage == "body" and self._transport is not None:
                self._transport.pause_reading()
        elif act == "drip":
            self._held = True
            self._lasting(self._drip(f"{code} {'drop by drop ' * 8}\r\n".encode()))
        elif act == "endless":
            self._held = True
            self._lasting(self._endless(f"{code}-and another thing\r\n".encode()))
        elif act == "flood":
            lines = [f"{code}-line {number}" for number in range(1, 10_000)]
            self._say("\r\n".join([*lines, f"{code} the end"]))
        elif act == "overlong":
            self._say(f"{code} {'x' * 100_000}")
        elif act == "garbage":
            self._answers.append(bytes(range(255, -1, -1)) + b"\r\n")
        elif act == "twice":
            self._say(f"{normally or f'{code} once'}\r\n{code} and again")
        else:
            raise ValueError(f"the receiver can't {act} at {stage}")

    def _flush(self) -> None:
        answers = b"".join(self._answers)
        self._answers.clear()
        if not answers or self._transport is None:
            return
        if self._behaviour.delay_seconds:
            self._loop.call_later(self._behaviour.delay_seconds, self._write, answers)
        else:
            self._write(answers)

    def _write(self, answers: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answers)

    def _close(self) -> None:
        self._held = True
        self._flush()
        if self._transport is not None:
            self._loop.call_later(self._behaviour.delay_seconds, self._transport.close)

    def _lasting(self, act: Coroutine[object, object, None]) -> None:
        self._flush()
        self._task = self._loop.create_task(act)

    async def _drip(self, reply: bytes) -> None:
        for byte in reply:
            self._write(bytes([byte]))
            await asyncio.sleep(DRIP_SECONDS)
        self._held = False
        self._work()

    async def _endless(self, line: bytes) -> None:
        while self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size() < 65_536:
                self._transport.write(line * 100)
            await asyncio.sleep(0.001)  # a transport gives no signal that it has room

    # TLS

    def _starttls(self, how: str) -> None:
        if how == "refused":
            self._say("454 4.7.0 TLS not available")
            return
        self._say("220 2.0.0 go ahead" + {"injected": "\r\n250 2.0.0 injected", "half": "\r\n250-inj"}.get(how, ""))
        if how == "half":
            self._answers[-1] = self._answers[-1].removesuffix(b"\r\n")
        self._held = True
        self._flush()
        if how == "broken":
            self._write(b"this is not TLS, this is not TLS at all\r\n")
        elif how != "hang":
            self._lasting(self._secure(how))

    async def _secure(self, how: str) -> None:
        assert self._transport is not None
        if self._receiver.certificates is None:
            raise ValueError("the receiver needs `certificates` for STARTTLS")
        self._buffer.clear()
        context = self._receiver.certificates.servers[how]
        with contextlib.suppress(OSError):
            secured = await self._loop.start_tls(
                self._transport, self, context, server_side=True, ssl_handshake_timeout=10, ssl_shutdown_timeout=1
            )
            if secured is not None:
                self._transport = secured
                self._tls = cast(ssl.SSLObject, secured.get_extra_info("ssl_object")).version()
                self._forget()
                self._held = False
                self._work()
