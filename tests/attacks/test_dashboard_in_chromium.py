"""The dashboard and the page of captured mail in Chromium, attacked from other sites, by links, and after sign-out.

What senders' and tenants' texts try is in `tests/dashboard/test_frame.py` and `tests/dashboard/test_hostile_texts.py`.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import jwt
import pytest
from playwright.async_api import Response, Route, expect

from tests.acceptance.test_captured_mail import link as captured_link
from tests.acceptance.test_captured_mail import sends

# Fixtures.
from tests.dashboard.conftest import browser as browser
from tests.dashboard.conftest import dashboard as dashboard
from tests.dashboard.conftest import pages as pages
from tests.dashboard.conftest import tenant as tenant
from tests.support.dashboard_browser import Pages, account_path
from tests.support.dashboard_pages import opened, operators_page, settled
from tests.support.dashboard_service import DashboardService
from tests.support.eventually import eventually
from tests.support.service import Tenant

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]

PAGES: Final = ("/dashboard/", "/dashboard/login", "/dashboard/frame", "/captured", "/docs")
# What a foreign page does to ours: read, write, embed, open. A name is in the result where something came of it.
ATTACK: Final = """async ([origin, pages]) => {
  const found = [];
  const attempt = async (name, action) => { try { if ((await action()) && name) found.push(name) } catch {} };
  const post = (path, type, body, mode = "no-cors") => fetch(origin + path, {
    method: "POST", mode, credentials: "include", headers: type ? { "Content-Type": type } : {}, body });
  const loads = (tag, url) => new Promise((end) => {
    const part = document.createElement(tag);
    part.onload = () => end(true);
    part.onerror = () => end(false);
    part.src = url;
    document.body.append(part);
  });
  for (const path of [...pages, "/v1/service", "/v1/auth/me", "/openapi.json"])
    await attempt(`read ${path}`, () => fetch(origin + path, { credentials: "include" }));
  await attempt("preflight", () => post("/v1/auth/renew", "application/json", "{}", "cors"));
  for (const path of ["renew", "login", "link", "logout", "forgot"])
    for (const type of ["text/plain", "application/x-www-form-urlencoded", ""])
      await attempt("", () => post(`/v1/auth/${path}`, type, new TextEncoder().encode("{}")));
  await attempt("", () => post("/dashboard/frame", "text/plain", "remote=0\\r\\nhtml=<b>x"));
  const json = new Blob(["{}"], { type: "application/json" });
  await attempt("", () => navigator.sendBeacon(`${origin}/v1/auth/renew`, json));
  await attempt("picture", () => loads("img", `${origin}/dashboard/`));
  await attempt("script", () => loads("script", `${origin}/v1/service`));
  for (const path of pages) await loads("iframe", origin + path);
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action: `${origin}/v1/auth/renew`, enctype: "text/plain", target: "posted" });
  form.innerHTML = `<input name='{"account_id":null,"x":"' value='"}'><iframe name=posted></iframe>`;
  document.body.append(form);
  const sent = new Promise((end) => { form.querySelector("iframe").onload = end });
  form.submit();
  await sent;
  for (const path of ["/dashboard/", "/docs", "/captured"]) {
    const other = open(origin + path);
    for (let tries = 0; tries < 50 && !other.closed; tries++) await new Promise((end) => setTimeout(end, 100));
    if (!other.closed) found.push(`opener of ${path}`);
  }
  return found;
}"""
# Each would lead elsewhere if it were followed unchecked.
RETURNS: Final = (
    "//evil.example/x",
    "/\\evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    "/%2F/evil.example",
    "/..//evil.example/",
    "/../../docs",
    "https://evil.example/",
    " //evil.example",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
)
IMPERSONATION_AUDIENCE: Final = "posthouse-impersonation"


@asynccontextmanager
async def strange_site() -> AsyncIterator[int]:
    """The port of a server with one empty page."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<!doctype html><title>Strange</title><body>"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        writer.write(head % len(body) + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def claims_of(authorization: str) -> dict[str, Any]:
    token = authorization.removeprefix("Bearer ")
    return jwt.decode(token, options={"verify_signature": False}) if token else {}


async def test_another_origin_reads_writes_frames_and_opens_nothing(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    """From a port of our own host, which browsers treat as the same site: they send our cookies."""
    page = await pages.of(tenant, "overview")
    await settled(page)
    await page.goto(pages.url + await captured_link(dashboard.service, await sends(tenant)))
    await page.wait_for_url("**/captured/em_*")
    context = page.context
    cookies = {cookie["name"]: cookie for cookie in await context.cookies(f"{pages.url}/captured")}
    assert {(cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies.values()} == {(True, "Strict")}
    # What the foreign page is refused is what it was made to try.
    pages.watch_of(page).allow("console:", "other origin:", "policy violated:")
    async with strange_site() as port:
        strange = await context.new_page()
        answers: list[Response] = []
        strange.on("response", lambda answer: answers.append(answer))
        await strange.goto(f"http://127.0.0.1:{port}/")
        assert await strange.evaluate(ATTACK, [pages.url, PAGES]) == []
        framed = [frame.url for frame in strange.frames if frame.name != "posted"][1:]
        assert framed == ["chrome-error://chromewebdata/"] * len(PAGES)
    posted = [answer for answer in answers if answer.request.method == "POST"]
    assert len(posted) >= 15
    assert {answer.status for answer in posted} <= {400, 401, 404}
    kept = {cookie["name"]: cookie["value"] for cookie in await context.cookies(f"{pages.url}/captured")}
    # The opened dashboard renewed its own session, as usual.
    assert kept.keys() == cookies.keys()
    assert kept["posthouse-captured"] == cookies["posthouse-captured"]["value"]
    await page.goto(f"{pages.url}/dashboard/{account_path(tenant)}/overview")
    await settled(page)


async def test_sign_in_leads_into_the_dashboard_and_nowhere_else(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "overview")
    await settled(page)
    for to in RETURNS:
        await page.goto(f"{pages.url}/dashboard/login?to={quote(to, safe='')}")
        await page.wait_for_url(lambda url: "/dashboard/login" not in url)
        assert page.url.startswith(f"{pages.url}/dashboard/"), to
    assert len(page.context.pages) == 1


async def test_a_login_link_is_in_no_request_and_ends_the_tabs_of_another_user(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    first = await pages.of(tenant, "overview")
    await settled(first)
    other = await dashboard.account()
    token = await dashboard.service.operator.login_link(await other.user("viewer"))
    address = f"{pages.url}/dashboard/login#link={token}"
    # Programs that look at links don't get to see the token, and can't use it up.
    for method in ("HEAD", "GET"):
        async with dashboard.service.client.request(method, address) as answer:
            assert answer.status == 200
    second = await first.context.new_page()
    seen: list[str] = []
    second.on("request", lambda request: seen.append(f"{request.url} {request.headers.get('referer')}"))
    await second.goto(address)
    await settled(second)
    assert account_path(other) in second.url
    assert [line for line in seen if token in line] == []
    # Its cookie would otherwise renew the first tab, which shows another name.
    await first.wait_for_url("**/dashboard/login*")
    assert tenant.unique not in await first.locator("body").inner_text()
    await second.goto("about:blank")
    await second.goto(address)
    await expect(second.get_by_role("alert")).to_contain_text("works once")


async def test_after_signing_out_no_step_back_shows_the_account(pages: Pages, tenant: Tenant) -> None:
    sent = await tenant.accepts(tenant.mail(subject="Only for us"))
    page = await pages.of(tenant, f"messages/{sent['id']}")
    await expect(page.get_by_role("main")).to_contain_text("Only for us")
    await opened(page, tenant, "overview")
    await page.locator("header button").last.click()
    await page.get_by_role("menuitem", name="Sign out").click()
    await page.wait_for_url("**/dashboard/login*")
    assert await page.context.cookies() == []
    for _ in range(2):
        await page.go_back()
        await page.wait_for_url(re.compile("/dashboard/login|/healthz"))
        assert "Only for us" not in await page.content()


async def test_an_ended_impersonation_leaves_nothing_to_the_operators_own_token(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    customer = await dashboard.account()
    page = await operators_page(pages, tenant, f"accounts/{account_path(customer)}")
    await page.get_by_role("button", name="View as customer").click()
    await expect(page.locator("[data-banner=impersonation]")).to_be_visible()
    asked: list[tuple[str, str]] = []

    async def after_30_minutes(route: Route) -> None:
        request = route.request
        claims = claims_of(await request.header_value("authorization") or "")
        asked.append((request.url.partition("/v1/")[2], claims.get("aud", "")))
        # Whatever the page asks for before the click is still answered, or the link would be gone.
        is_over = any(path.startswith("suppressions") for path, _ in asked)
        if is_over and claims.get("aud") == IMPERSONATION_AUDIENCE:
            await route.fulfill(status=401, json={"error": "The token is invalid.", "code": "unauthorized"})
        else:
            await route.fallback()

    await page.route("**/v1/**", after_30_minutes)
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Suppressions").click()
    await expect(page.locator("[data-banner=impersonation]")).to_have_count(0)
    await eventually(lambda: _has_renewed(asked))
    assert {audience for path, audience in asked if path.startswith("suppressions")} == {IMPERSONATION_AUDIENCE}


def _has_renewed(asked: list[tuple[str, str]]) -> bool:
    return any(path == "auth/renew" for path, _ in asked)
