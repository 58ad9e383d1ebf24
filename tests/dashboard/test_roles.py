"""Each kind of user on every page: no refused request, and what a role may not do is disabled with a reason."""

from typing import Final

import pytest
from playwright.async_api import Page

from posthouse.rules import role as roles
from posthouse.rules.credential import Role
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import opened, page_paths, page_table, settled
from tests.support.dashboard_service import DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.rare

# Controls that a page shows at once, with their operation; `parts/Role.tsx` writes it.
CONTROLS: Final = """() => [...document.querySelectorAll("[data-operation]")].map((control) => [
  control.dataset.operation,
  control.dataset.reason ?? null,
  control.matches(":disabled, [data-disabled], [aria-disabled=true]") || control.querySelector(":disabled") !== null,
])"""


async def controls(page: Page) -> list[tuple[str, str | None, bool]]:
    found: list[tuple[str, str | None, bool]] = await page.evaluate(CONTROLS)
    return found


@pytest.mark.parametrize("role", list(Role))
async def test_what_a_role_may_not_do_is_disabled_with_a_reason(pages: Pages, full_account: Tenant, role: Role) -> None:
    page = await pages.of(full_account, role=role.value)
    await settled(page)
    wrong, seen = [], set()
    table = page_table()
    for entry, path in (await page_paths(full_account)).items():
        await opened(page, full_account, path)
        if not roles.may(role, roles.NEEDED[table[entry]]):
            assert await page.locator("[data-state=forbidden]").count(), f"{entry} doesn't say who may see it"
        for operation, reason, is_disabled in await controls(page):
            seen.add(operation)
            may = roles.may(role, roles.NEEDED[operation])
            if not may and not (is_disabled and reason):
                wrong.append(f"{entry}: {operation} is offered")
    assert wrong == []
    assert seen, "no control names its operation"


async def test_a_user_without_the_required_second_factor_meets_no_refusal(
    pages: Pages, dashboard: DashboardService
) -> None:
    tenant = await dashboard.full_account()
    paths = await page_paths(tenant)
    email = await tenant.user("admin")
    await tenant.set(requires_totp=True)
    page = await pages.signed_in(email)
    await settled(page)
    for path in paths.values():
        await opened(page, tenant, path)
        assert await page.locator("[data-banner=second-factor]").count(), path
