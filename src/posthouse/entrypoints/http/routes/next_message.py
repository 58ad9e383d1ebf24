"""The next message to an address, for which a test suite waits."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import Request
from starlette.responses import Response as HttpResponse

from posthouse.entrypoints.http.operation import Operations, Reader, model_response
from posthouse.entrypoints.http.request_body import Disconnected
from posthouse.entrypoints.http.route_context import disconnected, require_declared_parameters
from posthouse.entrypoints.http.routes.message_detail import MessageContent
from posthouse.entrypoints.http.shapes import FromAddress, Response, Shown, Timestamp, described, examples, id_text
from posthouse.flows.account.live import NextMessage
from posthouse.flows.account.message_detail import MessageDetail, RenderedMail, StoredMessage
from posthouse.flows.shared.principal import Principal
from posthouse.mail.links import LINKS_MAX, links_of
from posthouse.rules import ids
from posthouse.rules.credential import Scope
from posthouse.rules.ids import MessageId
from posthouse.rules.limits import NEXT_MESSAGE_SECONDS_MAX
from posthouse.rules.message import MessageStatus, Source

router = Operations("Messages", Scope.READ)

_DESCRIPTION: Final = (
    "For test suites: answers as soon as there is a message to the address that was accepted after `after`, whatever "
    "its result will be. Pass the `id` of the response as `after` to get the next one. 404 if there is none in time. "
    'A test key sees test mail; live credentials need a service that sends no mail (`delivery.outbound = "capture"`).'
)

_PARAMETERS: Final = [
    {
        "name": "recipient",
        "in": "query",
        "required": True,
        "description": "The whole address, in `to`, `cc` or `bcc`.",
        "schema": {"type": "string"},
        "example": "ada@example.net",
    },
    {
        "name": "after",
        "in": "query",
        "required": False,
        "description": "The id of a message, or an RFC 3339 time: only mail accepted after it. Without it, mail of "
        "the last 5 minutes counts.",
        "schema": {"type": "string"},
        "example": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
    },
    {
        "name": "wait",
        "in": "query",
        "required": False,
        "description": "How many seconds to wait at most.",
        "schema": {
            "type": "integer",
            "minimum": 0,
            "maximum": NEXT_MESSAGE_SECONDS_MAX,
            "default": NEXT_MESSAGE_SECONDS_MAX,
        },
    },
]

_EXAMPLE: Final[dict[str, Any]] = {
    "message": {
        "id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
        "status": "queued",
        "source": "test",
        "from": "Acme <hello@example.com>",
        "to": ["ada@example.net"],
        "created_at": "2026-05-04T09:30:00.000Z",
        "subject": "Confirm your address",
        "headers": [{"name": "Subject", "value": "Confirm your address"}],
        "text": None,
        "html": '<a href="https://app.example.com/confirm/8f2c">Confirm</a>\n',
        "attachments": [],
        "is_shortened": False,
        "links": [{"url": "https://app.example.com/confirm/8f2c", "label": "Confirm"}],
    },
}


class MessageLink(Shown):
    url: Annotated[str, described("As a browser reads it, with entities decoded.")]
    label: Annotated[str, described("The text of the link; empty for an address in the plain text.")]


class AwaitedEnvelope(Shown):
    id: Annotated[MessageId, id_text(ids.MESSAGE)]
    status: MessageStatus
    source: Source
    sender: FromAddress
    to: Annotated[list[str], described("All recipients: `to`, `cc` and `bcc`.")]
    created_at: Timestamp


# The fields of the last base come first.
class AwaitedMessage(MessageContent, AwaitedEnvelope):
    links: Annotated[
        list[MessageLink],
        described(
            f"The absolute links of the HTML in order, then those that are only in the text; each URL once, at most "
            f"{LINKS_MAX}."
        ),
    ]


class NextMessageResponse(Response):
    model_config = examples(_EXAMPLE)

    message: AwaitedMessage


@router.get(
    "/v1/messages/next",
    errors=(400, 403, 404, 429),
    content=NextMessageResponse,
    extra={"description": _DESCRIPTION, "parameters": _PARAMETERS},
)
async def wait_for_message(
    reader: Reader, request: Request, next_message: NextMessage, message_detail: MessageDetail
) -> HttpResponse:
    """Wait for the next message to an address, and read its content and links"""
    require_declared_parameters(request)
    message_id = ids.text(ids.MESSAGE, await _awaited(request, next_message, reader))
    message = await message_detail.message(reader.account_id, message_id, reader.mode, reader.sender_domains)
    content = await message_detail.content(reader.account_id, message_id)
    return await asyncio.to_thread(_response, request, message, content)


async def _awaited(request: Request, next_message: NextMessage, principal: Principal) -> MessageId:
    """Stop when the client disconnects: a request without a client must not take up capacity."""
    given = request.query_params
    finding = asyncio.ensure_future(
        next_message.message_id(
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


def _response(request: Request, message: StoredMessage, content: RenderedMail) -> HttpResponse:
    shown = AwaitedMessage.of(
        message,
        to=[recipient.email for recipient in message.recipients],
        links=links_of(content.html, content.text),
        **content._asdict(),
    )
    return model_response(request, NextMessageResponse(message=shown))
