"""From the invitation to the first own domain, by mouse and by keyboard only, in the running service."""

import base64
import email
import email.policy
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Page, expect

from posthouse.rules import totp
from tests.dashboard.hands import Hands, Keyboard, Mouse
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import settled, shot
from tests.support.dashboard_service import DESTINATION, DashboardService
from tests.support.eventually import eventually
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

PASSWORD: Final = "a sentence is a good password"
_LINK: Final = re.compile(r"http://\S+/invitation#\S+")


def settings_in(_: Path) -> dict[str, str]:
    """Attempts are an hour apart, so that a test sees each of them wait."""
    return {"DELIVERY__RETRY_MINUTES": "[60, 60, 60]"}


@dataclass(slots=True)
class Journey:
    """A person who has an invitation, a browser, and hands."""

    dashboard: DashboardService
    tenant: Tenant
    email: str
    hands: Hands
    secret: bytes = b""
    recovery_code: str = ""
    last_step: int = 0

    @property
    def page(self) -> Page:
        return self.hands.page

    async def heading(self, name: str) -> None:
        await self.page.get_by_role("heading", name=name, level=1).wait_for()
        await settled(self.page)

    async def button(self, name: str) -> None:
        await self.hands.press(self.page.get_by_role("button", name=name, exact=True))

    async def dialog_button(self, name: str) -> None:
        await self.hands.press(self.page.get_by_role("dialog").get_by_role("button", name=name, exact=True))

    async def write(self, label: str, text: str) -> None:
        await self.hands.write(self.page.get_by_label(label, exact=True), text)

    async def accepts_the_invitation(self) -> None:
        body = {"email": self.email, "role": "admin"}
        assert (await self.tenant.call("POST", "/v1/invitations", body)).status < 300
        await self.page.goto(await eventually(self._link, every=0.1))
        await self.heading("Invitation")
        await self.write("Password", PASSWORD)
        await self.button("Join")
        await self.heading(f"You are a member of {self.tenant.unique}")
        await self.write("Password", PASSWORD)
        await self.button("Sign in")
        await self.heading("Start")

    def _link(self) -> str:
        for delivered in self.dashboard.processes.receiver.accepted:
            if delivered.recipient == self.email:
                message = email.message_from_bytes(delivered.message, policy=email.policy.SMTP)
                part = message.get_body(("plain",))
                assert part is not None
                found = _LINK.search(part.get_content())
                return found[0] if found else ""
        return ""

    async def sets_up_a_second_factor(self) -> None:
        await self.button("Protect your sign-in")
        await self.hands.press(self.page.get_by_role("link", name="Set up a second factor"))
        await self.heading("Settings")
        await self.button("Set up")
        dialog = self.page.get_by_role("dialog")
        await self.hands.write(dialog.get_by_label("Current password"), PASSWORD)
        await self.dialog_button("Next")
        await expect(dialog.get_by_role("img", name="QR code of the key")).to_be_visible()
        await shot(self.page, "journey-second-factor")
        self.secret = base64.b32decode(await dialog.locator("code").first.inner_text())
        await self.hands.write(dialog.get_by_role("textbox", name="Code"), self._code())
        await self.dialog_button("Confirm")
        await expect(dialog.get_by_text("Each signs you in once")).to_be_visible()
        self.recovery_code = await dialog.locator("code").first.inner_text()
        await self.dialog_button("I have stored them")
        await expect(self.page.get_by_text("10 recovery codes are left.")).to_be_visible()

    def _code(self) -> str:
        """The service takes each code once, and that of the next 30 seconds too."""
        self.last_step = max(totp.step_at(datetime.now(UTC)), self.last_step + 1)
        return totp.code_of(self.secret, self.last_step)

    async def signs_out_and_in(self) -> None:
        await self.hands.choose(
            self.page.get_by_role("button", name="Your user"), self.page.get_by_role("menuitem", name="Sign out")
        )
        await self.heading("Sign in")
        await self.write("Email address", self.email)
        await self.write("Password", PASSWORD)
        await self.button("Sign in")
        await self.write("Code", self._code())
        await self.button("Sign in")
        # Back where the person was.
        await self.heading("Settings")

    async def turns_the_second_factor_off(self) -> None:
        await self.button("Turn off")
        dialog = self.page.get_by_role("dialog")
        await self.hands.write(dialog.get_by_label("Current password"), PASSWORD)
        await self.hands.write(dialog.get_by_role("textbox", name="Code"), self.recovery_code)
        await self.dialog_button("Turn off")
        await expect(self.page.get_by_role("button", name="Set up")).to_be_visible()

    async def emails_themselves(self) -> None:
        await self.hands.go("Start")
        await self.heading("Start")
        await shot(self.page, "journey-start")
        await self.page.evaluate("() => { window.isSamePage = true }")
        await self.button("Send me an email")
        await expect(self.page.locator("[data-arrival=delivered]")).to_be_visible()
        await expect(self.page.locator("[data-card=testMail]")).to_have_attribute("data-done", "true")
        assert await self.page.evaluate("() => window.isSamePage"), "the page was loaded again"
        await shot(self.page, "journey-delivered")

    async def follows_a_greylisted_mail(self) -> None:
        subject = f"Greylisted for {self.email}"
        to = f"greylist+{self.tenant.new_key()}@{DESTINATION}"
        await self.tenant.accepts(self.tenant.mail(to=to, subject=subject))
        await self.hands.go("Messages")
        await self.heading("Messages")
        await self.hands.press(self.page.get_by_role("link").filter(has_text=subject))
        await self.heading(subject)
        for place in ("1", "2"):
            await expect(self.page.get_by_text(f"Try {place}: deferred")).to_be_visible()
            await expect(self.page.get_by_text(re.compile("greylisting")).first).to_be_visible()
            await expect(self.page.get_by_text(re.compile(r"Next try in \d"))).to_be_visible()
            await shot(self.page, f"journey-deferred-{place}")
            await self.button("Try now")
        await expect(self.page.get_by_text("Try 3: delivered")).to_be_visible()
        await expect(self.page.get_by_role("status").filter(has_text=f"Delivered to {to}")).to_be_visible()
        await shot(self.page, "journey-timeline")

    async def verifies_a_domain(self) -> None:
        name = f"shop.{self.tenant.unique}.example.org"
        await self.hands.go("Domains")
        await self.heading("Domains")
        await self.button("Add a domain")
        dialog = self.page.get_by_role("dialog")
        await self.hands.write(dialog.get_by_label("Domain"), name)
        await self.dialog_button("Add a domain")
        await self.heading(name)
        domain = (await self.tenant.call("GET", f"/v1/domains/{name}")).body["domain"]
        self.dashboard.publish({record["name"]: record["value"] for record in domain["records"] if record["value"]})
        # The page checks DNS automatically.
        found = self.page.get_by_text(f"{name} is verified. You can send from it.")
        await expect(found).to_be_visible()
        await expect(self.page.locator("[data-record=ownership]")).to_have_attribute("data-result", "found")


@pytest.mark.parametrize("way", [Mouse, Keyboard], ids=["mouse", "keyboard"])
async def test_the_first_steps_lead_from_invitation_to_verified_domain(
    pages: Pages, dashboard: DashboardService, tenant: Tenant, way: type[Mouse] | type[Keyboard]
) -> None:
    context, _ = await pages.context()
    hands = way(await context.new_page())
    journey = Journey(dashboard, tenant, f"new-{tenant.unique}@{DESTINATION}", hands)
    await journey.accepts_the_invitation()
    await journey.sets_up_a_second_factor()
    await journey.signs_out_and_in()
    await journey.turns_the_second_factor_off()
    await journey.emails_themselves()
    await journey.follows_a_greylisted_mail()
    await journey.verifies_a_domain()
