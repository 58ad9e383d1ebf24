"""Listening to events on a developer's machine: the feed's are sent on as webhooks, and what comes is judged and shown.

The listener is a receiver as anyone would write one, on the loopback interface and without TLS. It is sent to by us,
and by whoever else finds it, through a tunnel perhaps: so that what it reads and does at once is bounded.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

import aiohttp
from aiohttp import web

from posthouse.cli import events
from posthouse.cli.feed import Feed, FeedClosed, Login, reason
from posthouse.cli.feed import read as read_answer
from posthouse.mail.reply import printable
from posthouse.rules import event
from posthouse.rules.event import CONTENT_TYPE, SIGNATURE_HEADER, USER_AGENT

HOST: Final = "127.0.0.1"
BODY_BYTES_MAX: Final = 256 * 1024
BODY_SECONDS_MAX: Final = 10.0
REQUESTS_AT_ONCE_MAX: Final = 16
# What the service itself grants a receiver, and reads of its answer.
CALL_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 2_048

Say = Callable[[str], None]


class NotListening(RuntimeError):  # noqa: N818 (reads as what it says)
    """The port can't be had; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is followed (nothing without `access`), since when, and where it goes: without `forward`, to ourselves.

    As many events as `events_max` are shown, or any number of them when it is 0.
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
    """What a program said to an event; without a status, the text says why there was none."""

    status: int | None
    text: str
    duration_ms: int

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


async def listen(wishes: Wishes, say: Say) -> None:
    """Until it is cancelled, or as many events were shown as were asked for."""
    async with AsyncExitStack() as stack:
        enough = asyncio.Event()
        target = wishes.forward
        if not target:
            target = await stack.enter_async_context(_Listener(wishes, enough))
            say(f"Listening on {target}")
        if wishes.access is None:
            await enough.wait()
            return
        http = await stack.enter_async_context(aiohttp.ClientSession(trust_env=True))
        local = await stack.enter_async_context(
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)
        )
        shown = 0
        async for told in Feed(http, wishes.url, wishes.access, say).events(wishes.back):
            body = events.as_sent(told)
            reply = await send(local, target, wishes.secret, body)
            if wishes.forward:
                shown += 1
                _show_reply(body, reply, as_json=wishes.as_json)
            if enough.is_set() or 0 < wishes.events_max <= shown:
                return


async def send(http: aiohttp.ClientSession, url: str, secret: str, body: bytes) -> ReceiverReply:
    """One POST as the service would make it, though to any address; nothing is tried again."""
    headers = {
        "Content-Type": CONTENT_TYPE,
        "User-Agent": USER_AGENT,
        SIGNATURE_HEADER: event.sign(secret, body, int(time.time())),
        "Accept": "*/*",
        "Accept-Encoding": "identity",
    }
    patience = aiohttp.ClientTimeout(total=CALL_SECONDS_MAX)
    began_at = time.monotonic()
    status = None
    try:
        async with http.post(url, data=body, headers=headers, timeout=patience, allow_redirects=False) as response:
            text = printable(await read_answer(response, ANSWER_BYTES_MAX))
            status = response.status
    except TimeoutError:
        text = f"no whole answer within {CALL_SECONDS_MAX:.0f} s"
    except aiohttp.InvalidURL:
        raise FeedClosed(f"{url} is no address: --forward is such as http://127.0.0.1:3000/hook") from None
    except aiohttp.ClientError as error:
        text = f"no answer: {reason(error)}"
    return ReceiverReply(status, text, round((time.monotonic() - began_at) * 1000))


def _show_reply(body: bytes, reply: ReceiverReply, *, as_json: bool) -> None:
    if as_json:
        return events.write_json({"event": events.read(body), "answer": reply._asdict()})
    said = reply.text if reply.status is None else f"{reply.status} {reply.text}".rstrip()
    note = f"→ {said} ({reply.duration_ms} ms)"
    return events.write(body, (note, "green" if reply.is_success else "red"))


class _Listener:
    """Takes POSTs to any path; 200 for what is genuine, 400 for what is not."""

    def __init__(self, wishes: Wishes, enough: asyncio.Event) -> None:
        self._wishes = wishes
        self._enough = enough
        self._left = wishes.events_max
        self._at_work = 0
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_post("/{path:.*}", self._receive)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, HOST, self._wishes.port).start()
        except OSError as error:
            await self._runner.cleanup()
            why = error.strerror
            raise NotListening(f"can't listen on port {self._wishes.port} ({why}): name another --port.") from None
        return f"http://{HOST}:{self._runner.addresses[0][1]}/"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        if self._at_work >= REQUESTS_AT_ONCE_MAX:
            return web.Response(status=503, text="busy: send it again\n", headers={"Retry-After": "1"})
        self._at_work += 1
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408, text="the body took too long\n")
        finally:
            self._at_work -= 1
        return self._answered(request.headers, body)

    def _answered(self, headers: Mapping[str, str], body: bytes) -> web.Response:
        found = events.judged(self._wishes.secret, headers.get(SIGNATURE_HEADER, ""), body, int(time.time()))
        if self._wishes.as_json:
            told: dict[str, Any] = {"event": events.read(body), "verdict": found.verdict, "reason": found.reason}
            events.write_json(told)
        else:
            word, style = ("verified", "green") if found.is_genuine else ("not verified", "red")
            events.write(body, (f"{word}: {found.reason}", style))
        self._left -= 1
        if self._left == 0:
            self._enough.set()
        return web.Response(status=200 if found.is_genuine else 400, text=f"{found.reason}\n")
