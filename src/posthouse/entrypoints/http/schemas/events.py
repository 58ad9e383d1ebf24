"""Response schemas of events, as they are listed and as they are sent to a webhook."""

from typing import Annotated

from pydantic import BaseModel, Field

from posthouse.entrypoints.http.schemas.shapes import EventType, Response, described


class EventData(BaseModel):
    email_id: str | None = Field(default=None, description="The message's id.")
    recipient_id: str | None = Field(default=None, description="Tells apart two addresses of one message.")
    to: str | None = Field(default=None, description="The address that reached its result.")
    sender: str | None = Field(default=None, alias="from", description="The envelope's sender, as it was submitted.")
    subject: str | None = Field(default=None, description="At most 200 characters of it.")
    smtp_code: int | None = Field(default=None, description="From the destination's server.")
    smtp_response: str | None = Field(default=None, description="At most 500 characters of it.")
    test: bool | None = Field(default=None, description="`true` in `webhook.test`, absent elsewhere.")


class Event(BaseModel):
    id: Annotated[str, described("Retries and replays have the same one: a receiver deduplicates on it.")]
    type: EventType
    created_at: Annotated[str, described("RFC 3339, UTC; the same in every attempt.", format="date-time")]
    data: Annotated[EventData, described("Empty fields are absent.")]


class EventListResponse(Response):
    events: Annotated[
        list[Event],
        described("Oldest first; an event is shown 10 seconds after it was made."),
    ]
    next_cursor: Annotated[
        str | None, described("Pass it as `after`, now or later, to read on; null while there was nothing to read.")
    ]
    has_more: Annotated[
        bool,
        described("Whether to read on at once; a page may hold fewer events than `limit`, even none, and yet be true."),
    ]
