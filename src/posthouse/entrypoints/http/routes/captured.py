"""The pages of captured mail, for a person with a one-time link: list, message, its HTML in a frame, attachments.

Everything from a message is escaped; its own HTML is in a frame.
"""

import asyncio
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.message_content import (
    PRIVATE_HEADERS,
    attachment_response,
    frame_response,
    require_frame,
)
from posthouse.entrypoints.http.route_context import flow_of
from posthouse.entrypoints.http.static_content import StaticContent
from posthouse.flows.account.captured_mail import SESSION_LIFETIME, CapturedMail, CapturedMessage, MessageListRow
from posthouse.flows.shared.page import Page
from posthouse.mail.links import Link, links_of
from posthouse.mail.render import AttachmentInfo
from posthouse.rules import ids
from posthouse.rules.attachment import DEFAULT_TYPE
from posthouse.rules.ids import AccountId

router = APIRouter(include_in_schema=False)

COOKIE: Final = "posthouse-captured"
_REMOTE: Final = "remote"
# What changes the direction of a text: "Pay U+202E ecilop" must not read "Pay police".
_TURNING: Final = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'self'; frame-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_PAGE_HEADERS: Final = {
    **PRIVATE_HEADERS,
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
}
_NO_SESSION: Final = (
    "This page opens with a link that works once, within 10 minutes: create one with `posthouse message open ID`. "
    "If you have just used it, its session is over."
)

_STYLE: Final = StaticContent.of(
    b"""\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 75rem; padding: 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .5rem; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; }
th { font-weight: 600; white-space: nowrap; }
iframe { background: white; border: 1px solid #888; height: 70vh; width: 100%; }
pre { border: 1px solid #8884; overflow: auto; padding: .7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; overflow-wrap: anywhere; }
.warning { border-left: .3rem solid #c60; padding-left: .6rem; }
""",
    "text/css",
)

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex, nofollow">{refresh}
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/captured/style.css">
</head>
<body>
{body}
</body>
</html>
"""


@router.get("/captured/style.css")
async def style(request: Request) -> Response:
    return _STYLE.response(request.headers, {"Cache-Control": "no-cache"})


@router.get("/captured/open/{token}")
async def open_link(request: Request, token: str) -> Response:
    # Neither a browser that only prefetches a page nor a program that checks the link may use it up.
    if "prefetch" in request.headers.get("sec-purpose", "") or request.scope.get(responses.IS_HEAD):
        raise HTTPException(404)
    secret = await flow_of(request, CapturedMail).open_session(token)
    if secret is None:
        return _page_response(_notice_page("This link can't be used", _NO_SESSION), 404)
    message_id = request.query_params.get("message", "")
    path = f"/captured/{message_id}" if ids.parse(ids.MESSAGE, message_id) else "/captured"
    response = _page_response(_opening_page(path))
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
    found = await flow_of(request, CapturedMail).page(account_id, request.query_params.get("cursor"))
    return _page_response(_list_page(found))


@router.get("/captured/{message_id}")
async def show_captured(request: Request, message_id: str) -> Response:
    account_id = await _account(request)
    if account_id is None:
        return _closed()
    captured = await flow_of(request, CapturedMail).message(account_id, message_id)
    # A large message takes a while to escape.
    html = await asyncio.to_thread(_message_page, captured, has_remote_pictures=_wants_remote_pictures(request))
    return _page_response(html)


@router.get("/captured/{message_id}/html")
async def captured_html(request: Request, message_id: str) -> Response:
    require_frame(request)
    html = await flow_of(request, CapturedMail).frame(await _required_account(request), message_id)
    return frame_response(html, has_remote_pictures=_wants_remote_pictures(request))


@router.get("/captured/{message_id}/attachments/{part}")
async def captured_attachment(request: Request, message_id: str, part: str) -> Response:
    if not (part.isascii() and part.isdigit() and len(part) < 5):
        raise HTTPException(404)
    account_id = await _required_account(request)
    attachment = await flow_of(request, CapturedMail).attachment(account_id, message_id, int(part))
    return attachment_response(attachment, DEFAULT_TYPE, PRIVATE_HEADERS)


async def _account(request: Request) -> AccountId | None:
    secret = request.cookies.get(COOKIE, "")
    return await flow_of(request, CapturedMail).account_of(secret) if secret else None


async def _required_account(request: Request) -> AccountId:
    account_id = await _account(request)
    if account_id is None:
        raise HTTPException(404)
    return account_id


def _wants_remote_pictures(request: Request) -> bool:
    return request.query_params.get("pictures") == _REMOTE


def _page_response(html: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(html.encode("utf-8", "replace"), status_code=status, headers=_PAGE_HEADERS)


def _closed() -> Response:
    return _page_response(_notice_page("Captured mail", _NO_SESSION), 401)


def _html_page(title: str, body: str, refresh: str = "") -> str:
    """`title` is text and `body` is HTML; `refresh` is a path of this site to go to immediately."""
    go = f'\n<meta http-equiv="refresh" content="0; url={escape(refresh)}">' if refresh else ""
    return _PAGE.format(title=escape(title), body=body, refresh=go)


def _opening_page(path: str) -> str:
    """A page that leads to the next. A redirect would not work: a link from another site sends no strict cookie."""
    return _html_page("Captured mail", f'<p><a href="{escape(path)}">Captured mail</a></p>', refresh=path)


def _notice_page(title: str, text: str) -> str:
    return _html_page(title, f"<h1>{escape(title)}</h1>\n<p>{escape(text)}</p>")


def _subject(subject: str | None) -> str:
    return f"<bdi>{escape((subject or '(no subject)').translate(_TURNING))}</bdi>"


def _list_page(found: Page[MessageListRow]) -> str:
    rows = "\n".join(
        f"<tr><td>{_time(row)}</td><td>{escape(row.sender)}</td><td>{escape(_recipients(row))}</td>"
        f'<td><a href="/captured/{ids.text(ids.MESSAGE, row.id)}">{_subject(row.subject)}</a></td>'
        f"<td>{escape(row.source)}</td><td>{escape(row.status)}</td></tr>"
        for row in found.items
    )
    heads = _row(("Time (UTC)", "From", "To", "Subject", "Source", "Status"), "th")
    body = f"<h1>Captured mail</h1>\n<table>\n{heads}\n{rows}\n</table>"
    if not found.items:
        body = "<h1>Captured mail</h1>\n<p>There is none yet. Send an email, and load this page again.</p>"
    if found.next_cursor is not None:
        body += f'\n<p><a href="/captured?cursor={quote(found.next_cursor)}">Older mail</a></p>'
    return _html_page("Captured mail", body)


def _message_page(captured: CapturedMessage, *, has_remote_pictures: bool) -> str:
    message, content = captured
    path = f"/captured/{ids.text(ids.MESSAGE, message.id)}"
    facts = {
        "From": message.sender,
        "To": ", ".join(recipient.email for recipient in message.recipients),
        "Accepted": f"{message.created_at:%Y-%m-%d %H:%M:%S} UTC",
        "Status": f"{message.status}, source {message.source}",
        "Id": ids.text(ids.MESSAGE, message.id),
    }
    sections = [
        '<p><a href="/captured">All captured mail</a></p>',
        f"<h1>{_subject(content.subject)}</h1>",
        _table(facts.items()),
        _html(path, has_remote_pictures=has_remote_pictures) if content.html is not None else "",
        f"<h2>Text</h2>\n<pre>{escape(content.text)}</pre>" if content.text is not None else "",
        _links(links_of(content.html, content.text)),
        _attachments(path, content.attachments),
        f"<h2>Headers</h2>\n{_table(content.headers)}",
        "<p>Parts after the first 200 are left out.</p>" if content.is_shortened else "",
    ]
    return _html_page(content.subject or "Captured mail", "\n".join(section for section in sections if section))


def _html(path: str, *, has_remote_pictures: bool) -> str:
    """The frame is inert: it takes no clicks and no focus, so links in it don't work."""
    if has_remote_pictures:
        source = f"{path}/html?pictures=remote"
        note = f'<p class="warning">Remote pictures are loaded. <a href="{path}">Without them</a></p>'
    else:
        source = f"{path}/html"
        note = (
            f'<p><a href="{path}?pictures=remote">Load remote pictures</a> (their servers see your address and that '
            "you read this email)</p>"
        )
    return f'<h2>HTML</h2>\n{note}\n<iframe sandbox="" inert title="The HTML of this email" src="{source}"></iframe>'


def _links(links: Sequence[Link]) -> str:
    if not links:
        return ""
    items = "\n".join(f"<li>{_link(link)}</li>" for link in links)
    return f"<h2>Links</h2>\n<ul>\n{items}\n</ul>"


def _link(link: Link) -> str:
    """Only http and https links can be followed."""
    url = escape(link.url)
    label = f"{escape(link.label)}: " if link.label else ""
    if not link.url.lower().startswith(("https://", "http://")):
        return f"{label}{url}"
    return f'{label}<a href="{url}" target="_blank" rel="noopener noreferrer nofollow">{url}</a>'


def _attachments(path: str, attachments: Sequence[AttachmentInfo]) -> str:
    if not attachments:
        return ""
    items = "\n".join(
        f'<li><a href="{path}/attachments/{item.part}" download>{escape(item.filename or f"part {item.part}")}</a> '
        f"({escape(item.content_type)}, {item.size:,} bytes)</li>"
        for item in attachments
    )
    return f"<h2>Attachments</h2>\n<ul>\n{items}\n</ul>"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>\n{lines}\n</table>"


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _time(row: MessageListRow) -> str:
    return f"{row.created_at:%Y-%m-%d %H:%M:%S}"


def _recipients(row: MessageListRow) -> str:
    more = row.recipient_count - len(row.recipients)
    return ", ".join(row.recipients) + (f" and {more} more" if more > 0 else "")
