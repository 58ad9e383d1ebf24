"""Shapes that several families of schemas share."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Self

from pydantic import AliasPath, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, PlainSerializer
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from posthouse.entrypoints.http.responses import timestamp
from posthouse.rules import event, ids
from posthouse.rules.refusal import Code

# The alias of a template.
ALIAS_PATTERN: Final = "^[a-z0-9][a-z0-9_-]{0,63}$"


def described(text: str, **schema: Any) -> Any:
    """A field with a description. Limits in `schema` are only documentation; the rules enforce them."""
    return Field(description=text, json_schema_extra=schema or None)


def examples(*given: JsonDict) -> ConfigDict:
    """The configuration of a model with examples. That of a response gets its `request_id` in the document."""
    return ConfigDict(json_schema_extra={"examples": [*given]})


class RequestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


class Shown(BaseModel):
    """A part of a response, read from a row: each field from the attribute of its name."""

    model_config = ConfigDict(from_attributes=True, validate_by_name=True, validate_by_alias=True)

    @classmethod
    def of(cls, row: object, **derived: object) -> Self:
        """`derived` are the fields that are not read from the row."""
        return cls.model_validate(_Extended(row, derived) if derived else row)

    @classmethod
    def of_all(cls, rows: Iterable[object]) -> list[Self]:
        return [cls.model_validate(row) for row in rows]


class _Extended:
    """A row with derived attributes."""

    __slots__ = ("_derived", "_row")

    def __init__(self, row: object, derived: Mapping[str, object]) -> None:
        self._row = row
        self._derived = derived

    def __getattr__(self, name: str) -> object:
        return self._derived[name] if name in self._derived else getattr(self._row, name)


class Response(Shown):
    """A whole response. Its `request_id` is added when it is sent, and documented here."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        fields = handler.resolve_ref_schema(schema)
        fields["properties"] = {"request_id": _REQUEST_ID, **fields.get("properties", {})}
        fields["required"] = ["request_id", *fields.get("required", [])]
        if "examples" in fields:
            fields["examples"] = [{**example, "request_id": REQUEST_ID_EXAMPLE} for example in fields["examples"]]
        return schema


def absent(text: str) -> Any:
    """A field that a response doesn't have while it is None."""
    return Field(default=None, description=text, exclude_if=lambda value: value is None)


class _IdText(PlainSerializer):
    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        assert isinstance(self.func, partial)  # noqa: S101 (made by `id_text`)
        return {"type": "string", "examples": [f"{self.func.args[0]}01k6wq3v5e7m8x9c0b2d4f6h80"]}


def read_from(*path: str) -> Any:
    """A field that is read from an attribute of another name, or from an attribute of an attribute."""
    return Field(validation_alias=AliasPath(*path))


def id_text(prefix: str) -> Any:
    """How a field with an id is written."""
    return _IdText(partial(ids.text, prefix), return_type=str)


REQUEST_ID_EXAMPLE: Final = "rq_01k6wq7a3c5e7g9j1m3p5r7t90"
_REQUEST_ID: Final = {
    "title": "Request Id",
    "type": "string",
    "description": "The value of the header X-Request-ID.",
    "examples": [REQUEST_ID_EXAMPLE],
}
_RFC_3339: Final = described("RFC 3339, UTC.", examples=["2026-11-15T09:30:00.000Z"])

Timestamp = Annotated[datetime, PlainSerializer(timestamp, return_type=str), _RFC_3339]
OptionalTimestamp = Annotated[datetime | None, PlainSerializer(timestamp, return_type=str | None), _RFC_3339]
NextCursor = Annotated[str | None, described("Pass it as `cursor` for the next page; null on the last page.")]
# Fields that mean the same in many responses.
AlwaysTrue = Annotated[bool, Field(json_schema_extra={"const": True})]
FromAddress = Annotated[str, Field(alias="from", description="As given, with its display name if any.")]
TemplateAlias = Annotated[str | None, described("The alias of its template, if any.")]
RecipientCount = Annotated[int, described("Unique recipients.")]
CreditsReserved = Annotated[int, described("One for each recipient, 0 with a test key; it never changes.")]
AvailableCredits = Annotated[int, described("Credits that can be spent now.")]
SuspendedReason = Annotated[str | None, described("Why the account is suspended; null if it is not.")]
VerifiedAt = Annotated[OptionalTimestamp, described("When it was verified; null if it may not send.")]
RevokedAt = Annotated[OptionalTimestamp, described("When it was revoked; null while it works.")]
FinishedAt = Annotated[OptionalTimestamp, described("RFC 3339, UTC; null while it runs.")]
HasSecondFactor = Annotated[bool, described("Whether the user has a second factor.")]
AttemptCount = Annotated[int, described("Attempts so far.")]
LastCode = Annotated[int | None, described("The code of the last reply; null if no server answered.")]
LastResponse = Annotated[str | None, described("The text of the last reply, or ours if no server answered.")]
ReplyCode = Annotated[int | None, described("From the destination's server, if it replied.")]
ReplyText = Annotated[str | None, described("The text of that reply.")]
P95Seconds = Annotated[float, described("95 % took at most this long.")]
P99Seconds = Annotated[float, described("99 % took at most this long.")]
ErrorText = Annotated[str, described("What is wrong and how to correct it, for people.")]
EventType = Annotated[str, Field(json_schema_extra={"enum": [event_type.value for event_type in event.EventType]})]


class Error(Response):
    model_config = examples(
        {"error": "`replyTo` is not a field of this request. Did you mean `reply_to`?", "code": "invalid_request"}
    )

    error: ErrorText
    code: Code


class DeletedResponse(Response):
    deleted: AlwaysTrue
