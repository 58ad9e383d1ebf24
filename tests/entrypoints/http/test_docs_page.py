"""The API reference loads nothing from other hosts."""

import gzip
import re

import pytest

from tests.entrypoints.in_process_http import get

STYLE = "text/css; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"
LINK = re.compile(r'(?:src|href)="([^"]+)"')


async def assets() -> list[str]:
    """The addresses of the page's assets, as a browser at /docs resolves them."""
    page = (await get("/docs")).body.decode()
    return [f"/{link}" for link in LINK.findall(page) if link.startswith("docs/")]


async def test_the_page_is_html() -> None:
    reply = await get("/docs")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["x-request-id"].startswith("rq_")
    assert b"Posthouse API reference" in reply.body


async def test_the_page_refers_only_to_this_service() -> None:
    page = (await get("/docs")).body.decode()
    assert re.findall(r"(?:https?:)?//", page) == []
    assert {link.partition("?")[0] for link in LINK.findall(page)} == {
        "data:,",
        "openapi.json",
        "docs/swagger-ui.css",
        "docs/swagger-ui-bundle.js",
        "docs/start.js",
    }


async def test_the_page_shows_the_served_document_and_calls_no_validator() -> None:
    start = (await get("/docs/start.js")).body.decode()
    assert 'url: "openapi.json"' in start
    assert "validatorUrl: null" in start
    assert (await get("/openapi.json")).status == 200


async def test_the_policy_forbids_loading_and_calling_other_hosts() -> None:
    for address in ["/docs", *await assets()]:
        policy = (await get(address)).headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert rules["img-src"] == "'self' data:"
        assert rules["frame-ancestors"] == "'none'"


@pytest.mark.parametrize(
    ("name", "media_type", "size_min"),
    [
        ("swagger-ui.css", STYLE, 100_000),
        ("swagger-ui-bundle.js", SCRIPT, 1_000_000),
        ("start.js", SCRIPT, 100),
    ],
)
async def test_each_asset_is_served(name: str, media_type: str, size_min: int) -> None:
    address = next(address for address in await assets() if f"/{name}?" in address)
    plain, compressed = await get(address), await get(address, accept_encoding="gzip, br")
    assert plain.status == compressed.status == 200
    assert plain.headers["content-type"] == compressed.headers["content-type"] == media_type
    assert len(plain.body) > size_min
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(compressed.body) == plain.body
    assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert plain.headers["vary"] == "Accept-Encoding"


async def test_addresses_whose_content_may_change_are_not_cached() -> None:
    assert (await get("/docs")).headers["cache-control"] == "no-cache"
    assert (await get("/docs/start.js")).headers["cache-control"] == "no-cache"
    assert (await get("/docs/start.js?v=old")).headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/docs/favicon-32x32.png", "/docs/..%2f__init__.py", "/docs/", "/redoc"])
async def test_nothing_else_is_served(path: str) -> None:
    reply = await get(path)
    assert reply.status == 404
    assert b'"code":"not_found"' in reply.body


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/docs/start.js"])
async def test_a_client_that_has_the_content_gets_304(path: str) -> None:
    first, compressed = await get(path), await get(path, accept_encoding="gzip")
    assert gzip.decompress(compressed.body) == first.body
    assert first.headers["etag"] != compressed.headers["etag"]
    again = await get(path, if_none_match=f'"other", W/{first.headers["etag"]}')
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert (await get(path, accept_encoding="gzip", if_none_match=first.headers["etag"])).status == 200
