"""Request and response schemas of a retry."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict

from posthouse.entrypoints.http.schemas.shapes import Request, Response, described
from posthouse.rules.retry_request import RetryAnswer
from posthouse.rules.wait_reason import WaitReason


class RetryRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"recipient": "ada@example.net"}]})

    recipient: Annotated[
        str | None, described("Only this address of the message; all that are deferred without it.", maxLength=1024)
    ] = None


class RetriedRecipient(BaseModel):
    id: str
    email: str
    result: Annotated[
        RetryAnswer | WaitReason,
        described(
            "`now`: the next try was moved. `final`, `last_attempt`, `taken`, or what it waits for: it stays as it is."
        ),
    ]
    text: Annotated[str, described("The same in plain words.")]


class RetryResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "recipients": [
                        {
                            "id": "rc_01k6wq3v5e7m8x9c0b2d4f6h81",
                            "email": "ada@example.net",
                            "result": "now",
                            "text": "due now; it is tried as soon as its destination's limits allow",
                        }
                    ],
                    "request_id": "rq_01kjm3v0e8f7t9y2w5x6z1b4cd",
                }
            ]
        }
    )

    recipients: list[RetriedRecipient]
