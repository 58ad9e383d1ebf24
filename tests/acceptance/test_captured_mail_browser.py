"""Hostile mail in a real browser: a listener sees no connection, and the page stays where it is."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Error, Page

from tests.acceptance.test_captured_mail import link, sends
from tests.support.connection_trap import ConnectionTrap
from tests.support.dashboard_browser import chromium, running_browser
from tests.support.hostile_html import payloads
from tests.support.service import Service

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(chromium() is None, reason="Chromium is missing: apt-get install chromium"),
]
# Each page waits this long after its frame is loaded: hints such as preconnect come late.
QUIET_SECONDS = 1.0


@pytest_asyncio.fixture(loop_scope="session")
async def page() -> AsyncIterator[Page]:
    async with running_browser() as browser:
        yield await browser.new_page()


@pytest_asyncio.fixture(loop_scope="session")
async def trap() -> AsyncIterator[ConnectionTrap]:
    async with ConnectionTrap() as opened:
        yield opened


@pytest.mark.rule("CAP-05")
@pytest.mark.rule("CAP-06")
async def test_nothing_hostile_leaves_the_frame(service: Service, page: Page, trap: ConnectionTrap) -> None:
    # The listener sees what the browser does on its own.
    with pytest.raises(Error, match="CONNECTION_RESET"):
        await page.goto(f"{trap.url}/")
    assert trap.connections > 0
    tenant = await service.account()
    hostile = {name: html.replace("\0", "") for name, html in payloads(trap.url).items()}
    sent = {name: await sends(tenant, subject=name, html=html) for name, html in hostile.items()}
    await page.goto(service.url + await link(service, next(iter(sent.values()))))
    await page.wait_for_url("**/captured/em_*")
    faults = []
    for name, message_id in sent.items():
        url = f"{service.url}/captured/{message_id}"
        before = trap.connections
        await page.goto(url)
        frame = await page.locator("iframe").bounding_box()
        assert frame is not None
        assert frame["height"] > 100, "the frame is to be seen"
        await page.mouse.click(frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2)
        for key in ("Tab", "Tab", "Enter"):
            await page.keyboard.press(key)
        await asyncio.sleep(QUIET_SECONDS)
        if trap.connections > before:
            faults.append(f"{name}: {trap.connections - before} connections")
        if any(tab.url.startswith(trap.url) for tab in page.context.pages):
            faults.append(f"{name}: the browser went there")
    assert faults == []
