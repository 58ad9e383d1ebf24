"""The dashboard's tests that CI runs: a journey, axe on every page, hostile mail; `make dashboard-test` runs all."""

from typing import Final

import pytest
from playwright.async_api import expect

from tests.support.connection_trap import ConnectionTrap
from tests.support.dashboard_browser import FRAME, Pages
from tests.support.dashboard_pages import (
    axe_faults,
    newest_message,
    operator_pages,
    operators_page,
    page_paths,
    settled,
    visited,
)
from tests.support.dashboard_service import DESTINATION
from tests.support.eventually import eventually
from tests.support.hostile_html import payloads
from tests.support.service import PASSWORD, Tenant

pytestmark = pytest.mark.long

# An email is delivered late on a busy machine.
# A message has them all.
PAYLOADS: Final = ("script", "event handlers", "nested frame", "picture", "style", "click")


async def test_from_sign_in_to_a_delivered_message_and_a_key(pages: Pages, tenant: Tenant) -> None:
    email = f"owner-of-{tenant.unique}@{DESTINATION}"
    await tenant.service.operator.create_user(tenant.id, email, PASSWORD, "owner")
    page = await pages.signed_out()
    await page.get_by_label("Email address").fill(email)
    await page.locator("input[name=password]").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    # A new account begins with Start.
    await page.get_by_role("button", name="Send me an email").click()
    await expect(page.locator("[data-arrival=delivered]")).to_be_visible()
    await page.get_by_role("link", name="See what happened to it").click()
    await expect(page.get_by_text("Try 1: delivered")).to_be_visible()
    await page.get_by_role("link", name="Keys and credentials").click()
    await page.get_by_role("button", name="New API key").first.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("shop")
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog.get_by_text("ph_", exact=False).first).to_be_visible()
    assert await axe_faults(page) == []
    await dialog.get_by_role("button", name="I have stored it").click()
    await expect(page.get_by_role("button", name="Revoke shop")).to_be_visible()
    await page.get_by_role("button", name="Your user").click()
    await page.get_by_role("menuitem", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_axe_finds_no_fault_on_any_page(pages: Pages, full_account: Tenant) -> None:
    page = await pages.signed_out("login")
    await settled(page)
    faults = {"login": await axe_faults(page)}
    page = await pages.of(full_account)
    await settled(page)
    for name, path in (await page_paths(full_account)).items():
        await visited(page, full_account, path)
        faults[name] = await axe_faults(page)
    assert {name: found for name, found in faults.items() if found} == {}


async def test_axe_finds_no_fault_on_any_page_of_operators(pages: Pages, full_account: Tenant) -> None:
    page = await operators_page(pages, full_account, "now")
    faults = {}
    for name, path in operator_pages(full_account, await newest_message(full_account)).items():
        await visited(page, full_account, path)
        assert await page.locator("[data-state=forbidden], [data-state=error]").count() == 0, name
        faults[name] = await axe_faults(page)
    assert {name: found for name, found in faults.items() if found} == {}


async def test_a_hostile_message_runs_nothing_and_connects_nowhere(pages: Pages, tenant: Tenant) -> None:
    async with ConnectionTrap() as trap:
        hostile = payloads(trap.url)
        html = "".join(hostile[name] for name in PAYLOADS)
        sent = await tenant.accepts(tenant.mail(subject=hostile["event handlers"], text=hostile["script"], html=html))
        page = await pages.of(tenant, f"messages/{sent['id']}")
        await settled(page)
        frame = page.locator("iframe")
        await expect(frame).to_have_attribute("sandbox", "")
        await expect(frame).to_have_attribute("inert", "")
        await eventually(lambda: any(FRAME in shown.url for shown in page.frames))
        box = await frame.bounding_box()
        assert box is not None
        await page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        # What is late shows itself while other pages load.
        await visited(page, tenant, "messages")
        await visited(page, tenant, "overview")
        assert trap.connections == 0
        assert len(page.context.pages) == 1
