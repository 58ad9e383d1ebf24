"""Request and response schemas of the account's webhook and its deliveries."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import (
    EventType,
    NextCursor,
    OptionalTimestamp,
    Request,
    Response,
    Timestamp,
    described,
)
from posthouse.rules.endpoint_state import EndpointState
from posthouse.rules.webhook_url import URL_CHARACTERS_MAX


class WebhookRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://hooks.acme.com/posthouse", "events": ["email.bounced"]}]},
    )

    url: Annotated[
        str,
        described("https, a public host, no user name, no fragment.", maxLength=URL_CHARACTERS_MAX),
    ]
    events: Annotated[
        list[str] | None,
        described(
            "The events to send; all by default. A ping always sends `webhook.test`.",
        ),
    ] = None
    enabled: Annotated[bool, described("Disabling cancels pending deliveries.")] = True


class Webhook(BaseModel):
    url: str
    events: list[EventType]
    enabled: bool
    created_at: Timestamp
    updated_at: Timestamp


class WebhookHealth(BaseModel):
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
    since: Annotated[
        str,
        described(
            "The numbers are from then on: 24 hours ago, or later if there were over 5,000 deliveries.",
            format="date-time",
        ),
    ]
    calls: int
    failures: Annotated[int, described("Calls without a 2xx.")]
    p50_ms: Annotated[int | None, described("Half of the calls took no longer; null without calls.")]
    p95_ms: int | None


class WebhookResponse(Response):
    webhook: Annotated[Webhook | None, described("Null if there is none.")]
    health: Annotated[WebhookHealth | None, described("The calls of the last 24 hours; null without a webhook.")]


class WebhookSavedResponse(Response):
    webhook: Webhook
    secret: str | None = Field(
        default=None, description="Begins with `whsec_`. Only for a new webhook; it is never shown again."
    )


class WebhookSecretResponse(Response):
    secret: Annotated[str, described("Begins with `whsec_`; it is never shown again.")]


class WebhookDelivery(BaseModel):
    id: str
    event_id: Annotated[str, described("The same for retries and replays.")]
    type: EventType
    message_id: Annotated[str | None, described("Null for a test.")]
    recipient_id: Annotated[str | None, described("Null for a test.")]
    url: Annotated[str, described("The URL of the last attempt, or of the first.")]
    status: Annotated[str, described("`failed` after the last attempt.", enum=["pending", "succeeded", "failed"])]
    attempt: Annotated[int, described("The number of attempts so far.")]
    max_attempts: int
    http_status: Annotated[int | None, described("The status of the last attempt; null without a response.")]
    error: Annotated[str | None, described("Why the last attempt failed, for people.")]
    duration_ms: int | None
    request_body: Annotated[
        str | None, described("The first 2 KB of the request; null once the event is no longer stored.")
    ]
    response_body: Annotated[str | None, described("The first 2 KB of the last response.")]
    truncated: Annotated[bool, described("Whether either body is longer than shown.")]
    replay_of: Annotated[str | None, described("The id of the repeated delivery.")]
    created_at: Timestamp
    last_attempt_at: OptionalTimestamp
    next_attempt_at: Annotated[
        str | None, described("RFC 3339, UTC; null without a further attempt.", format="date-time")
    ]


class WebhookAttempt(BaseModel):
    at: Timestamp
    http_status: Annotated[int | None, described("Null without a response.")]
    duration_ms: int | None
    error: Annotated[str | None, described("Why it failed, for people; null for a success.")]
    response_body: Annotated[
        str | None, described("The beginning of the response: 2 KB of the last, 512 bytes of failed attempts.")
    ]
    truncated: Annotated[bool, described("Whether the response is longer than shown.")]


class WebhookDeliveryWithAttempts(WebhookDelivery):
    attempts: Annotated[
        list[WebhookAttempt],
        described("Oldest first. A call whose process ended before it was recorded is counted in `attempt` only."),
    ]


class WebhookDeliveryResponse(Response):
    delivery: WebhookDeliveryWithAttempts


class WebhookReplayAllRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"since": "2026-11-15T09:30:00Z"}]})

    since: Annotated[str, described("Deliveries that were created then or later, RFC 3339.", format="date-time")]


class WebhookReplayAllResponse(Response):
    replayed: Annotated[int, described("How many deliveries were added.")]
    next_since: Annotated[
        str | None,
        described("If not null, there is more: repeat the request with it as `since`.", format="date-time"),
    ]


class WebhookPingResponse(Response):
    event_id: str
    delivery: WebhookDelivery


class WebhookReplayResponse(Response):
    delivery: WebhookDelivery


class WebhookDeliveryListResponse(Response):
    deliveries: list[WebhookDelivery]
    next_cursor: NextCursor
