"""Request and response schemas of resends."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict

from posthouse.entrypoints.http.schemas.shapes import OptionalTimestamp, Request, Response, Timestamp, described
from posthouse.rules import limits
from posthouse.rules.resend import ResendStatus

_EXAMPLE: Final[dict[str, Any]] = {
    "id": "rs_01k9xw2v8r5h3m7q4z6t8y0abc",
    "status": "running",
    "dry_run": False,
    "since": "2026-11-15T09:30:00.000Z",
    "until": "2026-11-15T12:30:00.000Z",
    "tag": None,
    "metadata": {},
    "destination": "example.net",
    "found": 75,
    "recipients": 75,
    "resent": 75,
    "no_body": 0,
    "never": 2,
    "refused": 0,
    "waits_for": None,
    "created_at": "2026-11-15T14:00:00.000Z",
    "finished_at": None,
}


class ResendRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"since": "2026-11-15T09:30:00Z", "destination": "example.net"}]}
    )

    since: Annotated[str, described("Messages accepted at this time or after it.", format="date-time")]
    until: Annotated[
        str | None, described("Messages accepted before this time; now, if left out.", format="date-time")
    ] = None
    tag: Annotated[
        str | None, described("Only those with this tag.", minLength=1, maxLength=limits.TAG_CHARACTERS_MAX)
    ] = None
    metadata: Annotated[
        dict[str, str] | None, described("Only those with all of these pairs.", maxProperties=limits.METADATA_MAX)
    ] = None
    destination: Annotated[str | None, described("Only recipients of this domain.")] = None
    dry_run: Annotated[bool, described("Count, and send nothing.")] = False


class Resend(BaseModel):
    id: str
    status: ResendStatus
    dry_run: bool
    since: Timestamp
    until: Timestamp
    tag: str | None
    metadata: dict[str, str]
    destination: str | None
    found: Annotated[int, described("Messages that are sent again, or would be by a dry run's request.")]
    recipients: Annotated[int, described("Their recipients that get them again.")]
    resent: Annotated[int, described("New messages.")]
    no_body: Annotated[int, described("Messages whose content is not kept any more.")]
    never: Annotated[int, described("Recipients that get no mail again: unknown, suppressed, unsubscribed and others.")]
    refused: Annotated[int, described("Messages that were refused, because their domain isn't verified any more.")]
    waits_for: Annotated[
        str | None, described("The code of what keeps the account from sending now, if anything does.")
    ]
    created_at: Timestamp
    finished_at: OptionalTimestamp


class ResendResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"resend": _EXAMPLE, "request_id": "rq_01kjm3v0e8f7t9y2w5x6z1b4cd"}]}
    )

    resend: Resend
