"""`posthouse dev` as a developer starts it: a process in a directory, the panel that it prints, its snippets."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from tests.support.eventually import HANG_SECONDS
from tools.private_postgres import free_port

READY: Final = "Ctrl-C stops everything"
POLL_SECONDS: Final = 0.05


@dataclass(slots=True)
class DevCommand:
    """`command` is the installed `posthouse`; its words follow `dev`. `user` runs it, if it isn't the tests' own."""

    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str]
    user: str | None = None
    port: int = field(default_factory=free_port)
    smtp_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> Path:
        return self.directory / "dev.out"

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        words = "dev", "--port", str(self.port), "--smtp-port", str(self.smtp_port), *words
        with self.output.open("wb") as written:
            self.process = self.popen(words, written)
        return self.process

    def popen(self, words: Sequence[str], written: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.command, *words],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            user=self.user,
            group="nogroup" if self.user else None,
            extra_groups=[] if self.user else None,
            start_new_session=True,
        )

    def start(self, *words: str) -> str:
        """Starts it, and waits until it is ready; returns the panel."""
        process = self.spawn(*words)
        deadline = time.monotonic() + (2 * HANG_SECONDS)
        while READY not in (printed := self.output.read_text()):
            assert process.poll() is None, printed
            assert time.monotonic() < deadline, printed
            time.sleep(POLL_SECONDS)
        return printed

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another `posthouse` command in the same directory."""
        return self.shell([*self.command, *words])

    def shell(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            user=self.user,
            group="nogroup" if self.user else None,
            extra_groups=[] if self.user else None,
            check=False,
        )

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(HANG_SECONDS)

    def end_if_running(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGTERM)

    def demo(self) -> dict[str, str]:
        lines = (self.directory / ".posthouse" / "demo.env").read_text().splitlines()
        return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}

    def message(self, message_id: str) -> dict[str, Any]:
        """What the API shows of the message, once it is final."""
        demo = self.demo()
        headers = {"Authorization": f"Bearer {demo['DEMO_LIVE_KEY']}"}
        request = urllib.request.Request(f"{demo['DEMO_URL']}/emails/{message_id}", headers=headers)
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            with urllib.request.urlopen(request) as response:
                assert response.headers["Posthouse-Outbound"] == "capture"
                message: dict[str, Any] = json.load(response)
            if message["status"] != "queued":
                return message
            assert time.monotonic() < deadline, message
            time.sleep(POLL_SECONDS)

    def login(self, link: str) -> str:
        """The account that the link to the dashboard opens."""
        body = json.dumps({"token": link.partition("#link=")[2]}).encode()
        headers = {"Content-Type": "application/json"}
        url = self.demo()["DEMO_URL"]
        answer = urllib.request.urlopen(urllib.request.Request(f"{url}/v1/auth/link", body, headers))
        headers = {"Authorization": f"Bearer {json.load(answer)['token']}"}
        account: str = json.load(urllib.request.urlopen(urllib.request.Request(f"{url}/v1/auth/me", None, headers)))[
            "accounts"
        ][0]["name"]
        return account

    def read(self, link: str, *paths: str) -> str:
        """What a browser shows after opening the link, and then these pages."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        pages = [link, *(f"{self.demo()['DEMO_URL']}{path}" for path in paths)]
        return "\n".join([browser.open(page).read().decode() for page in pages])


def link_in(panel: str) -> str:
    """To the dashboard, or to the page of captured mail where the dashboard is not built."""
    found = re.search(r"^ +(http\S+/(?:captured/open/|dashboard/login#link=)\S+)$", panel, re.MULTILINE)
    assert found, panel
    return found[1]


def snippet(panel: str, title: str) -> str:
    """The lines under that title of the panel."""
    found = re.search(rf"^─+ {title} ─+\n(.*?)^─+", panel, re.DOTALL | re.MULTILINE)
    assert found, panel
    return found[1]


def plain_environment(**more: str) -> dict[str, str]:
    """This process's environment, without settings of the service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTHOUSE_")}
    return {**kept, **more}
