"""No page scrolls sideways at any width, and longer words, as of a translation, are not clipped."""

from typing import Final

import pytest

from tests.support.dashboard_browser import WIDTHS, Pages
from tests.support.dashboard_pages import newest_message, opened, operator_pages, operators_page, page_paths, settled
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

SIDEWAYS: Final = """() => {
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth <= clientWidth) return [];
  return [...document.body.querySelectorAll("*")]
    .filter((element) => element.getBoundingClientRect().right > clientWidth + 1)
    .slice(0, 5).map((element) => `${element.tagName} ${element.className} ${element.getBoundingClientRect().right}`);
}"""
# Texts whose end can't be seen: cut by their own box, and neither scrollable nor named in whole by a title.
CLIPPED: Final = """() => [
    ...document.querySelectorAll("button, a, label, h1, h2, h3, th, td, p, li, dt, dd, [role=tab]")]
  .flatMap((element) => [element, ...element.querySelectorAll("*")])
  .filter((element) => {
    const style = getComputedStyle(element);
    const isShown = element.clientWidth > 2 && style.visibility === "visible" && style.clipPath === "none";
    const cuts = ["hidden", "clip"].includes(style.overflowX) && element.closest("[title]") === null;
    return isShown && cuts && element.scrollWidth > element.clientWidth + 1 && element.innerText?.trim();
  })
  .map((element) => `${element.tagName} ${element.innerText.slice(0, 60)}`)"""


@pytest.mark.parametrize("width", WIDTHS)
async def test_no_page_of_operators_scrolls_sideways(pages: Pages, full_account: Tenant, width: int) -> None:
    page = await operators_page(pages, full_account, "now", width=width)
    wide = {}
    for name, path in operator_pages(full_account, await newest_message(full_account)).items():
        await opened(page, full_account, path)
        wide[name] = await page.evaluate(SIDEWAYS)
    assert {name: found for name, found in wide.items() if found} == {}


@pytest.mark.parametrize("width", WIDTHS)
async def test_even_longer_words_are_neither_clipped_nor_too_wide(
    pages: Pages, full_account: Tenant, width: int
) -> None:
    page = await pages.of(full_account, width=width)
    await settled(page)
    faults = {}
    for name, path in (await page_paths(full_account)).items():
        await opened(page, full_account, f"{path}?pseudo")
        # The heading of a message is its subject, a foreign text: the page as a whole has our words.
        assert "[" in await page.locator("main").inner_text(), f"{name} doesn't use the pseudo-locale"
        faults[name] = [*await page.evaluate(SIDEWAYS), *await page.evaluate(CLIPPED)]
    assert {name: found for name, found in faults.items() if found} == {}
