"""Debian's Chromium without a window, driven over its debugging protocol by the HTTP client that tests have anyway."""

import asyncio
import itertools
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.support.eventually import HANG_SECONDS

_ENDPOINT: Final = re.compile(r"DevTools listening on (ws://\S+)")


def chromium() -> str | None:
    return shutil.which("chromium")


class Browser:
    """One tab."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session_id = ""
        self.loaded = asyncio.Event()

    async def __aenter__(self) -> "Browser":
        program = chromium()
        assert program, "Chromium is missing: apt-get install chromium"
        self._process = await asyncio.create_subprocess_exec(
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
            "--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={self._profile}",
            "--window-size=1000,900", "about:blank",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            await self._attach()
        except BaseException:
            self._process.kill()
            raise
        return self

    async def _attach(self) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            address = await self._endpoint()
        self._client = aiohttp.ClientSession()
        self._socket = await self._client.ws_connect(address, max_msg_size=0)
        self._reading = asyncio.create_task(self._read())
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session_id = attached["sessionId"]
        await self.call("Page.enable")

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await self._client.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session_id:
            message["sessionId"] = self._session_id
        await self._socket.send_json(message)
        async with asyncio.timeout(HANG_SECONDS):
            answer = await self._answers[number]
        del self._answers[number]
        return answer

    async def open(self, url: str) -> None:
        """Returns when the page and its frames are loaded."""
        self.loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(HANG_SECONDS):
            await self.loaded.wait()

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    async def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def tabs(self) -> list[str]:
        found = await self.call("Target.getTargets")
        return [target["url"] for target in found["targetInfos"] if target["type"] == "page"]

    async def _endpoint(self) -> str:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            if found := _ENDPOINT.search(line.decode()):
                return found[1]
        raise AssertionError("Chromium ended before it could be used")

    async def _read(self) -> None:
        async for message in self._socket:
            content = message.json()
            waiting = self._answers.get(content.get("id", 0))
            if waiting is not None and not waiting.done():
                waiting.set_result(content.get("result", {"error": content.get("error")}))
            elif content.get("method") == "Page.loadEventFired":
                self.loaded.set()
