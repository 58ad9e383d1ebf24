"""The routes of mail and templates, except POST /emails: read the request, call one flow, shape the answer."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http import schemas
from posthouse.entrypoints.http.openapi import answers_with, takes
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    PageSize,
    answered,
    body_of,
    member_of,
    moment,
    page_size,
    services_of,
)
from posthouse.entrypoints.http.send_email import peer_of
from posthouse.flows.account.message_detail import Message, Recipient
from posthouse.flows.account.templates import TemplateRow, VersionRow
from posthouse.rules import ids, limits
from posthouse.rules.template import Template

PREVIEW_BODY_BYTES_MAX: Final = 1 * limits.MIB
# Two parts of text, each character up to four bytes, or six as an escape.
TEMPLATE_BODY_BYTES_MAX: Final = 4 * limits.MIB

router = APIRouter()


@router.get(
    "/emails/{id}",
    operation_id="getEmail",
    summary="What became of a message",
    tags=["Email"],
    responses=answers_with(200, schemas.MessageAnswer, 401, 404, 500, 503),
)
async def get_email(
    request: Request, message_id: Annotated[str, Path(alias="id", description="The id that the send response gave.")]
) -> Response:
    services = services_of(request)
    caller = await services.admission.reader(request.headers.get("authorization"), peer_of(request.scope))
    message = await services.message_detail.message(caller.account_id, message_id)
    return answered(request, _message(message))


@router.get(
    "/v1/templates",
    operation_id="listTemplates",
    summary="The account's templates, newest first",
    tags=["Templates"],
    responses=answers_with(200, schemas.TemplateListResponse, 400, 401, 500, 503),
)
async def list_templates(
    request: Request,
    limit: PageSize = str(PAGE_DEFAULT),
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> Response:
    member = await member_of(request)
    page = await services_of(request).templates.page(member.account_id, cursor, page_size(limit))
    content = {"templates": [_template(one) for one in page.templates], "next_cursor": page.next_cursor}
    return answered(request, content)


@router.post(
    "/v1/templates",
    operation_id="createTemplate",
    summary="Create a template with its first version",
    tags=["Templates"],
    status_code=201,
    openapi_extra=takes(schemas.TemplateBody),
    responses=answers_with(201, schemas.TemplateResponse, 400, 401, 403, 409, 413, 500, 503),
)
async def create_template(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.TemplateBody, TEMPLATE_BODY_BYTES_MAX)
    created = await services_of(request).templates.create(
        member.account_id, body.alias, body.name, _content(body), member.actor, publish=body.publish
    )
    return answered(request, {"template": _template(created)}, 201)


@router.get(
    "/v1/templates/{alias}",
    operation_id="getTemplate",
    summary="A template with its versions",
    tags=["Templates"],
    responses=answers_with(200, schemas.TemplateDetailResponse, 401, 404, 500, 503),
)
async def get_template(request: Request, alias: str) -> Response:
    member = await member_of(request)
    found, versions = await services_of(request).templates.template(member.account_id, alias)
    return answered(request, {"template": {**_template(found), "versions": [_version(one) for one in versions]}})


@router.delete(
    "/v1/templates/{alias}",
    operation_id="deleteTemplate",
    summary="Delete a template and its versions",
    tags=["Templates"],
    responses=answers_with(200, schemas.DeletedResponse, 401, 403, 404, 500, 503),
)
async def delete_template(request: Request, alias: str) -> Response:
    member = await member_of(request)
    await services_of(request).templates.delete(member.account_id, alias, member.actor)
    return answered(request, {"deleted": True})


@router.post(
    "/v1/templates/{alias}/versions",
    operation_id="createTemplateVersion",
    summary="Add a version; the ones before stay as they are",
    tags=["Templates"],
    status_code=201,
    openapi_extra=takes(schemas.VersionBody),
    responses=answers_with(201, schemas.TemplateVersionResponse, 400, 401, 403, 404, 413, 500, 503),
)
async def create_template_version(request: Request, alias: str) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.VersionBody, TEMPLATE_BODY_BYTES_MAX)
    grown = await services_of(request).templates.add_version(
        member.account_id, alias, _content(body), member.actor, publish=body.publish
    )
    return answered(request, {"template": _template(grown), "version": grown.latest_version}, 201)


@router.post(
    "/v1/templates/{alias}/publish",
    operation_id="publishTemplate",
    summary="Make a version the one that is sent",
    tags=["Templates"],
    openapi_extra=takes(schemas.PublishBody),
    responses=answers_with(200, schemas.TemplateResponse, 400, 401, 403, 404, 413, 500, 503),
)
async def publish_template(request: Request, alias: str) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.PublishBody)
    published = await services_of(request).templates.publish(member.account_id, alias, body.version, member.actor)
    return answered(request, {"template": _template(published)})


@router.post(
    "/v1/templates/{alias}/preview",
    operation_id="previewTemplate",
    summary="Render a version without sending it",
    tags=["Templates"],
    openapi_extra=takes(schemas.PreviewBody),
    responses=answers_with(200, schemas.PreviewResponse, 400, 401, 404, 413, 500, 503),
)
async def preview_template(request: Request, alias: str) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.PreviewBody, PREVIEW_BODY_BYTES_MAX)
    rendered = await services_of(request).templates.preview(member.account_id, alias, body.version, body.variables)
    return answered(request, {"subject": rendered.subject, "text": rendered.text, "html": rendered.html})


@router.get(
    "/healthz",
    operation_id="health",
    summary="Whether the process is alive",
    tags=["Operation"],
    openapi_extra={"security": []},
    responses=answers_with(200, schemas.HealthResponse, 500, 503),
)
async def health(request: Request) -> Response:
    return answered(request, {"status": "ok"})


def _content(body: schemas.TemplateContentBody) -> Template:
    return Template(body.subject or None, body.text or None, body.html or None)


def _template(row: TemplateRow) -> dict[str, Any]:
    return {
        "alias": row.alias,
        "name": row.name,
        "published_version": row.published_version,
        "latest_version": row.latest_version,
        "created_at": moment(row.created_at),
        "updated_at": moment(row.updated_at),
    }


def _version(row: VersionRow) -> dict[str, Any]:
    return {
        "version": row.version,
        "subject": row.content.subject,
        "text": row.content.text,
        "html": row.content.html,
        "created_at": moment(row.created_at),
    }


def _message(message: Message) -> dict[str, Any]:
    return {
        "id": ids.text(ids.MESSAGE, message.id),
        "status": message.status,
        "source": message.source,
        "from": message.sender,
        "subject": message.subject,
        "billing_status": message.billing_status,
        "recipient_count": message.recipient_count,
        "credits_reserved": message.credits_reserved,
        "created_at": moment(message.created_at),
        "recipients": [_recipient(message, one) for one in message.recipients],
    }


def _recipient(message: Message, recipient: Recipient) -> dict[str, Any]:
    return {
        "id": ids.text(ids.RECIPIENT, ids.recipient_id(message.id, recipient.position)),
        "email": recipient.email,
        "status": recipient.status,
        "billing_status": recipient.billing_status,
        "attempt_count": recipient.attempt_count,
        "last_smtp_code": recipient.last_smtp_code,
        "last_smtp_response": recipient.last_smtp_response,
        "delivered_at": moment(recipient.delivered_at),
        "bounced_at": moment(recipient.bounced_at),
    }
