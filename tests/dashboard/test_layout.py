"""No page scrolls sideways at any width, breaks a word or clips one, also longer ones, as of a translation."""

from typing import Final

import pytest

from tests.support.dashboard_browser import WIDTHS, Pages
from tests.support.dashboard_pages import (
    newest_message,
    opened,
    operator_pages,
    operators_page,
    page_paths,
    page_table,
    settled,
)
from tests.support.dashboard_service import DESTINATION, DashboardService
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
    const cuts = ["hidden", "clip"].includes(style.overflowX) && element.closest("[title]") === null
      && element.querySelector("[title]") === null;
    return isShown && cuts && element.scrollWidth > element.clientWidth + 1 && element.innerText?.trim();
  })
  .map((element) => `${element.tagName} ${element.innerText.slice(0, 60)}`)"""

# Words of a sentence that continue on the next line. Addresses, ids and code may break anywhere.
BROKEN: Final = """() => {
  const found = [], range = document.createRange();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, element = text.parentElement;
    const isRead = element.checkVisibility({ visibilityProperty: true }) && element.getBoundingClientRect().width > 2;
    if (!isRead || element.closest("pre, code, textarea") !== null) continue;
    for (const { 0: word, index } of text.data.matchAll(/(?<=^|\\s)\\p{L}{2,20}[.,:;?!]?(?=\\s|$)/gu)) {
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
      if (lines.size > 1) found.push(`${word} in ${element.tagName} ${element.className}`);
    }
  }
  return found;
}"""
# The frame of the page moves to its new place in some time.
_STILL: Final = """async () => {
  await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
  const moving = document.getAnimations().filter(({ effect }) => effect.getComputedTiming().endTime !== Infinity);
  await Promise.allSettled(moving.map(({ finished }) => finished));
}"""


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


async def many_rows(dashboard: DashboardService) -> Tenant:
    tenant = await dashboard.full_account()
    for number in range(60):
        await tenant.accepts(tenant.mail(to=f"r{number}@{DESTINATION}", subject="Your order has been shipped " * 4))
        for path, body in (
            ("/v1/keys", {"name": f"Warehouse of the second company {number}"}),
            ("/v1/suppressions", {"email": f"r{number}@elsewhere.example", "note": "Asked by phone for no more mail."}),
        ):
            assert (await tenant.call("POST", path, body)).status == 201
    return tenant


@pytest.mark.parametrize("rows", ["none", "few", "many", "operators"])
async def test_no_word_is_broken_and_nothing_is_cut(
    pages: Pages, dashboard: DashboardService, tenant: Tenant, full_account: Tenant, rows: str
) -> None:
    if rows == "none":
        paths = {path: path for path in page_table() if "$" not in path}
    else:
        tenant = await many_rows(dashboard) if rows == "many" else full_account
        paths = await page_paths(tenant)
    # Colours change no layout; axe looks at both themes.
    if rows == "operators":
        page = await operators_page(pages, tenant, "now")
        paths = operator_pages(tenant, await newest_message(tenant))
    else:
        page = await pages.of(tenant, theme="dark" if rows == "many" else "light")
        await settled(page)
    faults = {}
    for name, path in paths.items():
        await opened(page, tenant, path)
        for width in (390, 820, 1280):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.evaluate(_STILL)
            faults[f"{name} {width}"] = [
                fault for script in (SIDEWAYS, CLIPPED, BROKEN) for fault in await page.evaluate(script)
            ]
    assert {name: found for name, found in faults.items() if found} == {}
