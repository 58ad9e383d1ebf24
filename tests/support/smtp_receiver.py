"""A receiving mail server on real sockets whose behaviour the address determines.

The behaviour is written in words joined by "--", in a recipient's local part (up to a "+"), in the first label
of its domain, or in the `behaviour` of the listening address (the only place for what happens before RCPT):

    <act>-<stage>      at connect, ehlo, helo, mail, rcpt, data, body or dot:
                       a code (421 closes after it), drop, hang, drip, endless, flood (10,000 lines), overlong,
                       garbage, twice (one reply too many); at the dot also lose (accepted and logged, then cut)
    greylist           450 to this recipient's first two tries
    no-pipelining, chunking, size-<bytes>, delay-<milliseconds>
    data-anyway        354 though no recipient was taken
    starttls           offered and sound; or starttls-refused, -broken, -hang, -injected, -half (half a reply
                       injected), -stranger (unknown issuer), -othername (another name's certificate)

Anything else accepts: `greylist+7@example.com`, `450-rcpt@example.com`, `someone@552-dot.example.com`,
`SmtpReceiver("no-pipelining--421-mail")`. Each accepted recipient is one JSON line in the log, on the disk
before the server says 250.

As a process: `python -m tests.support.smtp_receiver --port 2525 --log accepted.jsonl --at 127.0.0.2=554-connect`.
"""

import argparse
import asyncio
import base64
import collections
import contextlib
import functools
import hashlib
import itertools
import json
import os
import re
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, cast

NAME: Final = "receiver.example.com"
GREYLISTED_TRIES: Final = 2
DRIP_SECONDS: Final = 0.05
LINE_BYTES_MAX: Final = 2_048
SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
# At the dot these accept the mail, in an odd way.
TAKEN: Final = ("lose", "drip", "endless", "flood", "overlong", "twice")
STARTTLS: Final = ("refused", "broken", "hang", "injected", "half", "stranger", "othername")

_act_word: Final = re.compile(
    r"([245][0-9]{2}|drop|hang|drip|endless|flood|overlong|garbage|twice|lose)"
    r"-(connect|ehlo|helo|mail|rcpt|data|body|dot)"
).fullmatch
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


@dataclass(frozen=True, slots=True)
class Behaviour:
    acts: Mapping[str, str] = field(default_factory=dict)
    greylists: bool = False
    pipelining: bool = True
    chunking: bool = False
    size_bytes_max: int = SIZE_BYTES_MAX
    delay_seconds: float = 0.0
    data_anyway: bool = False
    starttls: str = ""


def behaviour_of(words: str) -> Behaviour:
    acts: dict[str, str] = {}
    given: dict[str, object] = {}
    for word in filter(None, words.split("--")):
        key, _, value = word.partition("-")
        if act := _act_word(word):
            acts[act[2]] = act[1]
        elif word == "greylist":
            given["greylists"] = True
        elif word == "no-pipelining":
            given["pipelining"] = False
        elif word == "chunking":
            given["chunking"] = True
        elif word == "data-anyway":
            given["data_anyway"] = True
        elif key == "size":
            given["size_bytes_max"] = int(value)
        elif key == "delay":
            given["delay_seconds"] = int(value) / 1000
        elif key == "starttls" and value in ("", *STARTTLS):
            given["starttls"] = value or "sound"
        else:
            raise ValueError(f"unknown behaviour {word!r}")
    return Behaviour(acts=acts, **given)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _behaviour_of_word(word: str) -> Behaviour:
    try:
        return behaviour_of(word)
    except ValueError:
        return Behaviour()


def behaviours_of_address(address: str) -> Iterator[Behaviour]:
    local, _, domain = address.lower().rpartition("@")
    for word in (local.partition("+")[0], domain.partition(".")[0]):
        if "-" in word or word == "greylist":
            yield _behaviour_of_word(word)


@dataclass(frozen=True, slots=True)
class Certificates:
    """A private authority; what its customers trust; and the servers' contexts by their `starttls` word."""

    authority_pem: bytes
    servers: Mapping[str, ssl.SSLContext]

    @classmethod
    def make(cls, name: str = NAME) -> Self:
        import trustme  # only where TLS is wanted: a plain benchmark needn't load it

        authority = trustme.CA()
        servers = {}
        for word, issuer, owner in (
            ("sound", authority, name),
            ("stranger", trustme.CA(), name),
            ("othername", authority, "other.example.net"),
        ):
            servers[word] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            issuer.issue_cert(owner).configure_cert(servers[word])
        for word in ("injected", "half"):
            servers[word] = servers["sound"]
        return cls(authority.cert_pem.bytes(), servers)

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority_pem.decode())


@dataclass(frozen=True, slots=True)
class Delivered:
    """One accepted recipient; those of one transaction share its number."""

    recipient: str
    sender: str
    message: bytes
    tls: str | None
    transaction: int


class SmtpReceiver:
    def __init__(
        self,
        behaviour: str = "",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        behaviours: Mapping[str, str] | None = None,
        log: Path | None = None,
        logs_messages: bool = False,
        certificates: Certificates | None = None,
        keeps_mail: bool = True,
    ) -> None:
        """`behaviours` are those of further addresses to listen on, at the same port. With `keeps_mail` the mail stays
        in memory for assertions; a long run only writes the log."""
        self.host = host
        self.port = port
        self.certificates = certificates
        self.accepted: list[Delivered] = []
        self.commands: list[str] = []
        self.strays: list[bytes] = []  # content without a recipient
        self.connections = 0
        self.tries: collections.Counter[str] = collections.Counter()
        self.conversations: set[_Conversation] = set()
        self.keeps_mail = keeps_mail
        self._behaviours = {host: behaviour_of(behaviour)} | {
            at: behaviour_of(words) for at, words in (behaviours or {}).items()
        }
        self._log = log
        self._logs_messages = logs_messages
        self._file = -1
        self._waiting: list[tuple[list[Delivered], Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._log is not None:
            self._file = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for host, behaviour in self._behaviours.items():
            make = functools.partial(_Conversation, self, behaviour)
            server = await loop.create_server(make, host, self.port, backlog=1024)
            self.port = server.sockets[0].getsockname()[1]
            self._servers.append(server)
        return self

    async def __aexit__(self, *failure: object) -> None:
        for server in self._servers:
            server.close()
        for conversation in tuple(self.conversations):
            conversation.cut()
        for server in self._servers:
            await server.wait_closed()
        await asyncio.sleep(0)
        if self._file >= 0:
            os.close(self._file)

    def next_number(self) -> int:
        return next(self._numbers)

    def accept(self, delivered: list[Delivered], then: Callable[[], None]) -> None:
        """Log the mail, then call `then`. Mail of one turn of the event loop shares one fsync."""
        if self.keeps_mail:
            self.accepted += delivered
        if self._file < 0:
            then()
            return
        self._waiting.append((delivered, then))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        lines = "".join([self._line(one) for delivered, _ in waiting for one in delivered]).encode()
        while lines:
            lines = lines[os.write(self._file, lines) :]
        os.fsync(self._file)
        for _, then in waiting:
            then()

    def _line(self, one: Delivered) -> str:
        line = {
            "time": time.time(),
            "recipient": one.recipient,
            "sender": one.sender,
            "tls": one.tls,
            "transaction": one.transaction,
            "bytes": len(one.message),
            "sha256": hashlib.sha256(one.message).hexdigest(),
            "headers": one.message.partition(b"\r\n\r\n")[0].decode("latin-1"),
        }
        if self._logs_messages:
            line["message"] = base64.b64encode(one.message).decode()
        return json.dumps(line) + "\n"


class _Conversation(asyncio.Protocol):
    """Handles the received bytes; `_held` while something must come first (the disk, TLS, a lasting act)."""

    def __init__(self, receiver: SmtpReceiver, behaviour: Behaviour) -> None:
        self._receiver = receiver
        self._behaviour = behaviour
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._tls: str | None = None
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
            delivered = [Delivered(one, sender, message, self._tls, number) for one in recipients]
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
        if verb == b"MAIL" or verb == b"RCPT":
            self._envelope(line)
        elif verb == b"DATA":
            self._data()
        elif verb == b"BDAT" and self._behaviour.chunking and (match := _chunk(line)):
            self._chunk = int(match[1]), bool(match[2])
        elif verb == b"EHLO":
            self._forget()
            self._reply("ehlo", "\r\n250-".join([f"250-{NAME}", *self._offers()]) + "\r\n250 ENHANCEDSTATUSCODES")
        elif verb == b"HELO":
            self._forget()
            self._reply("helo", f"250 {NAME}")
        elif verb == b"RSET":
            self._forget()
            self._say("250 2.0.0 forgotten")
        elif verb == b"NOOP":
            self._say("250 2.0.0 yes")
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
        return offers

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
                if not self._behaviour.acts.get("mail", "2").startswith(("4", "5")):
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
        if "rcpt" in acts:
            self._act("rcpt", acts["rcpt"], 250)
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
        act = self._acts.get(stage) or self._behaviour.acts.get(stage)
        if act is None:
            self._say(normally)
        else:
            self._act(stage, act, int(normally[:3]), normally)

    def _act(self, stage: str, act: str, code: int, normally: str = "") -> None:
        if act.isdigit():
            self._say(f"{act} {TEXTS.get(int(act), f'{act[0]}.0.0 so be it')}")
            if act == "421":
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

    def _lasting(self, act: "collections.abc.Coroutine[object, object, None]") -> None:
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
            await asyncio.sleep(0.001)

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


async def _serve(arguments: argparse.Namespace) -> None:
    certificates = None
    if arguments.authority is not None:
        certificates = Certificates.make()
        arguments.authority.write_bytes(certificates.authority_pem)
    receiver = SmtpReceiver(
        arguments.behaviour,
        host=arguments.host,
        port=arguments.port,
        behaviours=dict(at.split("=", 1) for at in arguments.at),
        log=arguments.log,
        logs_messages=arguments.messages,
        certificates=certificates,
        keeps_mail=False,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with receiver:
        print(f"listening on {receiver.host} port {receiver.port}", flush=True)
        await stop.wait()


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(
        prog="python -m tests.support.smtp_receiver", description="A scripted mail server."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any; it is printed")
    parser.add_argument("--log", type=Path, help="one JSON line for each accepted recipient, fsynced")
    parser.add_argument("--messages", action="store_true", help="log whole messages in base64")
    parser.add_argument("--behaviour", default="", help="of the main address, e.g. starttls--chunking")
    parser.add_argument("--at", action="append", default=[], metavar="ADDRESS=BEHAVIOUR", help="listen here too")
    parser.add_argument("--authority", type=Path, help="make certificates; write their authority's here")
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
