"""Response schema of a message that was waited for."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.message_detail import MessageContent
from posthouse.entrypoints.http.schemas.shapes import Response, Timestamp, described
from posthouse.mail.links import LINKS_MAX
from posthouse.rules.message import MessageStatus, Source

_EXAMPLE: Final[dict[str, Any]] = {
    "message": {
        "id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
        "status": "queued",
        "source": "test",
        "from": "Acme <hello@example.com>",
        "to": ["ada@example.net"],
        "created_at": "2026-05-04T09:30:00.000Z",
        "subject": "Confirm your address",
        "headers": [{"name": "Subject", "value": "Confirm your address"}],
        "text": None,
        "html": '<a href="https://app.example.com/confirm/8f2c">Confirm</a>\n',
        "attachments": [],
        "is_shortened": False,
        "links": [{"url": "https://app.example.com/confirm/8f2c", "label": "Confirm"}],
    },
    "request_id": "rq_01k6wq7a3c5e7g9j1m3p5r7t90",
}


class MessageLink(BaseModel):
    url: Annotated[str, described("As a browser would read it, entities decoded.")]
    label: Annotated[str, described("The text of the link; empty for an address in the plain text.")]


class AwaitedMessage(MessageContent):
    id: str
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from")]
    to: Annotated[list[str], described("All recipients: `to`, `cc` and `bcc`.")]
    created_at: Timestamp
    links: Annotated[
        list[MessageLink],
        described(
            f"The absolute links of the HTML in their order, then those that only the text has; each address once, at "
            f"most {LINKS_MAX}."
        ),
    ]


class NextMessageResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    message: AwaitedMessage
