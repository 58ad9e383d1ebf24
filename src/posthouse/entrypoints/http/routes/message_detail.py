"""The routes of one message."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import answers_with
from posthouse.entrypoints.http.route_context import answered, member_of, moment, services_of
from posthouse.entrypoints.http.schemas.message_detail import MessageContentResponse, MessageDetailResponse
from posthouse.flows.account.message_detail import (
    Attempt,
    Detail,
    RecipientTimeline,
    RenderedMail,
    Report,
    Timeline,
    WebhookDeliverySummary,
)
from posthouse.rules import ids
from posthouse.rules.limits import THREAD_BODY_BYTES_MIN

_MILLISECOND: Final = timedelta(milliseconds=1)

router = APIRouter()

_MessageId = Annotated[str, Path(alias="id", description="The id that the send response gave.")]


@router.get(
    "/v1/messages/{id}",
    operation_id="getMessage",
    summary="All that happened to a message: attempts, what it waits for, events and their webhook deliveries",
    tags=["Messages"],
    responses=answers_with(200, MessageDetailResponse, 401, 404, 500, 503),
)
async def get_message(request: Request, message_id: _MessageId) -> Response:
    member = await member_of(request)
    detail = await services_of(request).message_detail.detail(member.account_id, message_id)
    return answered(request, {"message": _detail(detail)})


@router.get(
    "/v1/messages/{id}/content",
    operation_id="getMessageContent",
    summary="What a message says, part by part, while it is stored",
    tags=["Messages"],
    responses=answers_with(200, MessageContentResponse, 401, 404, 500, 503),
)
async def get_message_content(request: Request, message_id: _MessageId) -> Response:
    member = await member_of(request)
    rendered = await services_of(request).message_detail.content(member.account_id, message_id)
    content = {"content": _content(rendered)}
    if len(rendered.text or "") + len(rendered.html or "") < THREAD_BODY_BYTES_MIN:
        return answered(request, content)
    return await asyncio.to_thread(answered, request, content)


@router.get(
    "/v1/messages/{id}/raw",
    operation_id="getMessageRaw",
    summary="A message's bytes as they were stored, before each recipient's copy was signed",
    tags=["Messages"],
    response_class=Response,
    responses=answers_with(200, "message/rfc822", 401, 404, 500, 503),
)
async def get_message_raw(request: Request, message_id: _MessageId) -> Response:
    member = await member_of(request)
    raw = await services_of(request).message_detail.raw(member.account_id, message_id)
    # Whoever opens it in a browser must not run what a stranger wrote.
    headers = {
        "Content-Disposition": f'attachment; filename="{message_id}.eml"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(raw, media_type="message/rfc822", headers=headers)


def _detail(detail: Detail) -> dict[str, Any]:
    timeline = detail.timeline
    return {
        "id": ids.text(ids.MESSAGE, timeline.id),
        "status": timeline.status,
        "source": timeline.source,
        "from": timeline.sender,
        "envelope_from": timeline.envelope_sender,
        "subject": timeline.subject,
        "billing_status": timeline.billing_status,
        "recipient_count": timeline.recipient_count,
        "credits_reserved": timeline.credits_reserved,
        "created_at": moment(timeline.created_at),
        "accepted_request_id": ids.text(ids.REQUEST, timeline.request_id),
        "credential": {
            "id": ids.text(ids.CREDENTIAL, timeline.credential_id),
            "name": timeline.credential_name,
        },
        "tags": timeline.tags,
        "template": timeline.template,
        "headers": None if detail.headers is None else [field._asdict() for field in detail.headers],
        "recipients": [_recipient(timeline, one) for one in timeline.recipients],
        "reports": _reports(timeline.reports),
        "events": [_event(timeline, one) for one in timeline.recipients if one.event is not None],
        "is_shortened": timeline.is_shortened,
    }


def _recipient(timeline: Timeline, recipient: RecipientTimeline) -> dict[str, Any]:
    wait, why = timeline.wait(recipient), recipient.suppression
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
            f"{status}_at": moment(recipient.final_at) if recipient.status == status else None
            for status in ("delivered", "bounced", "failed")
        },
        "attempts": [_attempt(recipient, one) for one in recipient.attempts],
        "waiting": wait and {"reason": wait.reason, "text": wait.text, "next_at": moment(next_at)},
        "suppression": why and {"reason": why.reason, "at": moment(why.at), "code": why.code, "response": why.response},
        "reports": _reports(recipient.reports),
    }


def _attempt(recipient: RecipientTimeline, attempt: Attempt) -> dict[str, Any]:
    version, _, cipher = (attempt.tls or "").partition(" ")
    return {
        "started_at": moment(attempt.started_at),
        "duration_ms": _milliseconds(attempt.started_at, attempt.finished_at),
        "outcome": attempt.outcome,
        "is_under_way": recipient.is_under_way(attempt),
        "is_ambiguous": attempt.is_ambiguous,
        "mx": attempt.exchange,
        "address": attempt.address,
        "tls_version": version or None,
        "tls_cipher": cipher or None,
        "stage": attempt.stage,
        "code": attempt.code,
        "response": attempt.response,
    }


def _milliseconds(started_at: datetime, finished_at: datetime | None) -> int | None:
    """The clocks of two processes may differ by more than an attempt took."""
    return None if finished_at is None else max(0, (finished_at - started_at) // _MILLISECOND)


def _reports(reports: Sequence[Report]) -> list[dict[str, Any]]:
    return [
        {
            "kind": one.kind,
            "detail": one.detail,
            "status": one.status,
            "code": one.code,
            "response": one.response,
            "suppressed": one.suppressed,
            "at": moment(one.at),
        }
        for one in reports
    ]


def _event(timeline: Timeline, recipient: RecipientTimeline) -> dict[str, Any]:
    told = recipient.event
    return (
        {}
        if told is None
        else {
            "id": ids.text(ids.EVENT, told.id),
            "type": told.type,
            "recipient_id": _recipient_id(timeline, recipient),
            "created_at": moment(told.created_at),
            "webhook_deliveries": [_sending(one) for one in told.sendings],
        }
    )


def _sending(sending: WebhookDeliverySummary) -> dict[str, Any]:
    return {
        "id": ids.text(ids.WEBHOOK_DELIVERY, sending.id),
        "status": sending.status,
        "attempt": sending.attempt,
        "max_attempts": sending.max_attempts,
        "http_status": sending.http_status,
        "error": sending.error,
        "replay_of": None if sending.replay_of is None else ids.text(ids.WEBHOOK_DELIVERY, sending.replay_of),
        "created_at": moment(sending.created_at),
        "last_attempt_at": moment(sending.last_attempt_at),
        "next_attempt_at": moment(sending.next_attempt_at),
    }


def _recipient_id(timeline: Timeline, recipient: RecipientTimeline) -> str:
    return ids.text(ids.RECIPIENT, ids.recipient_id(timeline.id, recipient.position))


def _content(rendered: RenderedMail) -> dict[str, Any]:
    return {
        "subject": rendered.subject,
        "headers": [field._asdict() for field in rendered.headers],
        "text": rendered.text,
        "html": rendered.html,
        "attachments": [one._asdict() for one in rendered.attachments],
        "is_shortened": rendered.is_shortened,
    }
