"""The service is killed and comes back: the page says so, recovers automatically, and loses nothing that was typed."""

import pytest

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import settled
from tests.support.dashboard_service import DESTINATION, DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


UNREACHABLE = "[data-banner=unreachable]"


async def test_a_page_survives_the_death_of_the_service(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    page = await pages.of(tenant, "messages")
    await settled(page)
    pages.watch_of(page).allow("console:", "502", "503")
    box = page.get_by_role("searchbox").first
    await box.fill("typed before the outage")
    dashboard.server.kill()
    await page.locator(UNREACHABLE).wait_for()
    await dashboard.server.start()
    await page.locator(UNREACHABLE).wait_for(state="detached")
    assert await box.input_value() == "typed before the outage"
    await tenant.accepts(tenant.mail(to=f"ada@{DESTINATION}", subject="Sent after the outage"))
    await page.get_by_text("Sent after the outage").first.wait_for()


async def test_a_form_sent_during_an_outage_keeps_what_was_typed(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    page = await pages.of(tenant, "suppressions")
    await settled(page)
    pages.watch_of(page).allow("console:", "502", "503")
    await page.get_by_role("button", name="Add", exact=True).click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Address").fill(f"left@{DESTINATION}")
    await form.get_by_label("Note").fill("typed before the outage")
    dashboard.server.kill()
    await form.get_by_role("button", name="Add", exact=True).click()
    await form.get_by_role("alert").wait_for()
    await dashboard.server.start()
    await page.locator(UNREACHABLE).wait_for(state="detached")
    assert await form.get_by_label("Note").input_value() == "typed before the outage"
    await form.get_by_role("button", name="Add", exact=True).click()
    await form.wait_for(state="detached")
    await page.get_by_text("typed before the outage").first.wait_for()
