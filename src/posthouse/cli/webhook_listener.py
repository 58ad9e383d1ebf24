"""A webhook receiver on a developer's machine: events of the feed are sent on to it, verified and shown.

The listener is an ordinary receiver, on the loopback interface and without TLS. Others may reach it as well, through
a tunnel perhaps: so the size of a body and the number of requests at once are bounded.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

import aiohttp
from aiohttp import web

from posthouse.cli import webhook_events
from posthouse.cli.event_feed import Feed, FeedClosed, Login, reason
from posthouse.cli.event_feed import read as read_answer
from posthouse.mail.reply import printable
from posthouse.rules import event
from posthouse.rules.event import CONTENT_TYPE, SIGNATURE_HEADER, USER_AGENT

HOST: Final = "127.0.0.1"
BODY_BYTES_MAX: Final = 256 * 1024
BODY_SECONDS_MAX: Final = 10.0
CONCURRENT_REQUESTS_MAX: Final = 16
# The service gives a receiver as much time, and reads as much of its answer.
CALL_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 2_048

Say = Callable[[str], None]


class CannotListen(RuntimeError):  # noqa: N818 (reads as what it says)
    """The port can't be opened; the text says what to do."""


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Without `access`, no feed is followed. Without `forward`, events are sent to the listener here.

    `events_max` is the number of events to show; 0 means no limit.
    """

    url: str
    access: Login | str | None = field(repr=False)
    back: timedelta
    forward: str
    port: int
    secret: str = field(repr=False)
    events_max: int
    as_json: bool


class ReceiverReply(NamedTuple):
    """A receiver's answer to an event; without a status, the text says why there was no answer."""

    status: int | None
    text: str
    duration_ms: int

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


async def listen(options: ListenOptions, say: Say) -> None:
    """Run until cancelled, or until `events_max` events were shown."""
    async with AsyncExitStack() as stack:
        enough = asyncio.Event()
        target = options.forward
        if not target:
            target = await stack.enter_async_context(_Listener(options, enough))
            say(f"Listening on {target}")
        if options.access is None:
            await enough.wait()
            return
        http = await stack.enter_async_context(aiohttp.ClientSession(trust_env=True))
        local = await stack.enter_async_context(
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)
        )
        shown = 0
        async for values in Feed(http, options.url, options.access, say).events(options.back):
            body = webhook_events.as_sent(values)
            reply = await send(local, target, options.secret, body)
            if options.forward:
                shown += 1
                _show_reply(body, reply, as_json=options.as_json)
            if enough.is_set() or 0 < options.events_max <= shown:
                return


async def send(http: aiohttp.ClientSession, url: str, secret: str, body: bytes) -> ReceiverReply:
    """Send a POST as the service would, though to any address, and without a retry."""
    headers = {
        "Content-Type": CONTENT_TYPE,
        "User-Agent": USER_AGENT,
        SIGNATURE_HEADER: event.sign(secret, body, int(time.time())),
        "Accept": "*/*",
        "Accept-Encoding": "identity",
    }
    timeout = aiohttp.ClientTimeout(total=CALL_SECONDS_MAX)
    began_at = time.monotonic()
    status = None
    try:
        async with http.post(url, data=body, headers=headers, timeout=timeout, allow_redirects=False) as response:
            text = printable(await read_answer(response, ANSWER_BYTES_MAX))
            status = response.status
    except TimeoutError:
        text = f"no complete answer within {CALL_SECONDS_MAX:.0f} s"
    except aiohttp.InvalidURL:
        raise FeedClosed(f"{url} is no address: --forward is such as http://127.0.0.1:3000/hook") from None
    except aiohttp.ClientError as error:
        text = f"no answer: {reason(error)}"
    return ReceiverReply(status, text, round((time.monotonic() - began_at) * 1000))


def _show_reply(body: bytes, reply: ReceiverReply, *, as_json: bool) -> None:
    if as_json:
        return webhook_events.write_json({"event": webhook_events.read(body), "answer": reply._asdict()})
    answer = reply.text if reply.status is None else f"{reply.status} {reply.text}".rstrip()
    note = f"→ {answer} ({reply.duration_ms} ms)"
    return webhook_events.write(body, (note, "green" if reply.is_success else "red"))


class _Listener:
    """Accepts POSTs to any path; answers 200 to genuine events and 400 to others."""

    def __init__(self, options: ListenOptions, enough: asyncio.Event) -> None:
        self._options = options
        self._enough = enough
        self._events_left = options.events_max
        self._requests = 0
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_post("/{path:.*}", self._receive)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, HOST, self._options.port).start()
        except OSError as error:
            await self._runner.cleanup()
            why = error.strerror
            raise CannotListen(f"can't listen on port {self._options.port} ({why}): name another --port.") from None
        return f"http://{HOST}:{self._runner.addresses[0][1]}/"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        if self._requests >= CONCURRENT_REQUESTS_MAX:
            return web.Response(status=503, text="busy: send it again\n", headers={"Retry-After": "1"})
        self._requests += 1
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408, text="the body took too long\n")
        finally:
            self._requests -= 1
        return self._answered(request.headers, body)

    def _answered(self, headers: Mapping[str, str], body: bytes) -> web.Response:
        found = webhook_events.check_signature(
            self._options.secret, headers.get(SIGNATURE_HEADER, ""), body, int(time.time())
        )
        if self._options.as_json:
            webhook_events.write_json(
                {"event": webhook_events.read(body), "verdict": found.verdict, "reason": found.reason}
            )
        else:
            word, style = ("verified", "green") if found.is_genuine else ("not verified", "red")
            webhook_events.write(body, (f"{word}: {found.reason}", style))
        self._events_left -= 1
        if self._events_left == 0:
            self._enough.set()
        return web.Response(status=200 if found.is_genuine else 400, text=f"{found.reason}\n")
