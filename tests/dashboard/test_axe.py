"""axe on every page: two themes; empty, full and failing; with each dialog open. A planted fault is found."""

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from playwright.async_api import Page, Route, expect

from posthouse.rules import totp
from tests.support.dashboard_browser import Pages, Theme
from tests.support.dashboard_pages import (
    axe_faults,
    newest_message,
    opened,
    operator_pages,
    operators_page,
    page_paths,
    page_table,
    settled,
    visited,
)
from tests.support.dashboard_service import DashboardService
from tests.support.service import PASSWORD, Tenant

pytestmark = pytest.mark.nightly

Faults = dict[str, list[str]]

THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
SIGN_IN: Final = ("login", "forgotten", "invitation", "invitation#token", "reset#token", "nowhere")
# Parts of pages that are not shown at first.
FURTHER: Final = {
    "keys, SMTP": "keys?tab=smtp",
    "messages, nothing found": "messages?tag=none",
    "webhooks, the classic one": "webhooks/account?status=failed",
}
# What a page needs before it can show that it failed.
_FRAME_OF_PAGES: Final = ("/v1/auth/", "/v1/account", "/v1/service", "/v1/live", "/v1/progress")
_FAILURE: Final = {"error": "A planted failure.", "code": "temporary_failure", "request_id": "rq_planted"}
_OPENERS: Final = "main [aria-haspopup=dialog]:not(:disabled):visible"
_DIALOG: Final = "[role=dialog]:visible"
# The beginning of each title, of the dialogs that a full account's pages open at a click.
DIALOGS: Final = (
    "Add a domain",
    "Add an address",
    "Cancel messages",
    "Compare versions",
    "Create new signing keys",
    "Delete the endpoint",
    "Delete the webhook",
    "Delete welcome",
    "Filters",
    "Import addresses",
    "Invite a member",
    "New API key",
    "New SMTP credential",
    "New endpoint",
    "New secret",
    "New template",
    "Remove ",
    "Remove from the suppressions",
    "Remove this member?",
    "Rename",
    "Replay failed events",
    "Report for support",
    "Revoke ",
    "Rotate ",
    "SMTP settings of ",
    "Send failed messages again",
    "Set up a second factor",
)


async def fail(route: Route) -> None:
    path = route.request.url.partition("/v1/")[2]
    if f"/v1/{path}".startswith(_FRAME_OF_PAGES):
        await route.continue_()
    else:
        await route.fulfill(status=500, body=json.dumps(_FAILURE), content_type="application/json")


@pytest.mark.parametrize("given", [{}, {"width": 390}, {"role": "viewer"}], ids=["owner", "telephone", "viewer"])
async def test_full_pages_have_no_fault(pages: Pages, full_account: Tenant, given: dict[str, Any]) -> None:
    page = await pages.of(full_account, **given)
    await settled(page)
    assert await _faults(page, full_account, await page_paths(full_account) | FURTHER) == {}


async def test_empty_pages_have_no_fault(pages: Pages, dashboard: DashboardService) -> None:
    tenant = await dashboard.account(credits=0, domain=None)
    page = await pages.of(tenant)
    await settled(page)
    # An empty account has no page for a single thing.
    assert await _faults(page, tenant, {path: path for path in page_table() if "$" not in path}) == {}


async def test_failing_pages_have_no_fault(pages: Pages, full_account: Tenant) -> None:
    page = await pages.of(full_account)
    await settled(page)
    paths = await page_paths(full_account)
    pages.watch_of(page).allow("500: ")
    await page.route("**/v1/**", fail)
    faults: Faults = {}
    for name, path in paths.items():
        # Loaded again, without the queries that were read before.
        await opened(page, full_account, path)
        faults |= await _faults_here(page, name)
    assert faults == {}


async def test_pages_of_operators_have_no_fault(pages: Pages, full_account: Tenant) -> None:
    page = await operators_page(pages, full_account, "now")
    assert await _faults(page, full_account, operator_pages(full_account, await newest_message(full_account))) == {}


async def test_pages_of_sign_in_have_no_fault(pages: Pages) -> None:
    faults: Faults = {}
    for path in SIGN_IN:
        page = await pages.signed_out(path)
        await settled(page)
        faults |= await _faults_here(page, path)
    assert faults == {}


async def test_dialogs_have_no_fault(pages: Pages, full_account: Tenant) -> None:
    page = await pages.of(full_account)
    await settled(page)
    faults: Faults = {}
    titles: set[str] = set()
    for path in {**await page_paths(full_account), **FURTHER}.values():
        await visited(page, full_account, path)
        async for title in _opened_dialogs(page):
            titles.add(title)
            faults |= await _faults_here(page, f"{path}: {title}")
    assert faults == {}
    assert [beginning for beginning in DIALOGS if not any(title.startswith(beginning) for title in titles)] == []
    assert [title for title in titles if not title.startswith(DIALOGS)] == []


async def _opened_dialogs(page: Page) -> AsyncIterator[str]:
    """Opens each dialog of the page, and yields its title."""
    names = await page.locator(_OPENERS).evaluate_all("(found) => found.map((opener) => opener.textContent)")
    # Rows of a list open the same dialogs: those of the first row are enough.
    for number in [names.index(name) for name in dict.fromkeys(names)]:
        await page.locator(_OPENERS).nth(number).click()
        yield await _title(page)
        await page.keyboard.press("Escape")
        await expect(page.locator(_DIALOG)).to_have_count(0)


async def _title(page: Page) -> str:
    dialog = page.locator(_DIALOG).first
    await dialog.wait_for()
    title: str = await dialog.evaluate(
        """(dialog) => dialog.ariaLabel
          ?? document.getElementById(dialog.getAttribute("aria-labelledby"))?.textContent ?? "without a title" """
    )
    return title


async def test_menus_commands_and_requests_have_no_fault(pages: Pages, full_account: Tenant) -> None:
    page = await pages.of(full_account, "messages")
    await settled(page)
    faults: Faults = {}
    for name, shown in [("Commands", _DIALOG), ("By API", _DIALOG), ("Your user", "[role=menu]")]:
        await page.get_by_role("button", name=name).click()
        await page.locator(shown).first.wait_for()
        faults |= await _faults_here(page, name)
        await page.keyboard.press("Escape")
        await expect(page.locator(shown)).to_have_count(0)
    assert faults == {}


async def test_secrets_shown_once_have_no_fault(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant)
    await settled(page)
    faults: Faults = {}
    for path, opener in [("keys", "New API key"), ("keys?tab=smtp", "New SMTP credential")]:
        await visited(page, tenant, path)
        await page.get_by_role("button", name=opener).first.click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name").fill("shop")
        await dialog.get_by_role("button", name="Create").click()
        await dialog.get_by_role("alert").wait_for()
        faults |= await _faults_here(page, opener)
        await dialog.get_by_role("button", name="I have stored it").click()
    assert faults == {}


async def test_the_second_factors_steps_have_no_fault(pages: Pages, tenant: Tenant) -> None:
    email = await tenant.user("member")
    page = await pages.signed_in(email)
    await settled(page)
    await visited(page, tenant, "settings")
    await page.get_by_role("button", name="Set up").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Current password").fill(PASSWORD)
    await dialog.get_by_role("button", name="Next").click()
    await dialog.get_by_role("img", name="QR code").wait_for()
    faults = await _faults_here(page, "QR code")
    secret = await dialog.locator("code").first.inner_text()
    await dialog.get_by_role("textbox", name="Code").fill(_code(secret))
    await dialog.get_by_role("button", name="Confirm").click()
    await dialog.get_by_text("I have stored them").wait_for()
    faults |= await _faults_here(page, "recovery codes")
    await dialog.get_by_text("I have stored them").click()
    for name in ("New recovery codes", "Turn off"):
        await page.get_by_role("button", name=name).click()
        await dialog.get_by_role("textbox", name="Code").wait_for()
        faults |= await _faults_here(page, name)
        await dialog.get_by_role("button", name="Cancel").click()
        await expect(dialog).to_have_count(0)
    page = await pages.signed_out("login")
    await page.get_by_label("Email address").fill(email)
    await page.locator("input[name=password]").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("textbox", name="Code").wait_for()
    faults |= await _faults_here(page, "sign-in")
    assert faults == {}


def _code(secret: str) -> str:
    return totp.code_of(base64.b32decode(secret), totp.step_at(datetime.now(UTC)))


async def test_the_dialog_of_an_ended_session_has_no_fault(pages: Pages, full_account: Tenant) -> None:
    page = await pages.of(full_account, "domains")
    await settled(page)
    await page.context.clear_cookies()
    await page.route("**/v1/messages**", lambda route: route.fulfill(status=401, body="{}"))
    await page.get_by_role("link", name="Messages", exact=True).click()
    assert await _title(page) == "Your session has ended"
    assert await _faults_here(page, "session") == {}


async def test_a_planted_fault_is_found(pages: Pages, full_account: Tenant) -> None:
    page = await pages.of(full_account, "messages")
    await settled(page)
    await page.evaluate("() => document.querySelector('main').append(document.createElement('button'))")
    assert [fault for fault in await axe_faults(page) if fault.startswith("button-name")]


async def _faults(page: Page, tenant: Tenant, paths: dict[str, str]) -> Faults:
    faults: Faults = {}
    for name, path in paths.items():
        await visited(page, tenant, path)
        faults |= await _faults_here(page, name)
    return faults


async def _faults_here(page: Page, name: str) -> Faults:
    """What axe finds in each theme, by the name and the theme."""
    faults: Faults = {}
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        await page.locator(f":root[data-mantine-color-scheme={theme}]").wait_for(state="attached")
        faults[f"{name}, {theme}"] = await axe_faults(page)
    return {name: found for name, found in faults.items() if found}
