"""The route that sends many emails with one request."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from posthouse import metrics
from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.access_log import ACCOUNT_ID
from posthouse.entrypoints.http.bulk_request import read_bulk, read_whole_bulk
from posthouse.entrypoints.http.in_progress import LARGE_WORK
from posthouse.entrypoints.http.openapi import IDEMPOTENCY_KEY, json_body, responses_with
from posthouse.entrypoints.http.repeated_headers import check_idempotency_key
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.route_context import json_response, require_declared_parameters, services_of
from posthouse.entrypoints.http.schemas.emails import BatchRequest, BatchResponse
from posthouse.entrypoints.http.send_email import (
    REPLAYED,
    authorization_of,
    content_of,
    idempotency_key,
    peer_of,
    traced,
    traceparent_of,
)
from posthouse.entrypoints.refusals import http_status
from posthouse.flows.accept.bulk import BulkResult
from posthouse.flows.shared.large_mail import in_turn
from posthouse.rules import limits
from posthouse.rules.refusal import Refusal
from posthouse.traces import Span

router = APIRouter()


@router.post(
    "/emails/batch",
    operation_id="sendEmailBatch",
    summary="Send many messages",
    description="Each email is accepted or refused by itself, and has its result; with `all`, one refusal refuses "
    f"the request. The body is at most 16 MiB. {limits.BULK_EMAILS_PER_REQUEST} emails count as one request of the "
    "rate. The same request with the same key has the same ids again, and tries what was refused.",
    tags=["Email"],
    openapi_extra=json_body(BatchRequest) | {"parameters": [IDEMPOTENCY_KEY]},
    responses=responses_with(200, BatchResponse, 400, 401, 402, 403, 409, 413, 429, 500, 503),
)
async def send_email_batch(request: Request) -> Response:
    tracer = services_of(request).tracer
    scope = request.scope
    span = None if tracer is None else tracer.begin_request("POST /emails/batch", traceparent_of(scope))
    return await (_send(request, None) if span is None else traced(span, scope, _send(request, span)))


async def _send(request: Request, span: Span | None) -> Response:
    services = services_of(request)
    scope = request.scope
    headers = dict(scope["headers"])
    principal = await services.admission.sender(authorization_of(headers), peer_of(scope))
    scope[ACCOUNT_ID] = principal.account_id
    require_declared_parameters(request)
    reader: BodyReader = request.app.state.reader
    reader.check_headers(scope)
    check_idempotency_key(scope)
    key = idempotency_key(headers)
    async with reader.in_progress.request(principal.account_id, headers) as in_progress:
        body = await reader.read(request.receive, request=in_progress)
        await in_progress.begin_work(body, LARGE_WORK)
        fingerprint = services.intake.fingerprint
        if len(body) > limits.THREAD_BODY_BYTES_MIN:
            bulk = await in_turn(principal.account_id, partial(read_whole_bulk, body, fingerprint))
        else:
            bulk = read_bulk(body, fingerprint)
        del body
        # Its pieces are prepared and written in turn with those of other accounts.
        in_progress.reduce_work()
        results = await services.intake.accept_bulk(principal, key, bulk, responses.request_id_of(scope), span=span)
    request_id = responses.request_id_text(scope)
    response = json_response(request, {"results": [_result(result, request_id) for result in results]})
    accepted = [result.answer for result in results if not isinstance(result, Refusal)]
    for answer in accepted:
        response.headers.update(answer.rate_headers)
    if accepted and all(answer.is_replay for answer in accepted):
        response.headers[REPLAYED] = "true"
    return response


def _result(result: BulkResult, request_id: str) -> dict[str, Any]:
    if isinstance(result, Refusal):
        metrics.ACCEPTS.count("http", result.code.value)
        return {
            "error": result.text,
            "code": result.code.value,
            "request_id": request_id,
            "http_status": http_status(result.code),
        }
    metrics.ACCEPTS.count("http", "replayed" if result.answer.is_replay else "accepted")
    return content_of(result.draft, result.answer, request_id)
