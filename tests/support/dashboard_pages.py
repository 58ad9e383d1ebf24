"""The dashboard's pages, as its sources list them, and what a page must have finished before a test looks at it."""

import json
import os
import re
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page, TimeoutError  # noqa: A004 (as Playwright names it)

from tests.support.dashboard_browser import Pages, account_path
from tests.support.declared_access import FOR_OPERATORS
from tests.support.eventually import eventually
from tests.support.operator_login import add_second_factor, set_operator
from tests.support.service import Tenant

SOURCES: Final = Path(__file__).parents[2] / "dashboard" / "src"
DOCUMENT: Final = SOURCES.parents[1] / "docs" / "reference" / "openapi.json"
_ENTRY: Final = re.compile(r"\{ path: '(?P<path>[^']+)'.*?needs: '(?P<needs>\w+)'")
AXE: Final = SOURCES.parent / "node_modules" / "axe-core" / "axe.min.js"
# WCAG 2.2 AA and axe's best practices. A frame that runs no script can't be looked into.
_AXE_OPTIONS: Final[dict[str, Any]] = {
    "iframes": False,
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice"],
}
# Colours that fade from one theme to the other belong to neither.
_AXE_RUN: Final = """async (options) => {
  await new Promise(requestAnimationFrame);
  const fading = document.getAnimations().filter(({ effect }) => effect.getComputedTiming().endTime !== Infinity);
  await Promise.allSettled(fading.map(({ finished }) => finished));
  const { violations } = await axe.run(document, options);
  return violations.flatMap(({ id, nodes }) =>
    nodes.map(({ target, html, any }) =>
      `${id}: ${target.join(" ")} ${html.slice(0, 200)} ${any.map(({ message }) => message).join("; ")}`));
}"""

# A closed part of the page is not read before it is opened.
NOTHING_LOADS: Final = (
    "() => [...document.querySelectorAll('[data-state=loading]')].every((part) => !part.checkVisibility())"
)
# The router has drawn the page of this address.
_IS_AT: Final = """(address) => {
  const { status, resolvedLocation } = __TSR_ROUTER__.state;
  return status === "idle" && resolvedLocation?.publicHref === address;
}"""


def page_table() -> dict[str, str]:
    """The paths of an account's pages, and the operation that each needs."""
    return {path: needs for path, needs in _all_pages().items() if needs not in FOR_OPERATORS}


def operator_pages(tenant: Tenant, message_id: str) -> dict[str, str]:
    """The path of each page that is only for operators, its parameters filled, by its entry in the table."""
    return {
        path: path.replace("$lane", "google").replace("$id", message_id if "message" in path else account_path(tenant))
        for path, needs in _all_pages().items()
        if needs in FOR_OPERATORS
    }


def _all_pages() -> dict[str, str]:
    text = (SOURCES / "pages" / "table.ts").read_text()
    found = {entry["path"]: entry["needs"] for entry in _ENTRY.finditer(text)}
    assert len(found) > 10, "the table of pages has another form than this expression"
    return found


def operations() -> dict[str, tuple[str, str]]:
    """The method and the path of each operation of /v1."""
    return {
        operation["operationId"]: (method.upper(), path)
        for path, methods in json.loads(DOCUMENT.read_text())["paths"].items()
        if path.startswith("/v1/")
        for method, operation in methods.items()
    }


async def newest_message(tenant: Tenant) -> str:
    message_id: str = (await tenant.call("GET", "/v1/messages?limit=1")).body["messages"][0]["id"]
    return message_id


async def page_paths(tenant: Tenant) -> dict[str, str]:
    """The path of each page, its parameters filled with what the account has, by its entry in the table."""
    values: dict[str, str] = {}
    for name, listed, field in [
        ("messages/$id", "/v1/messages", "id"),
        ("templates/$alias", "/v1/templates", "alias"),
        ("domains/$name", "/v1/domains", "name"),
        ("webhooks/$id", "/v1/endpoints", "id"),
    ]:
        answer = await tenant.call("GET", listed)
        items = next(value for value in answer.body.values() if isinstance(value, list))
        if items:
            values[name] = f"{name.partition('$')[0]}{items[0][field]}"
    endpoint = values["webhooks/$id"].removeprefix("webhooks/")

    async def deliveries() -> list[dict[str, Any]]:
        answer = await tenant.call("GET", f"/v1/endpoints/{endpoint}/deliveries")
        return list(answer.body["deliveries"])

    # For the message that the account sent.
    of_endpoint = await eventually(deliveries)
    values["webhooks/$id/$delivery"] = f"webhooks/{endpoint}/{of_endpoint[0]['id']}"
    table = page_table()
    unknown = [path for path in table if "$" in path and path not in values]
    assert not unknown, f"the account has nothing for {unknown}"
    return {path: values.get(path, path) for path in table}


async def settled(page: Page) -> None:
    """The page has its heading, and nothing that is seen of it is loading."""
    await page.locator("h1").first.wait_for()
    try:
        await page.wait_for_function(NOTHING_LOADS)
    except TimeoutError as error:
        raise AssertionError(f"{page.url} is loading still:\n{await page.locator('main').inner_text()}") from error


async def opened(page: Page, tenant: Tenant, path: str) -> None:
    """Goes to another page of the account."""
    origin = page.url.partition("/dashboard/")[0]
    await page.goto(f"{origin}/dashboard/{account_path(tenant)}/{path}", wait_until="commit")
    await settled(page)


async def operators_page(pages: Pages, tenant: Tenant, path: str, **given: Any) -> Page:
    """A page of a new operator, who is a viewer of the account. `given` goes to `Pages.context`."""
    email = await tenant.user("viewer")
    page = await pages.signed_in(email, **given)
    await settled(page)
    await set_operator(tenant.service, email)
    await add_second_factor(tenant.service, email)
    await opened(page, tenant, path)
    return page


async def visited(page: Page, tenant: Tenant, path: str) -> None:
    """Goes to another page of the account as a link does: the dashboard itself is not loaded again."""
    address = f"/dashboard/{account_path(tenant)}/{path}"
    await page.evaluate("(address) => __TSR_ROUTER__.history.push(address)", address)
    await page.wait_for_function(_IS_AT, arg=address)
    await settled(page)


async def axe_faults(page: Page) -> list[str]:
    """What axe finds: the rule, the element."""
    if not await page.evaluate("() => 'axe' in window"):
        # Over the debugging protocol, which the page's policy doesn't affect.
        assert AXE.is_file(), "axe is missing: make dashboard-setup"
        await page.evaluate(f"{AXE.read_text()}\n;0")
    faults: list[str] = await page.evaluate(_AXE_RUN, _AXE_OPTIONS)
    return faults


async def shot(page: Page, name: str) -> None:
    """A picture of the page for a person to look at, if `DASHBOARD_SHOTS` names a directory."""
    if directory := os.environ.get("DASHBOARD_SHOTS"):
        await page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)
