"""The routes of resends: failed mail is sent again."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import IDEMPOTENCY_KEY, json_body, responses_with
from posthouse.entrypoints.http.route_context import body_of, caller_of, json_response, key_of, services_of, timestamp
from posthouse.entrypoints.http.schemas import resends as schemas
from posthouse.flows.account.resends import ResendRequest, ResendRow
from posthouse.rules import ids

router = APIRouter()

ResendId = Annotated[str, Path(alias="id", description="The id from `POST /v1/resends`.")]

_DESCRIPTION: Final = """\
Messages that failed, and those that bounced because of a policy, become new messages with the same content, for the
recipients that did not get them; each at most once. Unknown, suppressed and unsubscribed addresses get nothing. The
work goes on after the answer, at a pace: `GET /v1/resends/{id}` shows how far it is. With `dry_run`, it only counts.
"""


@router.post(
    "/v1/resends",
    operation_id="createResend",
    summary="Send failed messages again",
    description=_DESCRIPTION,
    tags=["Messages"],
    status_code=202,
    openapi_extra=json_body(schemas.ResendRequest) | {"parameters": [IDEMPOTENCY_KEY]},
    responses=responses_with(202, schemas.ResendResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def create_resend(request: Request) -> Response:
    caller = await caller_of(request)
    key = key_of(request)
    resend = await services_of(request).resends.begin(caller, key, await resend_request(request))
    return json_response(request, {"resend": resend_fields(resend)}, 202)


@router.get(
    "/v1/resends/{id}",
    operation_id="getResend",
    summary="How far a resend is",
    tags=["Messages"],
    responses=responses_with(200, schemas.ResendResponse, 401, 403, 404, 500, 503),
)
async def get_resend(request: Request, resend_id: ResendId) -> Response:
    caller = await caller_of(request)
    resend = await services_of(request).resends.resend(caller.account_id, resend_id)
    return json_response(request, {"resend": resend_fields(resend)})


@router.post(
    "/v1/resends/{id}/stop",
    operation_id="stopResend",
    summary="End a resend; what was sent again stays",
    tags=["Messages"],
    responses=responses_with(200, schemas.ResendResponse, 401, 403, 404, 429, 500, 503),
)
async def stop_resend(request: Request, resend_id: ResendId) -> Response:
    caller = await caller_of(request)
    resend = await services_of(request).resends.stop(caller, resend_id)
    return json_response(request, {"resend": resend_fields(resend)})


async def resend_request(request: Request) -> ResendRequest:
    body = await body_of(request, schemas.ResendRequest)
    return ResendRequest(body.since, body.until, body.tag, body.metadata or {}, body.destination, body.dry_run)


def resend_fields(resend: ResendRow) -> dict[str, Any]:
    counts = resend.counts
    return {
        "id": ids.text(ids.RESEND, resend.id),
        "status": resend.status.value,
        "dry_run": resend.is_dry_run,
        "since": timestamp(resend.since),
        "until": timestamp(resend.until),
        "tag": resend.tag,
        "metadata": resend.metadata,
        "destination": resend.destination,
        "found": counts.found,
        "recipients": counts.recipients,
        "resent": counts.resent,
        "no_body": counts.without_body,
        "never": counts.never,
        "refused": counts.refused,
        "waits_for": resend.waits_for,
        "created_at": timestamp(resend.created_at),
        "finished_at": timestamp(resend.finished_at),
    }
