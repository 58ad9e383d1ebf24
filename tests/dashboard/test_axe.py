"""axe on every page: two themes; empty, full and failing; with each dialog open. A planted fault is found."""

import json
from typing import Final

import pytest
from playwright.async_api import Page, Route

from tests.support.dashboard_browser import Pages, Theme
from tests.support.dashboard_pages import axe_faults, opened, page_paths, page_table, settled
from tests.support.service import Tenant

pytestmark = pytest.mark.rare

THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
# Without an account there is nothing to look at: an empty account has no page for a single thing.
SIGN_IN: Final = ("login", "forgotten", "invitation#token", "reset#token", "nowhere")
# What a page needs before it can show its own failure.
_FRAME_OF_PAGES: Final = ("/v1/auth/", "/v1/account", "/v1/service", "/v1/live", "/v1/progress")
_FAILURE: Final = {"error": "A planted failure.", "code": "temporary_failure", "request_id": "rq_planted"}


async def fail(route: Route) -> None:
    path = route.request.url.partition("/v1/")[2]
    if f"/v1/{path}".startswith(_FRAME_OF_PAGES):
        await route.continue_()
    else:
        await route.fulfill(status=500, body=json.dumps(_FAILURE), content_type="application/json")


@pytest.mark.parametrize("theme", THEMES)
async def test_full_pages_have_no_fault(pages: Pages, full_account: Tenant, theme: Theme) -> None:
    page = await pages.of(full_account, theme=theme)
    await settled(page)
    assert await _faults(page, full_account, await page_paths(full_account)) == {}


@pytest.mark.parametrize("theme", THEMES)
async def test_empty_pages_have_no_fault(pages: Pages, tenant: Tenant, theme: Theme) -> None:
    page = await pages.of(tenant, theme=theme)
    await settled(page)
    paths = {path: path for path in page_table() if "$" not in path}
    assert await _faults(page, tenant, paths) == {}


@pytest.mark.parametrize("theme", THEMES)
async def test_failing_pages_have_no_fault(pages: Pages, full_account: Tenant, theme: Theme) -> None:
    page = await pages.of(full_account, theme=theme)
    await settled(page)
    paths = await page_paths(full_account)
    pages.watch_of(page).allow("500: ")
    await page.route("**/v1/**", fail)
    assert await _faults(page, full_account, paths) == {}


@pytest.mark.parametrize("theme", THEMES)
async def test_pages_of_sign_in_have_no_fault(pages: Pages, theme: Theme) -> None:
    faults = {}
    for path in SIGN_IN:
        page = await pages.signed_out(path, theme=theme)
        await settled(page)
        faults[path] = await axe_faults(page)
    assert {path: found for path, found in faults.items() if found} == {}


@pytest.mark.parametrize("theme", THEMES)
async def test_dialogs_have_no_fault(pages: Pages, full_account: Tenant, theme: Theme) -> None:
    page = await pages.of(full_account, theme=theme)
    await settled(page)
    faults, count = {}, 0
    for name, path in (await page_paths(full_account)).items():
        await opened(page, full_account, path)
        for number in range(await page.locator(_OPENERS).count()):
            if number:
                await opened(page, full_account, path)
            await page.locator(_OPENERS).nth(number).click()
            await page.locator("[role=dialog]").first.wait_for()
            count += 1
            found = await axe_faults(page)
            if found:
                faults[f"{name} {number}"] = found
    assert faults == {}
    assert count > 0


_OPENERS: Final = "main [aria-haspopup=dialog]:not(:disabled):visible"


async def test_a_planted_fault_is_found(pages: Pages, full_account: Tenant) -> None:
    page = await pages.of(full_account, "messages")
    await settled(page)
    await page.evaluate("() => document.querySelector('main').append(document.createElement('button'))")
    assert [fault for fault in await axe_faults(page) if fault.startswith("button-name")]


async def _faults(page: Page, tenant: Tenant, paths: dict[str, str]) -> dict[str, list[str]]:
    faults = {}
    for name, path in paths.items():
        await opened(page, tenant, path)
        faults[name] = await axe_faults(page)
    return {name: found for name, found in faults.items() if found}
