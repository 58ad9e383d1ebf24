"""A single message: its timeline, its content, its bytes."""

import asyncio
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path, Request
from pydantic import Field
from starlette.responses import Response as HttpResponse

from posthouse.entrypoints.http.message_content import attachment_response
from posthouse.entrypoints.http.operation import Operations, model_response
from posthouse.entrypoints.http.route_context import GivenMessageId
from posthouse.entrypoints.http.routes.endpoints import LastError, LastStatus, MaxAttempts, ReplayOf
from posthouse.entrypoints.http.shapes import (
    AttemptCount,
    CreditsReserved,
    FromAddress,
    LastCode,
    LastResponse,
    OptionalTimestamp,
    RecipientCount,
    ReplyCode,
    ReplyText,
    Response,
    Shown,
    TemplateAlias,
    Timestamp,
    absent,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.account.message_detail import DeliveryAttempt, Detail, RecipientTimeline, Timeline
from posthouse.flows.account.message_detail import MessageDetail as DetailFlow
from posthouse.flows.operate.message_lookup import CONTENT_READ
from posthouse.flows.shared.principal import Caller
from posthouse.rules import ids
from posthouse.rules.attachment import DOWNLOAD_TYPES, download_type
from posthouse.rules.credential import Role, Scope
from posthouse.rules.delivery_reason import DeliveryReason
from posthouse.rules.event import EventType
from posthouse.rules.explanation import Cause, explain
from posthouse.rules.ids import CredentialId, MessageId, RequestId
from posthouse.rules.limits import THREAD_BODY_BYTES_MIN
from posthouse.rules.message import FORGET, BillingStatus, MessageState, MessageStatus, RecipientStatus, Source
from posthouse.rules.outcome import Stage
from posthouse.rules.suppression import SuppressionReason
from posthouse.rules.wait_reason import WaitReason

router = Operations("Messages", Scope.MESSAGES)

_MILLISECOND: Final = timedelta(milliseconds=1)
_GREYLISTED: Final = asdict(explain("deferred", 451, "4.7.1 Greylisted, try again in five minutes"))
ATTEMPT_EXAMPLE: Final[dict[str, Any]] = {
    "started_at": "2026-05-04T09:30:00.120Z",
    "duration_ms": 412,
    "outcome": "deferred",
    "is_under_way": False,
    "is_ambiguous": False,
    "mx_host": "mx1.example.net",
    "remote_ip": "192.0.2.25",
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
        "state": "queued",
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
                "attempts": [ATTEMPT_EXAMPLE],
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
}


Tls = Annotated[str | None, described("Null without encryption or without a connection.")]


class MessageHeader(Shown):
    name: str
    value: Annotated[str, described("Decoded, on one line.")]


class Explanation(Shown):
    reason: Annotated[DeliveryReason, described("A stable name, for programs. More may be added in future.")]
    headline: Annotated[str, described("What happened, in a sentence for people. It never quotes a server's reply.")]
    cause: Annotated[Cause | None, described("Who causes it; `service` is Posthouse. Null if nothing is wrong.")]
    what_to_do: Annotated[str, described("What the sender can do, for people.")]


class Attempt(Shown):
    model_config = examples(ATTEMPT_EXAMPLE)

    started_at: Timestamp
    duration_ms: Annotated[int | None, described("Null while the attempt runs, or if its worker was lost.")]
    outcome: Annotated[
        str | None,
        described(
            "`postponed` does not count as an attempt; null while the attempt runs, or if its worker was lost.",
            enum=["delivered", "bounced", "failed", "deferred", "postponed", None],
        ),
    ]
    is_under_way: Annotated[bool, described("Whether a worker is trying it now.")]
    is_ambiguous: Annotated[bool, described("Whether the message may have been delivered without a confirmation.")]
    mx_host: Annotated[str | None, described("The destination's mail server; null without a connection.")]
    remote_ip: Annotated[str | None, described("The server's IP address.")]
    relay: Annotated[
        str | None,
        described("The external relay to which it went. `delivered` then means that the relay took the message."),
    ]
    tls_version: Tls
    tls_cipher: Tls
    stage: Annotated[Stage | None, described("The SMTP command at which the attempt ended.")]
    code: Annotated[int | None, described("Null if no server replied.")]
    response: Annotated[str | None, described("The server's reply, or our description of the failure.")]
    explanation: Annotated[Explanation, described("What the attempt's result means.")]


class Waiting(Shown):
    reason: WaitReason
    text: Annotated[str, described("The reason in plain words, for people.")]
    next_at: Annotated[OptionalTimestamp, described("The time of the next attempt or check. RFC 3339, UTC.")]


class RecipientSuppression(Shown):
    reason: SuppressionReason
    at: Timestamp
    code: ReplyCode
    response: ReplyText


class Report(Shown):
    kind: Annotated[str, described("The kind of report that arrived after delivery.", enum=["bounce", "complaint"])]
    detail: Annotated[
        str,
        described("The address that a bounce names; or the kind of a complaint, and who sent it if it is unverified."),
    ]
    status: Annotated[str | None, described("The enhanced status code (RFC 3463), such as `5.1.1`.")]
    code: Annotated[int | None, described("The SMTP code that a bounce quotes, if any.")]
    response: Annotated[str | None, described("The reply that it quotes.")]
    suppressed: Annotated[bool, described("Whether the address is suppressed because of it.")]
    at: Timestamp


class EventWebhookDelivery(Shown):
    id: Annotated[UUID, id_text(ids.WEBHOOK_DELIVERY), described("As in `GET /v1/webhook/deliveries`.")]
    status: Annotated[str, described("`failed` after the last attempt.", enum=["pending", "succeeded", "failed"])]
    attempt: Annotated[int, described("The number of attempts so far.")]
    max_attempts: MaxAttempts
    http_status: LastStatus
    error: LastError
    replay_of: ReplayOf
    created_at: Timestamp
    last_attempt_at: OptionalTimestamp
    next_attempt_at: OptionalTimestamp


class MessageEvent(Shown):
    id: Annotated[UUID, id_text(ids.EVENT)]
    type: Annotated[
        str,
        Field(
            json_schema_extra={
                "enum": [event_type.value for event_type in EventType if event_type is not EventType.TEST]
            }
        ),
    ]
    recipient_id: Annotated[UUID, id_text(ids.RECIPIENT)]
    created_at: Timestamp
    webhook_deliveries: Annotated[
        list[EventWebhookDelivery],
        read_from("sendings"),
        described("Newest first, as long as they are in the webhook log."),
    ]


class DetailedRecipient(Shown):
    id: Annotated[UUID, id_text(ids.RECIPIENT)]
    field: Annotated[str, described("The field of the message that contains it.", enum=["to", "cc", "bcc"])]
    email: str
    status: RecipientStatus
    billing_status: BillingStatus
    attempt_count: AttemptCount
    last_smtp_code: Annotated[LastCode, read_from("code")]
    last_smtp_response: Annotated[LastResponse, read_from("response")]
    delivered_at: OptionalTimestamp
    bounced_at: OptionalTimestamp
    failed_at: OptionalTimestamp
    attempts: Annotated[list[Attempt], described("Oldest first.")]
    explanation: Annotated[Explanation, described("What the recipient's state means.")]
    waiting: Annotated[Waiting | None, described("Why it waits; null once the recipient's result is final.")]
    suppression: Annotated[
        RecipientSuppression | None, described("The current suppression, which may be newer than the message.")
    ]
    reports: Annotated[list[Report], described("Bounces and complaints that arrived after delivery.")]


class MessageCredential(Shown):
    id: Annotated[CredentialId, id_text(ids.CREDENTIAL), read_from("credential_id")]
    name: Annotated[str | None, read_from("credential_name")]


class MessageDetail(Shown):
    id: Annotated[MessageId, id_text(ids.MESSAGE)]
    status: MessageStatus
    state: Annotated[MessageStatus | MessageState, described("As in `GET /v1/messages`.")]
    source: Source
    sender: FromAddress
    envelope_from: Annotated[str, read_from("envelope_sender"), described("The envelope sender as submitted.")]
    subject: str | None = absent("Absent if the message was sent with `content`: `forget`.")
    billing_status: BillingStatus
    recipient_count: RecipientCount
    credits_reserved: CreditsReserved
    created_at: Timestamp
    accepted_request_id: Annotated[
        RequestId,
        id_text(ids.REQUEST),
        read_from("request_id"),
        described("The request or SMTP transaction that submitted it."),
    ]
    credential: MessageCredential
    tags: list[str]
    template: TemplateAlias
    metadata: dict[str, str] | None = absent("Absent if none was given.")
    send_at: Timestamp | None = absent("Absent if none was given.")
    resent_from: Annotated[MessageId, id_text(ids.MESSAGE)] | None = absent(
        "The id of the message that this one sends again; absent if there is none."
    )
    content: str | None = absent("`forget` if the message was sent with it; otherwise absent.")
    headers: Annotated[
        list[MessageHeader] | None,
        described("The most important headers; null if the content is no longer stored, or was forgotten."),
    ]
    recipients: list[DetailedRecipient]
    reports: Annotated[list[Report], described("Reports that are about none of the recipients.")]
    events: Annotated[list[MessageEvent], described("An event for each recipient with a final result.")]
    is_shortened: Annotated[
        bool,
        described("Whether older entries are omitted: at most 2,000 attempts and 500 webhook deliveries are listed."),
    ]


class MessageDetailResponse(Response):
    model_config = examples(_DETAIL_EXAMPLE)

    message: MessageDetail


class MessageAttachment(Shown):
    part: Annotated[int, described("The number among the leaf parts, from 0.")]
    filename: Annotated[str | None, described("Null if the message gives none.")]
    content_type: str
    size: Annotated[int, described("Decoded length in bytes.")]
    content_id: Annotated[str | None, described("The HTML refers to it as `cid:…`; null without one.")]
    is_inline: Annotated[bool, described("Whether the HTML displays it.")]


class MessageContent(Shown):
    subject: str
    headers: Annotated[list[MessageHeader], described("All headers, in order, decoded.")]
    text: Annotated[str | None, described("The plain text; null if there is none.")]
    html: Annotated[
        str | None, described("The HTML as sent; null if there is none. Show it in a sandbox: it is not sanitised.")
    ]
    attachments: list[MessageAttachment]
    is_shortened: Annotated[bool, described("Whether parts after the first 200 are omitted.")]


class MessageContentResponse(Response):
    model_config = examples(_CONTENT_EXAMPLE)

    content: MessageContent


@router.get("/v1/messages/{id}", Role.VIEWER)
async def get_message(caller: Caller, message_id: GivenMessageId, message_detail: DetailFlow) -> MessageDetailResponse:
    """The timeline of a message: attempts, why it waits, events and their webhook deliveries"""
    detail = await message_detail.detail(caller.account_id, message_id)
    return MessageDetailResponse(message=_detail(detail))


@router.get("/v1/messages/{id}/content", Role.VIEWER, read_action=CONTENT_READ, content=MessageContentResponse)
async def get_message_content(
    caller: Caller, message_id: GivenMessageId, request: Request, message_detail: DetailFlow
) -> HttpResponse:
    """The content of a message, part by part, while it is stored"""
    rendered = await message_detail.content(caller.account_id, message_id)
    content = MessageContentResponse(content=MessageContent.of(rendered))
    if len(rendered.text or "") + len(rendered.html or "") < THREAD_BODY_BYTES_MIN:
        return model_response(request, content)
    return await asyncio.to_thread(model_response, request, content)


@router.get("/v1/messages/{id}/raw", Role.VIEWER, read_action=CONTENT_READ, content="message/rfc822")
async def get_message_raw(caller: Caller, message_id: GivenMessageId, message_detail: DetailFlow) -> HttpResponse:
    """The stored bytes of a message, before each recipient's copy is signed"""
    raw = await message_detail.raw(caller.account_id, message_id)
    # A browser that opens it must not run what the message contains.
    headers = {
        "Content-Disposition": f'attachment; filename="{message_id}.eml"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return HttpResponse(raw, media_type="message/rfc822", headers=headers)


@router.get("/v1/messages/{id}/attachments/{part}", Role.VIEWER, read_action=CONTENT_READ, content=DOWNLOAD_TYPES)
async def get_message_attachment(
    caller: Caller,
    message_id: GivenMessageId,
    part: Annotated[str, Path(description="The `part` that the message's content lists.", examples=["1"])],
    message_detail: DetailFlow,
) -> HttpResponse:
    """The bytes of an attachment, while the content is stored"""
    # A `part` that is not a number is unknown.
    number = int(part) if part.isascii() and part.isdigit() and len(part) < 5 else -1
    attachment = await message_detail.attachment(caller.account_id, message_id, number)
    return attachment_response(attachment, download_type(attachment.info.content_type))


def _detail(detail: Detail) -> MessageDetail:
    timeline = detail.timeline
    return MessageDetail.of(
        timeline,
        subject=None if timeline.forgets_content else timeline.subject,
        credential=MessageCredential.of(timeline),
        metadata=timeline.metadata or None,
        content=FORGET if timeline.forgets_content else None,
        headers=detail.headers,
        recipients=[_recipient(timeline, recipient) for recipient in timeline.recipients],
        events=[
            MessageEvent.of(recipient.event, recipient_id=_recipient_id(timeline, recipient))
            for recipient in timeline.recipients
            if recipient.event is not None
        ],
    )


def _recipient(timeline: Timeline, recipient: RecipientTimeline) -> DetailedRecipient:
    wait = timeline.wait(recipient)
    next_at = None if recipient.waiting is None else recipient.waiting.next_at
    return DetailedRecipient.of(
        recipient,
        id=_recipient_id(timeline, recipient),
        **{
            f"{status}_at": recipient.final_at if recipient.status == status else None
            for status in ("delivered", "bounced", "failed")
        },
        attempts=[shown_attempt(recipient, attempt) for attempt in recipient.attempts],
        explanation=timeline.explained(recipient),
        waiting=None if wait is None else Waiting.of(wait, next_at=next_at),
    )


def shown_attempt(recipient: RecipientTimeline, attempt: DeliveryAttempt) -> Attempt:
    version, _, cipher = (attempt.tls or "").partition(" ")
    return Attempt.of(
        attempt,
        duration_ms=_milliseconds(attempt.started_at, attempt.finished_at),
        is_under_way=recipient.is_under_way(attempt),
        tls_version=version or None,
        tls_cipher=cipher or None,
        explanation=recipient.explained(attempt),
    )


def _milliseconds(started_at: datetime, finished_at: datetime | None) -> int | None:
    """Never negative: the clocks of two processes may differ by more than an attempt took."""
    return None if finished_at is None else max(0, (finished_at - started_at) // _MILLISECOND)


def _recipient_id(timeline: Timeline, recipient: RecipientTimeline) -> UUID:
    return ids.recipient_id(timeline.id, recipient.position)
