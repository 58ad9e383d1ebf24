"""The routes of links to unsubscribe (RFC 8058): a POST leaves the list, a GET shows a page with a button for it.

Whatever fetches links in mails (scanners, previews, browsers that look ahead) only ever GETs them, and so must not
make anybody leave. Nobody logs in here: the link is the authority.
"""

import html
from base64 import b64encode
from email import message_from_bytes
from email.message import Message
from hashlib import sha256
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Path, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from posthouse.entrypoints.http.openapi import answers_with
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.route_context import services_of
from posthouse.rules.refusal import invalid
from posthouse.rules.unsubscribe import PATH, TOKEN_CHARACTERS_MAX, ListMember

# The one pair that RFC 8058 asks for, in either form, is a hundred bytes or three.
BODY_BYTES_MAX: Final = 4 * 1024
FIELDS_MAX: Final = 20
FIELD, VALUE = "List-Unsubscribe", "One-Click"

_STYLE: Final = "body{font:1.1em/1.5 sans-serif;max-width:34em;margin:4em auto;padding:0 1em}button{font:inherit}"
_STYLE_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
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
<h1>Unsubscribe</h1>
<p>{email} gets mail of the list <strong>{mailing_list}</strong>.</p>
<form method="post"><input type="hidden" name="{field}" value="{value}"><button>Send me no more of it</button></form>
</body>
</html>
"""

_FORM: Final = {
    "schema": {
        "type": "object",
        "required": [FIELD],
        "properties": {FIELD: {"type": "string", "const": VALUE}},
    }
}
_POSTED: Final = {
    "security": [],
    "requestBody": {
        "required": True,
        "content": {"application/x-www-form-urlencoded": _FORM, "multipart/form-data": _FORM},
    },
}
# What is no token is none that is known: a 404 like any other.
_Token = Annotated[
    str,
    Path(
        description="What stands at the end of the link in the mail.",
        json_schema_extra={"pattern": f"^[A-Za-z0-9_-]{{1,{TOKEN_CHARACTERS_MAX}}}$"},
    ),
]

router = APIRouter()


def _answers(media_type: str, *errors: int) -> dict[int | str, dict[str, Any]]:
    declared = answers_with(200, media_type, *errors)
    declared[404]["description"] = "The link is not complete, or not of this service."
    return declared


@router.get(
    PATH + "{token}",
    operation_id="showUnsubscribe",
    summary="A page that asks whether to leave the list; nothing happens yet",
    tags=["Unsubscribe"],
    response_class=HTMLResponse,
    openapi_extra={"security": []},
    responses=_answers("text/html", 404, 500, 503),
)
async def show_unsubscribe(request: Request, token: _Token) -> Response:
    return HTMLResponse(_page(services_of(request).unsubscribe.leaver(token)), headers=_HEADERS)


@router.post(
    PATH + "{token}",
    operation_id="unsubscribe",
    summary="Leave the list that the mail was sent to (RFC 8058)",
    tags=["Unsubscribe"],
    response_class=PlainTextResponse,
    openapi_extra=_POSTED,
    responses=_answers("text/plain", 400, 404, 413, 500, 503),
)
async def unsubscribe(request: Request, token: _Token) -> Response:
    reader: BodyReader = request.app.state.reader
    body = await reader.read(request.receive, BODY_BYTES_MAX)
    if not says_one_click(request.headers.get("content-type", ""), body):
        raise invalid(f"The body must be the form field {FIELD}={VALUE} (RFC 8058), and nothing else is needed.")
    leaver = await services_of(request).unsubscribe.leave(token)
    said = f"{leaver.email} has left the list {leaver.mailing_list}, and gets no more mail of it.\n"
    return PlainTextResponse(said, headers=_HEADERS)


def says_one_click(content_type: str, body: bytes) -> bool:
    """Whether the form holds the one pair, in either of the forms that HTML has."""
    match content_type.partition(";")[0].strip().lower():
        case "application/x-www-form-urlencoded":
            try:
                return (FIELD, VALUE) in parse_qsl(body.decode("latin-1"), max_num_fields=FIELDS_MAX)
            except ValueError:
                return False
        case "multipart/form-data":
            form = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode("latin-1") + body)
            return any(isinstance(part, Message) and _is_pair(part) for part in form.get_payload())
        case _:
            return False


def _is_pair(part: Message) -> bool:
    value = part.get_payload()
    named = part.get_param("name", header="content-disposition")
    return named == FIELD and isinstance(value, str) and value.strip() == VALUE


def _page(leaver: ListMember) -> str:
    email, mailing_list = html.escape(leaver.email), html.escape(leaver.mailing_list)
    return _PAGE.format(style=_STYLE, email=email, mailing_list=mailing_list, field=FIELD, value=VALUE)
