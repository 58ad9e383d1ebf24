"""The route on which a test suite waits for mail."""

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from posthouse.entrypoints.http.access_log import ACCOUNT_ID
from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.request_body import Disconnected
from posthouse.entrypoints.http.route_context import (
    disconnected,
    json_response,
    require_declared_parameters,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.routes.message_detail import content_fields
from posthouse.entrypoints.http.schemas.next_message import NextMessageResponse
from posthouse.entrypoints.http.send_email import peer_of
from posthouse.flows.account.message_detail import RenderedMail, StoredMessage
from posthouse.flows.shared.principal import Principal
from posthouse.mail.links import links_of
from posthouse.rules import ids
from posthouse.rules.ids import MessageId
from posthouse.rules.limits import NEXT_MESSAGE_SECONDS_MAX

_DESCRIPTION: Final = (
    "For test suites: answers as soon as there is a message to the address, accepted after `after`, whatever its "
    "result will be. Give the `id` of the answer as `after` to get the one after it. 404 when there is none in time. "
    'A test key sees test mail; live credentials need a service that sends no mail (`delivery.outbound = "capture"`).'
)

_PARAMETERS: Final = [
    {
        "name": "recipient",
        "in": "query",
        "required": True,
        "description": "The whole address, be it in `to`, `cc` or `bcc`.",
        "schema": {"type": "string"},
        "example": "ada@example.net",
    },
    {
        "name": "after",
        "in": "query",
        "required": False,
        "description": "The id of a message, or a time of RFC 3339: only mail accepted after it. Without it, mail of "
        "the last 5 minutes counts.",
        "schema": {"type": "string"},
        "example": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
    },
    {
        "name": "wait",
        "in": "query",
        "required": False,
        "description": "Seconds to wait at most.",
        "schema": {
            "type": "integer",
            "minimum": 0,
            "maximum": NEXT_MESSAGE_SECONDS_MAX,
            "default": NEXT_MESSAGE_SECONDS_MAX,
        },
    },
]

router = APIRouter()


@router.get(
    "/v1/messages/next",
    operation_id="waitForMessage",
    summary="Wait for the next message to an address, and read its content and links",
    description=_DESCRIPTION,
    tags=["Messages"],
    openapi_extra={"parameters": _PARAMETERS},
    responses=responses_with(200, NextMessageResponse, 400, 401, 403, 404, 429, 500, 503),
)
async def wait_for_message(request: Request) -> Response:
    services = services_of(request)
    principal = await services.admission.reader(request.headers.get("authorization"), peer_of(request.scope))
    request.scope[ACCOUNT_ID] = principal.account_id
    require_declared_parameters(request)
    message_id = ids.text(ids.MESSAGE, await _awaited(request, principal))
    message = await services.message_detail.message(
        principal.account_id, message_id, principal.mode, principal.sender_domains
    )
    content = await services.message_detail.content(principal.account_id, message_id)
    return await asyncio.to_thread(_response, request, message, content)


async def _awaited(request: Request, principal: Principal) -> MessageId:
    """Ends when the client leaves: a request without a client must not hold a place."""
    given = request.query_params
    finding = asyncio.ensure_future(
        services_of(request).next_message.message_id(
            principal.account_id, principal.mode, given.get("recipient", ""), given.get("after"), given.get("wait")
        )
    )
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({finding, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if finding.done():
            return finding.result()
        raise Disconnected
    finally:
        finding.cancel()
        leaving.cancel()


def _response(request: Request, message: StoredMessage, content: RenderedMail) -> Response:
    shown = {
        "id": ids.text(ids.MESSAGE, message.id),
        "status": message.status,
        "source": message.source,
        "from": message.sender,
        "to": [recipient.email for recipient in message.recipients],
        "created_at": timestamp(message.created_at),
        **content_fields(content),
        "links": [link._asdict() for link in links_of(content.html, content.text)],
    }
    return json_response(request, {"message": shown})
