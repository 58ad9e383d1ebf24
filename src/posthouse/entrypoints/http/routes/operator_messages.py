"""The operator's routes of messages: to find one of any account, to see why it waits, to read it."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import responses_with
from posthouse.entrypoints.http.route_context import json_response, services_of, timestamp
from posthouse.entrypoints.http.routes.message_detail import attempt_fields, content_fields
from posthouse.entrypoints.http.routes.operator import READ_ERRORS, flows_of
from posthouse.entrypoints.http.schemas import operator as schemas
from posthouse.entrypoints.http.schemas.message_detail import MessageContentResponse
from posthouse.flows.operate.message_lookup import FoundMessage
from posthouse.flows.operate.monitor import RecipientTimeline, StoredLesson, Timeline
from posthouse.flows.operate.recipient_explanation import explained
from posthouse.rules import ids

router = APIRouter()

MessageId = Annotated[str, Path(alias="id", description="The message's id, of any account.")]
Quoted = Annotated[
    str,
    Query(
        description="A message's id, a text that has one, as a customer quotes it; or a whole address.",
        examples=["250 2.0.0 queued as em_01k6wq3v5e7m8x9c0b2d4f6h80"],
    ),
]


@router.get(
    "/v1/operator/messages",
    operation_id="operatorFindMessages",
    summary="Find a message of any account by its id, or the mail of 7 days by an address",
    tags=["Operator"],
    responses=responses_with(200, schemas.FoundMessages, *READ_ERRORS),
)
async def find_messages(request: Request, q: Quoted = "") -> Response:
    flows = await flows_of(request)
    found = await flows.message_lookup.find(q)
    return json_response(
        request, {"messages": [_found(message) for message in found.messages], "is_more": found.is_more}
    )


@router.get(
    "/v1/operator/messages/{id}",
    operation_id="operatorGetMessage",
    summary="Why a message's recipients wait, or how they ended",
    tags=["Operator"],
    responses=responses_with(200, schemas.ExplainedMessage, *READ_ERRORS),
)
async def get_message(request: Request, message_id: MessageId) -> Response:
    flows = await flows_of(request)
    timeline = await flows.monitor.timeline(message_id)
    lessons = await flows.monitor.lessons(timeline)
    return json_response(
        request,
        {
            "id": ids.text(ids.MESSAGE, timeline.id),
            "account_id": ids.text(ids.ACCOUNT, timeline.account_id),
            "account": timeline.account_name,
            "suspended_reason": timeline.suspended_reason,
            "status": timeline.status,
            "source": timeline.source,
            "from": timeline.sender,
            "created_at": timestamp(timeline.created_at),
            "accepted_request_id": ids.text(ids.REQUEST, timeline.request_id),
            "recipients": [_recipient(timeline, each, lessons.get(each.position)) for each in timeline.recipients],
            "is_shortened": timeline.is_shortened,
        },
    )


@router.get(
    "/v1/operator/messages/{id}/content",
    operation_id="operatorGetMessageContent",
    summary="The content of a message; the account's log says that an operator read it",
    tags=["Operator"],
    responses=responses_with(200, MessageContentResponse, *READ_ERRORS),
)
async def get_message_content(request: Request, message_id: MessageId) -> Response:
    lookup = (await flows_of(request)).message_lookup
    account_id = await lookup.account_of(message_id)
    content = await services_of(request).message_detail.content(account_id, message_id)
    await lookup.note_content_read(account_id, message_id)
    return await asyncio.to_thread(json_response, request, {"content": content_fields(content)})


def _found(message: FoundMessage) -> dict[str, Any]:
    return {
        "id": ids.text(ids.MESSAGE, message.id),
        "account_id": ids.text(ids.ACCOUNT, message.account_id),
        "account": message.account,
        "status": message.status,
        "source": message.source,
        "from": message.sender,
        "to": message.recipients,
        "recipient_count": message.recipient_count,
        "created_at": timestamp(message.created_at),
    }


def _recipient(timeline: Timeline, recipient: RecipientTimeline, lesson: StoredLesson | None) -> dict[str, Any]:
    waiting = recipient.waiting
    return {
        **explained(timeline, recipient, lesson)._asdict(),
        "next_at": None if waiting is None else timestamp(waiting.next_at),
        "final_at": timestamp(recipient.final_at),
        "attempts": [attempt_fields(recipient, attempt) for attempt in recipient.attempts],
    }
