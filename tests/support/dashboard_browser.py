"""Pages of the dashboard in Debian's Chromium, driven by Playwright, with a watch over what must never happen.

`Watch` collects, of all pages of a context: violations of the policy in our documents, errors in the console, uncaught
exceptions, answers of 403 and 5xx, and requests to other origins. The fixture `pages` fails the test for any of them.
"""

import json
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Request,
    Response,
    async_playwright,
)

from tests.support.eventually import HANG_SECONDS
from tests.support.service import PASSWORD, Tenant

HANG_MILLISECONDS: Final = HANG_SECONDS * 1_000
ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
WIDTHS: Final = {390: 844, 820: 1180, 1440: 900}
FRAME: Final = "/dashboard/frame"

Theme = Literal["light", "dark"]

_VIOLATION: Final = "policy violated:"
_REPORT_VIOLATIONS: Final = f"""
addEventListener("securitypolicyviolation", (event) => console.error(
  "{_VIOLATION}", event.effectiveDirective, event.blockedURI, event.sample, event.sourceFile + ":" + event.lineNumber));
"""
_LOGIN: Final = """async (login) => {
  const answer = await fetch("/v1/auth/login", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(login) });
  return { status: answer.status, body: await answer.json() };
}"""


def chromium() -> str | None:
    return shutil.which("chromium")


@dataclass  # without slots: Playwright adds to it
class Watch:
    """`allowed` are beginnings of faults that the test causes on purpose."""

    origin: str
    faults: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def over(self, context: BrowserContext) -> None:
        context.on("console", self._on_console)
        context.on("dialog", self._on_dialog)
        context.on("weberror", lambda error: self._add(f"exception: {error.error}"))
        context.on("request", self._on_request)
        context.on("response", self._on_response)

    def allow(self, *beginnings: str) -> None:
        self.allowed += beginnings

    def found(self) -> list[str]:
        return [fault for fault in self.faults if not fault.startswith(tuple(self.allowed))]

    def _add(self, fault: str) -> None:
        self.faults.append(fault[:500])

    def _on_console(self, message: ConsoleMessage) -> None:
        # A refused answer is counted by its status.
        if message.type != "error" or message.text.startswith("Failed to load resource"):
            return
        if not _is_frame(message.location.get("url", "")):
            self._add(message.text if message.text.startswith(_VIOLATION) else f"console: {message.text}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        # The dashboard has its own dialogs; this kind comes from a script that was injected.
        self._add(f"dialog: {dialog.message}")
        # The test may have opened the next page meanwhile.
        with suppress(Error):
            await dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        is_own = request.url.startswith((f"{self.origin}/", "data:", "blob:", "about:"))
        if not is_own and not _is_frame(request.frame.url):
            self._add(f"other origin: {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status == 403 or response.status >= 500:
            self._add(f"{response.status}: {response.request.method} {response.url.removeprefix(self.origin)}")


def _is_frame(url: str) -> bool:
    """Refusals by the frame around a message are its purpose; a listener shows that they happen."""
    return urlsplit(url).path == FRAME


@dataclass(slots=True)
class Pages:
    """Signed-in pages of one service; each context is its own browser profile."""

    browser: Browser
    url: str
    watches: list[Watch] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    async def context(self, *, theme: Theme = "light", width: int = 1440, **given: Any) -> tuple[BrowserContext, Watch]:
        context = await self.browser.new_context(
            viewport={"width": width, "height": WIDTHS.get(width, 900)},
            color_scheme=theme,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
            **given,
        )
        context.set_default_timeout(HANG_MILLISECONDS)
        await context.add_init_script(_REPORT_VIOLATIONS)
        watch = Watch(self.url)
        watch.over(context)
        self.watches.append(watch)
        self.contexts.append(context)
        return context, watch

    async def signed_out(self, path: str = "", **given: Any) -> Page:
        """A page below /dashboard/ in a new profile."""
        context, _ = await self.context(**given)
        page = await context.new_page()
        await page.goto(f"{self.url}/dashboard/{path}")
        return page

    async def signed_in(self, email: str, path: str = "", *, password: str = PASSWORD, **given: Any) -> Page:
        """A page below /dashboard/, of a user whose browser keeps the session. `given` goes to `context`."""
        context, _ = await self.context(**given)
        page = await context.new_page()
        # Any page of the origin may ask; this one loads nothing else.
        await page.goto(f"{self.url}/healthz")
        answer = await page.evaluate(_LOGIN, {"email": email, "password": password, "remember": True})
        assert answer["status"] == 200, json.dumps(answer)
        await page.goto(f"{self.url}/dashboard/{path}")
        return page

    async def of(self, tenant: Tenant, path: str = "", *, role: str = "owner", **given: Any) -> Page:
        """A page of the account, such as `messages?status=failed`, of a new user with this role."""
        return await self.signed_in(await tenant.user(role), f"{account_path(tenant)}/{path}", **given)

    def watch_of(self, page: Page) -> Watch:
        return self.watches[self.contexts.index(page.context)]

    def faults(self) -> list[str]:
        return [fault for watch in self.watches for fault in watch.found()]

    async def close(self) -> None:
        for context in self.contexts:
            await context.close()


def account_path(tenant: Tenant) -> str:
    from posthouse.rules import ids

    return ids.text(ids.ACCOUNT, tenant.id)


@asynccontextmanager
async def running_browser(arguments: Iterable[str] = ()) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(), args=[*ARGUMENTS, *arguments], timeout=HANG_MILLISECONDS
        )
        try:
            yield browser
        finally:
            await browser.close()
