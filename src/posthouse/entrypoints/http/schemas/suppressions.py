"""The shapes of suppressions."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from posthouse.entrypoints.http.schemas.shapes import Moment, NextCursor, Request, Response, described
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

    email: Annotated[str, described("The address that is to get no more mail of the account.", maxLength=1024)]
    note: Annotated[str | None, described("Why, for people; printable characters.", maxLength=NOTE_CHARACTERS_MAX)] = (
        None
    )


class Suppression(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    email: Annotated[str, described("In lower case, its domain in A-labels.")]
    reason: Annotated[
        SuppressionReason,
        described("`bounce` and `complaint` come from mail that was sent, `manual` from the account itself."),
    ]
    note: Annotated[str | None, described("What whoever added it wrote beside it.")]
    added_by: Annotated[str | None, described("Who added it; null for what bounced or complained by itself.")]
    smtp_code: Annotated[int | None, described("What the destination's server said, if one did.")]
    smtp_response: str | None
    at: Moment


class SuppressionResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [{"suppression": _EXAMPLE, "request_id": _REQUEST_ID}]})

    suppression: Suppression


class SuppressionListResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"suppressions": [_EXAMPLE], "next_cursor": None, "request_id": _REQUEST_ID}]}
    )

    suppressions: list[Suppression]
    next_cursor: NextCursor
