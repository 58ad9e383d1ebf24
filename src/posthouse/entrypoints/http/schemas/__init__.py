"""The shapes of requests and responses, as the contract gives them; the rules themselves are in `rules`."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.entrypoints.http.schemas.shapes import Moment, NextCursor, Request, Response, described
from posthouse.rules import limits
from posthouse.rules.draft import Variable
from posthouse.rules.event import Type
from posthouse.rules.message import BillingStatus, MessageStatus, RecipientStatus, Source
from posthouse.rules.refusal import Code
from posthouse.rules.webhook_url import URL_CHARACTERS_MAX

_ADDRESS: Final = "A bare address (`ada@example.com`) or one with a display name (`Ada <ada@example.com>`)."


EventType = Annotated[str, Field(json_schema_extra={"enum": [one.value for one in Type]})]


class AttachmentBody(Request):
    model_config = ConfigDict(title="Attachment")

    filename: Annotated[
        str, described("File name without a path.", minLength=1, maxLength=limits.FILENAME_CHARACTERS_MAX)
    ]
    content: Annotated[str, described("File content, base64.", contentEncoding="base64")]
    content_type: Annotated[
        str | None,
        described(
            "Default from the file extension, otherwise `application/octet-stream`; no `multipart/*` or `message/*`."
        ),
    ] = None
    content_id: Annotated[
        str | None,
        described("Marks an inline image, in HTML `cid:<content_id>`. Up to 128 letters, digits and `. _ @ + -`."),
    ] = None


class SendBody(Request):
    model_config = ConfigDict(
        title="SendRequest",
        json_schema_extra={
            "examples": [
                {
                    "from": "Acme <hello@example.com>",
                    "to": "ada@example.net",
                    "subject": "Welcome",
                    "text": "Good to have you here.",
                    "html": "<p>Good to have you here.</p>",
                }
            ]
        },
    )

    sender: Annotated[str, Field(alias="from", description=f"{_ADDRESS} Must be of a verified domain of the account.")]
    to: Annotated[
        str | list[str],
        described(f"One address or a list. {_ADDRESS} At most 50 unique ones across `to`, `cc` and `bcc`."),
    ]
    cc: Annotated[str | list[str] | None, described("Like `to`.")] = None
    bcc: Annotated[str | list[str] | None, described("Like `to`; never written into the message.")] = None
    reply_to: Annotated[str | None, described(f"A single address. {_ADDRESS}")] = None
    subject: Annotated[
        str | None,
        described("Required unless a template supplies it; wins over the template's. At most 500 characters."),
    ] = None
    text: Annotated[str | None, described("Plain-text body.")] = None
    html: Annotated[str | None, described("HTML body.")] = None
    template: Annotated[str | None, described("Alias of a published template; not together with `text` or `html`.")] = (
        None
    )
    variables: Annotated[
        dict[str, Variable] | None,
        described(
            "Values for the template's `{{name}}` placeholders; only together with `template`.",
            maxProperties=limits.VARIABLES_MAX,
        ),
    ] = None
    headers: Annotated[
        dict[str, str] | None,
        described(
            "Custom headers. Reserved names (From, To, Subject, Content-* and others) are refused.",
            maxProperties=limits.HEADERS_MAX,
        ),
    ] = None
    tags: Annotated[
        str | list[str] | None,
        described("Up to 20 tags of 1 to 128 printable characters, written as `X-Service-Tag` headers."),
    ] = None
    attachments: Annotated[
        list[AttachmentBody] | None,
        described(
            "The assembled message is at most 10 MiB, attachments counted as base64.",
            maxItems=limits.ATTACHMENTS_MAX,
        ),
    ] = None


class TemplateContentBody(Request):
    subject: Annotated[str | None, described("May hold `{{name}}` placeholders.")] = None
    text: Annotated[str | None, described("May hold `{{name}}` placeholders; values are written as they are.")] = None
    html: Annotated[str | None, described("May hold `{{name}}` placeholders; values are HTML-escaped.")] = None
    publish: Annotated[bool, described("Publish this version at once.")] = False


class VersionBody(TemplateContentBody):
    model_config = ConfigDict(
        title="TemplateVersionRequest",
        json_schema_extra={"examples": [{"subject": "Welcome, {{name}}", "text": "Good to see you.", "publish": True}]},
    )


class TemplateBody(TemplateContentBody):
    model_config = ConfigDict(
        title="TemplateRequest",
        json_schema_extra={"examples": [{"alias": "welcome", "subject": "Welcome, {{name}}", "text": "Good morning."}]},
    )

    alias: Annotated[str, described("Unique in the account.", pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
    name: Annotated[str | None, described("For people; the alias unless given.", maxLength=200)] = None


class PublishBody(Request):
    model_config = ConfigDict(title="PublishRequest", json_schema_extra={"examples": [{"version": 1}]})

    version: Annotated[int, described("The number of the version.", minimum=1)]


class PreviewBody(Request):
    model_config = ConfigDict(title="PreviewRequest", json_schema_extra={"examples": [{"variables": {"name": "Ada"}}]})

    variables: dict[str, Variable] = Field(default={}, description="Values for the placeholders.")
    version: Annotated[int | None, described("Default: the published version, else the latest.")] = None


class WebhookBody(Request):
    model_config = ConfigDict(
        title="WebhookRequest",
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


class ErrorAnswer(Response):
    model_config = ConfigDict(title="Error")

    error: Annotated[str, described("What is wrong and what to do, for people.")]
    code: Code


class AttachmentAnswer(BaseModel):
    model_config = ConfigDict(title="AttachmentMetadata")

    filename: str
    content_type: str
    size: Annotated[int, described("Decoded length in bytes.")]
    content_id: str | None = Field(default=None, description="Absent when none was given.")


class SendAnswer(Response):
    model_config = ConfigDict(title="SendResponse")

    id: str
    status: Annotated[str, Field(json_schema_extra={"const": "queued"})]
    source: Annotated[str, Field(json_schema_extra={"const": "api"})]
    sender: Annotated[str, Field(alias="from")]
    to: list[str]
    cc: list[str]
    bcc: list[str]
    reply_to: str | None = Field(default=None, description="Absent when none was given.")
    subject: str
    billing_status: BillingStatus
    recipient_count: int
    credits_reserved: int
    headers: dict[str, str]
    tags: list[str]
    attachments: list[AttachmentAnswer]


class RecipientAnswer(BaseModel):
    model_config = ConfigDict(title="Recipient")

    id: str
    email: str
    status: RecipientStatus
    billing_status: BillingStatus
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: Annotated[str | None, described("RFC 3339, UTC.", format="date-time")]
    bounced_at: Annotated[str | None, described("RFC 3339, UTC.", format="date-time")]


class MessageAnswer(Response):
    model_config = ConfigDict(title="Message")

    id: str
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from")]
    subject: str
    billing_status: BillingStatus
    recipient_count: int
    credits_reserved: int
    created_at: Moment
    recipients: list[RecipientAnswer]


class VersionAnswer(BaseModel):
    model_config = ConfigDict(title="TemplateVersion")

    version: int
    subject: str | None
    text: str | None
    html: str | None
    created_at: Moment


class TemplateAnswer(BaseModel):
    model_config = ConfigDict(title="Template")

    alias: str
    name: str
    published_version: int | None
    latest_version: int
    created_at: Moment
    updated_at: Moment


class TemplateWithVersionsAnswer(TemplateAnswer):
    model_config = ConfigDict(title="TemplateWithVersions")

    versions: Annotated[list[VersionAnswer], described("The newest 20, newest first.")]


class TemplateResponse(Response):
    template: TemplateAnswer


class TemplateVersionResponse(Response):
    template: TemplateAnswer
    version: int


class TemplateDetailResponse(Response):
    template: TemplateWithVersionsAnswer


class TemplateListResponse(Response):
    templates: list[TemplateAnswer]
    next_cursor: NextCursor


class DeletedResponse(Response):
    deleted: bool


class PreviewResponse(Response):
    subject: str | None
    text: str | None
    html: str | None


class WebhookAnswer(BaseModel):
    model_config = ConfigDict(title="Webhook")

    url: str
    events: list[EventType]
    enabled: bool
    created_at: Moment
    updated_at: Moment


class WebhookResponse(Response):
    webhook: Annotated[WebhookAnswer | None, described("Null when there is none.")]


class WebhookSavedResponse(Response):
    webhook: WebhookAnswer
    secret: str | None = Field(
        default=None, description="Begins with `whsec_`. Only when the webhook is new: it is never shown again."
    )


class WebhookSecretResponse(Response):
    secret: Annotated[str, described("Begins with `whsec_`; it is never shown again.")]


class WebhookDeliveryAnswer(BaseModel):
    model_config = ConfigDict(title="WebhookDelivery")

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
    last_attempt_at: Annotated[str | None, described("RFC 3339, UTC.", format="date-time")]
    next_attempt_at: Annotated[str | None, described("RFC 3339, UTC; null when it is over.", format="date-time")]


class WebhookPingResponse(Response):
    event_id: str
    delivery: WebhookDeliveryAnswer


class WebhookReplayResponse(Response):
    delivery: WebhookDeliveryAnswer


class WebhookDeliveryListResponse(Response):
    deliveries: list[WebhookDeliveryAnswer]
    next_cursor: NextCursor


class EventDataAnswer(BaseModel):
    model_config = ConfigDict(title="EventData")

    email_id: str | None = Field(default=None, description="The message's id.")
    recipient_id: str | None = Field(default=None, description="Tells apart two addresses of one message.")
    to: str | None = Field(default=None, description="The address that reached its result.")
    sender: str | None = Field(default=None, alias="from", description="The envelope's sender, as it was submitted.")
    subject: str | None = Field(default=None, description="At most 200 characters of it.")
    smtp_code: int | None = Field(default=None, description="From the destination's server.")
    smtp_response: str | None = Field(default=None, description="At most 500 characters of it.")
    test: bool | None = Field(default=None, description="`true` in `webhook.test`, absent elsewhere.")


class EventAnswer(BaseModel):
    model_config = ConfigDict(title="Event")

    id: Annotated[str, described("Retries and replays have the same one: a receiver deduplicates on it.")]
    type: EventType
    created_at: Annotated[str, described("RFC 3339, UTC; the same in every attempt.", format="date-time")]
    data: Annotated[EventDataAnswer, described("Empty fields are absent.")]


class EventListResponse(Response):
    events: Annotated[
        list[EventAnswer],
        described("Oldest first; an event is shown 10 seconds after it was made."),
    ]
    next_cursor: Annotated[
        str | None, described("Pass it as `after`, now or later, to read on; null while there was nothing to read.")
    ]
    has_more: Annotated[
        bool,
        described("Whether to read on at once; a page may hold fewer events than `limit`, even none, and yet be true."),
    ]


class HealthResponse(Response):
    status: str
