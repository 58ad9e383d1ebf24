"""A service that captures all mail says so, and never that mail was delivered."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.dashboard.hands import Mouse
from tests.dashboard.test_layout import SIDEWAYS
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults
from tests.support.dashboard_service import DESTINATION
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


def settings_in(_: Path) -> dict[str, str]:
    return {"DELIVERY__OUTBOUND": "capture"}


async def test_captured_mail_is_not_called_delivered(pages: Pages, tenant: Tenant) -> None:
    sent = await tenant.accepts(tenant.mail(to=f"ada@{DESTINATION}"))
    page = await pages.of(tenant, f"messages/{sent['id']}")
    await expect(page.get_by_text("Captured. It is stored here")).to_be_visible()
    await expect(page.get_by_text("Try 1: captured")).to_be_visible()
    main = page.get_by_role("main")
    await expect(main.get_by_text("mail server accepted")).to_have_count(0)
    mark = page.locator("[data-banner=capture]")
    await expect(mark).to_have_text("Capture")
    assert await axe_faults(page) == []
    await page.get_by_role("link", name="All messages").click()
    await expect(page.get_by_role("listitem").get_by_text("captured", exact=True)).to_be_visible()
    # The mark has no room on a phone: there the texts say it.
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.get_by_role("listitem").get_by_role("link").click()
    await expect(page.get_by_text("Captured. It is stored here")).to_be_visible()
    await expect(mark).to_be_hidden()
    assert await page.evaluate(SIDEWAYS) == []


async def test_from_the_login_link_to_ones_own_mail_in_two_clicks(pages: Pages, tenant: Tenant) -> None:
    token = await tenant.service.operator.login_link(await tenant.user("owner"))
    page = await pages.signed_out(f"login#link={token}")
    mouse = Mouse(page)
    await mouse.press(page.get_by_role("button", name="Send me an email"))
    await mouse.press(page.get_by_role("link", name="See what happened to it"))
    await expect(page.get_by_text("Captured. It is stored here")).to_be_visible()
    await expect(page.get_by_text("Try 1: captured")).to_be_visible()
    mouse.arrives("login link, own mail captured and explained", clicks_max=2)
