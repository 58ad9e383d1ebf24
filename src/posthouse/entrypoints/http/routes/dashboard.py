"""The dashboard: a page with its scripts and styles, and the frame that shows a message's HTML.

The page does everything else through /v1. Every path below /dashboard/ that is not a file returns the page, whose
router reads the path.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from posthouse.entrypoints.http import static_content
from posthouse.entrypoints.http.message_content import PRIVATE_HEADERS, frame_response, require_frame
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.request_head import network_of
from posthouse.entrypoints.http.static_content import DashboardBuild, NotBuiltError
from posthouse.flows.shared.shares import FairShare
from posthouse.mail.render import framed
from posthouse.rules import limits
from posthouse.rules.refusal import Code, Refusal, invalid

PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types default"
)
NONCE: Final = "__NONCE__"
FRAME_BYTES_MAX: Final = limits.HTTP_BODY_BYTES_MAX
# The bound on all frames that this process reads at a time, so that anyone's posts take no memory from senders.
FRAMES_BYTES_MAX: Final = 4 * FRAME_BYTES_MAX

_PAGE_HEADERS: Final = {**PRIVATE_HEADERS, "Cross-Origin-Opener-Policy": "same-origin"}
_FILE_HEADERS: Final = {"Cross-Origin-Resource-Policy": "same-origin"}
_NOT_BUILT_POLICY: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_NOT_BUILT: Final = f"""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Posthouse</title>
<h1>Posthouse</h1>
<p>{static_content.NOT_BUILT}</p>
<p>The API reference is at <a href="/docs">/docs</a>.</p>
"""
# The fields of the form, in its order, as `enctype="text/plain"` writes them, which needs no decoding.
_FIELDS: Final = ((b"remote=0\r\nhtml=", False), (b"remote=1\r\nhtml=", True))

_frames: Final[FairShare[str]] = FairShare(FRAMES_BYTES_MAX, least=FRAME_BYTES_MAX)

router = APIRouter(include_in_schema=False)


@router.get("/")
async def root() -> Response:
    return _moved("/dashboard/")


@router.get("/invitation")
async def invitation() -> Response:
    """The path in invitations. The browser doesn't send the part after #, the token."""
    return _moved("/dashboard/invitation")


@router.get("/reset")
async def reset() -> Response:
    """The path in mail about a new password."""
    return _moved("/dashboard/reset")


@router.post("/dashboard/frame")
async def frame(request: Request) -> Response:
    """The posted HTML, only for a frame of the dashboard: no other page and no address bar can get it."""
    require_frame(request)
    with _capacity_for(request):
        reader: BodyReader = request.app.state.reader
        body = await reader.read(request.receive, FRAME_BYTES_MAX)
        for head, has_remote_pictures in _FIELDS:
            if body.startswith(head):
                html = await asyncio.to_thread(_framed, body[len(head) :].removesuffix(b"\r\n"))
                return frame_response(html, has_remote_pictures=has_remote_pictures)
    raise invalid("The form is text/plain, with the fields `remote` (0 or 1) and `html`, in this order.")


@router.get("/dashboard")
@router.get("/dashboard/{path:path}")
async def page(request: Request, path: str = "") -> Response:
    try:
        build = await _build()
    except NotBuiltError:
        headers = {**_PAGE_HEADERS, "Content-Security-Policy": _NOT_BUILT_POLICY}
        return HTMLResponse(_NOT_BUILT, status_code=503, headers=headers)
    is_hashed = path.startswith(static_content.HASHED)
    if (file := build.files.get(path)) is not None:
        cached = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
        return file.response(request.headers, {**_FILE_HEADERS, "Cache-Control": cached})
    if is_hashed:
        raise HTTPException(404)
    # The nonce lets the page add styles; injected content can't know it.
    nonce = secrets.token_urlsafe(16)
    headers = {**_PAGE_HEADERS, "Content-Security-Policy": PAGE_POLICY.format(nonce=nonce)}
    return HTMLResponse(build.page.replace(NONCE, nonce), headers=headers)


async def _build() -> DashboardBuild:
    if static_content.is_dashboard_read():
        return static_content.read_dashboard()
    return await asyncio.to_thread(static_content.read_dashboard)


@contextmanager
def _capacity_for(request: Request) -> Iterator[None]:
    """Reserve memory for the request's body, whose length must be known for that."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 10):
        raise invalid("The form needs a Content-Length.")
    if (size := int(length)) > FRAME_BYTES_MAX:
        raise Refusal(Code.PAYLOAD_TOO_LARGE, f"A frame shows at most {FRAME_BYTES_MAX // limits.MIB} MiB of HTML.")
    refusal = Refusal(Code.TEMPORARY_FAILURE, "Too many large frames at the same time: try again.", 1)
    with _frames.taking(network_of(request.scope), refusal, size):
        yield


def _framed(html: bytes) -> str:
    # Decoded and encoded again, so that no byte order mark can select another encoding.
    return framed(html.decode("utf-8", "replace"), {})


def _moved(address: str) -> Response:
    return RedirectResponse(address, headers={"Cache-Control": "no-store"})
