"""The routes of unsubscribe links (RFC 8058): a POST unsubscribes, a GET shows a page with a button for it.

Scanners, previews and prefetching browsers GET the links in emails, so a GET must not unsubscribe. There is no login:
the token in the link authorizes the request.
"""

import html
from base64 import b64encode
from email import message_from_bytes
from email.message import Message
from hashlib import sha256
from typing import Annotated, Final
from urllib.parse import parse_qsl

from fastapi import Path, Request
from starlette.responses import HTMLResponse, PlainTextResponse

from posthouse.entrypoints.http.operation import Operations
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.request_head import check_given_once
from posthouse.entrypoints.refusals import http_status
from posthouse.flows.inbound.unsubscribe import Unsubscribe
from posthouse.rules.refusal import Refusal, invalid
from posthouse.rules.unsubscribe import PATH, TOKEN_CHARACTERS_MAX, ListMember

# The form field of RFC 8058 takes 100 bytes when url-encoded, and 300 as multipart.
BODY_BYTES_MAX: Final = 4 * 1024
FIELDS_MAX: Final = 20
FIELD, VALUE = "List-Unsubscribe", "One-Click"

_STYLE: Final = "body{font:1.1em/1.5 sans-serif;max-width:34em;margin:4em auto;padding:0 1em}button{font:inherit}"
_STYLE_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Robots-Tag": "noindex, nofollow",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex, nofollow">
<title>Unsubscribe</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<h1>{heading}</h1>
{content}
</body>
</html>
"""
_QUESTION: Final = f"""\
<p><bdi>{{email}}</bdi> gets mail from the list <strong><bdi>{{mailing_list}}</bdi></strong>.</p>
<form method="post"><input type="hidden" name="{FIELD}" value="{VALUE}"><button>Unsubscribe</button></form>"""

_FORM: Final = {
    "schema": {
        "type": "object",
        "required": [FIELD],
        "properties": {FIELD: {"type": "string", "const": VALUE}},
    }
}
_NOT_FOUND: Final = {"responses": {"404": {"description": "The link is incomplete, or not from this service."}}}
_POSTED: Final = {
    **_NOT_FOUND,
    "requestBody": {
        "required": True,
        "content": {"application/x-www-form-urlencoded": _FORM, "multipart/form-data": _FORM},
    },
}
# A malformed token is a 404, like an unknown token.
_Token = Annotated[
    str,
    Path(
        description="The end of the link in the email.",
        json_schema_extra={"pattern": f"^[A-Za-z0-9_-]{{1,{TOKEN_CHARACTERS_MAX}}}$"},
    ),
]

router = Operations("Unsubscribe")


@router.get(PATH + "{token}", content="text/html", extra=_NOT_FOUND)
async def show_unsubscribe(token: _Token, request: Request, unsubscribe: Unsubscribe) -> HTMLResponse:
    """A page that asks for confirmation; it does not unsubscribe

    A link that doesn't work has a page too, if the request accepts `text/html`.
    """
    try:
        subscriber = unsubscribe.member(token)
    except Refusal as refusal:
        if "text/html" not in request.headers.get("accept", ""):
            raise
        return _page("This link doesn’t work", f"<p>{html.escape(refusal.text)}</p>", http_status(refusal.code))
    return _question(subscriber)


@router.post(PATH + "{token}", errors=(400, 413), content="text/plain", extra=_POSTED)
async def unsubscribe(token: _Token, request: Request, unsubscribe: Unsubscribe) -> PlainTextResponse:
    """Unsubscribe from the list that the email was sent to (RFC 8058)"""
    reader: BodyReader = request.app.state.reader
    check_given_once(request.scope, b"content-type")
    body = await reader.read(request.receive, BODY_BYTES_MAX)
    if not is_one_click(request.headers.get("content-type", ""), body):
        raise invalid(f"The body must be the form field {FIELD}={VALUE} (RFC 8058), and nothing else is needed.")
    subscriber = await unsubscribe.unsubscribe(token)
    text = f"{subscriber.email} is unsubscribed from the list {subscriber.mailing_list} and gets no more of its mail.\n"
    return PlainTextResponse(text, headers=_HEADERS)


def is_one_click(content_type: str, body: bytes) -> bool:
    """Whether the form contains the field of RFC 8058, url-encoded or multipart."""
    match content_type.partition(";")[0].strip().lower():
        case "application/x-www-form-urlencoded":
            try:
                return (FIELD, VALUE) in parse_qsl(body.decode("latin-1"), max_num_fields=FIELDS_MAX)
            except ValueError:
                return False
        case "multipart/form-data":
            form = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode("latin-1") + body)
            return any(isinstance(part, Message) and _is_one_click_part(part) for part in form.get_payload())
        case _:
            return False


def _is_one_click_part(part: Message) -> bool:
    value = part.get_payload()
    name = part.get_param("name", header="content-disposition")
    return name == FIELD and isinstance(value, str) and value.strip() == VALUE


def _question(subscriber: ListMember) -> HTMLResponse:
    email, mailing_list = html.escape(subscriber.email), html.escape(subscriber.mailing_list)
    return _page("Unsubscribe", _QUESTION.format(email=email, mailing_list=mailing_list))


def _page(heading: str, content: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(_PAGE.format(style=_STYLE, heading=heading, content=content), status, _HEADERS)
