"""The shapes of requests and responses, as the contract gives them; the rules themselves are in `rules`."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from posthouse.rules import limits
from posthouse.rules.draft import Variable
from posthouse.rules.endpoint import URL_CHARACTERS_MAX
from posthouse.rules.event import Type
from posthouse.rules.message import BillingStatus, MessageStatus, RecipientStatus, Source
from posthouse.rules.refusal import Code


def _described(text: str, **schema: Any) -> Any:
    """A field whose limits are documented here and enforced by the rules, in one place each."""
    return Field(description=text, json_schema_extra=schema or None)


_ADDRESS: Final = "A bare address (`ada@example.com`) or one with a display name (`Ada <ada@example.com>`)."


EventType = Annotated[str, Field(json_schema_extra={"enum": [one.value for one in Type]})]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


class AttachmentBody(_Request):
    model_config = ConfigDict(title="Attachment")

    filename: Annotated[
        str, _described("File name without a path.", minLength=1, maxLength=limits.FILENAME_CHARACTERS_MAX)
    ]
    content: Annotated[str, _described("File content, base64.", contentEncoding="base64")]
    content_type: Annotated[
        str | None,
        _described(
            "Default from the file extension, otherwise `application/octet-stream`; no `multipart/*` or `message/*`."
        ),
    ] = None
    content_id: Annotated[
        str | None,
        _described("Marks an inline image, in HTML `cid:<content_id>`. Up to 128 letters, digits and `. _ @ + -`."),
    ] = None


class SendBody(_Request):
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
        _described(f"One address or a list. {_ADDRESS} At most 50 unique ones across `to`, `cc` and `bcc`."),
    ]
    cc: Annotated[str | list[str] | None, _described("Like `to`.")] = None
    bcc: Annotated[str | list[str] | None, _described("Like `to`; never written into the message.")] = None
    reply_to: Annotated[str | None, _described(f"A single address. {_ADDRESS}")] = None
    subject: Annotated[
        str | None,
        _described("Required unless a template supplies it; wins over the template's. At most 500 characters."),
    ] = None
    text: Annotated[str | None, _described("Plain-text body.")] = None
    html: Annotated[str | None, _described("HTML body.")] = None
    template: Annotated[
        str | None, _described("Alias of a published template; not together with `text` or `html`.")
    ] = None
    variables: Annotated[
        dict[str, Variable] | None,
        _described(
            "Values for the template's `{{name}}` placeholders; only together with `template`.",
            maxProperties=limits.VARIABLES_MAX,
        ),
    ] = None
    headers: Annotated[
        dict[str, str] | None,
        _described(
            "Custom headers. Reserved names (From, To, Subject, Content-* and others) are refused.",
            maxProperties=limits.HEADERS_MAX,
        ),
    ] = None
    tags: Annotated[
        str | list[str] | None,
        _described("Up to 20 tags of 1 to 128 printable characters, written as `X-Service-Tag` headers."),
    ] = None
    attachments: Annotated[
        list[AttachmentBody] | None,
        _described(
            "The assembled message is at most 10 MiB, attachments counted as base64.",
            maxItems=limits.ATTACHMENTS_MAX,
        ),
    ] = None


class LoginBody(_Request):
    model_config = ConfigDict(title="LoginRequest")

    email: str
    password: str


class TemplateContentBody(_Request):
    subject: Annotated[str | None, _described("May hold `{{name}}` placeholders.")] = None
    text: Annotated[str | None, _described("May hold `{{name}}` placeholders; values are written as they are.")] = None
    html: Annotated[str | None, _described("May hold `{{name}}` placeholders; values are HTML-escaped.")] = None
    publish: Annotated[bool, _described("Publish this version at once.")] = False


class VersionBody(TemplateContentBody):
    model_config = ConfigDict(title="TemplateVersionRequest")


class TemplateBody(TemplateContentBody):
    model_config = ConfigDict(title="TemplateRequest")

    alias: Annotated[str, _described("Unique in the account.", pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
    name: Annotated[str | None, _described("For people; the alias unless given.", maxLength=200)] = None


class PublishBody(_Request):
    model_config = ConfigDict(title="PublishRequest")

    version: Annotated[int, _described("The number of the version.", minimum=1)]


class PreviewBody(_Request):
    model_config = ConfigDict(title="PreviewRequest")

    variables: Annotated[dict[str, Variable], _described("Values for the placeholders.")] = {}
    version: Annotated[int | None, _described("Default: the published version, else the latest.")] = None


class WebhookBody(_Request):
    model_config = ConfigDict(
        title="WebhookRequest",
        json_schema_extra={"examples": [{"url": "https://hooks.acme.com/posthouse", "events": ["email.bounced"]}]},
    )

    url: Annotated[
        str,
        _described("https, a public host, no user name, no fragment.", maxLength=URL_CHARACTERS_MAX),
    ]
    events: Annotated[
        list[str] | None,
        _described(
            "Which events are sent; all of them unless given. `webhook.test` is sent by a ping, whatever stands here.",
        ),
    ] = None
    enabled: Annotated[bool, _described("Disabling cancels what is pending.")] = True


class _Response(BaseModel):
    request_id: Annotated[str, _described("The value of the header X-Request-ID.")]


class ErrorAnswer(_Response):
    model_config = ConfigDict(title="Error")

    error: Annotated[str, _described("What is wrong and what to do, for people.")]
    code: Code


class AttachmentAnswer(BaseModel):
    model_config = ConfigDict(title="AttachmentMetadata")

    filename: str
    content_type: str
    size: Annotated[int, _described("Decoded length in bytes.")]
    content_id: str | None = Field(default=None, description="Absent when none was given.")


class SendAnswer(_Response):
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
    delivered_at: Annotated[str | None, _described("RFC 3339, UTC.", format="date-time")]
    bounced_at: Annotated[str | None, _described("RFC 3339, UTC.", format="date-time")]


class MessageAnswer(_Response):
    model_config = ConfigDict(title="Message")

    id: str
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from")]
    subject: str
    billing_status: BillingStatus
    recipient_count: int
    credits_reserved: int
    created_at: Annotated[str, _described("RFC 3339, UTC.", format="date-time")]
    recipients: list[RecipientAnswer]


class LoginAnswer(_Response):
    model_config = ConfigDict(title="LoginResponse")

    token: Annotated[str, _described("A JWT: send it as `Authorization: Bearer <token>`.")]
    expires_at: Annotated[str, _described("RFC 3339, UTC.", format="date-time")]


class VersionAnswer(BaseModel):
    model_config = ConfigDict(title="TemplateVersion")

    version: int
    subject: str | None
    text: str | None
    html: str | None
    created_at: Annotated[str, _described("RFC 3339, UTC.", format="date-time")]


class TemplateAnswer(BaseModel):
    model_config = ConfigDict(title="Template")

    alias: str
    name: str
    published_version: int | None
    latest_version: int
    created_at: Annotated[str, _described("RFC 3339, UTC.", format="date-time")]
    updated_at: Annotated[str, _described("RFC 3339, UTC.", format="date-time")]


class TemplateWithVersionsAnswer(TemplateAnswer):
    model_config = ConfigDict(title="TemplateWithVersions")

    versions: Annotated[list[VersionAnswer], _described("The newest 20, newest first.")]


class TemplateResponse(_Response):
    template: TemplateAnswer


class TemplateVersionResponse(_Response):
    template: TemplateAnswer
    version: int


class TemplateDetailResponse(_Response):
    template: TemplateWithVersionsAnswer


class TemplateListResponse(_Response):
    templates: list[TemplateAnswer]
    next_cursor: Annotated[str | None, _described("Pass it as `cursor` for the next page; null on the last.")]


class DeletedResponse(_Response):
    deleted: bool


class PreviewResponse(_Response):
    subject: str | None
    text: str | None
    html: str | None


class WebhookAnswer(BaseModel):
    model_config = ConfigDict(title="Webhook")

    url: str
    events: list[EventType]
    enabled: bool
    created_at: Annotated[str, _described("RFC 3339, UTC.", format="date-time")]
    updated_at: Annotated[str, _described("RFC 3339, UTC.", format="date-time")]


class WebhookResponse(_Response):
    webhook: Annotated[WebhookAnswer | None, _described("Null when there is none.")]


class WebhookSavedResponse(_Response):
    webhook: WebhookAnswer
    secret: str | None = Field(
        default=None, description="Begins with `whsec_`. Only when the webhook is new: it is never shown again."
    )


class WebhookSecretResponse(_Response):
    secret: Annotated[str, _described("Begins with `whsec_`; it is never shown again.")]


class WebhookDeliveryAnswer(BaseModel):
    model_config = ConfigDict(title="WebhookDelivery")

    id: str
    event_id: Annotated[str, _described("Retries and replays have the same one.")]
    type: EventType
    message_id: Annotated[str | None, _described("Null for a test.")]
    recipient_id: Annotated[str | None, _described("Null for a test.")]
    url: Annotated[str, _described("Where the last attempt went, or the first will go.")]
    status: Annotated[str, _described("`failed` after the last attempt.", enum=["pending", "succeeded", "failed"])]
    attempt: Annotated[int, _described("How many there were.")]
    max_attempts: int
    http_status: Annotated[int | None, _described("Of the last attempt; null when it brought no answer.")]
    error: Annotated[str | None, _described("What went wrong with the last attempt, for people.")]
    duration_ms: int | None
    request_body: Annotated[
        str | None, _described("The first 2 KB of what is sent; null once the event is no longer stored.")
    ]
    response_body: Annotated[str | None, _described("The first 2 KB of the last answer.")]
    truncated: Annotated[bool, _described("Whether one of the two bodies is longer than what is shown.")]
    replay_of: Annotated[str | None, _described("The id of the delivery that this one repeats.")]
    created_at: Annotated[str, _described("RFC 3339, UTC.", format="date-time")]
    last_attempt_at: Annotated[str | None, _described("RFC 3339, UTC.", format="date-time")]
    next_attempt_at: Annotated[str | None, _described("RFC 3339, UTC; null when it is over.", format="date-time")]


class WebhookPingResponse(_Response):
    event_id: str
    delivery: WebhookDeliveryAnswer


class WebhookReplayResponse(_Response):
    delivery: WebhookDeliveryAnswer


class WebhookDeliveryListResponse(_Response):
    deliveries: list[WebhookDeliveryAnswer]
    next_cursor: Annotated[str | None, _described("Pass it as `cursor` for the next page; null on the last.")]


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

    id: Annotated[str, _described("Retries and replays have the same one: a receiver deduplicates on it.")]
    type: EventType
    created_at: Annotated[str, _described("RFC 3339, UTC; the same in every attempt.", format="date-time")]
    data: Annotated[EventDataAnswer, _described("Empty fields are absent.")]


class EventListResponse(_Response):
    events: Annotated[
        list[EventAnswer],
        _described("Oldest first; an event is shown 10 seconds after it was made."),
    ]
    next_cursor: Annotated[
        str | None, _described("Pass it as `after`, now or later, to read on; null while there was nothing to read.")
    ]
    has_more: Annotated[
        bool,
        _described(
            "Whether to read on at once; a page may hold fewer events than `limit`, even none, and yet be true."
        ),
    ]


class HealthResponse(_Response):
    status: str
