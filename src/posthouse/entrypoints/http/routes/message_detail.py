"""The routes of a single message: its history, its content, its bytes."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http.attachment import attachment_response
from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import caller_of, json_response, services_of, timestamp
from posthouse.entrypoints.http.schemas.message_detail import MessageContentResponse, MessageDetailResponse
from posthouse.flows.account.message_detail import (
    DeliveryAttempt,
    Detail,
    MessageReport,
    RecipientTimeline,
    RenderedMail,
    Timeline,
    WebhookDeliverySummary,
)
from posthouse.rules import download, ids
from posthouse.rules.kept_content import FORGET
from posthouse.rules.limits import THREAD_BODY_BYTES_MIN

_MILLISECOND: Final = timedelta(milliseconds=1)

router = APIRouter()

_MessageId = Annotated[str, Path(alias="id", description="The id from the send response.")]


@router.get(
    "/v1/messages/{id}",
    operation_id="getMessage",
    summary="The history of a message: attempts, the reason it waits, events and their webhook deliveries",
    tags=["Messages"],
    responses=responses_with(200, MessageDetailResponse, 401, 404, 500, 503),
)
async def get_message(request: Request, message_id: _MessageId) -> Response:
    caller = await caller_of(request)
    detail = await services_of(request).message_detail.detail(caller.account_id, message_id)
    return json_response(request, {"message": _detail(detail)})


@router.get(
    "/v1/messages/{id}/content",
    operation_id="getMessageContent",
    summary="The content of a message, part by part, while it is stored",
    tags=["Messages"],
    responses=responses_with(200, MessageContentResponse, 401, 404, 500, 503),
)
async def get_message_content(request: Request, message_id: _MessageId) -> Response:
    caller = await caller_of(request)
    rendered = await services_of(request).message_detail.content(caller.account_id, message_id)
    content = {"content": content_fields(rendered)}
    if len(rendered.text or "") + len(rendered.html or "") < THREAD_BODY_BYTES_MIN:
        return json_response(request, content)
    return await asyncio.to_thread(json_response, request, content)


@router.get(
    "/v1/messages/{id}/raw",
    operation_id="getMessageRaw",
    summary="The stored bytes of a message, before each recipient's copy is signed",
    tags=["Messages"],
    response_class=Response,
    responses=responses_with(200, "message/rfc822", 401, 404, 500, 503),
)
async def get_message_raw(request: Request, message_id: _MessageId) -> Response:
    caller = await caller_of(request)
    raw = await services_of(request).message_detail.raw(caller.account_id, message_id)
    # A browser that opens it must not run what the message contains.
    headers = {
        "Content-Disposition": f'attachment; filename="{message_id}.eml"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(raw, media_type="message/rfc822", headers=headers)


@router.get(
    "/v1/messages/{id}/attachments/{part}",
    operation_id="getMessageAttachment",
    summary="The bytes of an attachment, while the content is stored",
    tags=["Messages"],
    response_class=Response,
    responses=responses_with(200, download.TYPES, 401, 404, 500, 503),
)
async def get_message_attachment(
    request: Request,
    message_id: _MessageId,
    part: Annotated[str, Path(description="The `part` that the message's content lists.", examples=["1"])],
) -> Response:
    caller = await caller_of(request)
    # What is no number is no part.
    number = int(part) if part.isascii() and part.isdigit() and len(part) < 5 else -1
    attachment = await services_of(request).message_detail.attachment(caller.account_id, message_id, number)
    return attachment_response(attachment, download.content_type(attachment.info.content_type))


def _detail(detail: Detail) -> dict[str, Any]:
    timeline = detail.timeline
    resent_from = timeline.resent_from
    return {
        "id": ids.text(ids.MESSAGE, timeline.id),
        "status": timeline.status,
        "source": timeline.source,
        "from": timeline.sender,
        "envelope_from": timeline.envelope_sender,
        **({} if timeline.forgets_content else {"subject": timeline.subject}),
        "billing_status": timeline.billing_status,
        "recipient_count": timeline.recipient_count,
        "credits_reserved": timeline.credits_reserved,
        "created_at": timestamp(timeline.created_at),
        "accepted_request_id": ids.text(ids.REQUEST, timeline.request_id),
        "credential": {
            "id": ids.text(ids.CREDENTIAL, timeline.credential_id),
            "name": timeline.credential_name,
        },
        "tags": timeline.tags,
        "template": timeline.template,
        **({"metadata": timeline.metadata} if timeline.metadata else {}),
        **({} if resent_from is None else {"resent_from": ids.text(ids.MESSAGE, resent_from)}),
        **({"content": FORGET} if timeline.forgets_content else {}),
        "headers": None if detail.headers is None else [field._asdict() for field in detail.headers],
        "recipients": [_recipient(timeline, recipient) for recipient in timeline.recipients],
        "reports": _reports(timeline.reports),
        "events": [_event(timeline, recipient) for recipient in timeline.recipients if recipient.event is not None],
        "is_shortened": timeline.is_shortened,
    }


def _recipient(timeline: Timeline, recipient: RecipientTimeline) -> dict[str, Any]:
    wait, suppression = timeline.wait(recipient), recipient.suppression
    next_at = None if recipient.waiting is None else recipient.waiting.next_at
    return {
        "id": _recipient_id(timeline, recipient),
        "field": recipient.field,
        "email": recipient.email,
        "status": recipient.status,
        "billing_status": recipient.billing_status,
        "attempt_count": recipient.attempt_count,
        "last_smtp_code": recipient.code,
        "last_smtp_response": recipient.response,
        **{
            f"{status}_at": timestamp(recipient.final_at) if recipient.status == status else None
            for status in ("delivered", "bounced", "failed")
        },
        "attempts": [attempt_fields(recipient, attempt) for attempt in recipient.attempts],
        "explanation": asdict(timeline.explained(recipient)),
        "waiting": wait and {"reason": wait.reason, "text": wait.text, "next_at": timestamp(next_at)},
        "suppression": suppression
        and {
            "reason": suppression.reason,
            "at": timestamp(suppression.at),
            "code": suppression.code,
            "response": suppression.response,
        },
        "reports": _reports(recipient.reports),
    }


def attempt_fields(recipient: RecipientTimeline, attempt: DeliveryAttempt) -> dict[str, Any]:
    version, _, cipher = (attempt.tls or "").partition(" ")
    return {
        "started_at": timestamp(attempt.started_at),
        "duration_ms": _milliseconds(attempt.started_at, attempt.finished_at),
        "outcome": attempt.outcome,
        "is_under_way": recipient.is_under_way(attempt),
        "is_ambiguous": attempt.is_ambiguous,
        "mx": attempt.exchange,
        "relay": attempt.relay,
        "address": attempt.address,
        "tls_version": version or None,
        "tls_cipher": cipher or None,
        "stage": attempt.stage,
        "code": attempt.code,
        "response": attempt.response,
        "explanation": asdict(recipient.explained(attempt)),
    }


def _milliseconds(started_at: datetime, finished_at: datetime | None) -> int | None:
    """The clocks of two processes may differ by more than an attempt took."""
    return None if finished_at is None else max(0, (finished_at - started_at) // _MILLISECOND)


def _reports(reports: Sequence[MessageReport]) -> list[dict[str, Any]]:
    return [
        {
            "kind": report.kind,
            "detail": report.detail,
            "status": report.status,
            "code": report.code,
            "response": report.response,
            "suppressed": report.suppressed,
            "at": timestamp(report.at),
        }
        for report in reports
    ]


def _event(timeline: Timeline, recipient: RecipientTimeline) -> dict[str, Any]:
    event = recipient.event
    return (
        {}
        if event is None
        else {
            "id": ids.text(ids.EVENT, event.id),
            "type": event.type,
            "recipient_id": _recipient_id(timeline, recipient),
            "created_at": timestamp(event.created_at),
            "webhook_deliveries": [_webhook_delivery(delivery) for delivery in event.sendings],
        }
    )


def _webhook_delivery(delivery: WebhookDeliverySummary) -> dict[str, Any]:
    return {
        "id": ids.text(ids.WEBHOOK_DELIVERY, delivery.id),
        "status": delivery.status,
        "attempt": delivery.attempt,
        "max_attempts": delivery.max_attempts,
        "http_status": delivery.http_status,
        "error": delivery.error,
        "replay_of": None if delivery.replay_of is None else ids.text(ids.WEBHOOK_DELIVERY, delivery.replay_of),
        "created_at": timestamp(delivery.created_at),
        "last_attempt_at": timestamp(delivery.last_attempt_at),
        "next_attempt_at": timestamp(delivery.next_attempt_at),
    }


def _recipient_id(timeline: Timeline, recipient: RecipientTimeline) -> str:
    return ids.text(ids.RECIPIENT, ids.recipient_id(timeline.id, recipient.position))


def content_fields(rendered: RenderedMail) -> dict[str, Any]:
    return {
        "subject": rendered.subject,
        "headers": [field._asdict() for field in rendered.headers],
        "text": rendered.text,
        "html": rendered.html,
        "attachments": [attachment._asdict() for attachment in rendered.attachments],
        "is_shortened": rendered.is_shortened,
    }
