"""The route that lists events, for accounts that fetch them instead of receiving a webhook."""

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic_core
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    MessageFilter,
    PageSize,
    caller_of,
    json_response,
    page_size,
    services_of,
)
from posthouse.entrypoints.http.schemas import events as schemas
from posthouse.flows.webhooks.webhook import FEED_TYPES, StoredEvent
from posthouse.rules.ids import MessageId

router = APIRouter()


@router.get(
    "/v1/events",
    operation_id="listEvents",
    summary="The events of the last 30 days, oldest first",
    tags=["Events"],
    responses=responses_with(200, schemas.EventListResponse, 400, 401, 500, 503),
)
async def list_events(
    request: Request,
    event_type: Annotated[
        str | None,
        Query(
            alias="type",
            description="Only of this type; without it, those of the webhook. Further types are kept while an endpoint "
            "asks for them.",
            json_schema_extra={"enum": [event_type.value for event_type in FEED_TYPES]},
        ),
    ] = None,
    message_id: MessageFilter = None,
    limit: PageSize = str(PAGE_DEFAULT),
    after: Annotated[
        str | None, Query(description="`next_cursor` of the page before: only later events are listed.")
    ] = None,
) -> Response:
    caller = await caller_of(request)
    page = await services_of(request).webhook_endpoint.events(
        caller.account_id, page_size(limit), after=after, event_type=event_type, message_id=message_id
    )
    content = {
        "events": [_event(event, page.metadata) for event in page.items],
        "next_cursor": page.next_cursor,
        "has_more": page.has_more,
    }
    return json_response(request, content)


def _event(event: StoredEvent, metadata: Mapping[MessageId, Mapping[str, str]]) -> dict[str, Any]:
    """As it is sent to a webhook, and with its message's metadata."""
    content: dict[str, Any] = pydantic_core.from_json(event.body)
    if event.message_id is not None and event.message_id in metadata:
        content["data"]["metadata"] = metadata[event.message_id]
    return content
