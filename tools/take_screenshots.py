"""Screenshots for the documentation, of a `posthouse dev` that is started for it: captured mail, and its terminal.

python -m tools.take_screenshots
"""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.async_api import Page

from tests.support.dashboard_browser import chromium, running_browser
from tools.pictured_pages import TAKEN
from tools.terminal_picture import printed, save, take_terminal

COLOURS: Final = 128
READY: Final = "Ctrl-C stops everything"
READY_SECONDS_MAX: Final = 300
FRAME_DRAWN_SECONDS: Final = 3
COMMAND: Final = str(Path(sys.executable).with_name("posthouse"))
MESSAGES: Final = (
    ("Your receipt from Acme", "<h1>Thank you, Grace</h1><p>Your order 4711 is on its way.</p>"),
    (
        "Reset your password",
        (
            "<div style='font-family: sans-serif; max-width: 32rem; margin: auto; padding: 2rem'>"
            "<h1 style='color: #3f51b5'>Acme</h1><p>Hello Ada,</p><p>choose a new password within an hour:</p>"
            "<p><a style='background: #3f51b5; color: white; padding: .7rem 1.2rem; border-radius: .3rem'"
            " href='https://demo.example/reset/7f3c'>Choose a password</a></p>"
            "<p>If you did not ask for it, ignore this mail.</p></div>"
        ),
    ),
)


@contextmanager
def served(directory: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """A running `posthouse dev`: the panel, and the demo account's secrets."""
    printed = directory / "panel.txt"
    with printed.open("wb") as written:
        process = subprocess.Popen([COMMAND, "dev"], cwd=directory, stdout=written, stderr=written)
    try:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while READY not in (panel := printed.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"posthouse dev did not start:\n{panel}")
            time.sleep(0.2)
        pairs = (line.partition("=") for line in shlex.split((directory / ".posthouse" / "demo.env").read_text()))
        yield panel, {name: value for name, _, value in pairs}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def send(demo: Mapping[str, str], subject: str, html: str) -> str:
    mail = {"from": f"Acme <{demo['DEMO_FROM']}>", "to": "Ada <ada@example.org>", "subject": subject, "html": html}
    headers = {
        "Authorization": f"Bearer {demo['DEMO_LIVE_KEY']}",
        "Content-Type": "application/json",
        "Idempotency-Key": subject,
    }
    request = urllib.request.Request(f"{demo['DEMO_URL']}/emails", json.dumps(mail).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["id"])


async def take(page: Page, name: str, *, height: int) -> None:
    await page.set_viewport_size({"width": 1200, "height": height})
    save(await page.screenshot(animations="disabled", caret="hide"), TAKEN / name, COLOURS)


async def take_all(directory: Path, panel: str, message_link: str) -> None:
    async with running_browser() as browser:
        page = await browser.new_page()
        # The link opens a session, in which the list can be read too.
        await page.goto(message_link)
        # The message's frame runs no script, so nothing says when it is drawn.
        await asyncio.sleep(FRAME_DRAWN_SECONDS)
        await take(page, "captured-message.png", height=700)
        await page.goto(f"{message_link.partition('/captured')[0]}/captured")
        await take(page, "captured-list.png", height=190)
        await take_terminal(browser, TAKEN / "terminal-dev.png", "posthouse dev", panel)
        doctor = printed([COMMAND, "doctor"], os.environ, directory)
        await take_terminal(browser, TAKEN / "terminal-doctor.png", "posthouse doctor", doctor)


def main() -> None:
    if chromium() is None:
        raise SystemExit("There is no Chromium: install it with `apt-get install chromium`.")
    TAKEN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with served(Path(directory)) as (panel, demo):
            ids = [send(demo, subject, html) for subject, html in MESSAGES]
            time.sleep(5)  # until the list of messages has them
            opened = subprocess.run(
                [COMMAND, "message", "open", ids[-1], "--print"],
                cwd=directory,
                capture_output=True,
                text=True,
                check=True,
            )
            message_link = re.search(r"http://\S+", opened.stdout)
            assert message_link, opened.stdout
            asyncio.run(take_all(Path(directory), panel, message_link.group()))


if __name__ == "__main__":
    main()
