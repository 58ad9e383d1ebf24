"""How the content of a message is shown: HTML in a frame, and attachments as downloads.

The HTML is hostile. It is served only for a frame in one of our pages, in a sandbox with its own origin, under a policy
that loads nothing; `mail/render` leaves out or renames what a policy doesn't stop. Browsers store an attachment,
whatever content type it claims.
"""

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from posthouse.flows.account.message_detail import Attachment
from posthouse.rules.attachment import content_disposition, download_name

# The headers of every response that shows mail or leads to it.
PRIVATE_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
    "X-Robots-Tag": "noindex, nofollow",
}
FRAME_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src {pictures}; font-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)
# Headers that a browser sends only for a frame in one of our pages; a page can't set them.
_FRAME_FETCH: Final = {"sec-fetch-site": "same-origin", "sec-fetch-dest": "iframe"}
_HEADERS: Final = {**PRIVATE_HEADERS, "Permissions-Policy": "attribution-reporting=(), browsing-topics=()"}


def require_frame(request: Request) -> None:
    if any(request.headers.get(name) != value for name, value in _FRAME_FETCH.items()):
        raise HTTPException(404)


def frame_response(html: str, *, has_remote_pictures: bool) -> Response:
    """`html` is that of `mail/render`."""
    pictures = "data: https:" if has_remote_pictures else "data:"
    headers = {**_HEADERS, "Content-Security-Policy": FRAME_POLICY.format(pictures=pictures)}
    return HTMLResponse(html.encode("utf-8", "replace"), headers=headers)


def attachment_response(attachment: Attachment, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    info = attachment.info
    name = download_name(info.filename, f"part-{info.part}")
    own = {
        "Content-Disposition": content_disposition(name),
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Response(attachment.content, media_type=media_type, headers={**(headers or {}), **own})
