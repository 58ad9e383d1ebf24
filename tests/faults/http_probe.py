"""A client that sends given bytes unchanged and checks every answer against the same promises."""

import http.client
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.eventually import HANG_SECONDS
from tests.support.http_answer import GET_STATUSES, SEND_STATUSES, Answer, check_every_answer, spelled

PARSERS_OWN: Final = b"Invalid HTTP request received."
ERROR_BYTES_MAX: Final = 10_000


class NoAnswer(AssertionError):  # noqa: N818 (reads as what it says)
    """The connection ended, or the time was over, before an answer was complete."""


@dataclass(slots=True)
class Tally:
    """Requests and answers of all tests of a module."""

    inputs: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    accepted: set[str] = field(default_factory=set)
    parsers_own: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")


@dataclass(slots=True)
class HttpProbe:
    port: int
    tally: Tally
    _connection: http.client.HTTPConnection | None = None

    def send(
        self,
        kind: str,
        name: str,
        method: str,
        target: str,
        headers: Mapping[str, str | bytes],
        body: bytes | None = None,
        *,
        chunked: bool = False,
    ) -> Answer:
        """One request on a persistent connection; the answer has passed every check."""
        started = time.monotonic()
        answer = self._exchange(method, target, headers, body, chunked)
        self.check(kind, name, method, target, answer, time.monotonic() - started)
        return answer

    def check(self, kind: str, name: str, method: str, target: str, answer: Answer, seconds: float) -> None:
        self.tally.inputs[kind] += 1
        self.tally.statuses[answer.status] += 1
        self.tally.slowest = max(self.tally.slowest, (seconds, name))
        path = target.partition("?")[0]
        try:
            if method == "HEAD":
                assert answer.headers.get("X-Request-ID"), answer.headers
                assert answer.status != 500
            else:
                check_every_answer(method, path, answer)
            if answer.status >= 400:
                assert len(answer.raw) <= ERROR_BYTES_MAX, f"an error of {len(answer.raw)} bytes"
            if (method, path) == ("POST", "/emails") and answer.status == 202:
                self.tally.accepted.add(answer.body["id"])
        except AssertionError as fault:
            raise AssertionError(f"{kind}, {name}: {fault}") from fault

    def _exchange(
        self, method: str, target: str, headers: Mapping[str, str | bytes], body: bytes | None, chunked: bool
    ) -> Answer:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        connection = self._connection
        try:
            connection.putrequest(method, target, skip_accept_encoding=True)
            for header, value in headers.items():
                connection.putheader(header, value)
            if body is not None:
                connection.putheader(
                    *(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body))))
                )
            connection.endheaders()
            if body is not None:
                self._send_body(connection, body, chunked)
            response = connection.getresponse()
            raw = response.read()
        except Exception:
            self.close()
            raise
        if response.will_close:
            self.close()
        return Answer(response.status, _Headers(response.headers.items()), raw)

    @staticmethod
    def _send_body(connection: http.client.HTTPConnection, body: bytes, chunked: bool) -> None:
        try:
            if not chunked:
                connection.send(body)
                return
            for start in range(0, len(body), 1 << 20):
                part = body[start : start + (1 << 20)]
                connection.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            connection.send(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before it was read to its end: the answer is there

    def raw(self, name: str, sent: bytes, answers: int = 1) -> list[Answer]:
        """Raw bytes on a new connection; this many answers, fewer when the server closed it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=HANG_SECONDS) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(sent)
            reader = connection.makefile("rb")
            found: list[Answer] = []
            while len(found) < answers:
                answer = _read(reader, name, is_head=sent.startswith(b"HEAD "))
                if answer is None:
                    break
                if answer.status >= 200:
                    found.append(answer)
            return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Headers(dict[str, str]):
    """With the usual spelling of their names."""

    def __init__(self, pairs: Any) -> None:
        super().__init__((spelled(name), value) for name, value in pairs)


def _read(reader: Any, name: str, *, is_head: bool) -> Answer | None:
    try:
        line = reader.readline()
        if not line:
            return None
        headers: dict[str, str] = {}
        while (header := reader.readline()) not in (b"\r\n", b""):
            key, _, value = header.decode("latin-1").partition(":")
            headers[spelled(key)] = value.strip()
        status = int(line.split()[1])
        length = 0 if is_head or status < 200 else int(headers.get("Content-Length", "0"))
        raw = reader.read(length)
    except TimeoutError:
        raise NoAnswer(f"{name}: no answer within {HANG_SECONDS} s") from None
    except ConnectionResetError:
        return None
    return Answer(status, headers, raw)


def declared_statuses(method: str, path: str) -> set[int]:
    if (method, path) == ("POST", "/emails"):
        return SEND_STATUSES
    if method == "GET" and path.startswith("/emails/"):
        return GET_STATUSES
    return {200, 201, 400, 401, 403, 404, 405, 409, 413, 429, 503}


def is_parsers_own(answer: Answer) -> bool:
    """The HTTP parser's own refusal of what is not an HTTP message, without our error object."""
    return answer.status == 400 and answer.raw == PARSERS_OWN
