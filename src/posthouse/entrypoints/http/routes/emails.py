"""The route that reads a sent message's status; POST /emails is in `send_email`."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import begin_work, json_response, services_of, timestamp
from posthouse.entrypoints.http.schemas import emails as schemas
from posthouse.entrypoints.http.send_email import peer_of
from posthouse.flows.account.message_detail import StoredMessage, StoredRecipient
from posthouse.rules import ids

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


def _message(message: StoredMessage) -> dict[str, Any]:
    return {
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
