"""The operator's routes of the inbox: mail to postmaster@ and abuse@."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import json_response, timestamp
from posthouse.entrypoints.http.routes.operator import CHANGE_ERRORS, READ_ERRORS, flows_of
from posthouse.entrypoints.http.schemas import operator as schemas
from posthouse.entrypoints.http.schemas.shapes import DeletedResponse
from posthouse.flows.operate.monitor import InboxMail
from posthouse.rules import ids
from posthouse.rules.refusal import Code, Refusal

router = APIRouter()

BYTES_SHOWN_MAX: Final = 256 * 1024

MailId = Annotated[str, Path(alias="id", description="The mail's id.")]


@router.get(
    "/v1/operator/inbox",
    operation_id="operatorListInbox",
    summary="Mail to postmaster@ and abuse@, newest first",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorInbox, *READ_ERRORS),
)
async def list_inbox(request: Request) -> Response:
    flows = await flows_of(request)
    return json_response(request, {"mails": [_mail(mail) for mail in await flows.monitor.inbox()]})


@router.get(
    "/v1/operator/inbox/{id}",
    operation_id="operatorGetInboxMail",
    summary="A mail of the inbox, as it came",
    tags=["Operator"],
    responses=responses_with(200, schemas.OperatorInboxMail, *READ_ERRORS),
)
async def get_inbox_mail(request: Request, mail_id: MailId) -> Response:
    flows = await flows_of(request)
    mail, mime = await flows.monitor.inbox_mail(mail_id)
    content = {
        "mail": _mail(mail),
        "source": mime[:BYTES_SHOWN_MAX].decode("utf-8", "replace"),
        "is_shortened": len(mime) > BYTES_SHOWN_MAX,
    }
    return json_response(request, content)


@router.delete(
    "/v1/operator/inbox/{id}",
    operation_id="operatorRemoveInboxMail",
    summary="Remove a mail from the inbox for good",
    tags=["Operator"],
    responses=responses_with(200, DeletedResponse, *CHANGE_ERRORS),
)
async def remove_inbox_mail(request: Request, mail_id: MailId) -> Response:
    flows = await flows_of(request)
    if not await flows.accounts.forget_mail([mail_id]):
        raise Refusal(Code.NOT_FOUND, "The inbox has no mail with this id, or not any more.")
    return json_response(request, {"deleted": True})


def _mail(mail: InboxMail) -> dict[str, Any]:
    return {
        "id": ids.text(ids.INBOX_MAIL, mail.id),
        "at": timestamp(mail.at),
        "recipient": mail.recipient,
        "sender": mail.sender,
        "peer": mail.peer,
        "subject": mail.subject,
        "bytes": mail.mime_bytes,
    }
