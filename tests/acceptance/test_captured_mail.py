"""The pages of captured mail: one-time links, sessions, only one account's mail, and hostile HTML."""

import asyncio
import base64
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from tests.support import preloaded
from tests.support.hostile_html import payloads
from tests.support.server_process import environment
from tests.support.service import Service, StartService, Tenant

TRAP = "http://127.0.0.1:9"
FRAME = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "iframe"}
OWN_TAGS = {
    "html", "head", "meta", "title", "link", "body", "p", "a", "h1", "h2", "table", "tr", "th", "td", "iframe", "pre",
    "ul", "li", "bdi",
}  # fmt: skip
LOADING = re.compile(r"<\s*/?\s*(?:i?frame|object|embed|link|meta|base|script)\b", re.IGNORECASE)
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


@dataclass(frozen=True, slots=True)
class Shown:
    status: int
    headers: Any
    text: str
    raw: bytes


class Reader:
    """A browser's requests: a cookie, and what it says of a request's purpose."""

    def __init__(self, service: Service, cookie: str = "") -> None:
        self.service = service
        self.cookie = cookie

    async def get(self, path: str, **headers: str) -> Shown:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            given["Cookie"] = self.cookie
        async with self.service.client.get(self.service.url + path, headers=given, allow_redirects=False) as answer:
            raw = await answer.read()
            return Shown(answer.status, answer.headers, raw.decode("utf-8", "replace"), raw)

    async def opens(self, path: str) -> Shown:
        shown = await self.get(path)
        if "Set-Cookie" in shown.headers:
            self.cookie = shown.headers["Set-Cookie"].partition(";")[0]
        return shown


async def message_open(service: Service, message_id: str) -> "CompletedProcess[str]":
    words = ("message", "open", message_id, "--print")
    given = environment(service.database_url)
    return await asyncio.to_thread(preloaded.run, *words, environment=given, directory=service.log.parent)


async def link(service: Service, message_id: str) -> str:
    """The path of the link that the command prints."""
    done = await message_open(service, message_id)
    assert done.returncode == 0, done.stderr
    url = urlsplit(done.stdout.strip())
    return f"{url.path}?{url.query}"


async def sends(tenant: Tenant, **fields: object) -> str:
    """With a test key."""
    body = tenant.mail(**fields)
    message_id: str = (await tenant.accepts(body, authorization=await tenant.key("test")))["id"]
    return message_id


async def reader_of(tenant: Tenant, message_id: str) -> Reader:
    reader = Reader(tenant.service)
    assert (await reader.opens(await link(tenant.service, message_id))).status == 200
    return reader


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(service: Service) -> Tenant:
    return await service.account()


class Tags(HTMLParser):
    """All start tags of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.rule("CAP-01")
async def test_a_link_opens_one_session_once(tenant: Tenant) -> None:
    message_id = await sends(tenant)
    path = await link(tenant.service, message_id)
    reader = Reader(tenant.service)
    assert (await reader.get(path, Sec_Purpose="prefetch")).status == 404
    async with tenant.service.client.head(tenant.service.url + path) as head:
        assert (head.status, "Set-Cookie" in head.headers) == (404, False)
    first = await reader.opens(path)
    assert first.status == 200
    cookie = first.headers["Set-Cookie"]
    assert re.fullmatch(
        r"posthouse-captured=\w{43}; HttpOnly; Max-Age=28800; Path=/captured; SameSite=strict", cookie
    ), cookie
    assert f'content="0; url=/captured/{message_id}"' in first.text
    again = await reader.get(path)
    assert again.status == 404
    assert "Set-Cookie" not in again.headers
    # Neither is stored in plain text, and they differ.
    token = path.partition("open/")[2].partition("?")[0]
    stored = await tenant.service.sql("SELECT secret_hash FROM captured_mail_secrets WHERE account_id = $1", tenant.id)
    assert len(stored) == 1
    assert token.encode() not in stored[0][0]
    assert (await Reader(tenant.service, f"posthouse-captured={token}").get("/captured")).status == 401
    used = reader.cookie.partition("=")[2]
    assert (await reader.get(f"/captured/open/{used}")).status == 404


@pytest.mark.rule("CAP-01")
async def test_of_many_simultaneous_uses_of_a_link_one_opens_a_session(tenant: Tenant) -> None:
    path = await link(tenant.service, await sends(tenant))
    readers = [Reader(tenant.service) for _ in range(8)]
    shown = await asyncio.gather(*(reader.opens(path) for reader in readers))
    assert sorted(answer.status for answer in shown) == [200, *[404] * 7]
    assert len([reader for reader in readers if reader.cookie]) == 1


@pytest.mark.rule("CAP-01")
async def test_a_link_and_a_session_end(tenant: Tenant) -> None:
    message_id = await sends(tenant)
    path = await link(tenant.service, message_id)
    end = "UPDATE captured_mail_secrets SET expires_at = now() - interval '1 s' WHERE account_id = $1"
    await tenant.service.sql(end, tenant.id)
    assert (await Reader(tenant.service).get(path)).status == 404
    reader = await reader_of(tenant, message_id)
    await tenant.service.sql(end, tenant.id)
    assert (await reader.get("/captured")).status == 401


@pytest.mark.rule("CAP-02")
async def test_without_a_session_nothing_is_shown(tenant: Tenant) -> None:
    message_id = await sends(tenant, subject="Hidden")
    for cookie in ("", "posthouse-captured=", f"posthouse-captured={'x' * 43}"):
        reader = Reader(tenant.service, cookie)
        for path in ("/captured", f"/captured/{message_id}"):
            shown = await reader.get(path)
            assert shown.status == 401
            assert "Hidden" not in shown.text
            assert "posthouse message open" in shown.text
        assert (await reader.get(f"/captured/{message_id}/html", **FRAME)).status == 404
        assert (await reader.get(f"/captured/{message_id}/attachments/0")).status == 404


@pytest.mark.rule("CAP-02")
async def test_another_accounts_mail_is_not_found(tenant: Tenant, service: Service) -> None:
    reader = await reader_of(tenant, await sends(tenant))
    other = await service.account()
    theirs = await sends(other, subject="Theirs", html="<p>Theirs</p>")
    assert "Theirs" not in (await reader.get("/captured")).text
    for path in (f"/captured/{theirs}", f"/captured/{theirs}/attachments/0", "/captured/em_none", "/captured/x"):
        assert (await reader.get(path)).status == 404
    assert (await reader.get(f"/captured/{theirs}/html", **FRAME)).status == 404


@pytest.mark.rule("CAP-03")
async def test_the_list_shows_test_mail_newest_first(tenant: Tenant) -> None:
    await sends(tenant, subject="First <b>")
    last = await sends(tenant, subject="Second")
    await tenant.accepts(tenant.mail(subject="Live"))
    shown = await (await reader_of(tenant, last)).get("/captured")
    assert shown.text.index("Second") < shown.text.index("First &lt;b&gt;")
    assert "Live" not in shown.text
    assert f'href="/captured/{last}"' in shown.text


@pytest.mark.rule("CAP-03")
async def test_live_mail_is_shown_only_where_none_leaves(tenant: Tenant, start_service: StartService) -> None:
    live = (await tenant.accepts(tenant.mail(subject="Live")))["id"]
    reader = await reader_of(tenant, await sends(tenant))
    assert (await reader.get(f"/captured/{live}")).status == 404
    refused = await message_open(tenant.service, live)
    assert refused.returncode == 1
    assert "capture" in refused.stderr
    reader.service = await start_service(DELIVERY__OUTBOUND="capture")
    assert "Live" in (await reader.get("/captured")).text
    assert (await reader.get(f"/captured/{live}")).status == 200


@pytest.mark.rule("CAP-04")
async def test_a_message_is_shown_with_text_headers_links_and_files(tenant: Tenant) -> None:
    files = [
        {"filename": 'a"b\u202e<x>.html', "content": base64.b64encode(b"<script>alert(1)</script>").decode()},
        {"filename": "logo.png", "content": PICTURE, "content_id": "logo"},
    ]
    html = '<img src="cid:logo"><a href="https://example.com/?a=1&amp;b=2">Go &lt;on&gt;</a><a href="x-app:go">App</a>'
    message_id = await sends(
        tenant, subject="<b>Pay</b> \u202eecilop", html=html, text="Plain <i>text</i>", attachments=files
    )
    reader = await reader_of(tenant, message_id)
    page = await reader.get(f"/captured/{message_id}")
    assert page.status == 200
    for part in (
        "<h1><bdi>&lt;b&gt;Pay&lt;/b&gt; ecilop</bdi></h1>",
        "Plain &lt;i&gt;text&lt;/i&gt;",
        "Go &lt;on&gt;",
        "<th>Message-ID</th>",
    ):
        assert part in page.text
    assert "<bdi>&lt;b&gt;Pay&lt;/b&gt; \ufffdecilop</bdi>" in (await reader.get("/captured")).text
    tags = Tags(page.text).found
    (outward,) = [attributes for tag, attributes in tags if tag == "a" and attributes.get("target")]
    assert (outward["href"], outward["rel"]) == ("https://example.com/?a=1&b=2", "noopener noreferrer nofollow")
    frame = await reader.get(f"/captured/{message_id}/html", **FRAME)
    assert f'<img src="data:image/png;base64,{PICTURE}">' in frame.text
    named = []
    for path in dict.fromkeys(re.findall(r'href="(/captured/em_\w+/attachments/\d+)"', page.text)):
        file = await reader.get(path)
        assert file.status == 200
        named.append((file.headers["Content-Type"], file.headers["Content-Disposition"]))
        assert file.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert file.headers["X-Content-Type-Options"] == "nosniff"
    assert sorted(named) == [
        ("application/octet-stream", 'attachment; filename="a_b _x_.html"'),
        ("application/octet-stream", 'attachment; filename="logo.png"'),
    ]
    assert (await reader.get(f"/captured/{message_id}/attachments/99")).status == 404
    assert (await reader.get(f"/captured/{message_id}/attachments/-1")).status == 404


@pytest.mark.rule("CAP-05")
async def test_hostile_mail_stays_in_its_frame(tenant: Tenant) -> None:
    # Intake refuses control characters.
    hostile = {name: html.replace("\0", "").replace("\t", " ") for name, html in payloads(TRAP).items()}
    sent = {
        name: await sends(tenant, subject=f"{name} {html}"[:200], html=html, text=html)
        for name, html in hostile.items()
    }
    assert len(sent) >= 20
    reader = await reader_of(tenant, next(iter(sent.values())))
    for name, message_id in sent.items():
        page = await reader.get(f"/captured/{message_id}")
        _check_page_headers(page)
        tags = Tags(page.text).found
        _check_own(tags, name)
        (frame,) = [attributes for tag, attributes in tags if tag == "iframe"]
        assert (frame["sandbox"], frame["src"]) == ("", f"/captured/{message_id}/html"), name
        assert "inert" in frame, name
        framed = await reader.get(f"/captured/{message_id}/html", **FRAME)
        assert framed.status == 200
        assert LOADING.search(framed.text) is None, name
    _check_own(Tags((await reader.get("/captured")).text).found, "list")


def _check_own(tags: list[tuple[str, dict[str, str | None]]], name: str) -> None:
    """All tags are the page's own, and none has a handler or an address of another kind."""
    assert {tag for tag, _ in tags} <= OWN_TAGS, name
    assert len([tag for tag, _ in tags if tag in ("meta", "link")]) == 5, name
    assert not [key for _, attributes in tags for key in attributes if key.startswith("on")], name
    addresses = [attributes["href"] or "" for tag, attributes in tags if tag == "a"]
    assert all(address.startswith(("/captured", "http://", "https://")) for address in addresses), name


def _check_page_headers(page: Shown) -> None:
    assert page.headers["Content-Security-Policy"] == (
        "default-src 'none'; style-src 'self'; frame-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    for name, value in {
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
    }.items():
        assert page.headers[name] == value


@pytest.mark.rule("CAP-06")
async def test_the_frame_is_served_only_to_a_frame_of_our_page(tenant: Tenant) -> None:
    message_id = await sends(tenant, html="<p>Hello</p>")
    reader = await reader_of(tenant, message_id)
    path = f"/captured/{message_id}/html"
    for site, purpose in (("cross-site", "iframe"), ("same-origin", "document"), ("none", "document"), ("", "")):
        assert (await reader.get(path, Sec_Fetch_Site=site, Sec_Fetch_Dest=purpose)).status == 404
    assert (await reader.get(path)).status == 404
    policy = (await reader.get(path, **FRAME)).headers["Content-Security-Policy"]
    assert policy == (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; form-action 'none'; "
        "base-uri 'none'; frame-ancestors 'self'"
    )


@pytest.mark.rule("CAP-06")
async def test_remote_pictures_load_only_when_asked_for(tenant: Tenant) -> None:
    message_id = await sends(tenant, html='<img src="https://example.com/x.png">')
    reader = await reader_of(tenant, message_id)
    page = await reader.get(f"/captured/{message_id}?pictures=remote")
    assert "Remote pictures are loaded" in page.text
    assert f'src="/captured/{message_id}/html?pictures=remote"' in page.text
    frame = await reader.get(f"/captured/{message_id}/html?pictures=remote", **FRAME)
    assert "img-src data: https:;" in frame.headers["Content-Security-Policy"]
