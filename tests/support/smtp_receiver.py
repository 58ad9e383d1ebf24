"""A receiving mail server on real sockets whose behaviour the address determines.

The behaviour is written in words joined by "--", in a recipient's local part (up to a "+"), in the first label
of its domain, or in the `behaviour` of the listening address (the only place for what happens before RCPT):

    <act>-<stage>      at connect, ehlo, helo, mail, rcpt, data, body or dot (and hang-quit):
                       a code (421 closes after it), blocked (the sender's address is), throttled (it sends too much),
                       drop, hang, drip, endless, flood (10,000 lines), overlong, garbage, twice (one reply too many);
                       at the dot also lose (accepted and logged, then cut)
    greylist           450 to this recipient's first two tries
    no-pipelining, chunking, size-<bytes>, delay-<milliseconds>
    data-anyway        354 though no recipient was taken
    starttls           offered and sound; or starttls-refused, -broken, -hang, -injected, -half (half a reply
                       injected), -untrusted (unknown issuer), -othername (another name's certificate)

    auth-plain, -login AUTH is offered over TLS, and needed before MAIL; -refused: no password is right

Anything else accepts: `greylist+7@example.com`, `450-rcpt@example.com`, `someone@552-dot.example.com`,
`SmtpReceiver("no-pipelining--421-mail")`. Each accepted recipient is one JSON line in the log, on the disk
before the server says 250.

As a process: `python -m tests.support.smtp_receiver --port 2525 --log accepted.jsonl --at 127.0.0.2=554-connect`.
"""

import argparse
import asyncio
import base64
import collections
import functools
import hashlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from tests.support.certificates import Certificates
from tests.support.smtp_behaviour import behaviour_of
from tests.support.smtp_conversation import Delivered, SmtpConversation


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
        # Addresses that are refused at this stage.
        self.blocked: set[str] = set()
        self.blocked_at = "mail"
        self.tries: collections.Counter[str] = collections.Counter()
        self.conversations: set[SmtpConversation] = set()
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
            make = functools.partial(SmtpConversation, self, behaviour)
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
        """Logs the mail, then calls `then`. Mail of one turn of the event loop shares one fsync."""
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
        lines = "".join([self._line(mail) for delivered, _ in waiting for mail in delivered]).encode()
        while lines:
            lines = lines[os.write(self._file, lines) :]
        os.fsync(self._file)
        for _, then in waiting:
            then()

    def _line(self, mail: Delivered) -> str:
        line = {
            "time": time.time(),
            "recipient": mail.recipient,
            "sender": mail.sender,
            "tls": mail.tls,
            "transaction": mail.transaction,
            "bytes": len(mail.message),
            "sha256": hashlib.sha256(mail.message).hexdigest(),
            "headers": mail.message.partition(b"\r\n\r\n")[0].decode("latin-1"),
        }
        if self._logs_messages:
            line["message"] = base64.b64encode(mail.message).decode()
        return json.dumps(line) + "\n"


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
