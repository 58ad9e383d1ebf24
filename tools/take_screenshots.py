"""Screenshots for the documentation, of a `posthouse dev` that is started for it, in a headless Chromium.

python -m tools.take_screenshots
"""

import json
import re
import shlex
import shutil
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

from tools.draw_diagrams import BROWSERS
from tools.private_postgres import free_port

ROOT: Final = Path(__file__).parents[1]
TAKEN: Final = ROOT / "docs" / "assets" / "screenshots"
READY: Final = "Ctrl-C stops everything"
READY_SECONDS_MAX: Final = 300
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
        ports = ["--port", str(free_port()), "--smtp-port", str(free_port())]
        process = subprocess.Popen([COMMAND, "dev", *ports], cwd=directory, stdout=written, stderr=written)
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


def take(browser: str, url: str, name: str, height: int) -> None:
    """A new profile for each: a one-time link is followed once."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
             f"--window-size=1200,{height}", "--virtual-time-budget=20000", f"--screenshot={TAKEN / name}", url],
            check=True, capture_output=True, timeout=180,
        )  # fmt: skip
    print(f"{(TAKEN / name).relative_to(ROOT)} is taken.")


def main() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("There is no Chromium: install it with `apt-get install chromium`.")
    TAKEN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with served(Path(directory)) as (panel, demo):
            ids = [send(demo, subject, html) for subject, html in MESSAGES]
            time.sleep(5)  # until the list of messages has them
            list_link = re.search(r"http://\S+/captured\S*", panel)
            assert list_link, panel
            take(browser, list_link.group(), "captured-list.png", 190)
            opened = subprocess.run(
                [COMMAND, "message", "open", ids[-1], "--print"],
                cwd=directory,
                capture_output=True,
                text=True,
                check=True,
            )
            message_link = re.search(r"http://\S+", opened.stdout)
            assert message_link, opened.stdout
            take(browser, message_link.group(), "captured-message.png", 700)


if __name__ == "__main__":
    main()
