"""The routes of domains."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
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
from posthouse.entrypoints.http.schemas import domains as schemas
from posthouse.entrypoints.http.schemas.shapes import DeletedResponse
from posthouse.flows.account.domains import DomainRow, DomainView, ShownRecord, results_of
from posthouse.rules import ids

router = APIRouter()

# The owner of a name controls how much is found there.
FOUND_SHOWN_MAX: Final = 10
FOUND_CHARACTERS_SHOWN_MAX: Final = 1_000

_Name = Annotated[str, Path(description="The domain, such as `example.com`.")]


@router.get(
    "/v1/domains",
    operation_id="listDomains",
    summary="The account's domains, newest first, without their records",
    tags=["Domains"],
    responses=responses_with(200, schemas.DomainListResponse, 400, 401, 500, 503),
)
async def list_domains(
    request: Request,
    limit: PageSize = str(PAGE_DEFAULT),
    cursor: Cursor = None,
) -> Response:
    caller = await caller_of(request)
    page = await services_of(request).domains.page(caller.account_id, page_size(limit), cursor)
    return page_response(request, "domains", page, _summary)


@router.post(
    "/v1/domains",
    operation_id="addDomain",
    summary="Add a domain; the response has the DNS records to publish",
    tags=["Domains"],
    status_code=201,
    openapi_extra=json_body(schemas.DomainRequest),
    responses=responses_with(201, schemas.DomainResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def add_domain(request: Request) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.DomainRequest)
    view = await services_of(request).domains.add(caller.account_id, body.name, caller.actor)
    return json_response(request, {"domain": _domain(view)}, 201)


@router.get(
    "/v1/domains/{name}",
    operation_id="getDomain",
    summary="A domain with its DNS records",
    tags=["Domains"],
    responses=responses_with(200, schemas.DomainResponse, 401, 404, 500, 503),
)
async def get_domain(request: Request, name: _Name) -> Response:
    caller = await caller_of(request)
    return json_response(request, {"domain": _domain(await services_of(request).domains.get(caller.account_id, name))})


@router.post(
    "/v1/domains/{name}/verify",
    operation_id="verifyDomain",
    summary="Check the domain's records in DNS now; at most every 5 seconds",
    tags=["Domains"],
    responses=responses_with(200, schemas.DomainResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def verify_domain(request: Request, name: _Name) -> Response:
    caller = await caller_of(request)
    checked = await services_of(request).domains.verify(caller.account_id, name, caller.actor)
    return json_response(request, {"domain": _domain(checked.view)})


@router.post(
    "/v1/domains/{name}/rotate",
    operation_id="rotateDomainKeys",
    summary="Create new DKIM keys; they sign once their record is found in DNS, until then the present keys do",
    tags=["Domains"],
    responses=responses_with(200, schemas.DomainResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def rotate_domain_keys(request: Request, name: _Name) -> Response:
    caller = await caller_of(request)
    view = await services_of(request).domains.rotate(caller.account_id, name, caller.actor)
    return json_response(request, {"domain": _domain(view)})


@router.delete(
    "/v1/domains/{name}",
    operation_id="removeDomain",
    summary="Remove a domain and its keys; mail from it that is still queued goes out unsigned",
    tags=["Domains"],
    responses=responses_with(200, DeletedResponse, 401, 403, 404, 429, 500, 503),
)
async def remove_domain(request: Request, name: _Name) -> Response:
    caller = await caller_of(request)
    await services_of(request).domains.remove(caller.account_id, name, caller.actor)
    return json_response(request, {"deleted": True})


def _summary(row: DomainRow) -> dict[str, Any]:
    return {
        "id": ids.text(ids.DOMAIN, row.id),
        "name": row.name,
        "verified": row.verified_at is not None,
        "vouched": row.is_vouched_for,
        "shared": row.is_shared,
        "verified_at": timestamp(row.verified_at),
        "checked_at": timestamp(row.checked_at),
        "missing_since": timestamp(row.missing_since),
        "dns_host": row.dns_host,
        "findings": [{"purpose": purpose, "result": result} for purpose, result in results_of(row)],
        "created_at": timestamp(row.created_at),
    }


def _domain(view: DomainView) -> dict[str, Any]:
    records = [_record(line) for line in view.lines]
    return {**_summary(view.domain), "rotating": view.waiting is not None, "records": records}


def _record(line: ShownRecord) -> dict[str, Any]:
    record, finding = line.record, line.finding
    found = None
    if finding is not None:
        found = [value[:FOUND_CHARACTERS_SHOWN_MAX] for value in finding.found[:FOUND_SHOWN_MAX]]
    return {
        "purpose": record.purpose,
        "state": line.stage,
        "type": "TXT",
        "name": record.name,
        "value": record.value or None,
        "required": record.is_required,
        "result": None if finding is None else finding.result,
        "found": found,
        "checked_at": timestamp(line.checked_at),
        "advice": line.advice,
    }
