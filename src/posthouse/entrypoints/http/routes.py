"""Every route but POST /emails: read the request, call one flow, shape the answer."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from posthouse.entrypoints.http import answers, schemas
from posthouse.entrypoints.http.bodies import BodyReader, parsed, validated
from posthouse.entrypoints.http.declared import answers_with, takes
from posthouse.entrypoints.http.sending import peer_of
from posthouse.entrypoints.http.services import Services
from posthouse.flows.authoring import TemplateRow, VersionRow
from posthouse.flows.caller import Member
from posthouse.flows.inquiry import Message, Recipient
from posthouse.rules import credential, ids, limits
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.template import Template

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100
SMALL_BODY_BYTES_MAX: Final = 64 * 1024
PREVIEW_BODY_BYTES_MAX: Final = 1 * limits.MIB
# Two parts of text, each character up to four bytes, or six as an escape.
TEMPLATE_BODY_BYTES_MAX: Final = 4 * limits.MIB

Body = TypeVar("Body", bound=BaseModel)

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
    services = _services(request)
    caller = await services.admission.reader(request.headers.get("authorization"), peer_of(request.scope))
    message = await services.inquiry.message(caller.account_id, message_id)
    return _json(request, _message(message))


@router.post(
    "/v1/auth/login",
    operation_id="login",
    summary="Log in to the dashboard",
    tags=["Dashboard"],
    openapi_extra=takes(schemas.LoginBody, is_public=True),
    responses=answers_with(200, schemas.LoginAnswer, 400, 401, 413, 429, 500, 503),
)
async def login(request: Request) -> Response:
    body = await _body(request, schemas.LoginBody)
    session = await _services(request).admission.login(body.email, body.password, peer_of(request.scope))
    return _json(request, {"token": session.token, "expires_at": _time(session.expires_at)})


@router.get(
    "/v1/templates",
    operation_id="listTemplates",
    summary="The account's templates, newest first",
    tags=["Templates"],
    responses=answers_with(200, schemas.TemplateListResponse, 400, 401, 500, 503),
)
async def list_templates(
    request: Request,
    limit: Annotated[
        str,
        Query(
            description="1 to 100.",
            json_schema_extra={"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
        ),
    ] = str(PAGE_DEFAULT),
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> Response:
    member = await _member(request)
    page = await _services(request).authoring.page(member.account_id, cursor, _page_size(limit))
    content = {"templates": [_template(one) for one in page.templates], "next_cursor": page.next_cursor}
    return _json(request, content)


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
    member = await _writer(request)
    body = await _body(request, schemas.TemplateBody, TEMPLATE_BODY_BYTES_MAX)
    created = await _services(request).authoring.create(
        member.account_id, body.alias, body.name, _content(body), publish=body.publish
    )
    return _json(request, {"template": _template(created)}, 201)


@router.get(
    "/v1/templates/{alias}",
    operation_id="getTemplate",
    summary="A template with its versions",
    tags=["Templates"],
    responses=answers_with(200, schemas.TemplateDetailResponse, 401, 404, 500, 503),
)
async def get_template(request: Request, alias: str) -> Response:
    member = await _member(request)
    found, versions = await _services(request).authoring.template(member.account_id, alias)
    return _json(request, {"template": {**_template(found), "versions": [_version(one) for one in versions]}})


@router.delete(
    "/v1/templates/{alias}",
    operation_id="deleteTemplate",
    summary="Delete a template and its versions",
    tags=["Templates"],
    responses=answers_with(200, schemas.DeletedResponse, 401, 403, 404, 500, 503),
)
async def delete_template(request: Request, alias: str) -> Response:
    member = await _writer(request)
    await _services(request).authoring.delete(member.account_id, alias)
    return _json(request, {"deleted": True})


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
    member = await _writer(request)
    body = await _body(request, schemas.VersionBody, TEMPLATE_BODY_BYTES_MAX)
    grown = await _services(request).authoring.add_version(
        member.account_id, alias, _content(body), publish=body.publish
    )
    return _json(request, {"template": _template(grown), "version": grown.latest_version}, 201)


@router.post(
    "/v1/templates/{alias}/publish",
    operation_id="publishTemplate",
    summary="Make a version the one that is sent",
    tags=["Templates"],
    openapi_extra=takes(schemas.PublishBody),
    responses=answers_with(200, schemas.TemplateResponse, 400, 401, 403, 404, 413, 500, 503),
)
async def publish_template(request: Request, alias: str) -> Response:
    member = await _writer(request)
    body = await _body(request, schemas.PublishBody)
    published = await _services(request).authoring.publish(member.account_id, alias, body.version)
    return _json(request, {"template": _template(published)})


@router.post(
    "/v1/templates/{alias}/preview",
    operation_id="previewTemplate",
    summary="Render a version without sending it",
    tags=["Templates"],
    openapi_extra=takes(schemas.PreviewBody),
    responses=answers_with(200, schemas.PreviewResponse, 400, 401, 404, 413, 500, 503),
)
async def preview_template(request: Request, alias: str) -> Response:
    member = await _member(request)
    body = await _body(request, schemas.PreviewBody, PREVIEW_BODY_BYTES_MAX)
    rendered = await _services(request).authoring.preview(member.account_id, alias, body.version, body.variables)
    return _json(request, {"subject": rendered.subject, "text": rendered.text, "html": rendered.html})


@router.get(
    "/healthz",
    operation_id="health",
    summary="Whether the process is alive",
    tags=["Operation"],
    openapi_extra={"security": []},
    responses=answers_with(200, schemas.HealthResponse, 500, 503),
)
async def health(request: Request) -> Response:
    return _json(request, {"status": "ok"})


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _member(request: Request) -> Member:
    return await _services(request).admission.member(request.headers.get("authorization"))


async def _writer(request: Request) -> Member:
    member = await _member(request)
    if not credential.may_send(member.role):
        raise Refusal(Code.FORBIDDEN, "A viewer may only look: ask for the role of a member.")
    return member


async def _body(request: Request, model: type[Body], bytes_max: int = SMALL_BODY_BYTES_MAX) -> Body:
    reader: BodyReader = request.app.state.reader
    reader.check_headers(dict(request.scope["headers"]), bytes_max)
    return validated(model, parsed(await reader.read(request.receive, bytes_max)))


def _page_size(given: str) -> int:
    if given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= PAGE_MAX:
        return int(given[:9])
    raise invalid(f"`limit` is a number from 1 to {PAGE_MAX}.")


def _json(request: Request, content: Mapping[str, Any], status: int = 200) -> Response:
    whole = {**content, "request_id": answers.request_id_text(request.scope)}
    return Response(answers.encoded(whole), status_code=status, media_type="application/json")


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _content(body: schemas.TemplateContentBody) -> Template:
    return Template(body.subject or None, body.text or None, body.html or None)


def _template(row: TemplateRow) -> dict[str, Any]:
    return {
        "alias": row.alias,
        "name": row.name,
        "published_version": row.published_version,
        "latest_version": row.latest_version,
        "created_at": _time(row.created_at),
        "updated_at": _time(row.updated_at),
    }


def _version(row: VersionRow) -> dict[str, Any]:
    return {
        "version": row.version,
        "subject": row.content.subject,
        "text": row.content.text,
        "html": row.content.html,
        "created_at": _time(row.created_at),
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
        "created_at": _time(message.created_at),
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
        "delivered_at": _time(recipient.delivered_at),
        "bounced_at": _time(recipient.bounced_at),
    }
