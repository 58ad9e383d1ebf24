"""The pages of captured mail, for a person with a one-time link: list, message, its HTML in a frame, attachments."""

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from posthouse.entrypoints.http import captured_page, responses
from posthouse.entrypoints.http.attachment import attachment_response
from posthouse.entrypoints.http.mail_frame import PRIVATE_HEADERS, frame_response, require_frame
from posthouse.entrypoints.http.route_context import services_of
from posthouse.entrypoints.http.static_content import StaticContent
from posthouse.flows.account.captured_mail import SESSION_LIFETIME
from posthouse.rules import ids
from posthouse.rules.download import OTHER_TYPE
from posthouse.rules.ids import AccountId

COOKIE: Final = "posthouse-captured"
_REMOTE: Final = "remote"

PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'self'; frame-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_PAGE_HEADERS: Final = {
    **PRIVATE_HEADERS,
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
}
_STYLE: Final = StaticContent.of(captured_page.STYLE, "text/css")
_NO_SESSION: Final = (
    "This page opens with a link that works once, for 10 minutes: make one with `posthouse message open ID`. "
    "If you used it just now, its session is over."
)

router = APIRouter(include_in_schema=False)


@router.get("/captured/style.css")
async def style(request: Request) -> Response:
    return _STYLE.response(request.headers, {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"})


@router.get("/captured/open/{token}")
async def open_link(request: Request, token: str) -> Response:
    # A browser that only prepares a page must not use the link up, nor a program that checks whether it works.
    if "prefetch" in request.headers.get("sec-purpose", "") or request.scope.get(responses.IS_HEAD):
        raise HTTPException(404)
    secret = await services_of(request).captured_mail.open_session(token)
    if secret is None:
        return _page(captured_page.notice("This link can't be used", _NO_SESSION), 404)
    message_id = request.query_params.get("message", "")
    path = f"/captured/{message_id}" if ids.parse(ids.MESSAGE, message_id) else "/captured"
    response = _page(captured_page.opened(path))
    response.set_cookie(
        COOKIE,
        secret,
        max_age=int(SESSION_LIFETIME.total_seconds()),
        path="/captured",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.get("/captured")
async def list_captured(request: Request) -> Response:
    account_id = await _account(request)
    if account_id is None:
        return _closed()
    found = await services_of(request).captured_mail.page(account_id, request.query_params.get("cursor"))
    return _page(captured_page.listed(found))


@router.get("/captured/{message_id}")
async def show_captured(request: Request, message_id: str) -> Response:
    account_id = await _account(request)
    if account_id is None:
        return _closed()
    captured = await services_of(request).captured_mail.message(account_id, message_id)
    # A large mail takes a while to escape.
    html = await asyncio.to_thread(captured_page.shown, captured, has_remote_pictures=_wants_remote_pictures(request))
    return _page(html)


@router.get("/captured/{message_id}/html")
async def captured_html(request: Request, message_id: str) -> Response:
    require_frame(request)
    html = await services_of(request).captured_mail.frame(await _required_account(request), message_id)
    return frame_response(html, has_remote_pictures=_wants_remote_pictures(request))


@router.get("/captured/{message_id}/attachments/{part}")
async def captured_attachment(request: Request, message_id: str, part: str) -> Response:
    if not (part.isascii() and part.isdigit() and len(part) < 5):
        raise HTTPException(404)
    account_id = await _required_account(request)
    attachment = await services_of(request).captured_mail.attachment(account_id, message_id, int(part))
    return attachment_response(attachment, OTHER_TYPE, PRIVATE_HEADERS)


async def _account(request: Request) -> AccountId | None:
    secret = request.cookies.get(COOKIE, "")
    return await services_of(request).captured_mail.account_of(secret) if secret else None


async def _required_account(request: Request) -> AccountId:
    account_id = await _account(request)
    if account_id is None:
        raise HTTPException(404)
    return account_id


def _wants_remote_pictures(request: Request) -> bool:
    return request.query_params.get("pictures") == _REMOTE


def _page(html: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(html.encode("utf-8", "replace"), status_code=status, headers=_PAGE_HEADERS)


def _closed() -> Response:
    return _page(captured_page.notice("Captured mail", _NO_SESSION), 401)
