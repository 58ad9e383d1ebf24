"""The small part that CI is to run once every page is there: each opens without a fault of axe."""

import pytest

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, opened, page_paths, settled
from tests.support.service import Tenant

pytestmark = pytest.mark.rare


async def test_axe_finds_no_fault_on_any_page(pages: Pages, full_account: Tenant) -> None:
    page = await pages.of(full_account)
    await settled(page)
    faults = {}
    for name, path in (await page_paths(full_account)).items():
        await opened(page, full_account, path)
        faults[name] = await axe_faults(page)
    assert {name: found for name, found in faults.items() if found} == {}


async def test_axe_finds_no_fault_in_the_sign_in(pages: Pages) -> None:
    page = await pages.signed_out("login")
    await settled(page)
    assert await axe_faults(page) == []
