"""Sign-in and what leads to it: a wrong password, a forgotten password, links that can't be used."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.eventually import eventually
from tests.support.service import PASSWORD, Tenant

pytestmark = pytest.mark.nightly

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
NEW_PASSWORD = "another sentence that is long"


async def test_a_forgotten_password_is_replaced_through_the_link_in_an_email(pages: Pages, tenant: Tenant) -> None:
    email = await tenant.user()
    page = await pages.signed_out("login")
    await page.get_by_role("link", name="Forgot your password?").click()
    await page.get_by_label("Email address").fill(email)
    await page.get_by_role("button", name="Send me a link").click()
    await expect(page.get_by_role("heading", name="Check your mailbox")).to_be_visible()
    (mail,) = await eventually(lambda: tenant.service.mailed_texts(email))
    (link,) = re.findall(r"http://\S+/reset#\S+", mail)

    await page.goto(link)
    await page.get_by_label("New password").fill("too short")
    await expect(page.get_by_text("9 of at least 12 characters.")).to_be_visible()
    assert await axe_faults(page) == []
    await page.get_by_label("New password").fill(NEW_PASSWORD)
    await page.get_by_role("button", name="Set the password").click()
    await expect(page.get_by_role("heading", name="The new password is set")).to_be_visible()
    await page.get_by_role("link", name="Sign in").click()
    await page.get_by_label("Email address").fill(email)
    await page.get_by_label("Password", exact=True).fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    assert await axe_faults(page) == []
    await shot(page, "login-refused")
    await page.get_by_label("Password", exact=True).fill(NEW_PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    # A new account begins with Start.
    await expect(page.get_by_role("heading", name="Start", level=1)).to_be_visible()


@pytest.mark.parametrize("path", ["login", "forgotten", "invitation", "reset", "invitation#abc", "reset#abc"])
async def test_each_page_of_sign_in_fits_a_phone_in_the_dark(pages: Pages, path: str) -> None:
    page = await pages.signed_out(path, width=390, theme="dark")
    await settled(page)
    assert await axe_faults(page) == []
    assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    await shot(page, f"{path.replace('#', '-')}-390-dark")


async def test_a_used_invitation_says_what_to_do(pages: Pages) -> None:
    page = await pages.signed_out(f"invitation#{'a' * 43}")
    await page.get_by_label("Password", exact=True).fill(NEW_PASSWORD)
    await page.get_by_role("button", name="Join").click()
    await expect(page.get_by_role("alert")).to_contain_text(re.compile("invitation", re.IGNORECASE))
    await expect(page.get_by_role("alert")).to_contain_text("Request id")


async def test_runbooks_are_read_without_a_login(pages: Pages) -> None:
    page = await pages.signed_out("runbooks")
    titles = re.findall(r"^- \[(.*)\]", (RUNBOOKS / "index.md").read_text(), re.MULTILINE)
    assert len(titles) == len(list(RUNBOOKS.glob("*.md"))) - 1
    links = page.get_by_role("main").get_by_role("link")
    await expect(links).to_have_text(titles)
    assert await axe_faults(page) == []
    await page.get_by_role("link", name="No process delivers mail").click()
    await expect(page.get_by_role("heading", name="Repair")).to_be_visible()
    await expect(page.get_by_role("main")).to_contain_text(
        "Start posthouse run delivery, and posthouse run notification."
    )
    assert await axe_faults(page) == []
    # One names another, and what is not in the package is named as it is in the documentation.
    await page.get_by_role("link", name="PostgreSQL is slow").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("PostgreSQL is slow")
