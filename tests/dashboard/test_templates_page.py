"""Templates in the dashboard, by mouse: made, tested, published, changed, compared, rolled back, renamed, deleted."""

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import WIDTHS, Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def test_a_template_is_published_and_taken_back(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "templates", role="member")
    await settled(page)
    await page.get_by_role("button", name="New template").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Alias").fill("welcome")
    await dialog.get_by_role("button", name="Create").click()
    editor = page.get_by_role("textbox", name="HTML")
    await editor.wait_for()

    # What is typed is in the preview, rendered by the service.
    await editor.click()
    await page.keyboard.press("Control+End")
    await page.keyboard.insert_text("<p>Yours, {{shop}}</p>")
    await page.get_by_label("name", exact=True).fill("Ada & Charles")
    await page.get_by_label("shop", exact=True).fill("Shop")
    frame = page.frame_locator("iframe[title='Preview of the HTML']")
    await expect(frame.get_by_text("Welcome, Ada & Charles")).to_be_visible()
    await expect(frame.get_by_text("Yours, Shop")).to_be_visible()
    await page.get_by_role("button", name="Run the checks").click()
    await expect(page.locator("[data-dry-run=accepted]")).to_be_visible()
    assert await axe_faults(page) == []
    await shot(page, "template")
    await page.set_viewport_size({"width": 390, "height": WIDTHS[390]})
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert await axe_faults(page) == []
    await shot(page, "template-390-dark")
    await page.set_viewport_size({"width": 1440, "height": WIDTHS[1440]})

    await page.get_by_role("button", name="Compare version 1").click()
    await expect(page.get_by_role("dialog")).to_contain_text("+ <p>Yours, {{shop}}</p>")
    assert await axe_faults(page) == []
    await shot(page, "template-diff")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Save and publish").click()
    await expect(page.get_by_text("version 2 is published", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Compare version 2").click()
    dialog = page.get_by_role("dialog")
    # The draft is version 2, so the version before it is compared.
    await expect(dialog.get_by_label("Before")).to_have_value("1")
    await expect(dialog).to_contain_text("+ <p>Yours, {{shop}}</p>")
    await dialog.get_by_label("Before").select_option("Version 2")
    await dialog.get_by_label("After").select_option("Version 1")
    await expect(dialog).to_contain_text("− <p>Yours, {{shop}}</p>")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Roll back to version 1").click()
    await expect(page.get_by_text("version 1 is published", exact=True)).to_be_visible()
    answer = await tenant.call("GET", "/v1/templates/welcome")
    assert answer.body["template"]["published_version"] == 1

    await page.get_by_role("button", name="Rename").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Alias").fill("greeting")
    await dialog.get_by_role("button", name="Rename").click()
    await page.wait_for_url("**/templates/greeting")
    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox").fill("greeting")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("greeting is deleted.")).to_be_visible()


async def test_a_template_with_a_list_is_tried_with_json_and_sent_to_oneself(pages: Pages, tenant: Tenant) -> None:
    html = "<p>Hi {{name}}</p>{{#each items}}<i>{{title}}</i>{{/each}}"
    await tenant.template("order", engine="handlebars", subject="Order", html=html)
    page = await pages.of(tenant, "templates/order", role="member")
    await page.get_by_label("name", exact=True).fill("Ada")
    await expect(page.get_by_label("items", exact=True)).to_have_count(0)
    json = page.get_by_label("Test data as JSON")
    await expect(json).to_have_value('{\n  "name": "Ada"\n}')
    await json.fill('{"name": "Bob", "items": [{"title": "Tea"}, {"title": "Milk"}]')
    await expect(page.get_by_text("This is not a JSON object")).to_be_visible()
    await json.press("End")
    await page.keyboard.insert_text("}")
    await page.reload()
    frame = page.frame_locator("iframe[title='Preview of the HTML']")
    for shown in ("Hi Bob", "Tea", "Milk"):
        await expect(frame.get_by_text(shown)).to_be_visible()
    assert await axe_faults(page) == []
    await shot(page, "template-json")
    await page.get_by_role("button", name="Send to me").click()
    await expect(page.get_by_text("The draft is sent to")).to_be_visible()
    [message] = (await tenant.call("GET", "/v1/messages")).body["messages"]
    assert (message["subject"], message["source"]) == ("Order", "test")
