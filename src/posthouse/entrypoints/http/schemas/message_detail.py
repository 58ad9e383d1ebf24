"""Response schemas of a single message: its history and its content."""

from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import OptionalTimestamp, Response, Timestamp, described
from posthouse.rules.delivery_reason import DeliveryReason
from posthouse.rules.event import EventType
from posthouse.rules.explanation import Cause, explain
from posthouse.rules.message import BillingStatus, MessageStatus, RecipientStatus, Source
from posthouse.rules.outcome import Stage
from posthouse.rules.wait_reason import WaitReason

_GREYLISTED: Final = asdict(explain("deferred", 451, "4.7.1 Greylisted, try again in five minutes"))
_ATTEMPT_EXAMPLE: Final[dict[str, Any]] = {
    "started_at": "2026-05-04T09:30:00.120Z",
    "duration_ms": 412,
    "outcome": "deferred",
    "is_under_way": False,
    "is_ambiguous": False,
    "mx": "mx1.example.net",
    "address": "192.0.2.25",
    "relay": None,
    "tls_version": "TLSv1.3",
    "tls_cipher": "TLS_AES_256_GCM_SHA384",
    "stage": "rcpt",
    "code": 451,
    "response": "4.7.1 Greylisted, try again in five minutes",
    "explanation": _GREYLISTED,
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
                "explanation": _GREYLISTED,
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


class Explanation(BaseModel):
    reason: Annotated[DeliveryReason, described("A stable name, for programs. There may be others in future.")]
    headline: Annotated[str, described("What happened, in a sentence for people. It never quotes a server's reply.")]
    cause: Annotated[
        Cause | None, described("Whose side the cause is on; `service` is Posthouse. Null when nothing is wrong.")
    ]
    what_to_do: Annotated[str, described("What the sender can do, for people.")]


class Attempt(BaseModel):
    started_at: Timestamp
    duration_ms: Annotated[int | None, described("Null while the attempt runs, or when its worker was lost.")]
    outcome: Annotated[
        str | None,
        described(
            "`postponed` does not count as an attempt; null while the attempt runs, or when its worker was lost.",
            enum=["delivered", "bounced", "failed", "deferred", "postponed", None],
        ),
    ]
    is_under_way: bool
    is_ambiguous: Annotated[bool, described("Whether the mail may have been delivered without a confirmation.")]
    mx: Annotated[str | None, described("The destination's mail server; null without a connection.")]
    address: Annotated[str | None, described("The server's IP address.")]
    relay: Annotated[
        str | None,
        described("The external relay that it went to. `delivered` then means that the relay took the mail."),
    ]
    tls_version: Annotated[str | None, described("Null without encryption or without a connection.")]
    tls_cipher: str | None
    stage: Annotated[Stage | None, described("The SMTP command at which the attempt ended.")]
    code: Annotated[int | None, described("Null when no server replied.")]
    response: Annotated[str | None, described("The server's reply, or our description of the failure.")]
    explanation: Annotated[Explanation, described("What the attempt's result means.")]


class Waiting(BaseModel):
    reason: WaitReason
    text: Annotated[str, described("The same in plain words, for people.")]
    next_at: Annotated[
        str | None, described("The time of the next attempt or check. RFC 3339, UTC.", format="date-time")
    ]


class RecipientSuppression(BaseModel):
    reason: str
    at: Timestamp
    code: int | None
    response: str | None


class Report(BaseModel):
    kind: Annotated[str, described("The kind of report that arrived after delivery.", enum=["bounce", "complaint"])]
    detail: Annotated[
        str,
        described("The address that a bounce names; or the kind of a complaint, and who sent it if it is unverified."),
    ]
    status: Annotated[str | None, described("The enhanced status code (RFC 3463), such as `5.1.1`.")]
    code: int | None
    response: str | None
    suppressed: Annotated[bool, described("Whether the address is suppressed because of it.")]
    at: Timestamp


class EventWebhookDelivery(BaseModel):
    id: Annotated[str, described("As in `GET /v1/webhook/deliveries`.")]
    status: Annotated[str, described("`failed` after the last attempt.", enum=["pending", "succeeded", "failed"])]
    attempt: Annotated[int, described("The number of attempts so far.")]
    max_attempts: int
    http_status: int | None
    error: str | None
    replay_of: str | None
    created_at: Timestamp
    last_attempt_at: OptionalTimestamp
    next_attempt_at: OptionalTimestamp


class MessageEvent(BaseModel):
    id: str
    type: Annotated[
        str,
        Field(
            json_schema_extra={
                "enum": [event_type.value for event_type in EventType if event_type is not EventType.TEST]
            }
        ),
    ]
    recipient_id: str
    created_at: Timestamp
    webhook_deliveries: Annotated[
        list[EventWebhookDelivery], described("Newest first, as long as the webhook log keeps them.")
    ]


class DetailedRecipient(BaseModel):
    id: str
    field: Annotated[str, described("The field of the message that names it.", enum=["to", "cc", "bcc"])]
    email: str
    status: RecipientStatus
    billing_status: BillingStatus
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: OptionalTimestamp
    bounced_at: OptionalTimestamp
    failed_at: OptionalTimestamp
    attempts: Annotated[list[Attempt], described("Oldest first.")]
    explanation: Annotated[Explanation, described("What the recipient's state means.")]
    waiting: Annotated[Waiting | None, described("Why it waits; null once the recipient's result is final.")]
    suppression: Annotated[
        RecipientSuppression | None, described("The present suppression, which may be newer than the message.")
    ]
    reports: Annotated[list[Report], described("Bounces and complaints that arrived after delivery.")]


class MessageCredential(BaseModel):
    id: str
    name: str | None


class MessageDetail(BaseModel):
    id: str
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from")]
    envelope_from: Annotated[str, described("The envelope sender as submitted.")]
    subject: str | None = Field(default=None, description="Absent if the message was sent with `content`: `forget`.")
    billing_status: BillingStatus
    recipient_count: int
    credits_reserved: int
    created_at: Timestamp
    accepted_request_id: Annotated[str, described("The request or SMTP transaction that submitted it.")]
    credential: MessageCredential
    tags: list[str]
    template: str | None
    metadata: dict[str, str] | None = Field(default=None, description="Absent if none was given.")
    resent_from: str | None = Field(
        default=None, description="The id of the message that this one sends again; absent if there is none."
    )
    content: str | None = Field(default=None, description="`forget` if the message was sent with it; otherwise absent.")
    headers: Annotated[
        list[MessageHeader] | None,
        described("The most important headers; null when the content is no longer stored, or forgotten."),
    ]
    recipients: list[DetailedRecipient]
    reports: Annotated[list[Report], described("Reports about none of the recipients.")]
    events: Annotated[list[MessageEvent], described("An event for each recipient with a final result.")]
    is_shortened: Annotated[
        bool,
        described("Whether older entries are omitted: at most 2,000 attempts and 500 webhook deliveries are listed."),
    ]


class MessageDetailResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [_DETAIL_EXAMPLE]})

    message: MessageDetail


class MessageAttachment(BaseModel):
    part: Annotated[int, described("Its number among the leaf parts, from 0.")]
    filename: str | None
    content_type: str
    size: Annotated[int, described("Decoded length in bytes.")]
    content_id: str | None
    is_inline: Annotated[bool, described("Whether the HTML displays it.")]


class MessageContent(BaseModel):
    subject: str
    headers: Annotated[list[MessageHeader], described("All headers, in their order, decoded.")]
    text: Annotated[str | None, described("The plain text; null if there is none.")]
    html: Annotated[
        str | None, described("The HTML as sent; null if there is none. Show it in a sandbox: it is not sanitised.")
    ]
    attachments: list[MessageAttachment]
    is_shortened: Annotated[bool, described("Whether parts after the first 200 are omitted.")]


class MessageContentResponse(Response):
    model_config = ConfigDict(json_schema_extra={"examples": [_CONTENT_EXAMPLE]})

    content: MessageContent
