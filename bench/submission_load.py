"""The load of the submission benchmark: messages submitted over TLS with a password, as fast as they are accepted.

Run as its own process, `python bench/submission_load.py plan.json`; it prints the replies as JSON. It uses
nothing but non-blocking TLS sockets and epoll, since what it needs of the processors is missing elsewhere. It sends
MAIL, RCPT and DATA together, and waits for the reply to a message before the next: RFC 2920 would allow more, which not
every server accepts.
"""

import base64
import json
import os
import resource
import select
import socket
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

READ_BYTES_MAX: Final = 65_536
SILENCE_SECONDS_MAX: Final = 60.0
CONNECT_SECONDS_MAX: Final = 30.0
DESCRIPTORS: Final = 16_384

_GREETING, _EHLO, _AUTH, _STEP, _DATA, _DOT, _QUIT = range(7)
_REPLIES: Final = {_GREETING: b"220", _EHLO: b"250", _AUTH: b"235", _STEP: b"250", _DATA: b"354", _DOT: b"250"}


class NotAcceptedError(RuntimeError):
    """The server replied something else, or nothing."""


@dataclass(frozen=True, slots=True)
class Mail:
    """What an account sends: its password, the beginning of a message, and the message up to its last dot."""

    login: bytes
    begin: bytes
    content: bytes

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Mail":
        pair = base64.b64encode(f"\0{given['username']}\0{given['password']}".encode()).decode()
        return cls(
            f"AUTH PLAIN {pair}\r\n".encode(),
            f"MAIL FROM:<{given['sender']}>\r\nRCPT TO:<{given['recipient']}>\r\nDATA\r\n".encode(),
            given["content"].encode() + b".\r\n",
        )


@dataclass(slots=True)
class Tally:
    """How many messages have been begun, and the last reply to each with its seconds."""

    messages: int
    begun: int = 0
    replies: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    protocol: str = ""

    def begin(self) -> bool:
        if self.begun == self.messages:
            return False
        self.begun += 1
        return True


class Session:
    """A connection: a handshake, a login, some messages."""

    def __init__(self, port: int, context: ssl.SSLContext, mail: Mail, messages: int, tally: Tally) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_SECONDS_MAX)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setblocking(False)
        self.socket = context.wrap_socket(plain, do_handshake_on_connect=False)
        self.is_over = False
        self._mail = mail
        self._messages = messages
        self._tally = tally
        self._has_tls = False
        self._expected: list[int] = []
        self._unread = b""
        self._unsent = b""
        self._dot_at = 0.0

    @property
    def events(self) -> int:
        return select.EPOLLIN | select.EPOLLOUT if self._unsent else select.EPOLLIN

    def advance(self) -> None:
        """As far as it goes now."""
        try:
            if not self._has_tls:
                self.socket.do_handshake()
                self._has_tls = True
                self._expected.append(_GREETING)
            self._flush()
            while not self.is_over:
                read = self.socket.recv(READ_BYTES_MAX)
                if not read:
                    raise NotAcceptedError("the server closed the connection")
                self._read(read)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return

    def _read(self, read: bytes) -> None:
        *lines, self._unread = (self._unread + read).split(b"\r\n")
        for line in lines:
            if line[3:4] == b"-":
                continue
            step = self._expected.pop(0) if self._expected else None
            if step == _QUIT:
                self.is_over = True
                return
            if step is None or not line.startswith(_REPLIES[step]):
                raise NotAcceptedError(line.decode(errors="replace"))
            self._replied(step, line)

    def _replied(self, step: int, line: bytes) -> None:
        if step == _GREETING:
            self._send(b"EHLO load.example\r\n", _EHLO)
        elif step == _EHLO:
            self._send(self._mail.login, _AUTH)
        elif step == _AUTH:
            self._tally.protocol = f"{self.socket.version()} {(self.socket.cipher() or ('',))[0]}"
            self._next_mail()
        elif step == _DATA:
            self._dot_at = time.perf_counter()
            self._send(self._mail.content, _DOT)
        elif step == _DOT:
            self._tally.seconds.append(time.perf_counter() - self._dot_at)
            self._tally.replies.append(line.decode(errors="replace"))
            self._next_mail()

    def _next_mail(self) -> None:
        if self._messages and self._tally.begin():
            self._messages -= 1
            self._send(self._mail.begin, _STEP, _STEP, _DATA)
        else:
            self._send(b"QUIT\r\n", _QUIT)

    def _send(self, words: bytes, *steps: int) -> None:
        self._expected += steps
        self._unsent += words
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self.socket.send(self._unsent)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self._unsent = self._unsent[sent:]


class Sessions:
    """All sessions, and the poll for those that can advance."""

    def __init__(self, port: int, messages: Sequence[Mail], messages_per_session: int, tally: Tally) -> None:
        self._port = port
        self._messages = messages
        self._messages_per_session = messages_per_session
        self._tally = tally
        # The loopback is private; what counts is what the handshake costs the server.
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._poll = select.epoll()
        self._sessions: dict[int, Session] = {}
        self._opened = 0

    def _open(self) -> None:
        mail = self._messages[self._opened % len(self._messages)]
        self._opened += 1
        session = Session(self._port, self._context, mail, self._messages_per_session, self._tally)
        self._sessions[session.socket.fileno()] = session
        self._poll.register(session.socket.fileno(), session.events)
        session.advance()

    def send_all(self, sessions: int) -> None:
        """Runs until every message has its reply."""
        tally = self._tally
        for _ in range(sessions):
            self._open()
        while self._sessions:
            for number in self._ready():
                session = self._sessions[number]
                session.advance()
                if session.is_over:
                    self._poll.unregister(number)
                    self._sessions.pop(number).socket.close()
                    if tally.begun < tally.messages:
                        self._open()
                elif session.events != select.EPOLLIN:
                    self._poll.modify(number, session.events)
        if len(tally.replies) != tally.messages:
            raise NotAcceptedError(f"{len(tally.replies)} of {tally.messages} messages were answered")

    def _ready(self) -> list[int]:
        ready = self._poll.poll(SILENCE_SECONDS_MAX)
        if not ready:
            raise NotAcceptedError(f"the server sent nothing for {SILENCE_SECONDS_MAX:.0f} s")
        return [number for number, _ in ready]


def run(plan: Mapping[str, Any]) -> dict[str, Any]:
    os.sched_setaffinity(0, plan["processors"])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
    tally = Tally(plan["messages"])
    messages = [Mail.of(given) for given in plan["senders"]]
    sessions = Sessions(plan["port"], messages, plan["messages_per_session"], tally)
    started_at = time.perf_counter()
    sessions.send_all(plan["sessions"])
    took = time.perf_counter() - started_at
    waits = sorted(tally.seconds)
    return {
        "replies": tally.replies,
        "seconds": took,
        "p50_ms": waits[len(waits) // 2] * 1000,
        "p99_ms": waits[min(len(waits) - 1, len(waits) * 99 // 100)] * 1000,
        "protocol": tally.protocol,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
    except (NotAcceptedError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
