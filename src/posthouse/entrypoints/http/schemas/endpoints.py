"""Request and response schemas of the account's endpoints."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict

from posthouse.entrypoints.http.schemas.shapes import (
    NextCursor,
    OptionalTimestamp,
    Request,
    Response,
    Timestamp,
    described,
)
from posthouse.entrypoints.http.schemas.webhooks import (
    WebhookAttempt,
    WebhookDelivery,
    WebhookHealth,
    WebhookReplayAllRequest,
    WebhookReplayAllResponse,
)
from posthouse.rules import endpoint, limits
from posthouse.rules.credential import Mode
from posthouse.rules.endpoint_state import EndpointState
from posthouse.rules.event import EventType
from posthouse.rules.webhook_url import URL_CHARACTERS_MAX

ReplayRequest = WebhookReplayAllRequest
ReplayResponse = WebhookReplayAllResponse
_TYPES = {"items": {"type": "string", "enum": list(endpoint.TYPES)}}


class EndpointRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"url": "https://hooks.example.com/orders", "types": ["email.bounced"], "tags": ["orders"]}]
        },
    )

    url: Annotated[
        str,
        described("https, a public host, no user name, no fragment.", maxLength=URL_CHARACTERS_MAX),
    ]
    types: Annotated[list[str] | None, described("The events to send; all by default.")] = None
    sender_domains: Annotated[
        list[str] | None,
        described("Only mail from these domains.", maxItems=limits.ENDPOINT_DOMAINS_MAX),
    ] = None
    tags: Annotated[list[str] | None, described("Only mail that has one of these tags.", maxItems=limits.TAGS_MAX)] = (
        None
    )
    mode: Annotated[
        str | None, described("Only mail of live keys, or only of test keys; both by default.", enum=[*Mode, None])
    ] = None
    headers: Annotated[
        dict[str, str] | None,
        described(
            "Sent with every call, such as `Authorization`. They are never shown again; `{}` removes those that there "
            "are.",
            maxProperties=limits.ENDPOINT_HEADERS_MAX,
        ),
    ] = None
    enabled: Annotated[bool, described("Disabling cancels pending deliveries.")] = True


class EndpointChanges(EndpointRequest):
    """What is left out stays; null is what a new endpoint has without the field, but for headers: they stay."""

    url: Annotated[
        str,
        described("https, a public host, no user name, no fragment.", maxLength=URL_CHARACTERS_MAX),
    ] = ""


class Endpoint(BaseModel):
    id: str
    url: str
    types: Annotated[list[str], described("The events that are sent.", **_TYPES)]
    sender_domains: Annotated[list[str], described("Empty: of all domains.")]
    tags: Annotated[list[str], described("Empty: with any tags, or none.")]
    mode: Annotated[str | None, described("Null: of live and of test keys.", enum=[*Mode, None])]
    header_names: list[str]
    enabled: bool
    state: Annotated[
        str,
        described(
            "`new` until the first 2xx; `failing` when all calls have failed for days.", enum=list(EndpointState)
        ),
    ]
    failing_since: Annotated[
        str | None,
        described("The first failed call after the last 2xx, RFC 3339; null while calls succeed.", format="date-time"),
    ]
    previous_secret_until: Annotated[
        str | None,
        described("Until when calls are signed with the secret before the last rotation as well.", format="date-time"),
    ]
    created_at: Timestamp
    updated_at: Timestamp


class EndpointListResponse(Response):
    endpoints: list[Endpoint]


class EndpointResponse(Response):
    endpoint: Endpoint


class EndpointWithHealthResponse(Response):
    endpoint: Endpoint
    health: Annotated[WebhookHealth, described("The calls of the last 24 hours.")]


class EndpointCreatedResponse(Response):
    endpoint: Endpoint
    secret: Annotated[str, described("`whsec_` and base64; it is never shown again.")]


class EndpointSecretResponse(Response):
    secret: Annotated[str, described("`whsec_` and base64; it is never shown again.")]
    previous_secret_until: OptionalTimestamp


class EndpointDelivery(WebhookDelivery):
    type: Annotated[str, described("The event's type.", enum=[*endpoint.TYPES, EventType.TEST])]
    message_id: Annotated[str | None, described("Null for what is about no mail.")]
    recipient_id: Annotated[str | None, described("Null for what is about no mail.")]


class EndpointDeliveryWithAttempts(EndpointDelivery):
    attempts: Annotated[
        list[WebhookAttempt],
        described("Oldest first. A call whose process ended before it was recorded is counted in `attempt` only."),
    ]


class EndpointPingResponse(Response):
    event_id: str
    delivery: EndpointDelivery


class EndpointDeliveryResponse(Response):
    delivery: EndpointDeliveryWithAttempts


class EndpointReplayResponse(Response):
    delivery: EndpointDelivery


class EndpointDeliveryListResponse(Response):
    deliveries: list[EndpointDelivery]
    next_cursor: NextCursor
