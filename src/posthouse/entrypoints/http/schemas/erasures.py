"""Request and response schemas of erasures."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict

from posthouse.entrypoints.http.schemas.shapes import OptionalTimestamp, Request, Response, Timestamp, described

_EXAMPLE: Final[dict[str, Any]] = {
    "id": "er_01k9xw2v8r5h3m7q4z6t8y0abc",
    "status": "running",
    "cancelled": 1,
    "messages": 40,
    "created_at": "2026-11-15T14:00:00.000Z",
    "finished_at": None,
}


class ErasureRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"email": "ada@example.net"}]})

    email: Annotated[str, described("The address, without a name.", minLength=3, maxLength=254)]


class Erasure(BaseModel):
    id: str
    status: Annotated[str, described("Whether it is done.", enum=["running", "done"])]
    cancelled: Annotated[int, described("Recipients that waited and were cancelled.")]
    messages: Annotated[int, described("Messages from which the address was erased so far.")]
    created_at: Timestamp
    finished_at: OptionalTimestamp


class ErasureResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"erasure": _EXAMPLE, "request_id": "rq_01kjm3v0e8f7t9y2w5x6z1b4cd"}]}
    )

    erasure: Erasure
