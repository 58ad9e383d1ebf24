"""The routes of the account's webhook and its deliveries."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    Cursor,
    MessageFilter,
    PageSize,
    body_of,
    json_response,
    member_of,
    page_response,
    page_size,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.schemas import webhooks as schemas
from posthouse.entrypoints.http.schemas.shapes import DeletedResponse
from posthouse.flows.webhooks.webhook import EndpointHealth, EndpointRow, WebhookAttempt, WebhookDelivery
from posthouse.rules import ids
from posthouse.rules.endpoint_state import EndpointState
from posthouse.rules.event import EventType
from posthouse.rules.webhook_filters import WebhookStatus, webhook_filters

router = APIRouter()

DeliveryId = Annotated[str, Path(alias="id", description="The id of a delivery in the log.")]
_STATUSES: Final = {"enum": list(WebhookStatus)}
_TYPES: Final = {"enum": list(EventType)}
_RFC_3339: Final = ": RFC 3339, such as 2026-11-15T09:30:00Z."


@router.get(
    "/v1/webhook",
    operation_id="getWebhook",
    summary="The account's webhook, or null",
    tags=["Webhooks"],
    responses=responses_with(200, schemas.WebhookResponse, 401, 500, 503),
)
async def get_webhook(request: Request) -> Response:
    member = await member_of(request)
    flow = services_of(request).webhook_endpoint
    found = await flow.get(member.account_id)
    if found is None:
        return json_response(request, {"webhook": None, "health": None})
    health = await flow.health(member.account_id)
    return json_response(
        request, {"webhook": _endpoint(found), "health": health_content(flow.state(found), found.failing_since, health)}
    )


@router.put(
    "/v1/webhook",
    operation_id="saveWebhook",
    summary="Save the webhook; its secret is shown when it is first created",
    tags=["Webhooks"],
    openapi_extra=json_body(schemas.WebhookRequest),
    responses=responses_with(200, schemas.WebhookSavedResponse, 400, 401, 403, 413, 429, 500, 503),
)
async def save_webhook(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.WebhookRequest)
    saved = await services_of(request).webhook_endpoint.save(
        member.account_id, body.url, body.events or [], member.actor, enabled=body.enabled
    )
    secret = {} if saved.secret is None else {"secret": saved.secret}
    return json_response(request, {"webhook": _endpoint(saved.endpoint), **secret})


@router.delete(
    "/v1/webhook",
    operation_id="deleteWebhook",
    summary="Delete the webhook and its log; pending deliveries are cancelled",
    tags=["Webhooks"],
    responses=responses_with(200, DeletedResponse, 401, 403, 404, 429, 500, 503),
)
async def delete_webhook(request: Request) -> Response:
    member = await member_of(request)
    await services_of(request).webhook_endpoint.delete(member.account_id, member.actor)
    return json_response(request, {"deleted": True})


@router.post(
    "/v1/webhook/rotate-secret",
    operation_id="rotateWebhookSecret",
    summary="Create a new secret; the old secret ends at once",
    tags=["Webhooks"],
    responses=responses_with(200, schemas.WebhookSecretResponse, 401, 403, 404, 429, 500, 503),
)
async def rotate_webhook_secret(request: Request) -> Response:
    member = await member_of(request)
    secret = await services_of(request).webhook_endpoint.rotate_secret(member.account_id, member.actor)
    return json_response(request, {"secret": secret})


@router.post(
    "/v1/webhook/ping",
    operation_id="pingWebhook",
    summary="Send a test event, without retries; at most every 15 seconds",
    tags=["Webhooks"],
    status_code=202,
    responses=responses_with(202, schemas.WebhookPingResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def ping_webhook(request: Request) -> Response:
    member = await member_of(request)
    delivery = await services_of(request).webhook_endpoint.ping(member.account_id)
    content = {"event_id": ids.text(ids.EVENT, delivery.event_id), "delivery": delivery_content(delivery)}
    return json_response(request, content, 202)


@router.get(
    "/v1/webhook/deliveries",
    operation_id="listWebhookDeliveries",
    summary="The deliveries of the last 7 days, newest first",
    tags=["Webhooks"],
    responses=responses_with(200, schemas.WebhookDeliveryListResponse, 400, 401, 500, 503),
)
async def list_webhook_deliveries(
    request: Request,
    message_id: MessageFilter = None,
    limit: PageSize = str(PAGE_DEFAULT),
    cursor: Cursor = None,
    status: Annotated[str | None, Query(description="Only with this status.", json_schema_extra=_STATUSES)] = None,
    event_type: Annotated[
        str | None, Query(alias="type", description="Only of this type.", json_schema_extra=_TYPES)
    ] = None,
    since: Annotated[str | None, Query(description=f"Only those created then or later{_RFC_3339}")] = None,
    until: Annotated[str | None, Query(description=f"Only those created before then{_RFC_3339}")] = None,
) -> Response:
    member = await member_of(request)
    page = await services_of(request).webhook_endpoint.deliveries(
        member.account_id, page_size(limit), cursor, message_id, webhook_filters(status, event_type, since, until)
    )
    return page_response(request, "deliveries", page, delivery_content)


@router.get(
    "/v1/webhook/deliveries/{id}",
    operation_id="getWebhookDelivery",
    summary="A delivery with every attempt",
    tags=["Webhooks"],
    responses=responses_with(200, schemas.WebhookDeliveryResponse, 401, 404, 500, 503),
)
async def get_webhook_delivery(request: Request, delivery_id: DeliveryId) -> Response:
    member = await member_of(request)
    delivery, attempts = await services_of(request).webhook_endpoint.delivery(member.account_id, delivery_id)
    return json_response(request, {"delivery": delivery_with_attempts(delivery, attempts)})


@router.post(
    "/v1/webhook/deliveries/{id}/replay",
    operation_id="replayWebhookDelivery",
    summary="Send an event again, with retries: the same body and event id, a new signature",
    tags=["Webhooks"],
    status_code=202,
    responses=responses_with(202, schemas.WebhookReplayResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def replay_webhook_delivery(request: Request, delivery_id: DeliveryId) -> Response:
    member = await member_of(request)
    delivery = await services_of(request).webhook_endpoint.replay(member.account_id, delivery_id)
    return json_response(request, {"delivery": delivery_content(delivery)}, 202)


@router.post(
    "/v1/webhook/replay",
    operation_id="replayWebhookDeliveries",
    summary="Send every event again whose last delivery failed since then",
    tags=["Webhooks"],
    status_code=202,
    openapi_extra=json_body(schemas.WebhookReplayAllRequest),
    responses=responses_with(202, schemas.WebhookReplayAllResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def replay_webhook_deliveries(request: Request) -> Response:
    member = await member_of(request)
    body = await body_of(request, schemas.WebhookReplayAllRequest)
    done = await services_of(request).webhook_endpoint.replay_failed(member.account_id, body.since, member.actor)
    return json_response(request, {"replayed": done.count, "next_since": timestamp(done.next_since)}, 202)


def _endpoint(row: EndpointRow) -> dict[str, Any]:
    return {
        "url": row.url,
        "events": row.events,
        "enabled": row.enabled,
        "created_at": timestamp(row.created_at),
        "updated_at": timestamp(row.updated_at),
    }


def health_content(state: EndpointState, failing_since: datetime | None, health: EndpointHealth) -> dict[str, Any]:
    return {
        "state": state,
        "failing_since": timestamp(failing_since),
        "since": timestamp(health.since),
        "calls": health.calls,
        "failures": health.failures,
        "p50_ms": health.p50_ms,
        "p95_ms": health.p95_ms,
    }


def _attempt(attempt: WebhookAttempt) -> dict[str, Any]:
    return {
        "at": timestamp(attempt.at),
        "http_status": attempt.http_status,
        "duration_ms": attempt.duration_ms,
        "error": attempt.error,
        "response_body": _text(attempt.response_body),
        "truncated": attempt.response_truncated,
    }


def delivery_with_attempts(delivery: WebhookDelivery, attempts: Sequence[WebhookAttempt]) -> dict[str, Any]:
    return {**delivery_content(delivery), "attempts": [_attempt(attempt) for attempt in attempts]}


def delivery_content(delivery: WebhookDelivery) -> dict[str, Any]:
    message_id, position = delivery.message_id, delivery.position
    return {
        "id": ids.text(ids.WEBHOOK_DELIVERY, delivery.id),
        "event_id": ids.text(ids.EVENT, delivery.event_id),
        "type": delivery.type,
        "message_id": None if message_id is None else ids.text(ids.MESSAGE, message_id),
        "recipient_id": None
        if message_id is None or position is None
        else ids.text(ids.RECIPIENT, ids.recipient_id(message_id, position)),
        "url": delivery.url,
        "status": delivery.status,
        "attempt": delivery.attempt,
        "max_attempts": delivery.max_attempts,
        "http_status": delivery.http_status,
        "error": delivery.error,
        "duration_ms": delivery.duration_ms,
        "request_body": _text(delivery.request_body),
        "response_body": _text(delivery.response_body),
        "truncated": delivery.request_truncated or delivery.response_truncated,
        "replay_of": None if delivery.replay_of is None else ids.text(ids.WEBHOOK_DELIVERY, delivery.replay_of),
        "created_at": timestamp(delivery.created_at),
        "last_attempt_at": timestamp(delivery.last_attempt_at),
        "next_attempt_at": timestamp(delivery.next_attempt_at),
    }


def _text(body: bytes | None) -> str | None:
    """Bodies may be cut within a character, and responses may hold any bytes; both are shown as text."""
    return None if body is None else body.decode("utf-8", "replace")
