"""The account's webhook, which only members may change, and its endpoints; and the log of what was sent to them."""

from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path, Query
from pydantic import BeforeValidator, Field

from posthouse.entrypoints.http.operation import Operations, PageSize
from posthouse.entrypoints.http.route_context import PAGE_DEFAULT, Cursor, MessageFilter
from posthouse.entrypoints.http.shapes import (
    DeletedResponse,
    EventType,
    NextCursor,
    OptionalTimestamp,
    RequestModel,
    Response,
    Shown,
    Timestamp,
    absent,
    described,
    examples,
    id_text,
    read_from,
)
from posthouse.flows.shared.principal import Caller, Member
from posthouse.flows.webhooks.endpoints import Endpoint as EndpointRow
from posthouse.flows.webhooks.endpoints import Endpoints, EndpointWish, Replayed
from posthouse.rules import endpoint, event, ids, limits
from posthouse.rules.credential import Mode, Role, Scope
from posthouse.rules.endpoint import EndpointState, WebhookStatus, webhook_filters
from posthouse.rules.webhook_url import URL_CHARACTERS_MAX

router = Operations("Endpoints", Scope.ENDPOINTS)

_WEBHOOK_TYPES: Final = list(event.EventType)
_ENDPOINT_TYPES: Final = [*endpoint.TYPES, event.EventType.TEST]
_RFC_3339: Final = ": RFC 3339, such as 2026-11-15T09:30:00Z."

Url = Annotated[str, described("https, a public host, no user name, no fragment.", maxLength=URL_CHARACTERS_MAX)]
Enabled = Annotated[bool, described("Disabling cancels pending deliveries.")]
State = Annotated[
    str,
    described("`new` until the first 2xx; `failing` when all calls have failed for days.", enum=list(EndpointState)),
]
FailingSince = Annotated[
    OptionalTimestamp,
    described("The first failed call after the last 2xx, RFC 3339; null while calls succeed."),
]
PreviousSecretUntil = Annotated[
    OptionalTimestamp, described("Until when calls are also signed with the secret before the last rotation.")
]
# Bodies may be cut within a character, and responses may contain any bytes; both are shown as text.
BodyText = Annotated[
    str | None, BeforeValidator(lambda body: None if body is None else body.decode("utf-8", "replace"))
]
MaxAttempts = Annotated[int, described("How often it is tried at most.")]
LastStatus = Annotated[int | None, described("The status of the last attempt; null without a response.")]
LastError = Annotated[str | None, described("Why the last attempt failed, for people.")]
ReplayOf = Annotated[
    Annotated[UUID, id_text(ids.WEBHOOK_DELIVERY)] | None, described("The id of the repeated delivery.")
]
MessageId = Annotated[ids.MessageId, id_text(ids.MESSAGE)] | None
RecipientId = Annotated[UUID, id_text(ids.RECIPIENT)] | None
DeliveryPathId = Annotated[str, Path(alias="id", description="The id of a delivery in the log.")]
EndpointPathId = Annotated[str, Path(alias="id", description="The id of an endpoint.")]
EndpointDeliveryPathId = Annotated[str, Path(alias="id", description="The id of a delivery in an endpoint's log.")]
StatusFilter = Annotated[
    str | None, Query(description="Only with this status.", json_schema_extra={"enum": list(WebhookStatus)})
]


_HEALTH: Final[dict[str, Any]] = {
    "state": "answering",
    "failing_since": None,
    "since": "2026-11-14T09:30:00.000Z",
    "calls": 1204,
    "failures": 3,
    "p50_ms": 84,
    "p95_ms": 310,
}
_ENDPOINT: Final[dict[str, Any]] = {
    "id": "ep_01k6wq3v5e7m8x9c0b2d4f6h80",
    "url": "https://hooks.example.com/orders",
    "types": ["email.bounced"],
    "sender_domains": [],
    "tags": ["orders"],
    "mode": None,
    "header_names": ["Authorization"],
    "enabled": True,
    "state": "answering",
    "failing_since": None,
    "previous_secret_until": None,
    "created_at": "2026-11-15T09:30:00.000Z",
    "updated_at": "2026-11-15T09:30:00.000Z",
}
_DELIVERY: Final[dict[str, Any]] = {
    "id": "wd_01k6wq3v5e7m8x9c0b2d4f6h82",
    "event_id": "ev_01k6wq3v5e7m8x9c0b2d4f6h83",
    "type": "email.bounced",
    "message_id": "em_01k6wq3v5e7m8x9c0b2d4f6h80",
    "recipient_id": "rc_01k6wq3v5e7m8x9c0b2d4f6h81",
    "url": "https://hooks.example.com/orders",
    "status": "succeeded",
    "attempt": 1,
    "max_attempts": 7,
    "http_status": 204,
    "error": None,
    "duration_ms": 84,
    "request_body": '{"id":"ev_01k6wq3v5e7m8x9c0b2d4f6h83","type":"email.bounced"}',
    "response_body": "",
    "truncated": True,
    "replay_of": None,
    "created_at": "2026-11-15T09:30:00.000Z",
    "last_attempt_at": "2026-11-15T09:30:00.000Z",
    "next_attempt_at": None,
}
_ATTEMPT: Final[dict[str, Any]] = {
    "at": "2026-11-15T09:30:00.000Z",
    "http_status": 204,
    "duration_ms": 84,
    "error": None,
    "response_body": "",
    "truncated": False,
}
_WITH_ATTEMPTS: Final = examples({**_DELIVERY, "attempts": [_ATTEMPT]})
_SECRETS: Final = ["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"]
_ENDPOINT_SECRET: Final = described("`whsec_` and base64; it is never shown again.", examples=_SECRETS)


def _type_filter(types: list[str]) -> Any:
    return Query(alias="type", description="Only of this type.", json_schema_extra={"enum": types})


class WebhookRequest(RequestModel):
    model_config = examples({"url": "https://hooks.acme.com/posthouse", "events": ["email.bounced"]})

    url: Url
    events: Annotated[
        list[str] | None, described("The events to send; all by default. A ping always sends `webhook.test`.")
    ] = None
    enabled: Enabled = True


class EndpointRequest(RequestModel):
    model_config = examples({"url": "https://hooks.example.com/orders", "types": ["email.bounced"], "tags": ["orders"]})

    url: Url
    types: Annotated[list[str] | None, described("The events to send; all by default.")] = None
    sender_domains: Annotated[
        list[str] | None, described("Only mail from these domains.", maxItems=limits.ENDPOINT_DOMAINS_MAX)
    ] = None
    tags: Annotated[list[str] | None, described("Only mail that has one of these tags.", maxItems=limits.TAGS_MAX)] = (
        None
    )
    mode: Annotated[
        str | None, described("Only mail from live keys, or only from test keys; both by default.", enum=[*Mode, None])
    ] = None
    headers: Annotated[
        dict[str, str] | None,
        described(
            "Sent with every call, such as `Authorization`. They are never shown again; `{}` removes those that there "
            "are.",
            maxProperties=limits.ENDPOINT_HEADERS_MAX,
        ),
    ] = None
    enabled: Enabled = True

    @property
    def wish(self) -> EndpointWish:
        return EndpointWish(**{name: getattr(self, name) for name in EndpointRequest.model_fields})


class EndpointChanges(EndpointRequest):
    """Fields that are left out stay; null resets a field to a new endpoint's default, except headers, which stay."""

    url: Url = ""


class WebhookReplayAllRequest(RequestModel):
    model_config = examples({"since": "2026-11-15T09:30:00Z"})

    since: Annotated[str, described("Deliveries created at this time or later, RFC 3339.", format="date-time")]


class Webhook(Shown):
    url: Annotated[str, Field(examples=["https://hooks.example.com/posthouse"])]
    events: Annotated[list[EventType], described("The events that are sent."), read_from("filters", "types")]
    enabled: Enabled
    created_at: Timestamp
    updated_at: Timestamp


class WebhookHealth(Shown):
    model_config = examples(_HEALTH)

    state: State
    failing_since: FailingSince
    since: Annotated[
        Timestamp,
        described("The start of the counted period: 24 hours ago, or later if there were over 5,000 deliveries."),
    ]
    calls: Annotated[int, described("Retries count too.")]
    failures: Annotated[int, described("Calls without a 2xx.")]
    p50_ms: Annotated[int | None, described("The median; null without calls.")]
    p95_ms: Annotated[int | None, described("95 % took at most this long; null without calls.")]


class Endpoint(Shown):
    model_config = examples(_ENDPOINT)

    id: Annotated[UUID, id_text(ids.ENDPOINT)]
    url: str
    types: Annotated[
        list[str],
        described("The events that are sent.", items={"type": "string", "enum": list(endpoint.TYPES)}),
        read_from("filters", "types"),
    ]
    sender_domains: Annotated[
        list[str], described("Empty: mail from all domains."), read_from("filters", "sender_domains")
    ]
    tags: Annotated[list[str], described("Empty: mail with any tags, or none."), read_from("filters", "tags")]
    mode: Annotated[
        str | None,
        described("Null: mail from live and from test keys.", enum=[*Mode, None]),
        read_from("filters", "mode"),
    ]
    header_names: Annotated[list[str], described("Sent with every call; their values are never shown.")]
    enabled: Enabled
    state: State
    failing_since: FailingSince
    previous_secret_until: Annotated[PreviousSecretUntil, read_from("previous_until")]
    created_at: Timestamp
    updated_at: Timestamp


class WebhookDelivery(Shown):
    model_config = examples(_DELIVERY)

    id: Annotated[UUID, id_text(ids.WEBHOOK_DELIVERY)]
    event_id: Annotated[UUID, id_text(ids.EVENT), described("The same for retries and replays.")]
    type: EventType
    message_id: Annotated[MessageId, described("Null for a test.")]
    recipient_id: Annotated[RecipientId, described("Null for a test.")]
    url: Annotated[str, described("The URL of the last attempt, or of the first.")]
    status: Annotated[str, described("`failed` after the last attempt.", enum=["pending", "succeeded", "failed"])]
    attempt: Annotated[int, described("The number of attempts so far.")]
    max_attempts: MaxAttempts
    http_status: LastStatus
    error: LastError
    duration_ms: Annotated[int | None, described("Of the last attempt, in milliseconds; null before the first.")]
    request_body: Annotated[
        BodyText, described("The first 2 KB of the request; null once the event is no longer stored.")
    ]
    response_body: Annotated[BodyText, described("The first 2 KB of the last response.")]
    truncated: Annotated[bool, described("Whether either body is longer than shown."), read_from("is_truncated")]
    replay_of: ReplayOf
    created_at: Timestamp
    last_attempt_at: OptionalTimestamp
    next_attempt_at: Annotated[OptionalTimestamp, described("RFC 3339, UTC; null without a further attempt.")]


class WebhookAttempt(Shown):
    at: Timestamp
    http_status: Annotated[int | None, described("Null without a response.")]
    duration_ms: Annotated[int | None, described("In milliseconds.")]
    error: Annotated[str | None, described("Why it failed, for people; null for a success.")]
    response_body: Annotated[
        BodyText, described("The beginning of the response: 2 KB of the last, 512 bytes of failed attempts.")
    ]
    truncated: Annotated[bool, described("Whether the response is longer than shown."), read_from("response_truncated")]


Attempts = Annotated[
    list[WebhookAttempt],
    described("Oldest first. A call whose process ended before it was recorded is only counted in `attempt`."),
]


class WebhookDeliveryWithAttempts(WebhookDelivery):
    model_config = _WITH_ATTEMPTS

    attempts: Attempts


class EndpointDelivery(WebhookDelivery):
    type: Annotated[str, described("The event's type.", enum=_ENDPOINT_TYPES)]
    message_id: Annotated[MessageId, described("Null for events that are not about a message.")]
    recipient_id: Annotated[RecipientId, described("Null for events that are not about a message.")]


class EndpointDeliveryWithAttempts(EndpointDelivery):
    model_config = _WITH_ATTEMPTS

    attempts: Attempts


class WebhookResponse(Response):
    webhook: Annotated[Webhook | None, described("Null if there is none.")]
    health: Annotated[WebhookHealth | None, described("The calls of the last 24 hours; null without a webhook.")]


class WebhookSavedResponse(Response):
    webhook: Webhook
    secret: str | None = absent("Begins with `whsec_`. Only for a new webhook; it is never shown again.")


class WebhookSecretResponse(Response):
    secret: Annotated[str, described("Begins with `whsec_`; it is never shown again.", examples=_SECRETS)]


class WebhookPingResponse(Response):
    event_id: Annotated[UUID, id_text(ids.EVENT)]
    delivery: WebhookDelivery


class WebhookReplayResponse(Response):
    delivery: WebhookDelivery


class WebhookDeliveryResponse(Response):
    delivery: WebhookDeliveryWithAttempts


class WebhookDeliveryListResponse(Response):
    deliveries: list[WebhookDelivery]
    next_cursor: NextCursor


class WebhookReplayAllResponse(Response):
    replayed: Annotated[int, described("How many deliveries were added.")]
    next_since: Annotated[
        OptionalTimestamp,
        described("If not null, there is more: repeat the request with it as `since`."),
    ]


class EndpointListResponse(Response):
    endpoints: list[Endpoint]


class EndpointResponse(Response):
    endpoint: Endpoint


class EndpointWithHealthResponse(Response):
    endpoint: Endpoint
    health: Annotated[WebhookHealth, described("The calls of the last 24 hours.")]


class EndpointCreatedResponse(Response):
    endpoint: Endpoint
    secret: Annotated[str, _ENDPOINT_SECRET]


class EndpointSecretResponse(Response):
    secret: Annotated[str, _ENDPOINT_SECRET]
    previous_secret_until: PreviousSecretUntil


class EndpointPingResponse(Response):
    event_id: Annotated[UUID, id_text(ids.EVENT)]
    delivery: EndpointDelivery


class EndpointReplayResponse(Response):
    delivery: EndpointDelivery


class EndpointDeliveryResponse(Response):
    delivery: EndpointDeliveryWithAttempts


class EndpointDeliveryListResponse(Response):
    deliveries: list[EndpointDelivery]
    next_cursor: NextCursor


@router.get("/v1/webhook", Role.VIEWER, tag="Webhooks")
async def get_webhook(member: Member, endpoints: Endpoints) -> WebhookResponse:
    """The account's webhook, or null"""
    found = await endpoints.webhook(member.account_id)
    if found is None:
        return WebhookResponse(webhook=None, health=None)
    return WebhookResponse(webhook=Webhook.of(found), health=await _health(endpoints, found))


@router.put("/v1/webhook", Role.MEMBER, tag="Webhooks")
async def save_webhook(member: Member, body: WebhookRequest, endpoints: Endpoints) -> WebhookSavedResponse:
    """Save the webhook; its secret is shown when it is first created"""
    saved = await endpoints.save_webhook(
        member.account_id, body.url, body.events or [], member.actor, enabled=body.enabled
    )
    return WebhookSavedResponse(webhook=Webhook.of(saved.endpoint), secret=saved.secret)


@router.delete("/v1/webhook", Role.MEMBER, tag="Webhooks", errors=(404,))
async def delete_webhook(member: Member, endpoints: Endpoints) -> DeletedResponse:
    """Delete the webhook and its log; pending deliveries are cancelled"""
    await endpoints.delete(member.account_id, member.actor)
    return DeletedResponse(deleted=True)


@router.post("/v1/webhook/rotate-secret", Role.MEMBER, tag="Webhooks", errors=(404,))
async def rotate_webhook_secret(member: Member, endpoints: Endpoints) -> WebhookSecretResponse:
    """Create a new secret; the old secret ends immediately"""
    secret, _ = await endpoints.rotate_secret(member.account_id, member.actor)
    return WebhookSecretResponse(secret=secret)


@router.post("/v1/webhook/ping", Role.MEMBER, tag="Webhooks", stores=True, status=202, errors=(404, 409))
async def ping_webhook(member: Member, endpoints: Endpoints) -> WebhookPingResponse:
    """Send a test event, without retries; at most once every 15 seconds"""
    delivery = await endpoints.ping(member.account_id)
    return WebhookPingResponse(event_id=delivery.event_id, delivery=WebhookDelivery.of(delivery))


@router.get("/v1/webhook/deliveries", Role.VIEWER, tag="Webhooks")
async def list_webhook_deliveries(
    member: Member,
    endpoints: Endpoints,
    message_id: MessageFilter = None,
    limit: PageSize = PAGE_DEFAULT,
    cursor: Cursor = None,
    status: StatusFilter = None,
    event_type: Annotated[str | None, _type_filter(_WEBHOOK_TYPES)] = None,
    since: Annotated[str | None, Query(description=f"Only those created at this time or later{_RFC_3339}")] = None,
    until: Annotated[str | None, Query(description=f"Only those created before this time{_RFC_3339}")] = None,
) -> WebhookDeliveryListResponse:
    """The deliveries of the last 7 days, newest first"""
    filters = webhook_filters(status, event_type, since, until, _WEBHOOK_TYPES)
    page = await endpoints.deliveries(member.account_id, limit, cursor, message_id, filters)
    return WebhookDeliveryListResponse(deliveries=WebhookDelivery.of_all(page.items), next_cursor=page.next_cursor)


@router.get("/v1/webhook/deliveries/{id}", Role.VIEWER, tag="Webhooks")
async def get_webhook_delivery(
    member: Member, delivery_id: DeliveryPathId, endpoints: Endpoints
) -> WebhookDeliveryResponse:
    """A delivery with every attempt"""
    found, attempts = await endpoints.delivery(member.account_id, delivery_id, of_webhook=True)
    return WebhookDeliveryResponse(
        delivery=WebhookDeliveryWithAttempts.of(found, attempts=WebhookAttempt.of_all(attempts))
    )


@router.post("/v1/webhook/deliveries/{id}/replay", Role.MEMBER, tag="Webhooks", stores=True, status=202, errors=(409,))
async def replay_webhook_delivery(
    member: Member, delivery_id: DeliveryPathId, endpoints: Endpoints
) -> WebhookReplayResponse:
    """Send an event again, with retries: the same body and event id, a new signature"""
    replay = await endpoints.replay(member.account_id, delivery_id, of_webhook=True)
    return WebhookReplayResponse(delivery=WebhookDelivery.of(replay))


@router.post("/v1/webhook/replay", Role.MEMBER, tag="Webhooks", stores=True, status=202, errors=(404, 409))
async def replay_webhook_deliveries(
    member: Member, body: WebhookReplayAllRequest, endpoints: Endpoints
) -> WebhookReplayAllResponse:
    """Send every event again whose last delivery failed since the given time"""
    return _replayed(await endpoints.replay_failed(member.account_id, body.since, member.actor))


@router.get("/v1/endpoints", Role.VIEWER)
async def list_endpoints(caller: Caller, endpoints: Endpoints) -> EndpointListResponse:
    """The account's endpoints, oldest first"""
    found = await endpoints.all(caller.account_id)
    return EndpointListResponse(endpoints=[_endpoint(endpoints, each) for each in found])


@router.post("/v1/endpoints", Role.MEMBER, stores=True, status=201, errors=(409,))
async def create_endpoint(caller: Caller, body: EndpointRequest, endpoints: Endpoints) -> EndpointCreatedResponse:
    """Create an endpoint; its secret is shown once"""
    made, secret = await endpoints.create(caller.account_id, body.wish, caller.actor)
    return EndpointCreatedResponse(endpoint=_endpoint(endpoints, made), secret=secret)


@router.get("/v1/endpoints/{id}", Role.VIEWER)
async def get_endpoint(caller: Caller, endpoint_id: EndpointPathId, endpoints: Endpoints) -> EndpointWithHealthResponse:
    """An endpoint and its calls of the last day"""
    found = await endpoints.get(caller.account_id, endpoint_id)
    return EndpointWithHealthResponse(endpoint=_endpoint(endpoints, found), health=await _health(endpoints, found))


@router.put("/v1/endpoints/{id}", Role.MEMBER)
async def save_endpoint(
    caller: Caller, endpoint_id: EndpointPathId, body: EndpointChanges, endpoints: Endpoints
) -> EndpointResponse:
    """Change an endpoint; fields that are left out stay, and so does its secret"""
    saved = await endpoints.save(caller.account_id, endpoint_id, body.wish, caller.actor, body.model_fields_set)
    return EndpointResponse(endpoint=_endpoint(endpoints, saved))


@router.delete("/v1/endpoints/{id}", Role.MEMBER)
async def delete_endpoint(caller: Caller, endpoint_id: EndpointPathId, endpoints: Endpoints) -> DeletedResponse:
    """Delete an endpoint; pending deliveries are cancelled"""
    await endpoints.delete(caller.account_id, caller.actor, endpoint_id)
    return DeletedResponse(deleted=True)


@router.post("/v1/endpoints/{id}/rotate-secret", Role.MEMBER, errors=(409,))
async def rotate_endpoint_secret(
    caller: Caller, endpoint_id: EndpointPathId, endpoints: Endpoints
) -> EndpointSecretResponse:
    """Create a new secret; calls are also signed with the old secret for 24 hours"""
    secret, until = await endpoints.rotate_secret(caller.account_id, caller.actor, endpoint_id)
    return EndpointSecretResponse(secret=secret, previous_secret_until=until)


@router.post("/v1/endpoints/{id}/ping", Role.MEMBER, stores=True, status=202, errors=(409,))
async def ping_endpoint(caller: Caller, endpoint_id: EndpointPathId, endpoints: Endpoints) -> EndpointPingResponse:
    """Send a test event, without retries; at most once every 15 seconds per account"""
    delivery = await endpoints.ping(caller.account_id, endpoint_id)
    return EndpointPingResponse(event_id=delivery.event_id, delivery=EndpointDelivery.of(delivery))


@router.get("/v1/endpoints/{id}/deliveries", Role.VIEWER)
async def list_endpoint_deliveries(
    caller: Caller,
    endpoint_id: EndpointPathId,
    endpoints: Endpoints,
    limit: PageSize = PAGE_DEFAULT,
    cursor: Cursor = None,
    status: StatusFilter = None,
    event_type: Annotated[str | None, _type_filter(_ENDPOINT_TYPES)] = None,
    since: Annotated[str | None, Query(description="Only those created at this time or later: RFC 3339.")] = None,
    until: Annotated[str | None, Query(description="Only those created before this time: RFC 3339.")] = None,
) -> EndpointDeliveryListResponse:
    """The endpoint's deliveries of the last 7 days, newest first"""
    filters = webhook_filters(status, event_type, since, until, _ENDPOINT_TYPES)
    page = await endpoints.deliveries(caller.account_id, limit, cursor, filters=filters, given_id=endpoint_id)
    return EndpointDeliveryListResponse(deliveries=EndpointDelivery.of_all(page.items), next_cursor=page.next_cursor)


@router.get("/v1/endpoints/deliveries/{id}", Role.VIEWER)
async def get_endpoint_delivery(
    caller: Caller, delivery_id: EndpointDeliveryPathId, endpoints: Endpoints
) -> EndpointDeliveryResponse:
    """A delivery to an endpoint, with every attempt"""
    found, attempts = await endpoints.delivery(caller.account_id, delivery_id)
    return EndpointDeliveryResponse(
        delivery=EndpointDeliveryWithAttempts.of(found, attempts=WebhookAttempt.of_all(attempts))
    )


@router.post("/v1/endpoints/deliveries/{id}/replay", Role.MEMBER, stores=True, status=202, errors=(409,))
async def replay_endpoint_delivery(
    caller: Caller, delivery_id: EndpointDeliveryPathId, endpoints: Endpoints
) -> EndpointReplayResponse:
    """Send an event to its endpoint again, with retries: the same body and event id, a new signature"""
    replay = await endpoints.replay(caller.account_id, delivery_id)
    return EndpointReplayResponse(delivery=EndpointDelivery.of(replay))


@router.post("/v1/endpoints/{id}/replay", Role.MEMBER, stores=True, status=202, errors=(409,))
async def replay_endpoint(
    caller: Caller, endpoint_id: EndpointPathId, body: WebhookReplayAllRequest, endpoints: Endpoints
) -> WebhookReplayAllResponse:
    """Send every event again whose last delivery to the endpoint failed since the given time"""
    return _replayed(await endpoints.replay_failed(caller.account_id, body.since, caller.actor, endpoint_id))


def _replayed(done: Replayed) -> WebhookReplayAllResponse:
    return WebhookReplayAllResponse(replayed=done.count, next_since=done.next_since)


def _endpoint(endpoints: Endpoints, found: EndpointRow) -> Endpoint:
    return Endpoint.of(found, state=endpoints.state(found))


async def _health(endpoints: Endpoints, found: EndpointRow) -> WebhookHealth:
    health = await endpoints.health(found)
    return WebhookHealth.of(health, state=endpoints.state(found), failing_since=found.failing_since)
