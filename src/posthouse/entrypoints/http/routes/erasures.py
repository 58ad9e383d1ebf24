"""The routes of erasures: an address is taken out of an account's tables."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import body_of, caller_of, json_response, services_of, timestamp
from posthouse.entrypoints.http.schemas import erasures as schemas
from posthouse.flows.account.erasures import ErasureRow
from posthouse.rules import ids
from posthouse.rules.erasure import ErasurePhase

router = APIRouter()

_DESCRIPTION: Final = """\
Mail to the address that waits is cancelled, and from now on the account sends it none. In the background, usually
within minutes, the address is erased from messages, results, events and logs, with subject and content of its mail;
counts and credits stay. What is left is a keyed hash that goes on suppressing the address. A request for an address
whose erasure is running is answered with that one.
"""


@router.post(
    "/v1/erasures",
    operation_id="createErasure",
    summary="Erase an address",
    description=_DESCRIPTION,
    tags=["Suppressions"],
    status_code=202,
    openapi_extra=json_body(schemas.ErasureRequest),
    responses=responses_with(202, schemas.ErasureResponse, 400, 401, 403, 413, 429, 500, 503),
)
async def create_erasure(request: Request) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.ErasureRequest)
    erasure = await services_of(request).erasures.begin(caller, body.email)
    return json_response(request, {"erasure": _erasure(erasure)}, 202)


@router.get(
    "/v1/erasures/{id}",
    operation_id="getErasure",
    summary="How far an erasure is",
    tags=["Suppressions"],
    responses=responses_with(200, schemas.ErasureResponse, 401, 403, 404, 500, 503),
)
async def get_erasure(
    request: Request, erasure_id: Annotated[str, Path(alias="id", description="The id from `POST /v1/erasures`.")]
) -> Response:
    caller = await caller_of(request)
    erasure = await services_of(request).erasures.erasure(caller.account_id, erasure_id)
    return json_response(request, {"erasure": _erasure(erasure)})


def _erasure(erasure: ErasureRow) -> dict[str, Any]:
    return {
        "id": ids.text(ids.ERASURE, erasure.id),
        "status": "done" if erasure.phase is ErasurePhase.DONE else "running",
        "cancelled": erasure.cancelled,
        "messages": erasure.erased,
        "created_at": timestamp(erasure.created_at),
        "finished_at": timestamp(erasure.finished_at),
    }
