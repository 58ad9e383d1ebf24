"""The sandbox domain on the pages: a new account's first mail arrives without any DNS record."""

from dataclasses import replace

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages, account_path
from tests.support.dashboard_pages import settled
from tests.support.dashboard_service import DESTINATION, DashboardService
from tests.support.operator_client import Operator
from tests.support.service import PASSWORD, SENDER_DOMAIN, settings_for, settings_from

pytestmark = pytest.mark.nightly


async def test_the_first_mail_of_a_new_account_needs_no_dns(pages: Pages, dashboard: DashboardService) -> None:
    service = dashboard.service
    settings = settings_from(settings_for(service.database_url, SERVICE__SANDBOX_DOMAIN=SENDER_DOMAIN))
    operator = await Operator.open(settings)
    newcomer = await replace(service, operator=operator).account(domain=None)
    await operator.close()
    email = f"ada-{newcomer.unique}@{DESTINATION}"
    await service.operator.create_user(newcomer.id, email, PASSWORD, "owner")

    page = await pages.signed_in(email, f"{account_path(newcomer)}/start")
    await settled(page)
    await page.get_by_role("button", name="Send me an email").click()
    await expect(page.locator("[data-arrival=delivered]")).to_be_visible()
    await expect(page.locator("[data-card=testMail][data-done=true]")).to_be_visible()
    # The account's own domain is still to be added.
    await expect(page.locator("[data-card=domain][data-done=false]")).to_contain_text(SENDER_DOMAIN)
    await expect(page.locator("[data-card=key]")).to_contain_text(f"hello@{SENDER_DOMAIN}")

    await page.goto(f"{pages.url}/dashboard/{account_path(newcomer)}/domains")
    await page.get_by_role("link", name=SENDER_DOMAIN).click()
    await expect(page.get_by_text("add your own domain to reach others")).to_be_visible()
    for action in ("Check now", "New keys", "Remove"):
        await expect(page.get_by_role("button", name=action)).to_have_count(0)
