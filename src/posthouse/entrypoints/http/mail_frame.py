"""The response with a mail's HTML, for a frame in a page of ours.

The HTML is hostile. It is served for such a frame alone, in a sandbox with an origin of its own, under a policy that
loads nothing; `mail/frame_html` renames what a policy doesn't stop.
"""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

# Of every response that shows mail or leads to it.
PRIVATE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
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
# What a browser says of a frame in a page of ours, and of nothing else; a page can't set these.
_FRAME_FETCH: Final = {"sec-fetch-site": "same-origin", "sec-fetch-dest": "iframe"}
_HEADERS: Final = {**PRIVATE_HEADERS, "Permissions-Policy": "attribution-reporting=(), browsing-topics=()"}


def require_frame(request: Request) -> None:
    if any(request.headers.get(name) != value for name, value in _FRAME_FETCH.items()):
        raise HTTPException(404)


def frame_response(html: str, *, has_remote_pictures: bool) -> Response:
    """`html` is that of `mail/frame_html`."""
    pictures = "data: https:" if has_remote_pictures else "data:"
    headers = {**_HEADERS, "Content-Security-Policy": FRAME_POLICY.format(pictures=pictures)}
    return HTMLResponse(html.encode("utf-8", "replace"), headers=headers)
