"""The load of the submission benchmark: mails handed in over TLS with a password, as fast as they are taken.

Run as a process of its own, `python bench/submitter.py plan.json`; it prints what it was answered as JSON. It uses
nothing but non-blocking TLS sockets and epoll, since whatever it needs of the processors is missing elsewhere. It sends
MAIL, RCPT and DATA together, and waits for the answer to a mail before the next: RFC 2920 would allow more, which not
every server takes.
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

_GREETING, _EHLO, _AUTH, _STEP, _DATA, _DOT, _QUIT, _IDLE = range(8)
_EXPECTED: Final = {_GREETING: b"220", _EHLO: b"250", _AUTH: b"235", _STEP: b"250", _DATA: b"354", _DOT: b"250"}


class NotTakenError(RuntimeError):
    """The server answered something else, or nothing."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What one account says: its password, the beginning of a mail, and the mail up to its last dot."""

    login: bytes
    begin: bytes
    content: bytes

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Letter":
        pair = base64.b64encode(f"\0{given['username']}\0{given['password']}".encode()).decode()
        return cls(
            f"AUTH PLAIN {pair}\r\n".encode(),
            f"MAIL FROM:<{given['sender']}>\r\nRCPT TO:<{given['recipient']}>\r\nDATA\r\n".encode(),
            Path(given["file"]).read_bytes() + b".\r\n",
        )


@dataclass(slots=True)
class Tally:
    """How many mails have been begun and answered; `answers` are the servers' last words to each."""

    mails: int
    begun: int = 0
    answers: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    protocol: str = ""

    def begin(self) -> bool:
        if self.begun == self.mails:
            return False
        self.begun += 1
        return True


class Session:
    """One connection: a handshake, a login, some mails."""

    def __init__(self, port: int, context: ssl.SSLContext, letter: Letter, mails: int, tally: Tally) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_SECONDS_MAX)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setblocking(False)
        self.socket = context.wrap_socket(plain, do_handshake_on_connect=False)
        self.is_over = False
        self.is_idle = False
        self._letter = letter
        self._mails = mails
        self._tally = tally
        self._has_greeted = False
        self._expected: list[int] = []
        self._unread = b""
        self._unsent = b""
        self._dot_at = 0.0

    def go_on(self) -> None:
        """As far as it goes now."""
        try:
            if not self._has_greeted:
                self.socket.do_handshake()
                self._has_greeted = True
                self._expected.append(_GREETING)
            if self._unsent:
                self._send(b"")
            while not self.is_over:
                read = self.socket.recv(READ_BYTES_MAX)
                if not read:
                    raise NotTakenError("the server closed the connection")
                self._hear(read)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return

    def _hear(self, read: bytes) -> None:
        *lines, self._unread = (self._unread + read).split(b"\r\n")
        for line in lines:
            if line[3:4] == b"-":
                continue
            if not self._expected:
                raise NotTakenError(line.decode(errors="replace"))
            step = self._expected.pop(0)
            if step == _QUIT:
                self.is_over = True
                return
            if not line.startswith(_EXPECTED[step]):
                raise NotTakenError(line.decode(errors="replace"))
            self._answered(step, line)

    def _answered(self, step: int, line: bytes) -> None:
        if step == _GREETING:
            self._say(b"EHLO submitter.example\r\n", _EHLO)
        elif step == _EHLO:
            self._say(self._letter.login, _AUTH)
        elif step == _AUTH:
            self._tally.protocol = f"{self.socket.version()} {(self.socket.cipher() or ('',))[0]}"
            if self._mails:
                self._say(*self._next())
            else:
                self.is_idle = True
        elif step == _DATA:
            self._dot_at = time.perf_counter()
            self._say(self._letter.content, _DOT)
        elif step == _DOT:
            self._tally.seconds.append(time.perf_counter() - self._dot_at)
            self._tally.answers.append(line.decode(errors="replace"))
            self._say(*self._next())

    def _next(self) -> "tuple[bytes, *tuple[int, ...]]":
        if self._mails and self._tally.begin():
            self._mails -= 1
            return self._letter.begin, _STEP, _STEP, _DATA
        return b"QUIT\r\n", _QUIT

    def _say(self, words: bytes, *steps: int) -> None:
        self._expected += steps
        self._send(words)

    def _send(self, words: bytes) -> None:
        self._unsent += words
        while self._unsent:
            try:
                sent = self.socket.send(self._unsent)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self._unsent = self._unsent[sent:]

    @property
    def events(self) -> int:
        return select.EPOLLIN | select.EPOLLOUT if self._unsent else select.EPOLLIN


class Switchboard:
    """All sessions, and who of them has something to hear."""

    def __init__(self, port: int, letters: Sequence[Letter], mails_per_session: int, tally: Tally) -> None:
        self._port = port
        self._letters = letters
        self._mails_per_session = mails_per_session
        self._tally = tally
        # The loopback is private; what counts is what the handshake costs the server.
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._poll = select.epoll()
        self._sessions: dict[int, Session] = {}
        self._opened = 0

    def open(self) -> Session:
        letter = self._letters[self._opened % len(self._letters)]
        self._opened += 1
        session = Session(self._port, self._context, letter, self._mails_per_session, self._tally)
        self._sessions[session.socket.fileno()] = session
        self._poll.register(session.socket.fileno(), session.events)
        session.go_on()
        return session

    def send_all(self, sessions: int) -> None:
        """Until every mail is answered."""
        tally = self._tally
        for _ in range(sessions):
            self.open()
        while self._sessions:
            for number in self._ready():
                session = self._sessions[number]
                session.go_on()
                if session.is_over:
                    self._close(number)
                    if tally.begun < tally.mails:
                        self.open()
                elif session.events != select.EPOLLIN:
                    self._poll.modify(number, session.events)
        if len(tally.answers) != tally.mails:
            raise NotTakenError(f"{len(tally.answers)} of {tally.mails} mails were answered")

    def open_idle(self, sessions: int) -> None:
        """So many sessions that have authenticated and say no more."""
        for _ in range(sessions):
            session = self.open()
            while not session.is_idle:
                for number in self._ready():
                    self._sessions[number].go_on()

    def _ready(self) -> list[int]:
        ready = self._poll.poll(SILENCE_SECONDS_MAX)
        if not ready:
            raise NotTakenError(f"the server said nothing for {SILENCE_SECONDS_MAX:.0f} s")
        return [number for number, _ in ready]

    def _close(self, number: int) -> None:
        self._poll.unregister(number)
        self._sessions.pop(number).socket.close()


def run(plan: Mapping[str, Any]) -> dict[str, Any]:
    os.sched_setaffinity(0, plan["processors"])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
    tally = Tally(plan["mails"])
    letters = [Letter.of(one) for one in plan["letters"]]
    switchboard = Switchboard(plan["port"], letters, plan["mails_per_session"], tally)
    started_at = time.perf_counter()
    if not tally.mails:
        switchboard.open_idle(plan["sessions"])
        print("idle", flush=True)
        sys.stdin.readline()
        return {}
    switchboard.send_all(plan["sessions"])
    took = time.perf_counter() - started_at
    waits = sorted(tally.seconds)
    return {
        "answers": tally.answers,
        "seconds": took,
        "p50_ms": waits[len(waits) // 2] * 1000,
        "p99_ms": waits[min(len(waits) - 1, len(waits) * 99 // 100)] * 1000,
        "protocol": tally.protocol,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
    except (NotTakenError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
