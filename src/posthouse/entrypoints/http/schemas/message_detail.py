"""The shapes of one message: what happened to it, what it says, its bytes."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import MaybeMoment, Moment, Response, described
from posthouse.rules.event import EventType
from posthouse.rules.message import BillingStatus, MessageStatus, RecipientStatus, Source
from posthouse.rules.outcome import Stage
from posthouse.rules.wait_reason import WaitReason

_ATTEMPT_EXAMPLE: Final[dict[str, Any]] = {
    "started_at": "2026-05-04T09:30:00.120Z",
    "duration_ms": 412,
    "outcome": "deferred",
    "is_under_way": False,
    "is_ambiguous": False,
    "mx": "mx1.example.net",
    "address": "192.0.2.25",
    "tls_version": "TLSv1.3",
    "tls_cipher": "TLS_AES_256_GCM_SHA384",
    "stage": "rcpt",
    "code": 451,
    "response": "4.7.1 Greylisted, try again in five minutes",
}
_DETAIL_EXAMPLE: Final[dict[str, Any]] = {
    "message": {
        "id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
        "status": "queued",
        "source": "api",
        "from": "Acme <hello@example.com>",
        "envelope_from": "hello@example.com",
        "subject": "Welcome",
        "billing_status": "reserved",
        "recipient_count": 1,
        "credits_reserved": 1,
        "created_at": "2026-05-04T09:30:00.000Z",
        "accepted_request_id": "rq_01k6wq3v5e7m8x9c0b2d4f6h81",
        "credential": {"id": "cr_01k6wq3v5e7m8x9c0b2d4f6h82", "name": "default"},
        "tags": ["welcome"],
        "template": None,
        "headers": [{"name": "Message-ID", "value": "<01k6wq3v5e7m8x9c0b2d4f6h80@mail.example.com>"}],
        "recipients": [
            {
                "id": "rc_01k6wq3v5e7m8x9c0b2d4f6h81",
                "field": "to",
                "email": "ada@example.net",
                "status": "deferred",
                "billing_status": "reserved",
                "attempt_count": 1,
                "last_smtp_code": 451,
                "last_smtp_response": "4.7.1 Greylisted, try again in five minutes",
                "delivered_at": None,
                "bounced_at": None,
                "failed_at": None,
                "attempts": [_ATTEMPT_EXAMPLE],
                "waiting": {
                    "reason": "greylisted",
                    "text": "greylisted by mx1.example.net: 451 4.7.1 Greylisted, try again in five minutes; next try "
                    "at 2026-05-04 09:35:04 UTC, after 1 attempt",
                    "next_at": "2026-05-04T09:35:04.000Z",
                },
                "suppression": None,
                "reports": [],
            }
        ],
        "reports": [],
        "events": [],
        "is_shortened": False,
    },
    "request_id": "rq_01k6wq7a3c5e7g9j1m3p5r7t90",
}
_CONTENT_EXAMPLE: Final[dict[str, Any]] = {
    "content": {
        "subject": "Welcome",
        "headers": [{"name": "Subject", "value": "Welcome"}],
        "text": "Good to have you here.\n",
        "html": "<p>Good to have you here.</p>\n",
        "attachments": [
            {
                "part": 2,
                "filename": "terms.pdf",
                "content_type": "application/pdf",
                "size": 48213,
                "content_id": None,
                "is_inline": False,
            }
        ],
        "is_shortened": False,
    },
    "request_id": "rq_01k6wq7a3c5e7g9j1m3p5r7t90",
}


class MessageHeader(BaseModel):
    name: str
    value: Annotated[str, described("Decoded, on one line.")]


class Attempt(BaseModel):
    started_at: Moment
    duration_ms: Annotated[int | None, described("Null while it is under way, or when its worker was lost.")]
    outcome: Annotated[
        str | None,
        described(
            "`postponed` was none and doesn't count; null while it is under way, or when its worker was lost.",
            enum=["delivered", "bounced", "failed", "deferred", "postponed", None],
        ),
    ]
    is_under_way: bool
    is_ambiguous: Annotated[bool, described("Whether the mail may have arrived though nobody said so.")]
    mx: Annotated[str | None, described("The destination's server that was spoken to; null when there was none.")]
    address: Annotated[str | None, described("The server's IP address.")]
    tls_version: Annotated[str | None, described("Null when the conversation wasn't encrypted, or there was none.")]
    tls_cipher: str | None
    stage: Annotated[Stage | None, described("What was last said and not yet answered, or the answer ended.")]
    code: Annotated[int | None, described("Null when no server answered.")]
    response: Annotated[str | None, described("What the server said, or our words for what happened.")]


class Waiting(BaseModel):
    reason: WaitReason
    text: Annotated[str, described("The same in plain words, for people.")]
    next_at: Annotated[str | None, described("When it is next looked at. RFC 3339, UTC.", format="date-time")]


class RecipientSuppression(BaseModel):
    reason: str
    at: Moment
    code: int | None
    response: str | None


class Report(BaseModel):
    kind: Annotated[str, described("What came back after the mail had left.", enum=["bounce", "complaint"])]
    detail: Annotated[str, described("The address that a bounce names, or the kind of a complaint.")]
    status: Annotated[str | None, described("Of RFC 3463, such as `5.1.1`.")]
    code: int | None
    response: str | None
    suppressed: Annotated[bool, described("Whether the address gets no more mail for it.")]
    at: Moment


class EventWebhookDelivery(BaseModel):
    id: Annotated[str, described("As in `GET /v1/webhook/deliveries`.")]
    status: Annotated[str, described("`failed` after the last attempt.", enum=["pending", "succeeded", "failed"])]
    attempt: Annotated[int, described("How many there were.")]
    max_attempts: int
    http_status: int | None
    error: str | None
    replay_of: str | None
    created_at: Moment
    last_attempt_at: MaybeMoment
    next_attempt_at: MaybeMoment


class MessageEvent(BaseModel):
    id: str
    type: Annotated[
        str, Field(json_schema_extra={"enum": [kind.value for kind in EventType if kind is not EventType.TEST]})
    ]
    recipient_id: str
    created_at: Moment
    webhook_deliveries: Annotated[
        list[EventWebhookDelivery], described("The newest first, as far as the log of the webhook goes back.")
    ]


class DetailedRecipient(BaseModel):
    id: str
    field: Annotated[str, described("Where the message named it.", enum=["to", "cc", "bcc"])]
    email: str
    status: RecipientStatus
    billing_status: BillingStatus
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: MaybeMoment
    bounced_at: MaybeMoment
    failed_at: MaybeMoment
    attempts: Annotated[list[Attempt], described("In their order.")]
    waiting: Annotated[Waiting | None, described("Null once the recipient is final.")]
    suppression: Annotated[RecipientSuppression | None, described("As it is now; it may be younger than the message.")]
    reports: Annotated[list[Report], described("Bounces and complaints that came back later.")]


class MessageCredential(BaseModel):
    id: str
    name: str | None


class MessageDetail(BaseModel):
    id: str
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from")]
    envelope_from: Annotated[str, described("The envelope's sender as it was submitted.")]
    subject: str
    billing_status: BillingStatus
    recipient_count: int
    credits_reserved: int
    created_at: Moment
    accepted_request_id: Annotated[str, described("The request, or SMTP transaction, that brought it.")]
    credential: MessageCredential
    tags: list[str]
    template: str | None
    headers: Annotated[
        list[MessageHeader] | None, described("Those of note, while the content is stored; null when it no longer is.")
    ]
    recipients: list[DetailedRecipient]
    reports: Annotated[list[Report], described("Those that are about none of the recipients.")]
    events: Annotated[list[MessageEvent], described("One for each recipient that is final.")]
    is_shortened: Annotated[
        bool,
        described("Whether only the latest are shown of more than 2,000 attempts, or of more than 500 deliveries."),
    ]


class MessageDetailResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [_DETAIL_EXAMPLE]})

    message: MessageDetail


class MessageAttachment(BaseModel):
    part: Annotated[int, described("Its number among the parts that hold no others, from 0.")]
    filename: str | None
    content_type: str
    size: Annotated[int, described("Decoded length in bytes.")]
    content_id: str | None
    is_inline: Annotated[bool, described("Whether the HTML shows it, rather than a list of files.")]


class MessageContent(BaseModel):
    subject: str
    headers: Annotated[list[MessageHeader], described("All of them, in their order, decoded.")]
    text: Annotated[str | None, described("The plain text; null without one.")]
    html: Annotated[
        str | None, described("The HTML as it was sent; null without one. Show it in a sandbox: it is not cleaned.")
    ]
    attachments: list[MessageAttachment]
    is_shortened: Annotated[bool, described("Whether only the first 200 parts are shown.")]


class MessageContentResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [_CONTENT_EXAMPLE]})

    content: MessageContent
