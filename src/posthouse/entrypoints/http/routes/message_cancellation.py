"""The route that cancels all waiting messages with a tag or with metadata."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import body_of, caller_of, json_response, services_of
from posthouse.entrypoints.http.schemas.message_cancellation import CancelMessagesRequest, CancelMessagesResponse
from posthouse.flows.account.message_cancellation import MESSAGES_MAX, waiting

router = APIRouter()

_DESCRIPTION: Final = f"""\
Each message is cancelled as by `POST /emails/{{id}}/cancel`, or stays as it is. A request cancels up to {MESSAGES_MAX},
the newest first: pass `next_cursor` as `cursor` until it is null. What is accepted meanwhile is not among them. With
`dry_run`, the answer is the same and nothing is changed.
"""


@router.post(
    "/v1/messages/cancel",
    operation_id="cancelMessages",
    summary="Cancel all messages with a tag or with metadata that were not tried yet",
    description=_DESCRIPTION,
    tags=["Messages"],
    openapi_extra=json_body(CancelMessagesRequest),
    responses=responses_with(200, CancelMessagesResponse, 400, 401, 403, 413, 429, 500, 503),
)
async def cancel_messages(request: Request) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, CancelMessagesRequest)
    done = await services_of(request).message_cancellation.cancel(
        caller, waiting(body.tag, body.metadata), body.cursor, is_dry_run=body.dry_run
    )
    content = {"cancelled": done.cancelled, "tried": done.tried, "next_cursor": done.next_cursor}
    return json_response(request, content)
