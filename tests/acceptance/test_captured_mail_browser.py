"""Hostile mail in a real browser: a listener sees no connection, and the page stays where it is."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.acceptance.test_captured_mail import link, sends
from tests.support.browser import Browser, chromium
from tests.support.connection_trap import ConnectionTrap
from tests.support.hostile_html import payloads
from tests.support.service import Service

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(chromium() is None, reason="Chromium is missing: apt-get install chromium"),
]
# Each page waits this long after its frame is loaded: hints such as preconnect come late.
QUIET_SECONDS = 1.0


@pytest_asyncio.fixture(loop_scope="session")
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with Browser(tmp_path / "profile") as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def trap() -> AsyncIterator[ConnectionTrap]:
    async with ConnectionTrap() as opened:
        yield opened


@pytest.mark.rule("CAP-05")
@pytest.mark.rule("CAP-06")
async def test_nothing_hostile_leaves_the_frame(service: Service, browser: Browser, trap: ConnectionTrap) -> None:
    # The listener sees what the browser does on its own.
    await browser.open(f"{trap.url}/")
    assert trap.connections > 0
    tenant = await service.account()
    hostile = {name: html.replace("\0", "") for name, html in payloads(trap.url).items()}
    sent = {name: await sends(tenant, subject=name, html=html) for name, html in hostile.items()}
    await browser.open(service.url + await link(service, next(iter(sent.values()))))
    faults = []
    for name, message_id in sent.items():
        url = f"{service.url}/captured/{message_id}"
        before = trap.connections
        await browser.open(url)
        frame = await browser.value(
            "(() => { const box = document.querySelector('iframe').getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2, box.height]; })()"
        )
        assert frame[2] > 100, "the frame is to be seen"
        await browser.click(frame[0], frame[1])
        for key in ("Tab", "Tab", "Enter"):
            await browser.press(key)
        await asyncio.sleep(QUIET_SECONDS)
        if trap.connections > before:
            faults.append(f"{name}: {trap.connections - before} connections")
        if any(tab.startswith(trap.url) for tab in await browser.tabs()):
            faults.append(f"{name}: the browser went there")
    assert faults == []
