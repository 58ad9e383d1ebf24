"""The service is killed and comes back: the page says so, recovers automatically, and loses nothing that was typed."""

import pytest

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import settled
from tests.support.dashboard_service import DESTINATION, DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

UNREACHABLE = "[data-banner=unreachable]"
TYPED = "typed before the outage"


async def test_a_list_and_a_form_survive_the_death_of_the_service(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    messages, suppressions = [await pages.of(tenant, path) for path in ("messages", "suppressions")]
    for page in (messages, suppressions):
        await settled(page)
        pages.watch_of(page).allow("console:", "502", "503")
    box = messages.get_by_role("searchbox").first
    await box.fill(TYPED)
    await suppressions.get_by_role("button", name="Add", exact=True).click()
    form = suppressions.get_by_role("dialog")
    await form.get_by_label("Address").fill(f"left@{DESTINATION}")
    await form.get_by_label("Note").fill(TYPED)
    dashboard.server.kill()
    await messages.locator(UNREACHABLE).wait_for()
    # Sent during the outage.
    await form.get_by_role("button", name="Add", exact=True).click()
    await form.get_by_role("alert").wait_for()
    await dashboard.server.start()
    for page in (messages, suppressions):
        await page.locator(UNREACHABLE).wait_for(state="detached")
    assert await box.input_value() == await form.get_by_label("Note").input_value() == TYPED
    await tenant.accepts(tenant.mail(to=f"ada@{DESTINATION}", subject="Sent after the outage"))
    await messages.get_by_text("Sent after the outage").first.wait_for()
    await form.get_by_role("button", name="Add", exact=True).click()
    await form.wait_for(state="detached")
    await suppressions.get_by_text(TYPED).first.wait_for()
