"""Response schemas of events, as they are listed and as they are sent to a webhook."""

from typing import Annotated

from pydantic import BaseModel, Field

from posthouse.entrypoints.http.schemas.shapes import EventType, Response, described
from posthouse.rules import endpoint, event


class EventData(BaseModel):
    email_id: str | None = Field(default=None, description="The message's id.")
    recipient_id: str | None = Field(default=None, description="Distinguishes two addresses of a message.")
    to: str | None = Field(default=None, description="The address whose result is final.")
    sender: str | None = Field(default=None, alias="from", description="The envelope sender as submitted.")
    subject: str | None = Field(default=None, description="At most 200 characters of it.")
    smtp_code: int | None = Field(default=None, description="From the destination's server.")
    smtp_response: str | None = Field(default=None, description="At most 500 characters of it.")
    metadata: dict[str, str] | None = Field(
        default=None, description="The message's, in `GET /v1/events` alone; absent if it has none, and in webhooks."
    )
    test: bool | None = Field(default=None, description="`true` in `webhook.test`, absent elsewhere.")
    erased: bool | None = Field(default=None, description="`true` once its address is erased, absent elsewhere.")


class Event(BaseModel):
    id: Annotated[str, described("The same for retries and replays: deduplicate on it.")]
    type: EventType
    created_at: Annotated[str, described("RFC 3339, UTC; the same in every attempt.", format="date-time")]
    data: Annotated[EventData, described("Empty fields are absent.")]


class ListedEventData(EventData):
    """With the fields of types that are listed only if they are asked for."""

    mode: str | None = Field(default=None, description="`live` or `test`.")
    tags: list[str] | None = None
    reason: str | None = Field(default=None, description="Why it was deferred or returned.")
    mailing_list: str | None = Field(default=None, alias="list", description="Of `email.unsubscribed`.")
    domain: str | None = Field(default=None, description="Of `domain.*`.")
    alert: str | None = Field(default=None, description="The kind, of `alert.*`.")
    about: str | None = Field(default=None, description="What the alert is about, of `alert.*`.")
    value: float | None = Field(default=None, description="What was measured, of `alert.*`.")
    threshold: float | None = Field(default=None, description="Of `alert.*`.")


class ListedEvent(Event):
    type: Annotated[str, Field(json_schema_extra={"enum": [*event.EventType, *endpoint.FurtherType]})]
    data: Annotated[ListedEventData, described("Empty fields are absent.")]


class EventListResponse(Response):
    events: Annotated[
        list[ListedEvent],
        described("Oldest first; an event is listed 10 seconds after it is created."),
    ]
    next_cursor: Annotated[
        str | None, described("Pass it as `after`, now or later, to continue; null while there are no events.")
    ]
    has_more: Annotated[
        bool,
        described("Whether to continue at once; also true for a page with fewer events than `limit`, even none."),
    ]
