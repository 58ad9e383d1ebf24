"""Request and response schemas of the cancellation of many messages."""

from typing import Annotated

from pydantic import ConfigDict

from posthouse.entrypoints.http.schemas.shapes import Request, Response, described
from posthouse.rules import limits


class CancelMessagesRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tag": "reminder"}, {"metadata": {"order": "1001"}, "dry_run": True}]}
    )

    tag: Annotated[
        str | None, described("Messages with this tag.", minLength=1, maxLength=limits.TAG_CHARACTERS_MAX)
    ] = None
    metadata: Annotated[
        dict[str, str] | None,
        described("Messages with all of these pairs.", minProperties=1, maxProperties=limits.METADATA_MAX),
    ] = None
    dry_run: Annotated[bool, described("Count, and change nothing.")] = False
    cursor: Annotated[
        str | None, described("`next_cursor` of the answer before, with the same `tag` and `metadata`.")
    ] = None


class CancelMessagesResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"cancelled": 12, "tried": 1, "next_cursor": None, "request_id": "rq_01kjm3v0e8f7t9y2w5x6z1b4cd"}
            ]
        }
    )

    cancelled: Annotated[int, described("Messages that were cancelled: none of their recipients gets them.")]
    tried: Annotated[int, described("Messages with a recipient that was tried: they stay as they are.")]
    next_cursor: Annotated[
        str | None,
        described("Pass it as `cursor`, until it is null; an answer may have cancelled none and not be the last."),
    ]
