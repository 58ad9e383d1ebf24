"""Two ways to use a page: by mouse, and by keyboard only. A journey is written once and done in both ways."""

import time
from typing import Final, Protocol

from playwright.async_api import Locator, Page, expect

# More elements than any page has before the wanted one.
TABS_MAX: Final = 150
_IS_FOCUSED: Final = "(element) => element === document.activeElement"
_FOCUSED: Final = "() => document.activeElement?.outerHTML.slice(0, 120)"


class Hands(Protocol):
    page: Page

    async def press(self, control: Locator) -> None:
        """A button, a link or a checkbox."""

    async def write(self, field: Locator, text: str) -> None: ...

    async def choose(self, menu: Locator, item: Locator) -> None:
        """Of a menu that a button opens."""

    async def go(self, name: str) -> None:
        """To a page of the navigation."""


class Mouse:
    """Counts its clicks; pytest's `-s` shows what `arrives` says."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        self._began = time.monotonic()

    def arrives(self, where: str, *, clicks_max: int) -> None:
        """The end of a journey, or of a part of one, which begins with the last."""
        now = time.monotonic()
        print(f"\n{where}: {self.clicks} clicks, {now - self._began:.1f} s")
        assert self.clicks <= clicks_max, where
        self.clicks, self._began = 0, now

    async def press(self, control: Locator) -> None:
        self.clicks += 1
        await control.click()

    async def write(self, field: Locator, text: str) -> None:
        self.clicks += 1
        await field.click()
        await field.fill(text)

    async def choose(self, menu: Locator, item: Locator) -> None:
        self.clicks += 2
        await menu.click()
        await item.click()

    async def go(self, name: str) -> None:
        self.clicks += 1
        await self.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()


class Keyboard:
    """No call of the mouse, and none that sets the focus: what Tab does not reach can't be used."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def press(self, control: Locator) -> None:
        await self._reach(control)
        is_toggle = await control.get_attribute("type") in ("checkbox", "radio")
        await self.page.keyboard.press("Space" if is_toggle else "Enter")

    async def write(self, field: Locator, text: str) -> None:
        await self._reach(field)
        await self.page.keyboard.press("Control+a")
        await self.page.keyboard.type(text)

    async def choose(self, menu: Locator, item: Locator) -> None:
        await self.press(menu)
        await self._reach(item, "ArrowDown")
        await self.page.keyboard.press("Enter")

    async def go(self, name: str) -> None:
        """Through the command palette."""
        palette = self.page.get_by_role("dialog", name="Commands")
        await self.page.keyboard.press("Control+k")
        await expect(palette.get_by_role("textbox")).to_be_focused()
        await self.page.keyboard.type(name)
        await expect(palette.locator("[data-selected]")).to_have_text(name)
        await self.page.keyboard.press("Enter")
        await expect(palette).to_have_count(0)

    async def _reach(self, wanted: Locator, key: str = "Tab") -> None:
        await expect(wanted).to_be_visible()
        await expect(wanted).to_be_enabled()
        for _ in range(TABS_MAX):
            if await wanted.evaluate(_IS_FOCUSED):
                return
            await self.page.keyboard.press(key)
        raise AssertionError(f"{key} doesn't reach {wanted}; the focus is at {await self.page.evaluate(_FOCUSED)}")
