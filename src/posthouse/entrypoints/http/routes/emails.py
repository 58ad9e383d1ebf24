"""The routes of a sent message: its status, its cancellation, and another time; POST /emails is in `send_email`."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import (
    begin_work,
    body_of,
    json_response,
    require_declared,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.schemas import emails as schemas
from posthouse.entrypoints.http.send_email import peer_of
from posthouse.flows.account.message_detail import StoredMessage, StoredRecipient
from posthouse.flows.shared.principal import Principal
from posthouse.flows.shared.shared_database import count_for
from posthouse.rules import ids
from posthouse.rules.kept_content import FORGET

router = APIRouter()


@router.get(
    "/emails/{id}",
    operation_id="getEmail",
    summary="The status of a message and of its recipients",
    tags=["Email"],
    responses=responses_with(200, schemas.Message, 401, 404, 500, 503),
)
async def get_email(
    request: Request, message_id: Annotated[str, Path(alias="id", description="The id from the send response.")]
) -> Response:
    services = services_of(request)
    principal = await services.admission.reader(request.headers.get("authorization"), peer_of(request.scope))
    await begin_work(request, principal.account_id)
    message = await services.message_detail.message(
        principal.account_id, message_id, principal.mode, principal.sender_domains
    )
    return json_response(request, _message(message))


@router.post(
    "/emails/{id}/cancel",
    operation_id="cancelEmail",
    summary="Cancel a message that was not tried yet",
    description="With 200, none of its recipients gets it, and its credits are returned. If one of them was tried or "
    "has its result, nothing is changed, and the answer is 409.",
    tags=["Email"],
    responses=responses_with(200, schemas.Message, 400, 401, 403, 404, 409, 429, 500, 503),
)
async def cancel_email(
    request: Request, message_id: Annotated[str, Path(alias="id", description="The id from the send response.")]
) -> Response:
    principal = await _sender(request)
    message = await services_of(request).unsent_mail.cancel(principal, message_id)
    return json_response(request, _message(message))


@router.patch(
    "/emails/{id}",
    operation_id="moveEmail",
    summary="Send a message at another time",
    description="For a message that was accepted with a `send_at` and was not tried yet; otherwise the answer is 409.",
    tags=["Email"],
    openapi_extra=json_body(schemas.MoveRequest),
    responses=responses_with(200, schemas.Message, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def move_email(
    request: Request, message_id: Annotated[str, Path(alias="id", description="The id from the send response.")]
) -> Response:
    principal = await _sender(request)
    body = await body_of(request, schemas.MoveRequest)
    message = await services_of(request).unsent_mail.move(principal, message_id, body.send_at)
    return json_response(request, _message(message))


async def _sender(request: Request) -> Principal:
    """Who may send may change what is not sent."""
    services = services_of(request)
    principal = await services.admission.sender(request.headers.get("authorization"), peer_of(request.scope))
    count_for(principal.account_id)
    await begin_work(request, principal.account_id)
    await require_declared(request)
    return principal


def _message(message: StoredMessage) -> dict[str, Any]:
    content = {
        "id": ids.text(ids.MESSAGE, message.id),
        "status": message.status,
        "source": message.source,
        "from": message.sender,
        "subject": message.subject,
        "billing_status": message.billing_status,
        "recipient_count": message.recipient_count,
        "credits_reserved": message.credits_reserved,
        "created_at": timestamp(message.created_at),
        **({"metadata": message.metadata} if message.metadata else {}),
        "recipients": [_recipient(message, recipient) for recipient in message.recipients],
    }
    if message.send_at is not None:
        content["send_at"] = timestamp(message.send_at)
    if message.resent_from is not None:
        content["resent_from"] = ids.text(ids.MESSAGE, message.resent_from)
    if message.forgets_content:
        del content["subject"]
        content["content"] = FORGET
    return content


def _recipient(message: StoredMessage, recipient: StoredRecipient) -> dict[str, Any]:
    return {
        "id": ids.text(ids.RECIPIENT, ids.recipient_id(message.id, recipient.position)),
        "email": recipient.email,
        "status": recipient.status,
        "billing_status": recipient.billing_status,
        "attempt_count": recipient.attempt_count,
        "last_smtp_code": recipient.last_smtp_code,
        "last_smtp_response": recipient.last_smtp_response,
        "delivered_at": timestamp(recipient.delivered_at),
        "bounced_at": timestamp(recipient.bounced_at),
    }
