"""Response schemas of the list of messages."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import Response, Timestamp, described
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
    sender: Annotated[str, Field(alias="from", description="As given, with its display name if any.")]
    to: Annotated[list[str], described("The first three recipients, including `cc` and `bcc`.")]
    recipient_count: Annotated[int, described("The number of all recipients.")]
    subject: str | None = Field(default=None, description="Absent if the message was sent with `content`: `forget`.")
    tags: list[str]
    template: Annotated[str | None, described("The alias of its template.")]
    credential_id: Annotated[str, described("The SMTP credential it was sent with, or the credential of its API key.")]
    billing_status: BillingStatus
    created_at: Timestamp
    metadata: dict[str, str] | None = Field(default=None, description="Absent if none was given.")
    content: str | None = Field(default=None, description="`forget` if the message was sent with it; otherwise absent.")


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
            "hold fewer messages than `limit`, even none: continue until it is null."
        ),
    ]
