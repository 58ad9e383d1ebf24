"""JSON responses, and the error object that every refusal and fault becomes."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pydantic_core
from starlette.responses import Response
from starlette.types import Scope

from posthouse.entrypoints.refusals import http_status
from posthouse.rules.ids import RequestId
from posthouse.rules.refusal import Code, Refusal

REQUEST_ID: Final = "posthouse.request_id"
REQUEST_ID_TEXT: Final = "posthouse.request_id_text"
# True once the whole body has arrived.
IS_BODY_HERE: Final = "posthouse.is_body_here"
# The middleware's headers for the response, its status once it is sent, and what sends it whole: see `send_json`.
FRAME_HEADERS: Final = "posthouse.frame_headers"
STATUS: Final = "posthouse.status"
RESPOND: Final = "posthouse.respond"
# True for a HEAD request, which routes see as GET: an endless response must not begin.
IS_HEAD: Final = "posthouse.is_head"
# A key in the state that the lifespan passes to connections.
REQUEST_IDS: Final = "posthouse.request_ids"
CONNECTIONS: Final = "posthouse.connections"
# Called when the server begins to stop, before it waits for open requests.
ON_STOP: Final = "posthouse.on_stop"

# No browser may treat a text or file from outside as a page.
EVERY: Final = {"x-content-type-options": "nosniff"}

FAULT: Final = Refusal(
    Code.INTERNAL_ERROR,
    "The service failed, and the failure was logged. Try again, and quote the request id if it fails again.",
)


def request_id_of(scope: Scope) -> RequestId:
    request_id: RequestId = scope[REQUEST_ID]
    return request_id


def request_id_text(scope: Scope) -> str:
    text: str = scope[REQUEST_ID_TEXT]
    return text


def encoded(content: Mapping[str, Any]) -> bytes:
    return pydantic_core.to_json(content)


def error_headers(refusal: Refusal) -> dict[str, str]:
    headers = dict(refusal.headers)
    if refusal.retry_after_seconds is not None:
        headers["Retry-After"] = str(refusal.retry_after_seconds)
    if refusal.code is Code.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Basic realm="posthouse", Bearer'
    return headers


def error_response(scope: Scope, refusal: Refusal, status: int | None = None) -> Response:
    refusal.drop_traceback()
    return Response(
        encoded(_error(scope, refusal)),
        status_code=status or http_status(refusal.code),
        headers=error_headers(refusal),
        media_type="application/json",
    )


def _error(scope: Scope, refusal: Refusal) -> dict[str, str]:
    return {"error": refusal.text, "code": refusal.code.value, "request_id": request_id_text(scope)}


async def send_refusal(scope: Scope, refusal: Refusal) -> None:
    """The same, for the hot path."""
    refusal.drop_traceback()
    await send_json(scope, http_status(refusal.code), _error(scope, refusal), error_headers(refusal))


async def send_json(scope: Scope, status: int, content: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Without a Response object and without the middleware around `send`, for the hot path."""
    scope[STATUS] = status
    await scope[RESPOND](status, {**headers, **scope[FRAME_HEADERS]}, encoded(content))


def timestamp(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
