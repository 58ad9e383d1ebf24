"""The first steps, by mouse: an email to oneself, a key with its examples and SMTP settings, a domain, a webhook."""

from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.dashboard_service import DashboardService
from tests.support.service import Tenant
from tests.support.service_processes import HOSTNAME

pytestmark = pytest.mark.nightly


def settings_in(directory: Path) -> dict[str, str]:
    """With SMTP for customers, whose settings the page shows."""
    return dict.fromkeys(("SMTP__TLS_CERTIFICATE_FILE", "SMTP__TLS_KEY_FILE"), str(directory / "authority.pem"))


def card(page: Page, name: str) -> Locator:
    return page.locator(f"[data-card={name}]")


async def test_a_key_is_created_next_to_examples_and_smtp_settings(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "start", role="admin")
    await settled(page)
    key = card(page, "key")
    await key.get_by_role("button", name="Send from your app").click()
    for shown in (HOSTNAME, "587", "465", tenant.username):
        await expect(key.get_by_text(shown, exact=True)).to_be_visible()
    for language, sign in [("curl", "curl "), ("Python", "httpx.post("), ("Go", "package main")]:
        await key.get_by_role("tab", name=language, exact=True).click()
        await expect(key.get_by_role("region", name=language, exact=True)).to_contain_text(sign)
    await key.get_by_role("button", name="Create a key").click()
    secret = await key.get_by_text("ph_live_").inner_text()
    await expect(key.locator("[data-waiting=first-request]")).to_be_visible()
    assert await axe_faults(page) == []
    await shot(page, "start-key")

    await key.get_by_role("button", name="I have stored it").click()
    await tenant.accepts(authorization=f"Bearer {secret}")
    # The page notices the request automatically.
    await expect(key).to_have_attribute("data-done", "true")


async def test_a_webhook_is_added_and_answers_a_ping(pages: Pages, dashboard: DashboardService, tenant: Tenant) -> None:
    page = await pages.of(tenant, "start", role="member", theme="dark", width=390)
    await settled(page)
    webhook = card(page, "webhook")
    await webhook.get_by_role("button", name="Receive results by webhook").click()
    await webhook.get_by_role("textbox", name="URL").fill(dashboard.webhook_url())
    await webhook.get_by_role("button", name="Add the webhook").click()
    await webhook.get_by_role("button", name="I have stored it").click()
    await webhook.get_by_role("button", name="Send a ping").click()
    await expect(webhook.locator("[data-ping=succeeded]")).to_be_visible()
    await expect(webhook).to_have_attribute("data-done", "true")
    assert await axe_faults(page) == []
    assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    await shot(page, "start-webhook-390-dark")


async def test_without_a_domain_the_page_begins_with_it(pages: Pages, dashboard: DashboardService) -> None:
    tenant = await dashboard.account(domain=None)
    page = await pages.of(tenant, "start", role="admin")
    await settled(page)
    mail = card(page, "testMail").get_by_role("button", name="Send me an email")
    await expect(mail).to_be_disabled()
    assert await axe_faults(page) == []
    await shot(page, "start-without-domain")
    domain = card(page, "domain")
    await domain.get_by_role("textbox", name="Domain").fill("not a domain")
    await domain.get_by_role("button", name="Add the domain").click()
    await expect(domain.get_by_role("alert")).to_be_visible()
    name = f"shop.{tenant.unique}.example.org"
    await domain.get_by_role("textbox", name="Domain").fill(name)
    await domain.get_by_role("button", name="Add the domain").click()
    await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
