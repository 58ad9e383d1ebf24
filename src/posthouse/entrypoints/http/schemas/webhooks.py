"""Request and response schemas of the account's webhook and its deliveries."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import (
    EventType,
    MaybeMoment,
    Moment,
    NextCursor,
    Request,
    Response,
    described,
)
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
            "Which events are sent; all of them unless given. `webhook.test` is sent by a ping, whatever stands here.",
        ),
    ] = None
    enabled: Annotated[bool, described("Disabling cancels what is pending.")] = True


class Webhook(BaseModel):
    url: str
    events: list[EventType]
    enabled: bool
    created_at: Moment
    updated_at: Moment


class WebhookResponse(Response):
    webhook: Annotated[Webhook | None, described("Null when there is none.")]


class WebhookSavedResponse(Response):
    webhook: Webhook
    secret: str | None = Field(
        default=None, description="Begins with `whsec_`. Only when the webhook is new: it is never shown again."
    )


class WebhookSecretResponse(Response):
    secret: Annotated[str, described("Begins with `whsec_`; it is never shown again.")]


class WebhookDelivery(BaseModel):
    id: str
    event_id: Annotated[str, described("Retries and replays have the same one.")]
    type: EventType
    message_id: Annotated[str | None, described("Null for a test.")]
    recipient_id: Annotated[str | None, described("Null for a test.")]
    url: Annotated[str, described("Where the last attempt went, or the first will go.")]
    status: Annotated[str, described("`failed` after the last attempt.", enum=["pending", "succeeded", "failed"])]
    attempt: Annotated[int, described("How many there were.")]
    max_attempts: int
    http_status: Annotated[int | None, described("Of the last attempt; null when it brought no answer.")]
    error: Annotated[str | None, described("What went wrong with the last attempt, for people.")]
    duration_ms: int | None
    request_body: Annotated[
        str | None, described("The first 2 KB of what is sent; null once the event is no longer stored.")
    ]
    response_body: Annotated[str | None, described("The first 2 KB of the last answer.")]
    truncated: Annotated[bool, described("Whether one of the two bodies is longer than what is shown.")]
    replay_of: Annotated[str | None, described("The id of the delivery that this one repeats.")]
    created_at: Moment
    last_attempt_at: MaybeMoment
    next_attempt_at: Annotated[str | None, described("RFC 3339, UTC; null when it is over.", format="date-time")]


class WebhookPingResponse(Response):
    event_id: str
    delivery: WebhookDelivery


class WebhookReplayResponse(Response):
    delivery: WebhookDelivery


class WebhookDeliveryListResponse(Response):
    deliveries: list[WebhookDelivery]
    next_cursor: NextCursor
