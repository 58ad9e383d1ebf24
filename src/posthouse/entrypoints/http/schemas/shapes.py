"""What all shapes are made of."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


def described(text: str, **schema: Any) -> Any:
    """A field whose limits are documented here and enforced by the rules, in one place each."""
    return Field(description=text, json_schema_extra=schema or None)


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


class Response(BaseModel):
    request_id: Annotated[str, described("The value of the header X-Request-ID.")]


Moment = Annotated[str, described("RFC 3339, UTC.", format="date-time")]
NextCursor = Annotated[str | None, described("Pass it as `cursor` for the next page; null on the last.")]
