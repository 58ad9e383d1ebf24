"""Shapes that several families of schemas share."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.rules import event
from posthouse.rules.refusal import Code

# Of a template.
ALIAS_PATTERN: Final = "^[a-z0-9][a-z0-9_-]{0,63}$"


def described(text: str, **schema: Any) -> Any:
    """A field with a description. Limits in `schema` only document; the rules enforce them."""
    return Field(description=text, json_schema_extra=schema or None)


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


class Response(BaseModel):
    request_id: Annotated[str, described("The value of the header X-Request-ID.")]


Timestamp = Annotated[str, described("RFC 3339, UTC.", format="date-time")]
NextCursor = Annotated[str | None, described("Pass it as `cursor` for the next page; null on the last page.")]
OptionalTimestamp = Annotated[str | None, described("RFC 3339, UTC.", format="date-time")]
EventType = Annotated[str, Field(json_schema_extra={"enum": [event_type.value for event_type in event.EventType]})]


class Error(Response):
    error: Annotated[str, described("What is wrong and how to correct it, for people.")]
    code: Code


class DeletedResponse(Response):
    deleted: bool
