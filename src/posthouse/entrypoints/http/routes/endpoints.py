"""The routes of the account's endpoints and their deliveries."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from posthouse.entrypoints.http.openapi import json_body, responses_with
from posthouse.entrypoints.http.route_context import (
    PAGE_DEFAULT,
    Cursor,
    PageSize,
    body_of,
    caller_of,
    json_response,
    page_response,
    page_size,
    services_of,
    timestamp,
)
from posthouse.entrypoints.http.routes.webhooks import delivery_content, delivery_with_attempts, health_content
from posthouse.entrypoints.http.schemas import endpoints as schemas
from posthouse.entrypoints.http.schemas.shapes import DeletedResponse
from posthouse.flows.webhooks.endpoints import Endpoint, EndpointWish
from posthouse.rules import endpoint, ids
from posthouse.rules.endpoint_state import EndpointState
from posthouse.rules.event import EventType
from posthouse.rules.webhook_filters import WebhookStatus, webhook_filters

router = APIRouter()

EndpointId = Annotated[str, Path(alias="id", description="The id of an endpoint.")]
DeliveryId = Annotated[str, Path(alias="id", description="The id of a delivery in an endpoint's log.")]
_STATUSES: Final = {"enum": list(WebhookStatus)}
_TYPES: Final = {"enum": [*endpoint.TYPES, EventType.TEST]}


@router.get(
    "/v1/endpoints",
    operation_id="listEndpoints",
    summary="The account's endpoints, oldest first",
    tags=["Endpoints"],
    responses=responses_with(200, schemas.EndpointListResponse, 401, 500, 503),
)
async def list_endpoints(request: Request) -> Response:
    caller = await caller_of(request)
    flow = services_of(request).endpoints
    found = await flow.all(caller.account_id)
    return json_response(request, {"endpoints": [_endpoint(each, flow.state(each)) for each in found]})


@router.post(
    "/v1/endpoints",
    operation_id="createEndpoint",
    summary="Create an endpoint; its secret is shown once",
    tags=["Endpoints"],
    status_code=201,
    openapi_extra=json_body(schemas.EndpointRequest),
    responses=responses_with(201, schemas.EndpointCreatedResponse, 400, 401, 403, 409, 413, 429, 500, 503),
)
async def create_endpoint(request: Request) -> Response:
    caller = await caller_of(request)
    wish = _wish(await body_of(request, schemas.EndpointRequest))
    flow = services_of(request).endpoints
    made, secret = await flow.create(caller.account_id, wish, caller.actor)
    return json_response(request, {"endpoint": _endpoint(made, flow.state(made)), "secret": secret}, 201)


@router.get(
    "/v1/endpoints/{id}",
    operation_id="getEndpoint",
    summary="An endpoint, and its calls of the last day",
    tags=["Endpoints"],
    responses=responses_with(200, schemas.EndpointWithHealthResponse, 401, 404, 500, 503),
)
async def get_endpoint(request: Request, endpoint_id: EndpointId) -> Response:
    caller = await caller_of(request)
    flow = services_of(request).endpoints
    found, health = await flow.get(caller.account_id, endpoint_id)
    state = flow.state(found)
    content = {"endpoint": _endpoint(found, state), "health": health_content(state, found.failing_since, health)}
    return json_response(request, content)


@router.put(
    "/v1/endpoints/{id}",
    operation_id="saveEndpoint",
    summary="Change an endpoint; what is left out stays, and so does its secret",
    tags=["Endpoints"],
    openapi_extra=json_body(schemas.EndpointChanges),
    responses=responses_with(200, schemas.EndpointResponse, 400, 401, 403, 404, 413, 429, 500, 503),
)
async def save_endpoint(request: Request, endpoint_id: EndpointId) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.EndpointChanges)
    flow = services_of(request).endpoints
    saved = await flow.save(caller.account_id, endpoint_id, _wish(body), caller.actor, body.model_fields_set)
    return json_response(request, {"endpoint": _endpoint(saved, flow.state(saved))})


@router.delete(
    "/v1/endpoints/{id}",
    operation_id="deleteEndpoint",
    summary="Delete an endpoint; pending deliveries are cancelled",
    tags=["Endpoints"],
    responses=responses_with(200, DeletedResponse, 401, 403, 404, 429, 500, 503),
)
async def delete_endpoint(request: Request, endpoint_id: EndpointId) -> Response:
    caller = await caller_of(request)
    await services_of(request).endpoints.delete(caller.account_id, endpoint_id, caller.actor)
    return json_response(request, {"deleted": True})


@router.post(
    "/v1/endpoints/{id}/rotate-secret",
    operation_id="rotateEndpointSecret",
    summary="Create a new secret; for 24 hours calls are signed with the old secret as well",
    tags=["Endpoints"],
    responses=responses_with(200, schemas.EndpointSecretResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def rotate_endpoint_secret(request: Request, endpoint_id: EndpointId) -> Response:
    caller = await caller_of(request)
    secret, until = await services_of(request).endpoints.rotate_secret(caller.account_id, endpoint_id, caller.actor)
    return json_response(request, {"secret": secret, "previous_secret_until": timestamp(until)})


@router.post(
    "/v1/endpoints/{id}/ping",
    operation_id="pingEndpoint",
    summary="Send a test event, without retries; an account may do so every 15 seconds",
    tags=["Endpoints"],
    status_code=202,
    responses=responses_with(202, schemas.EndpointPingResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def ping_endpoint(request: Request, endpoint_id: EndpointId) -> Response:
    caller = await caller_of(request)
    delivery = await services_of(request).endpoints.ping(caller.account_id, endpoint_id)
    content = {"event_id": ids.text(ids.EVENT, delivery.event_id), "delivery": delivery_content(delivery)}
    return json_response(request, content, 202)


@router.get(
    "/v1/endpoints/{id}/deliveries",
    operation_id="listEndpointDeliveries",
    summary="The endpoint's deliveries of the last 7 days, newest first",
    tags=["Endpoints"],
    responses=responses_with(200, schemas.EndpointDeliveryListResponse, 400, 401, 404, 500, 503),
)
async def list_endpoint_deliveries(
    request: Request,
    endpoint_id: EndpointId,
    limit: PageSize = str(PAGE_DEFAULT),
    cursor: Cursor = None,
    status: Annotated[str | None, Query(description="Only with this status.", json_schema_extra=_STATUSES)] = None,
    event_type: Annotated[
        str | None, Query(alias="type", description="Only of this type.", json_schema_extra=_TYPES)
    ] = None,
    since: Annotated[str | None, Query(description="Only those created then or later: RFC 3339.")] = None,
    until: Annotated[str | None, Query(description="Only those created before then: RFC 3339.")] = None,
) -> Response:
    caller = await caller_of(request)
    filters = webhook_filters(status, event_type, since, until, types=_TYPES["enum"])
    page = await services_of(request).endpoints.deliveries(
        caller.account_id, endpoint_id, page_size(limit), cursor, filters
    )
    return page_response(request, "deliveries", page, delivery_content)


@router.get(
    "/v1/endpoints/deliveries/{id}",
    operation_id="getEndpointDelivery",
    summary="A delivery to an endpoint, with every attempt",
    tags=["Endpoints"],
    responses=responses_with(200, schemas.EndpointDeliveryResponse, 401, 404, 500, 503),
)
async def get_endpoint_delivery(request: Request, delivery_id: DeliveryId) -> Response:
    caller = await caller_of(request)
    delivery, attempts = await services_of(request).endpoints.delivery(caller.account_id, delivery_id)
    return json_response(request, {"delivery": delivery_with_attempts(delivery, attempts)})


@router.post(
    "/v1/endpoints/deliveries/{id}/replay",
    operation_id="replayEndpointDelivery",
    summary="Send an event to its endpoint again, with retries: the same body and event id, a new signature",
    tags=["Endpoints"],
    status_code=202,
    responses=responses_with(202, schemas.EndpointReplayResponse, 401, 403, 404, 409, 429, 500, 503),
)
async def replay_endpoint_delivery(request: Request, delivery_id: DeliveryId) -> Response:
    caller = await caller_of(request)
    delivery = await services_of(request).endpoints.replay_delivery(caller.account_id, delivery_id)
    return json_response(request, {"delivery": delivery_content(delivery)}, 202)


@router.post(
    "/v1/endpoints/{id}/replay",
    operation_id="replayEndpoint",
    summary="Send every event again whose last delivery to the endpoint failed since then",
    tags=["Endpoints"],
    status_code=202,
    openapi_extra=json_body(schemas.ReplayRequest),
    responses=responses_with(202, schemas.ReplayResponse, 400, 401, 403, 404, 409, 413, 429, 500, 503),
)
async def replay_endpoint(request: Request, endpoint_id: EndpointId) -> Response:
    caller = await caller_of(request)
    body = await body_of(request, schemas.ReplayRequest)
    done = await services_of(request).endpoints.replay(caller.account_id, endpoint_id, body.since, caller.actor)
    return json_response(request, {"replayed": done.count, "next_since": timestamp(done.next_since)}, 202)


def _wish(body: schemas.EndpointRequest) -> EndpointWish:
    return EndpointWish(
        body.url, body.types, body.sender_domains, body.tags, body.mode, body.headers, enabled=body.enabled
    )


def _endpoint(found: Endpoint, state: EndpointState) -> dict[str, Any]:
    return {
        "id": ids.text(ids.ENDPOINT, found.id),
        "url": found.url,
        "types": found.filters.types,
        "sender_domains": found.filters.sender_domains,
        "tags": found.filters.tags,
        "mode": found.filters.mode,
        "header_names": found.header_names,
        "enabled": found.enabled,
        "state": state,
        "failing_since": timestamp(found.failing_since),
        "previous_secret_until": timestamp(found.previous_until),
        "created_at": timestamp(found.created_at),
        "updated_at": timestamp(found.updated_at),
    }
