"""Each kind of user on every page: what a user may do works, and what they may not do is disabled with a reason.

The watch of `pages` fails a test for any answer of 403.
"""

import asyncio
import re
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, Response, expect

from posthouse.rules.credential import Role, role_includes
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import operations, page_paths, page_table, settled, visited
from tests.support.dashboard_service import DashboardService
from tests.support.declared_access import NEEDED, OWN
from tests.support.eventually import eventually
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

LACKS_FACTOR: Final = "owner without the required second factor"
KINDS: Final = (*(role.value for role in Role), LACKS_FACTOR)
# Parts of pages that have their own controls.
FURTHER: Final = {"keys?tab=smtp": "keys"}
# What a page shows at once; `parts/Role.tsx` names the operation.
CONTROLS: Final = """() => [...document.querySelectorAll("main [data-operation]")].map((control) => [
  control.dataset.operation,
  control.dataset.reason ?? null,
  control.matches(":disabled, [data-disabled]") || control.querySelector(":disabled, [data-disabled]") !== null,
])"""
# The beginnings of reasons that come from the role or the lacking second factor; others come from the data.
NOT_ALLOWED: Final = (
    "Only members, admins and owners can",
    "Only admins and owners can",
    "Only owners can",
    "This account requires",
)
POPUP: Final = "[role=dialog]:visible, [role=listbox]:visible"


def may(kind: str, operation: str) -> bool:
    if kind == LACKS_FACTOR:
        return operation in OWN
    return role_includes(Role(kind), NEEDED[operation])


async def addresses(tenant: Tenant) -> dict[str, tuple[str, str]]:
    """A control by its name: the path of its page or part of a page, and the operation that it needs."""
    table = page_table()
    paths = {name: (path, table[name]) for name, path in (await page_paths(tenant)).items()}
    return paths | {path: (path, table[name]) for path, name in FURTHER.items()}


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_user_may_not_do_is_disabled_with_a_reason(
    pages: Pages, dashboard: DashboardService, kind: str
) -> None:
    tenant = await dashboard.full_account()
    shown = await addresses(tenant)
    email = await tenant.user("owner" if kind == LACKS_FACTOR else kind)
    if kind == LACKS_FACTOR:
        await tenant.set(requires_totp=True)
    page = await pages.signed_in(email)
    await settled(page)
    wrong, count, disabled = [], 0, 0
    for name, (path, needed) in shown.items():
        await visited(page, tenant, path)
        is_open = may(kind, needed)
        if await page.locator("[data-state=forbidden]").count() == is_open:
            wrong.append(f"{name} is {'closed' if is_open else 'open'}")
        for operation, reason, is_disabled in await page.evaluate(CONTROLS):
            count += 1
            disabled += is_disabled
            if is_disabled != (reason is not None):
                wrong.append(f"{name}: {operation} is disabled without a reason, or not in spite of it")
            elif may(kind, operation) == (reason is not None and reason.startswith(NOT_ALLOWED)):
                wrong.append(f"{name}: {operation} says: {reason}")
    print(f"\n{kind}: {len(shown)} pages and parts, {count} controls, {disabled} disabled with a reason")
    assert wrong == []
    assert count > 0
    await _check_navigation(page, kind)


async def _check_navigation(page: Page, kind: str) -> None:
    """Each entry leads to its page, or is disabled and says why."""
    links = await page.locator("nav a").count()
    closed = await page.locator("nav [data-reason]").count()
    entries = [needs for path, needs in page_table().items() if "$" not in path]
    allowed = sum(may(kind, needs) for needs in entries)
    assert (links, closed) == (allowed, len(entries) - allowed)
    if kind == LACKS_FACTOR:
        assert await page.locator("[data-banner=second-factor]").count()


@pytest.mark.parametrize("role", list(Role))
async def test_what_a_role_may_do_works(pages: Pages, dashboard: DashboardService, role: Role) -> None:
    tenant = await dashboard.full_account()
    page = await pages.of(tenant, role=role.value)
    await settled(page)
    answers: list[Response] = []
    page.on("response", lambda response: answers.append(response))
    wrong, done = [], 0
    for name, (path, needed) in (await addresses(tenant)).items():
        if not may(role.value, needed):
            continue
        await visited(page, tenant, path)
        for operation in sorted({operation for operation, *_ in await page.evaluate(CONTROLS)}):
            if await page.locator(_usable(operation)).count() == 0:
                continue
            done += 1
            if fault := await _use(page, operation, answers):
                wrong.append(f"{name}: {operation}: {fault}")
            await visited(page, tenant, path)
    print(f"\n{role.value}: {done} controls used")
    assert wrong == []


def _usable(operation: str) -> str:
    return f"main [data-operation={operation}]:not([data-reason]):visible"


async def _use(page: Page, operation: str, answers: list[Response]) -> str | None:
    """A click opens a dialog or another page, or the service does what was asked."""
    method, path = operations()[operation]
    expression = re.compile(re.sub(r"\{\w+\}", "[^/]+", path))
    answers.clear()
    before = page.url
    await page.locator(_usable(operation)).first.click()

    def asked() -> list[Response]:
        return [
            answer
            for answer in answers
            if answer.request.method == method and expression.fullmatch(urlsplit(answer.url).path)
        ]

    async def has_effect() -> bool:
        return page.url != before or bool(asked()) or await page.locator(POPUP).count() > 0

    await eventually(has_effect)
    if asked() and asked()[-1].status == HTTPStatus.TOO_MANY_REQUESTS:
        # The test was here a moment ago: after the wait that the service states, the page or another click does it.
        await asyncio.sleep(int(asked()[-1].headers["retry-after"]))
        await page.locator(_usable(operation)).first.click()

        async def is_taken() -> bool:
            return asked()[-1].status != HTTPStatus.TOO_MANY_REQUESTS

        await eventually(is_taken)
    if await page.locator(POPUP).count():
        await page.keyboard.press("Escape")
        await expect(page.locator(POPUP)).to_have_count(0)
    last = asked()[-1] if asked() else None
    return None if last is None or last.ok else f"{last.status} {last.request.method} {last.url}"
