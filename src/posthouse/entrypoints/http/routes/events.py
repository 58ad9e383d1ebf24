"""Events: the list, for accounts that fetch them instead of receiving webhooks, and an event as a webhook gets it."""

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic_core
from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response as HttpResponse

from posthouse.entrypoints.http.operation import Operations, PageSize
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, MessageFilter, json_response
from posthouse.entrypoints.http.shapes import EventType, Response, described, examples
from posthouse.flows.shared.principal import Caller
from posthouse.flows.webhooks.event_feed import FEED_TYPES, EventFeed, StoredEvent
from posthouse.rules import endpoint, event
from posthouse.rules.credential import Role, Scope
from posthouse.rules.ids import MessageId

router = Operations("Events", Scope.EVENTS)


class EventData(BaseModel):
    email_id: str | None = Field(default=None, description="The message's id.")
    recipient_id: str | None = Field(default=None, description="Distinguishes two addresses of a message.")
    to: str | None = Field(default=None, description="The address whose result is final.")
    sender: str | None = Field(default=None, alias="from", description="The envelope sender as submitted.")
    subject: str | None = Field(default=None, description="At most its first 200 characters.")
    smtp_code: int | None = Field(default=None, description="From the destination's server.")
    smtp_response: str | None = Field(default=None, description="At most its first 500 characters.")
    metadata: dict[str, str] | None = Field(
        default=None, description="The message's, only in `GET /v1/events`; absent if it has none, and in webhooks."
    )
    test: bool | None = Field(default=None, description="`true` in `webhook.test`, absent elsewhere.")
    erased: bool | None = Field(default=None, description="`true` once its address is erased, absent elsewhere.")


class Event(BaseModel):
    model_config = examples(
        {
            "id": "ev_01k6wq3v5e7m8x9c0b2d4f6h83",
            "type": "email.bounced",
            "created_at": "2026-11-15T09:30:00.000Z",
            "data": {
                "email_id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
                "recipient_id": "rc_01k6wq3v5e7m8x9c0b2d4f6h81",
                "to": "ada@example.net",
                "from": "hello@example.com",
                "subject": "Welcome",
                "smtp_code": 550,
                "smtp_response": "5.1.1 no such mailbox",
            },
        }
    )

    id: Annotated[str, described("The same for retries and replays: deduplicate on it.")]
    type: EventType
    created_at: Annotated[str, described("RFC 3339, UTC; the same in every attempt.", format="date-time")]
    data: Annotated[EventData, described("Empty fields are absent.")]


class ListedEventData(EventData):
    """Includes the fields of types that are listed only when requested."""

    mode: str | None = Field(default=None, description="`live` or `test`.")
    tags: list[str] | None = Field(default=None, description="The message's; absent if it has none.")
    reason: str | None = Field(default=None, description="Why it was deferred or returned.")
    mailing_list: str | None = Field(default=None, alias="list", description="The list, for `email.unsubscribed`.")
    domain: str | None = Field(default=None, description="For `domain.*`.")
    alert: str | None = Field(default=None, description="The kind, for `alert.*`.")
    about: str | None = Field(default=None, description="What the alert is about, for `alert.*`.")
    value: float | None = Field(default=None, description="The measured value, for `alert.*`.")
    threshold: float | None = Field(default=None, description="For `alert.*`.")


class ListedEvent(Event):
    type: Annotated[str, Field(json_schema_extra={"enum": [*event.EventType, *endpoint.FurtherType]})]
    data: Annotated[ListedEventData, described("Empty fields are absent.")]


class EventListResponse(Response):
    events: Annotated[
        list[ListedEvent],
        described("Oldest first; an event is listed 10 seconds after it is created."),
    ]
    next_cursor: Annotated[
        str | None,
        described(
            "Pass it as `after`, now or later, to continue; null while there are no events.",
            examples=["ev_01k6wq3v5e7m8x9c0b2d4f6h83"],
        ),
    ]
    has_more: Annotated[
        bool,
        described(
            "Whether to continue immediately; may be true for a page with fewer events than `limit`, even none.",
            examples=[False],
        ),
    ]


# Events are stored as JSON, and listed as they are stored.
@router.get("/v1/events", Role.VIEWER, content=EventListResponse)
async def list_events(
    caller: Caller,
    request: Request,
    event_feed: EventFeed,
    event_type: Annotated[
        str | None,
        Query(
            alias="type",
            description="Only of this type; without it, those of the webhook. Other types are stored while an endpoint "
            "asks for them.",
            json_schema_extra={"enum": [event_type.value for event_type in FEED_TYPES]},
        ),
    ] = None,
    message_id: MessageFilter = None,
    limit: PageSize = PAGE_DEFAULT,
    after: Annotated[
        str | None, Query(description="`next_cursor` of the previous page: only later events are listed.")
    ] = None,
) -> HttpResponse:
    """The events of the last 30 days, oldest first"""
    page = await event_feed.page(caller.account_id, limit, after=after, event_type=event_type, message_id=message_id)
    listed = [_event(stored, page.metadata) for stored in page.items]
    return json_response(request, {"events": listed, "next_cursor": page.next_cursor, "has_more": page.has_more})


def _event(stored: StoredEvent, metadata: Mapping[MessageId, Mapping[str, str]]) -> dict[str, Any]:
    """The event as it is sent to a webhook, with its message's metadata."""
    content: dict[str, Any] = pydantic_core.from_json(stored.body)
    if stored.message_id is not None and stored.message_id in metadata:
        content["data"]["metadata"] = metadata[stored.message_id]
    return content
