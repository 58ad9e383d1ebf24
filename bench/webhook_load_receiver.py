"""A webhook receiver in its own process, for load tests: it answers 200 to every request and logs it.

Paths that begin with `/hang` are never answered. A log line is the time, path, signature and body, separated by
spaces; `arrivals` flushes the log before it reads it.
"""

import argparse
import asyncio
import hashlib
import hmac
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import trustme

NAME: Final = "hooks.example.com"
ROOT: Final = Path(__file__).resolve().parents[1]
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    path: str
    signature: str
    body: bytes

    def is_signed(self, secret: str) -> bool:
        """Checked according to the contract, with the standard library."""
        t, _, v1 = self.signature.partition(",")
        signed = t.removeprefix("t=").encode() + b"." + self.body
        return v1 == "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.body)
        return event


class WebhookLoadReceiver:
    """The process; its certificate comes from a private authority, whose file is in the directory."""

    def __init__(self, directory: Path) -> None:
        self.authority = directory / "authority.pem"
        self._log = directory / "arrivals"
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authority))
        with authority.issue_cert(NAME).private_key_and_cert_chain_pem.tempfile() as certificate:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.webhook_load_receiver", certificate, str(self._log)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.port = int(self._answer())
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def count(self) -> int:
        """How many requests arrived."""
        return int(self._ask("count"))

    def arrivals(self) -> list[Arrival]:
        """Requests since the last call."""
        self._ask("flush")
        lines = self._log.read_bytes().splitlines()
        self._log.unlink()
        return [_arrival(line) for line in lines]

    def _ask(self, word: str) -> str:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _arrival(line: bytes) -> Arrival:
    at, path, signature, body = line.split(b" ", 3)
    return Arrival(float(at), path.decode(), signature.decode(), body)


class _Log:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: list[bytes] = []
        self.count = 0

    def add(self, path: bytes, signature: bytes, body: bytes) -> None:
        self.count += 1
        self._lines.append(b"%.6f %b %b %b\n" % (time.time(), path, signature, body))

    def flush(self) -> None:
        with self._file.open("ab") as written:
            written.writelines(self._lines)
        self._lines.clear()


class _Connection(asyncio.Protocol):
    """Reads one request after the other without an HTTP library, to cost little processor time."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        line, *fields = head.split(b"\r\n")
        headers: Mapping[bytes, bytes] = {
            name.lower(): value for name, _, value in (field.partition(b": ") for field in fields)
        }
        if len(body) < int(headers[b"content-length"]):
            return
        self._buffer = b""
        path = line.split(b" ")[1]
        self._log.add(path, headers[b"service-signature"], body)
        if not path.startswith(b"/hang"):
            self._transport.write(ANSWER)


async def _serve(certificate: Path, file: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    log = _Log(file)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(log), "127.0.0.1", 0, ssl=context, backlog=1_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while word := (await reader.readline()).strip():
        if word == b"flush":
            log.flush()
        print(log.count, flush=True)


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("certificate", type=Path)
    parser.add_argument("log", type=Path)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(given.certificate, given.log))


if __name__ == "__main__":
    main()
