"""What the cases of sdks/conformance can't show of a library in every language: threads, tasks, proxies, TLS."""

import asyncio
import base64
import json
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from posthouse_sdk import (
    Answer,
    AsyncClient,
    AsyncHttpTransport,
    AttemptTimeoutError,
    Bearer,
    Client,
    ConnectionFailedError,
    Email,
    HttpTransport,
    InvalidArgumentError,
    PosthouseError,
    Request,
    RetryPolicy,
)

KEY = "ph_test_0123456789"
EMAIL = Email(from_="hello@acme.example", to="ada@example.net", subject="Hello", text="Good morning.")
ACCEPTED = json.dumps({"id": "em_1", "status": "queued"}).encode()


class EmailTest(unittest.TestCase):
    def test_an_email_says_its_time_its_metadata_and_that_it_is_forgotten(self) -> None:
        at = datetime(2030, 6, 1, 11, 0, tzinfo=timezone(timedelta(hours=2)))
        written = replace(EMAIL, send_at=at, metadata={"order": "1001"}, content="forget").to_json()
        self.assertEqual(written["send_at"], "2030-06-01T09:00:00+00:00")
        self.assertEqual(written["metadata"], {"order": "1001"})
        self.assertEqual(written["content"], "forget")
        self.assertEqual(set(EMAIL.to_json()), {"from", "to", "subject", "text"})


class Service(ThreadingHTTPServer):
    """Accepts whatever comes, and as a proxy connects to whatever is asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lines: list[str] = []
        self.keys: list[str] = []
        self.proxy_authorizations: list[str | None] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.lines.append(self.requestline)
        self.server.keys.append(self.headers["Idempotency-Key"])
        self.server.proxy_authorizations.append(self.headers["Proxy-Authorization"])
        self.send_response(202)
        self.send_header("Content-Length", str(len(ACCEPTED)))
        self.end_headers()
        self.wfile.write(ACCEPTED)

    def do_CONNECT(self) -> None:
        self.server.lines.append(self.requestline)
        self.server.proxy_authorizations.append(self.headers["Proxy-Authorization"])
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as onwards:
            self.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            back = threading.Thread(target=pump, args=(onwards, self.connection), daemon=True)
            back.start()
            pump(self.connection, onwards)
            back.join(10)
        self.close_connection = True


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(65_536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def running(context: ssl.SSLContext | None = None) -> Iterator[Service]:
    with Service() as service:
        if context is not None:
            service.socket = context.wrap_socket(service.socket, server_side=True)
        thread = threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield service
        finally:
            service.shutdown()
            thread.join()


class ManyAtOnceTest(unittest.TestCase):
    def test_threads_share_a_client(self) -> None:
        with running() as service, ThreadPoolExecutor(8) as pool:
            client = Client(KEY, base_url=f"http://127.0.0.1:{service.port}")
            sent = list(pool.map(lambda _: client.send(EMAIL), range(40)))
        self.assertEqual({answer.id for answer in sent}, {"em_1"})
        self.assertEqual(len(set(service.keys)), 40)

    def test_tasks_share_a_client(self) -> None:
        async def all_at_once(port: int) -> None:
            client = AsyncClient(KEY, base_url=f"http://127.0.0.1:{port}")
            await asyncio.gather(*(client.send(EMAIL) for _ in range(40)))

        with running() as service:
            asyncio.run(all_at_once(service.port))
        self.assertEqual(len(set(service.keys)), 40)


class CancellationTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_cancelled_attempt_ends_with_its_connection(self) -> None:
        came, ended = asyncio.Event(), asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            came.set()
            await reader.read()
            ended.set()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        async with server:
            client = AsyncClient(KEY, base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            task = asyncio.create_task(client.get("em_1"))
            await came.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(ended.wait(), 5)

    async def test_a_cancelled_sleep_ends_at_once(self) -> None:
        slept = asyncio.Event()

        async def sleep(_: float) -> None:
            slept.set()
            await asyncio.sleep(3_600)

        client = AsyncClient(KEY, base_url="http://127.0.0.1:9", transport=Broken(), sleep=sleep)
        task = asyncio.create_task(client.get("em_1"))
        await slept.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task


class Broken:
    async def exchange(self, request: Request, timeout_seconds: float) -> Answer:
        raise OSError("broken")


class Recorded:
    """A transport of one's own."""

    def __init__(self, outcome: Answer | OSError) -> None:
        self.outcome = outcome
        self.requests: list[Request] = []

    def exchange(self, request: Request, timeout_seconds: float) -> Answer:
        self.requests.append(request)
        if isinstance(self.outcome, OSError):
            raise self.outcome
        return self.outcome


class TransportTest(unittest.TestCase):
    def test_a_transport_of_ones_own_takes_the_place_of_http(self) -> None:
        transport = Recorded(Answer(202, {"idempotent-replayed": "true"}, ACCEPTED))
        sent = Client(KEY, base_url="https://mail.acme.example", transport=transport).send(EMAIL)
        self.assertTrue(sent.replayed)
        self.assertEqual(transport.requests[0].url, "https://mail.acme.example/emails")
        self.assertNotIn(KEY, repr(transport.requests[0]))

    def test_its_errors_become_ours_and_stay_the_languages_own(self) -> None:
        for raised, ours, native in (
            (TimeoutError("late"), AttemptTimeoutError, TimeoutError),
            (ConnectionResetError("reset"), ConnectionFailedError, ConnectionError),
            (socket.gaierror("unknown host"), ConnectionFailedError, ConnectionError),
        ):
            client = Client(
                KEY, base_url="https://mail.acme.example", transport=Recorded(raised), retry=RetryPolicy.none()
            )
            for kind in (ours, native, PosthouseError):
                with self.subTest(kind), self.assertRaises(kind) as caught:
                    client.get("em_1")
                self.assertIs(caught.exception.__cause__, raised)

    def test_a_refused_argument_is_a_value_error(self) -> None:
        with self.assertRaises(ValueError):
            Client("", base_url="https://mail.acme.example")

    def test_no_secret_is_printed(self) -> None:
        client = Client(KEY, base_url="https://mail.acme.example")
        shown = f"{client!r} {client} {client._setup!r} {Bearer(KEY)!r}"
        self.assertNotIn(KEY, shown)

    def test_an_attempt_that_never_connects_times_out(self) -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = []
            # What is not accepted fills the queue of connections, and the next ones hang.
            for _ in range(4):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(full.getsockname())
                waiting.append(one)
            client = Client(
                KEY, base_url=f"http://127.0.0.1:{full.getsockname()[1]}", timeout=0.3, retry=RetryPolicy.none()
            )
            began = time.monotonic()
            with self.assertRaises(AttemptTimeoutError):
                client.get("em_1")
            self.assertLess(time.monotonic() - began, 5)
            for one in waiting:
                one.close()


class ProxyTest(unittest.TestCase):
    def test_a_proxy_is_asked_for_the_whole_address(self) -> None:
        pair = "Basic " + base64.b64encode(b"proxy user:pass word").decode()
        with running() as proxy:
            address = f"http://proxy%20user:pass%20word@127.0.0.1:{proxy.port}"
            Client(KEY, base_url="http://mail.acme.invalid/api", transport=HttpTransport(proxy=address)).send(EMAIL)
            transport = AsyncHttpTransport(proxy=address)
            asyncio.run(AsyncClient(KEY, base_url="http://mail.acme.invalid/api", transport=transport).send(EMAIL))
        self.assertEqual(proxy.lines, ["POST http://mail.acme.invalid/api/emails HTTP/1.1"] * 2)
        self.assertEqual(proxy.proxy_authorizations, [pair] * 2)

    def test_a_proxy_that_is_no_address_is_refused(self) -> None:
        for address in ("proxy:3128", "socks5://proxy:1080", "http://"):
            with self.subTest(address), self.assertRaises(InvalidArgumentError):
                HttpTransport(proxy=address)


@unittest.skipUnless(shutil.which("openssl"), "openssl makes the certificate")
class SecureTest(unittest.TestCase):
    serving: ssl.SSLContext
    trusting: ssl.SSLContext

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as directory:
            key, certificate = Path(directory, "key.pem"), Path(directory, "certificate.pem")
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
            command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
            subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
            cls.serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            cls.serving.load_cert_chain(certificate, key)
            cls.trusting = ssl.create_default_context(cafile=str(certificate))

    def test_tls_directly_and_through_a_proxy(self) -> None:
        with running(self.serving) as service, running() as proxy:
            url = f"https://localhost:{service.port}"
            for address in (None, f"http://user:word@127.0.0.1:{proxy.port}"):
                threads = HttpTransport(proxy=address, ssl_context=self.trusting)
                self.assertEqual(Client(KEY, base_url=url, transport=threads).send(EMAIL).id, "em_1")
                tasks = AsyncHttpTransport(proxy=address, ssl_context=self.trusting)
                self.assertEqual(asyncio.run(AsyncClient(KEY, base_url=url, transport=tasks).send(EMAIL)).id, "em_1")
        self.assertEqual(service.lines, ["POST /emails HTTP/1.1"] * 4)
        self.assertEqual(proxy.lines, [f"CONNECT localhost:{service.port} HTTP/1.1"] * 2)
        # The proxy's password is the proxy's alone.
        self.assertEqual(service.proxy_authorizations, [None] * 4)

    def test_an_unknown_certificate_is_not_trusted(self) -> None:
        with running(self.serving) as service:
            url = f"https://localhost:{service.port}"
            with self.assertRaises(ConnectionFailedError):
                Client(KEY, base_url=url, retry=RetryPolicy.none()).send(EMAIL)
            with self.assertRaises(ConnectionFailedError):
                asyncio.run(AsyncClient(KEY, base_url=url, retry=RetryPolicy.none()).send(EMAIL))
        self.assertEqual(service.lines, [])


if __name__ == "__main__":
    unittest.main()
