"""The watch over pages finds the faults that it is meant to find."""

import pytest

from tests.support.dashboard_browser import Pages

pytestmark = pytest.mark.nightly

PICTURE = "(src) => new Promise((end) => { const it = new Image(); it.onload = it.onerror = end; it.src = src; })"


async def test_a_page_without_a_fault_passes(pages: Pages) -> None:
    await pages.signed_out()
    assert pages.faults() == []


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        pytest.param(f"({PICTURE})('https://elsewhere.example/x.png')", "policy violated: img-src", id="policy"),
        pytest.param("console.error('planted')", "console: planted", id="console"),
        pytest.param(
            "new Promise((end) => { setTimeout(end, 50); setTimeout(() => { throw new Error('planted') }) })",
            "exception: planted",
            id="exception",
        ),
        pytest.param(
            "new Promise((end) => { setTimeout(end, 50); setTimeout(() => { document.body.innerHTML = '<b>x</b>' }) })",
            "exception: ",
            id="HTML from a text",
        ),
    ],
)
async def test_a_planted_fault_is_found(pages: Pages, script: str, fault: str) -> None:
    page = await pages.signed_out()
    watch = pages.watch_of(page)
    watch.allow("policy violated:", "other origin:", "console: ", "exception: ")
    await page.evaluate(f"async () => {{ await ({script}) }}")
    assert [found for found in watch.faults if found.startswith(fault)]


@pytest.mark.parametrize("status", [403, 503])
async def test_refused_and_failed_answers_are_found(pages: Pages, status: int) -> None:
    page = await pages.signed_out()
    watch = pages.watch_of(page)
    watch.allow(f"{status}: GET /v1/planted")
    await page.route("**/v1/planted", lambda route: route.fulfill(status=status))
    await page.evaluate("() => fetch('/v1/planted').then(() => 0)")
    assert f"{status}: GET /v1/planted" in watch.faults


async def test_a_request_to_another_origin_is_found(pages: Pages) -> None:
    page = await pages.signed_out()
    watch = pages.watch_of(page)
    await page.route("**://elsewhere.example/**", lambda route: route.fulfill(body="there"))
    await page.goto("http://elsewhere.example/")
    assert watch.faults == ["other origin: http://elsewhere.example/"]
    watch.allow("other origin:")
