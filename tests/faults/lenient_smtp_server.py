"""A lenient receiving mail server: lines end with CR, LF or both, and any line of a single dot ends a message.

Because of such servers a message must never contain what they would read as two (SMTP smuggling). It also ignores
NUL, white space after the dot and a dot doubled too often.
"""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final, Self

_path: Final = re.compile(rb"(?:MAIL FROM|RCPT TO): *<?([^<> ]*)>?", re.IGNORECASE).match
_line_end: Final = re.compile(rb"\r\n|\r|\n").search


@dataclass(slots=True)
class Mail:
    sender: str
    recipients: list[str]
    lines: list[bytes] = field(default_factory=list)

    @property
    def content(self) -> bytes:
        return b"\n".join(self.lines)


class LenientSmtpServer:
    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self.messages: list[Mail] = []
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        assert self._server is not None
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await self._server.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)
        talk = _Talk(self.messages)
        try:
            writer.write(b"220 lenient.example.com\r\n")
            while data := await reader.read(65_536):
                writer.write(talk.heard(data))
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # asyncio complains of a connection's task that is cancelled
        finally:
            writer.close()


class _Talk:
    def __init__(self, messages: list[Mail]) -> None:
        self._messages = messages
        self._buffer = b""
        self._mail: Mail | None = None
        self._is_content = False

    def heard(self, data: bytes) -> bytes:
        self._buffer += data
        said = b""
        # A CR at the end may be half of a CRLF: the rest decides.
        while (end := _line_end(self._buffer)) and not (end[0] == b"\r" and end.end() == len(self._buffer)):
            line, self._buffer = self._buffer[: end.start()], self._buffer[end.end() :]
            said += self._content(line) if self._is_content else self._command(line.replace(b"\0", b""))
        return said

    def _content(self, line: bytes) -> bytes:
        assert self._mail is not None
        if line.replace(b"\0", b"").rstrip() == b".":
            self._messages.append(self._mail)
            self._mail, self._is_content = None, False
            return b"250 taken\r\n"
        self._mail.lines.append(line.removeprefix(b"."))
        return b""

    def _command(self, line: bytes) -> bytes:
        verb = line[:4].upper()
        found = _path(line)
        if verb == b"EHLO":
            return b"250-lenient.example.com\r\n250 PIPELINING\r\n"
        if verb == b"MAIL" and found:
            self._mail = Mail(found[1].decode("latin-1"), [])
        elif verb == b"RCPT" and found and self._mail is not None:
            self._mail.recipients.append(found[1].decode("latin-1"))
        elif verb == b"DATA" and self._mail is not None:
            self._is_content = True
            return b"354 go on\r\n"
        elif verb == b"QUIT":
            return b"221 bye\r\n"
        elif verb not in (b"RSET", b"NOOP"):
            return b"500 what\r\n"
        return b"250 yes\r\n"
