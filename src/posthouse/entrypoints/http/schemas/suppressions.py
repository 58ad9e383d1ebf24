"""Request and response schemas of suppressions."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from posthouse.entrypoints.http.schemas.shapes import NextCursor, Request, Response, Timestamp, described
from posthouse.rules.suppression import NOTE_CHARACTERS_MAX, SuppressionReason

_EXAMPLE: Final[JsonDict] = {
    "email": "ada@example.net",
    "reason": "manual",
    "note": "Asked on the phone for no more mail.",
    "added_by": "owner@example.com",
    "smtp_code": None,
    "smtp_response": None,
    "at": "2026-03-01T09:30:00.000Z",
}
_REQUEST_ID: Final = "rq_01kjm3v0e8f7t9y2w5x6z1b4cd"


class SuppressionRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"email": "ada@example.net", "note": "Asked on the phone for no more mail."}]},
    )

    email: Annotated[str, described("The address to suppress.", maxLength=1024)]
    note: Annotated[
        str | None, described("The reason, for people; printable characters.", maxLength=NOTE_CHARACTERS_MAX)
    ] = None


class Suppression(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    email: Annotated[str, described("In lower case, its domain in A-labels.")]
    reason: Annotated[
        SuppressionReason, described("`bounce` and `complaint` follow from sent mail, `manual` is added by a member.")
    ]
    note: Annotated[str | None, described("The note given when it was added.")]
    added_by: Annotated[str | None, described("The member who added it; null for bounces and complaints.")]
    smtp_code: Annotated[int | None, described("From the destination's server, if it replied.")]
    smtp_response: str | None
    at: Timestamp


class SuppressionResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [{"suppression": _EXAMPLE, "request_id": _REQUEST_ID}]})

    suppression: Suppression


class SuppressionListResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"suppressions": [_EXAMPLE], "next_cursor": None, "request_id": _REQUEST_ID}]}
    )

    suppressions: list[Suppression]
    next_cursor: NextCursor
