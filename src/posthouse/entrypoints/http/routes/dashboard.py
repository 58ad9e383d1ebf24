"""The dashboard: a page with its scripts and styles, and the frame that shows a mail's HTML.

The page does everything through /v1; this is all that is served for it. Every address below /dashboard/ that is no file
answers the page, whose router reads the address.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from posthouse.entrypoints.http import dashboard_build
from posthouse.entrypoints.http.dashboard_build import DashboardBuild, NotBuiltError
from posthouse.entrypoints.http.mail_frame import PRIVATE_HEADERS, frame_response, require_frame
from posthouse.entrypoints.http.peer import network_of
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.mail.frame_html import framed
from posthouse.rules import limits
from posthouse.rules.fair_share import FairShare
from posthouse.rules.refusal import Code, Refusal, invalid

PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types default"
)
NONCE: Final = "__NONCE__"
FRAME_BYTES_MAX: Final = limits.HTTP_BODY_BYTES_MAX
# Of all frames that this process reads at a time: what strangers post takes nothing from the bodies of senders.
FRAMES_BYTES_MAX: Final = 4 * FRAME_BYTES_MAX

_PAGE_HEADERS: Final = {**PRIVATE_HEADERS, "Cross-Origin-Opener-Policy": "same-origin"}
_FILE_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
_NOT_BUILT_POLICY: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_NOT_BUILT: Final = f"""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Posthouse</title>
<h1>Posthouse</h1>
<p>{dashboard_build.NOT_BUILT}</p>
<p>The API reference is at <a href="/docs">/docs</a>.</p>
"""
# The fields of the form, in its order, as `enctype="text/plain"` writes them: nothing is to be decoded.
_FIELDS: Final = ((b"remote=0\r\nhtml=", False), (b"remote=1\r\nhtml=", True))

_frames: Final[FairShare[str]] = FairShare(FRAMES_BYTES_MAX, least=FRAME_BYTES_MAX)

router = APIRouter(include_in_schema=False)


@router.get("/")
async def root() -> Response:
    return _moved("/dashboard/")


@router.get("/invitation")
async def invitation() -> Response:
    """The address in invitations. A browser keeps the part after #, the token."""
    return _moved("/dashboard/invitation")


@router.get("/reset")
async def reset() -> Response:
    """The address in mail about a new password."""
    return _moved("/dashboard/reset")


@router.post("/dashboard/frame")
async def frame(request: Request) -> Response:
    """The posted HTML, for a frame of the dashboard alone: no other page and no address bar gets it back."""
    require_frame(request)
    with _room_for(request):
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
    is_hashed = path.startswith(dashboard_build.HASHED)
    if (file := build.files.get(path)) is not None:
        cached = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
        return file.response(request.headers, {**_FILE_HEADERS, "Cache-Control": cached})
    if is_hashed:
        raise HTTPException(404)
    # With a nonce of its own, the page may add styles; a page that was injected into can't know it.
    nonce = secrets.token_urlsafe(16)
    headers = {**_PAGE_HEADERS, "Content-Security-Policy": PAGE_POLICY.format(nonce=nonce)}
    return HTMLResponse(build.page.replace(NONCE, nonce), headers=headers)


async def _build() -> DashboardBuild:
    return dashboard_build.read() if dashboard_build.is_read() else await asyncio.to_thread(dashboard_build.read)


@contextmanager
def _room_for(request: Request) -> Iterator[None]:
    """Room for the request's body, which its length must be known for."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 10):
        raise invalid("The form needs a Content-Length.")
    if (size := int(length)) > FRAME_BYTES_MAX:
        raise Refusal(Code.PAYLOAD_TOO_LARGE, f"A frame shows at most {FRAME_BYTES_MAX // limits.MIB} MiB of HTML.")
    network = network_of(request.scope)
    if not _frames.take(network, size):
        raise Refusal(Code.TEMPORARY_FAILURE, "Too many large frames at once: try again.", 1)
    try:
        yield
    finally:
        _frames.give_back(network, size)


def _framed(html: bytes) -> str:
    # Decoded and encoded again, so that no byte order mark can name another encoding than ours.
    return framed(html.decode("utf-8", "replace"), {})


def _moved(address: str) -> Response:
    return RedirectResponse(address, headers={"Cache-Control": "no-store"})
