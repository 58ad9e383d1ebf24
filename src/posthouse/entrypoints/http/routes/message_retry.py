"""The route that moves a message's next try to now."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import body_of, caller_of, json_response, services_of
from posthouse.entrypoints.http.schemas.message_retry import RetryRequest, RetryResponse
from posthouse.rules import ids
from posthouse.rules.retry_request import PER_MESSAGE_MAX, RATE

router = APIRouter()

_DESCRIPTION: Final = f"""\
For recipients that were deferred: the try counts as an attempt, and waits for its destination's limits as any other.
A message can be retried {PER_MESSAGE_MAX} times, an account may ask {RATE.burst} times at once and once a minute after
that; a request that moves nothing counts for nothing.
"""


@router.post(
    "/v1/messages/{id}/retry",
    operation_id="retryMessage",
    summary="Try a message's deferred recipients now",
    description=_DESCRIPTION,
    tags=["Messages"],
    openapi_extra=json_body(RetryRequest),
    responses=responses_with(200, RetryResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def retry_message(
    request: Request, message_id: Annotated[str, Path(alias="id", description="The id from the send response.")]
) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, RetryRequest)
    retried = await services_of(request).message_retry.retry(
        caller.account_id, caller.actor, message_id, body.recipient
    )
    shown = [
        {
            "id": ids.text(ids.RECIPIENT, recipient.id),
            "email": recipient.email,
            "result": recipient.result.result.value,
            "text": recipient.result.text,
        }
        for recipient in retried
    ]
    return json_response(request, {"recipients": shown})
