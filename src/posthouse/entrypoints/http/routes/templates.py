"""The routes of templates."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    Cursor,
    PageSize,
    body_of,
    caller_of,
    json_response,
    page_response,
    page_size,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.schemas import templates as schemas
from posthouse.entrypoints.http.schemas.shapes import DeletedResponse
from posthouse.flows.account.templates import TemplateRow, TemplateVersionRow
from posthouse.rules import limits, template
from posthouse.rules.refusal import invalid
from posthouse.rules.template import Engine, Template

# Text and HTML; a character takes up to four bytes, or six as a JSON escape.
TEMPLATE_BODY_BYTES_MAX: Final = 4 * limits.MIB

router = APIRouter()


@router.get(
    "/v1/templates",
    operation_id="listTemplates",
    summary="The account's templates, newest first",
    tags=["Templates"],
    responses=responses_with(200, schemas.TemplateListResponse, 400, 401, 500, 503),
)
async def list_templates(
    request: Request,
    limit: PageSize = str(PAGE_DEFAULT),
    cursor: Cursor = None,
) -> Response:
    caller = await caller_of(request)
    page = await services_of(request).templates.page(caller.account_id, cursor, page_size(limit))
    return page_response(request, "templates", page, _template)


@router.post(
    "/v1/templates",
    operation_id="createTemplate",
    summary="Create a template with its first version",
    tags=["Templates"],
    status_code=201,
    openapi_extra=json_body(schemas.TemplateRequest),
    responses=responses_with(201, schemas.TemplateResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def create_template(request: Request) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.TemplateRequest, TEMPLATE_BODY_BYTES_MAX)
    created = await services_of(request).templates.create(
        caller.account_id, body.alias, body.name, _content(body), caller.actor, publish=body.publish
    )
    return json_response(request, {"template": _template(created)}, 201)


@router.get(
    "/v1/templates/{alias}",
    operation_id="getTemplate",
    summary="A template with its versions",
    tags=["Templates"],
    responses=responses_with(200, schemas.TemplateDetailResponse, 401, 404, 500, 503),
)
async def get_template(request: Request, alias: str) -> Response:
    caller = await caller_of(request)
    found, versions = await services_of(request).templates.template(caller.account_id, alias)
    return json_response(request, {"template": {**_template(found), "versions": [_version(row) for row in versions]}})


@router.put(
    "/v1/templates/{alias}",
    operation_id="renameTemplate",
    summary="Change a template's alias or name; mail that names the old alias is refused from then on",
    tags=["Templates"],
    openapi_extra=json_body(schemas.RenameTemplateRequest),
    responses=responses_with(200, schemas.TemplateResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def rename_template(request: Request, alias: str) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.RenameTemplateRequest)
    renamed = await services_of(request).templates.rename(caller.account_id, alias, body.alias, body.name, caller.actor)
    return json_response(request, {"template": _template(renamed)})


@router.delete(
    "/v1/templates/{alias}",
    operation_id="deleteTemplate",
    summary="Delete a template and its versions",
    tags=["Templates"],
    responses=responses_with(200, DeletedResponse, 401, 403, 404, 429, 500, 503),
)
async def delete_template(request: Request, alias: str) -> Response:
    caller = await caller_of(request)
    await services_of(request).templates.delete(caller.account_id, alias, caller.actor)
    return json_response(request, {"deleted": True})


@router.post(
    "/v1/templates/{alias}/versions",
    operation_id="createTemplateVersion",
    summary="Add a version; earlier versions are not changed",
    tags=["Templates"],
    status_code=201,
    openapi_extra=json_body(schemas.TemplateVersionRequest),
    responses=responses_with(201, schemas.TemplateVersionResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def create_template_version(request: Request, alias: str) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.TemplateVersionRequest, TEMPLATE_BODY_BYTES_MAX)
    grown = await services_of(request).templates.add_version(
        caller.account_id, alias, _content(body), caller.actor, publish=body.publish
    )
    return json_response(request, {"template": _template(grown), "version": grown.latest_version}, 201)


@router.post(
    "/v1/templates/{alias}/publish",
    operation_id="publishTemplate",
    summary="Publish a version: it is used from now on",
    tags=["Templates"],
    openapi_extra=json_body(schemas.PublishRequest),
    responses=responses_with(200, schemas.TemplateResponse, 400, 401, 403, 404, 413, 429, 500, 503),
)
async def publish_template(request: Request, alias: str) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.PublishRequest)
    published = await services_of(request).templates.publish(caller.account_id, alias, body.version, caller.actor)
    return json_response(request, {"template": _template(published)})


@router.post(
    "/v1/templates/{alias}/preview",
    operation_id="previewTemplate",
    summary="Render a version, or a draft that is not stored, without sending it",
    tags=["Templates"],
    openapi_extra=json_body(schemas.PreviewRequest),
    responses=responses_with(200, schemas.PreviewResponse, 400, 401, 404, 413, 429, 500, 503),
)
async def preview_template(request: Request, alias: str) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.PreviewRequest, TEMPLATE_BODY_BYTES_MAX)
    flow = services_of(request).templates
    draft = _content(body)
    if not draft.parts:
        preview = await flow.preview(caller.account_id, alias, body.version, body.variables)
    elif body.version is not None:
        raise invalid("Give either `version` or the content of a draft, not both.")
    else:
        preview = await flow.preview_draft(alias, draft, body.variables)
    rendered = preview.content
    content = {
        "subject": rendered.subject,
        "text": rendered.text,
        "html": rendered.html,
        "variables": _variables(preview.variables),
        "missing": preview.missing,
    }
    return json_response(request, content)


def _content(body: schemas.TemplateParts) -> Template:
    return Template(body.subject or None, body.text or None, body.html or None, template.engine(body.engine))


def _template(row: TemplateRow) -> dict[str, Any]:
    return {
        "alias": row.alias,
        "name": row.name,
        "published_version": row.published_version,
        "latest_version": row.latest_version,
        "created_at": timestamp(row.created_at),
        "updated_at": timestamp(row.updated_at),
    }


def _version(row: TemplateVersionRow) -> dict[str, Any]:
    return {
        "version": row.version,
        "subject": row.content.subject,
        "text": row.content.text,
        "html": row.content.html,
        **({} if row.content.engine is Engine.PLAIN else {"engine": row.content.engine}),
        "variables": _variables(template.variables(row.content)),
        "author": row.author,
        "created_at": timestamp(row.created_at),
    }


def _variables(found: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    return [{"name": name, "parts": parts} for name, parts in found.items()]
