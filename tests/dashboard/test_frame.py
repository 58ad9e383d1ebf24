"""Hostile HTML in the frame: nothing runs, nothing is loaded, and the page stays where it is.

Real mail looks as it does in a browser without scripts and network.

Each payload has its own listener. The page holds all frames, with the attributes of `parts/HtmlFrame.tsx`.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import pytest
import pytest_asyncio
from PIL import Image, ImageChops
from playwright.async_api import Page, Route, ViewportSize

from posthouse.entrypoints.http.message_content import FRAME_POLICY
from posthouse.mail.render import framed
from tests.support.connection_trap import ConnectionTrap
from tests.support.dashboard_browser import FRAME, Pages
from tests.support.dashboard_pages import settled
from tests.support.eventually import HANG_SECONDS
from tests.support.hostile_html import payloads
from tests.support.real_mail import MAILS, mails

pytestmark = pytest.mark.nightly

# Hints such as preconnect come late.
QUIET_SECONDS: Final = 3.0

SHOW: Final = """([name, html, remote, sandboxed, inert]) => {
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action: "/dashboard/frame", target: name, enctype: "text/plain" });
  form.hidden = true;
  for (const [field, value] of [["remote", remote], ["html", html]]) {
    const area = document.createElement("textarea");
    Object.assign(area, { name: field, value });
    form.append(area);
  }
  const frame = document.createElement("iframe");
  Object.assign(frame, { name, inert, width: 300, height: 60 });
  if (sandboxed) frame.setAttribute("sandbox", "");
  document.body.append(form, frame);
  const loaded = new Promise((end) => { frame.onload = end; setTimeout(end, 20000); });
  form.submit();
  return loaded;
}"""


SIZE: Final[ViewportSize] = {"width": 640, "height": 800}
# The frame as the whole page.
COVER: Final = """() => Object.assign(document.querySelector("iframe").style,
  { position: "fixed", inset: 0, zIndex: 9999, width: "100%", height: "100%", border: 0, background: "white" })"""


@dataclass(frozen=True, slots=True)
class Shown:
    page: Page
    traps: dict[str, ConnectionTrap]

    async def show(self, *, remote: int = 0, sandboxed: bool = True, inert: bool = True) -> None:
        for number, (name, trap) in enumerate(self.traps.items()):
            html = payloads(trap.url)[name].replace("\0", "")
            await self.page.evaluate(SHOW, [f"frame-{number}", html, str(remote), sandboxed, inert])

    async def touch(self) -> None:
        """Click into each frame, and try the keyboard."""
        for frame in await self.page.query_selector_all("iframe"):
            await frame.scroll_into_view_if_needed()
            box = await frame.bounding_box()
            assert box is not None
            assert box["height"] > 50
            await self.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for key in ("Tab", "Tab", "Enter"):
            await self.page.keyboard.press(key)

    async def touch_again(self) -> None:
        """Repeats forever: a frame that has loaded may not be drawn yet, and then takes no click."""
        while True:
            await self.touch()

    def connected(self) -> dict[str, int]:
        return {name: trap.connections for name, trap in self.traps.items() if trap.connections}


@pytest_asyncio.fixture(loop_scope="session")
async def shown(pages: Pages) -> AsyncIterator[Shown]:
    async with AsyncExitStack() as stack:
        traps = {name: await stack.enter_async_context(ConnectionTrap()) for name in payloads("")}
        page = await pages.signed_out("login")
        await settled(page)
        yield Shown(page, traps)


async def test_nothing_hostile_leaves_the_frame(shown: Shown) -> None:
    assert len(shown.traps) >= 30
    address = shown.page.url
    await shown.show()
    await shown.touch()
    await asyncio.sleep(QUIET_SECONDS)
    assert shown.connected() == {}
    assert shown.page.url == address
    assert len(shown.page.context.pages) == 1
    frames = [frame for frame in shown.page.frames if frame != shown.page.main_frame]
    assert len(frames) == len(shown.traps)
    assert {frame.url.removesuffix("#") for frame in frames} == {address.partition("/dashboard/")[0] + FRAME}


async def test_remote_pictures_load_only_when_asked_for(shown: Shown) -> None:
    trap = next(iter(shown.traps.values()))
    html = f"<img src='https://127.0.0.1:{trap.port}/picture'>"
    await shown.page.evaluate(SHOW, ["without", html, "0", True, True])
    await asyncio.sleep(QUIET_SECONDS)
    assert trap.connections == 0
    await shown.page.evaluate(SHOW, ["with", html, "1", True, True])
    async with asyncio.timeout(HANG_SECONDS):
        await trap.came.wait()


@pytest.mark.parametrize("name", MAILS)
async def test_real_mail_looks_as_in_a_browser_without_scripts_and_network(pages: Pages, name: str) -> None:
    async with ConnectionTrap() as trap:
        html = mails(trap.url)[name]
        page = await pages.signed_out("login")
        await settled(page)
        await page.set_viewport_size(SIZE)
        await page.evaluate(SHOW, ["mail", html, "0", True, True])
        await page.evaluate(COVER)
        seen = await page.screenshot(animations="disabled")
        await asyncio.sleep(QUIET_SECONDS)
        assert trap.connections == 0
        context, watch = await pages.context(java_script_enabled=False)
        watch.allow("other origin:")
        await context.route("**/*", lambda route: route.abort())
        plain = "http://mail.example/"
        await context.route(plain, lambda route: route.fulfill(body=html, content_type="text/html; charset=utf-8"))
        page = await context.new_page()
        await page.set_viewport_size(SIZE)
        await page.goto(plain)
        drawn = await page.screenshot(animations="disabled")
    assert different(seen, drawn) < 0.01


def different(one: bytes, other: bytes) -> float:
    """The part of the pixels that differ."""
    first, second = (Image.open(io.BytesIO(picture)).convert("RGB") for picture in (one, other))
    assert first.size == second.size
    same = ImageChops.difference(first, second).convert("L").histogram()[0]
    return 1 - same / (first.width * first.height)


async def without_policy(route: Route) -> None:
    await route.fulfill(body=framed(_posted(route), {}), content_type="text/html; charset=utf-8")


def _posted(route: Route) -> str:
    return (route.request.post_data or "").partition("html=")[2]


@pytest.mark.parametrize(
    ("taken_out", "sandboxed", "inert", "leaks"),
    [
        pytest.param(without_policy, True, True, "picture", id="policy"),
        pytest.param(without_policy, False, True, "event handlers", id="policy and sandbox"),
        pytest.param(None, True, False, "click", id="inert"),
    ],
)
async def test_without_a_part_of_the_protection_the_test_fails(
    shown: Shown,
    pages: Pages,
    taken_out: Callable[[Route], Awaitable[None]] | None,
    sandboxed: bool,
    inert: bool,
    leaks: str,
) -> None:
    pages.watch_of(shown.page).allow("other origin:", "dialog:", "exception:", "console:", "policy violated:")
    if taken_out is not None:
        await shown.page.route(f"**{FRAME}", taken_out)
    only = Shown(shown.page, {leaks: shown.traps[leaks]})
    await only.show(sandboxed=sandboxed, inert=inert)
    await connects(only.traps[leaks], only.touch_again())


async def test_without_renaming_the_test_fails(pages: Pages) -> None:
    """From its own server: with requests intercepted, Chromium prepares no connection."""
    async with ConnectionTrap() as trap:
        hostile = payloads(trap.url)["nested frame"]
        policy = FRAME_POLICY.format(pictures="data:")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            is_frame = b"/frame " in await reader.readline()
            body = hostile if is_frame else "<iframe sandbox inert src=/frame></iframe>"
            head = f"Content-Security-Policy: {policy}\r\n" if is_frame else ""
            writer.write(
                f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{head}Connection: close\r\n\r\n{body}".encode()
            )
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            context, watch = await pages.context()
            watch.allow("other origin:", "console:")
            page = await context.new_page()
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            await connects(trap, page.goto(address, wait_until="commit"))


async def connects(trap: ConnectionTrap, action: Awaitable[object]) -> None:
    """What the browser does while it connects to the trap may never end."""
    doing = asyncio.ensure_future(action)
    async with asyncio.timeout(HANG_SECONDS):
        await trap.came.wait()
    doing.cancel()
    await asyncio.gather(doing, return_exceptions=True)
