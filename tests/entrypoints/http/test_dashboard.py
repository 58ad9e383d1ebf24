"""The dashboard's page, its files, and the frame for a message's HTML."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.entrypoints.http import static_content
from posthouse.entrypoints.http.routes.dashboard import FRAME_BYTES_MAX
from tests.entrypoints.in_process_http import Reply, ask, get
from tests.support.hostile_html import payloads

SCRIPT = b"document.title = 'built'"
PAGE = '<!doctype html><meta content="__NONCE__"><script src="/dashboard/assets/main-1a2b.js"></script>'
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{}'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types default"
)
FRAME_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src {}; font-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)
OWN_FRAME = {"sec_fetch_site": "same-origin", "sec_fetch_dest": "iframe"}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(static_content, "DASHBOARD_DIRECTORY", tmp_path)
    static_content._dashboard.cache_clear()
    yield tmp_path
    static_content._dashboard.cache_clear()


@pytest.fixture
def build(directory: Path) -> Path:
    assets = directory / "assets"
    assets.mkdir()
    (directory / "index.html").write_text(PAGE)
    (directory / "icon.svg").write_text("<svg/>")
    (assets / "main-1a2b.js").write_bytes(SCRIPT)
    (assets / "main-1a2b.js.br").write_bytes(b"made by the build")
    (assets / "main-1a2b.js.gz").write_bytes(gzip.compress(SCRIPT))
    return directory


def nonce_of(reply: Reply) -> str:
    return reply.body.decode().partition('content="')[2].partition('"')[0]


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("path", ["", "/", "/ac_x/messages?status=failed", "/ac_x/messages/em_y", "/frame", "/a/../b"])
async def test_every_address_that_is_not_a_file_answers_the_page(path: str) -> None:
    reply = await get(f"/dashboard{path}")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["content-security-policy"] == POLICY.format(nonce_of(reply))


@pytest.mark.usefixtures("build")
async def test_each_page_has_its_own_nonce() -> None:
    nonces = {nonce_of(await get("/dashboard/")) for _ in range(20)}
    assert len(nonces) == 20
    assert min(map(len, nonces)) >= 22


@pytest.mark.usefixtures("build")
async def test_files_are_sent_as_the_build_compressed_them() -> None:
    address = "/dashboard/assets/main-1a2b.js"
    plain, gzipped, best = [await get(address, accept_encoding=given) for given in ("", "gzip", "gzip, deflate, br")]
    assert plain.body == gzip.decompress(gzipped.body) == SCRIPT
    assert best.body == b"made by the build"
    assert [reply.headers.get("content-encoding") for reply in (plain, gzipped, best)] == [None, "gzip", "br"]
    assert len({reply.headers["etag"] for reply in (plain, gzipped, best)}) == 3
    for reply in (plain, gzipped, best):
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
        assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert reply.headers["vary"] == "Accept-Encoding"


@pytest.mark.usefixtures("build")
async def test_files_without_a_hash_are_asked_for_again() -> None:
    reply = await get("/dashboard/icon.svg")
    assert (reply.body, reply.headers["cache-control"]) == (b"<svg/>", "no-cache")
    assert (await get("/dashboard/icon.svg", if_none_match=reply.headers["etag"])).status == 304


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("name", ["main-old.js", "main-1a2b.js.br", "../index.html", "..%2f..%2f__init__.py", ""])
async def test_an_unknown_asset_is_not_found(name: str) -> None:
    assert (await get(f"/dashboard/assets/{name}")).status == 404


async def test_without_a_build_the_page_says_how_to_build_it(directory: Path) -> None:
    reply = await get("/dashboard/ac_x/messages")
    assert reply.status == 503
    assert b"make dashboard" in reply.body
    assert not static_content.is_dashboard_built()
    (directory / "index.html").write_text(PAGE)
    assert (await get("/dashboard/")).status == 200


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [("/", "/dashboard/"), ("/invitation", "/dashboard/invitation"), ("/reset", "/dashboard/reset")],
)
async def test_links_in_our_mail_lead_to_the_dashboard(path: str, leads_to: str) -> None:
    reply = await get(path)
    assert (reply.status, reply.headers["location"]) == (307, leads_to)


async def post_frame(html: str | bytes, remote: int = 0, **headers: str) -> Reply:
    content = html.encode() if isinstance(html, str) else html
    body = b"remote=%d\r\nhtml=%b\r\n" % (remote, content)
    given = {"content_type": "text/plain", "content_length": str(len(body)), **OWN_FRAME, **headers}
    return await ask("POST", "/dashboard/frame", body, **given)


@pytest.mark.parametrize(("remote", "pictures"), [(0, "data:"), (1, "data: https:")])
async def test_the_frame_shows_the_posted_html_under_its_policy(remote: int, pictures: str) -> None:
    reply = await post_frame("<h1>Grüße</h1>\r\n<p>remote=1</p>", remote)
    assert reply.status == 200
    assert reply.body.decode() == "<h1>Grüße</h1>\r\n<p>remote=1</p>"
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == FRAME_POLICY.format(pictures)
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("site", "destination"),
    [
        ("cross-site", "iframe"),
        ("same-site", "iframe"),
        ("none", "iframe"),
        ("same-origin", "document"),
        ("same-origin", "empty"),
        ("same-origin", "object"),
        ("", ""),
    ],
)
async def test_nothing_but_a_frame_of_ours_gets_the_html_back(site: str, destination: str) -> None:
    reply = await post_frame("<b>reflected</b>", sec_fetch_site=site, sec_fetch_dest=destination)
    assert reply.status == 404
    assert b"reflected" not in reply.body


@pytest.mark.parametrize("name", payloads(""))
async def test_what_loads_automatically_is_renamed(name: str) -> None:
    reply = await post_frame(payloads("http://trap.example")[name])
    assert b"<iframe" not in reply.body.lower()
    assert b"<link" not in reply.body.lower()
    assert b"<script" not in reply.body.lower()


@pytest.mark.parametrize("mark", [b"\xfe\xff", b"\xff\xfe", b"\x00\x00\xfe\xff", b"+/v8"])
async def test_a_byte_order_mark_names_no_other_encoding(mark: bytes) -> None:
    encoding = "utf-16-le" if mark == b"\xff\xfe" else "utf-16-be"
    reply = await post_frame(mark + "<iframe src=//trap.example>".encode(encoding))
    assert reply.body.decode("utf-8")
    assert not reply.body.startswith((b"\xfe\xff", b"\xff\xfe"))


async def test_a_large_frame_is_refused_before_it_is_read() -> None:
    reply = await post_frame("x", content_length=str(FRAME_BYTES_MAX + 1))
    assert reply.status == 413
    assert (await post_frame("x", content_length="")).status == 400


async def test_a_form_of_another_shape_is_refused() -> None:
    reply = await ask("POST", "/dashboard/frame", b"html=%3Cb%3E", content_length="12", **OWN_FRAME)
    assert reply.status == 400
    assert b"text/plain" in reply.body
