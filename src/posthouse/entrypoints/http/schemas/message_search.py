"""The shapes of the list of messages."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import Moment, Response, described
from posthouse.rules.message import BillingStatus, MessageStatus, Source

_EXAMPLE: Final[dict[str, Any]] = {
    "id": "em_01k9xw2v8r5h3m7q4z6t8y0abc",
    "status": "delivered",
    "source": "api",
    "from": "Acme <hello@example.com>",
    "to": ["ada@example.net"],
    "recipient_count": 1,
    "subject": "Your order 1023 has shipped",
    "tags": ["shipping"],
    "template": "order-shipped",
    "credential_id": "cr_01k9xw2v8r5h3m7q4z6t8y0abc",
    "billing_status": "settled",
    "created_at": "2026-11-15T09:30:00.000Z",
}


class ListedMessage(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    id: str
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from", description="As it was given, with a display name if it has one.")]
    to: Annotated[list[str], described("The first three of its recipients, `cc` and `bcc` among them.")]
    recipient_count: Annotated[int, described("How many it has in all.")]
    subject: str
    tags: list[str]
    template: Annotated[str | None, described("The alias of the template that it was made from.")]
    credential_id: Annotated[str, described("Of the SMTP credential that it was sent with, or that its API key is of.")]
    billing_status: BillingStatus
    created_at: Moment


class MessageListResponse(Response):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "messages": [_EXAMPLE],
                    "next_cursor": "AZOoXC9YfxyKtJQAAAAAAEKp2Yk0Jg",
                    "request_id": "rq_01k9xw2v8r5h3m7q4z6t8y0abc",
                }
            ]
        }
    )

    messages: Annotated[list[ListedMessage], described("Newest first.")]
    next_cursor: Annotated[
        str | None,
        described(
            "Pass it as `cursor`, with the same filters, for the next page; null on the last. With filters a page may "
            "hold fewer messages than `limit`, even none: go on until it is null."
        ),
    ]
