"""Request and response schemas of sending a message and reading its status."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from posthouse.entrypoints.http.schemas.shapes import (
    ALIAS_PATTERN,
    Error,
    OptionalTimestamp,
    Request,
    Response,
    Timestamp,
    described,
)
from posthouse.mail.address import GIVEN_CHARACTERS_MAX
from posthouse.rules import kept_content, limits
from posthouse.rules.message import BillingStatus, MessageStatus, RecipientStatus, Source

# Limits that only document, like those of `described`.
GivenAddress = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": GIVEN_CHARACTERS_MAX})]
Tag = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": limits.TAG_CHARACTERS_MAX})]
MetadataValue = Annotated[str, Field(json_schema_extra={"maxLength": limits.METADATA_VALUE_CHARACTERS_MAX})]
HeaderValue = Annotated[str, Field(json_schema_extra={"maxLength": limits.HEADER_VALUE_BYTES_MAX})]
_ADDRESS: Final = "A bare address (`ada@example.com`) or one with a display name (`Ada <ada@example.com>`)."
_SENDER: Final = f"{_ADDRESS} Must belong to a verified domain of the account."
_SEND_AT: Final = "Absent if none was given."
_FORGOTTEN: Final = "Absent if the message was sent with `content`: `forget`."
_CONTENT: Final = "`forget` if the message was sent with it; otherwise absent."
_TO: Final = f"One address or a list. {_ADDRESS} At most 50 unique addresses across `to`, `cc` and `bcc`."


class Attachment(Request):
    filename: Annotated[
        str, described("File name without a path.", minLength=1, maxLength=limits.FILENAME_CHARACTERS_MAX)
    ]
    content: Annotated[str, described("File content, base64.", contentEncoding="base64")]
    content_type: Annotated[
        str | None,
        described(
            "Default from the file extension, otherwise `application/octet-stream`; no `multipart/*` or `message/*`.",
            maxLength=limits.CONTENT_TYPE_CHARACTERS_MAX,
        ),
    ] = None
    content_id: Annotated[
        str | None,
        described(
            "Marks an inline image, `cid:<content_id>` in HTML. Up to 128 letters, digits and `. _ @ + -`.",
            minLength=1,
            maxLength=limits.CONTENT_ID_CHARACTERS_MAX,
        ),
    ] = None


class SendRequest(Request):
    model_config = ConfigDict(
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

    sender: Annotated[GivenAddress, Field(alias="from", description=_SENDER)]
    to: Annotated[
        GivenAddress | list[GivenAddress],
        described(_TO, minItems=1, maxItems=limits.RECIPIENTS_GIVEN_MAX),
    ]
    cc: Annotated[
        GivenAddress | list[GivenAddress] | None, described("Like `to`.", maxItems=limits.RECIPIENTS_GIVEN_MAX)
    ] = None
    bcc: Annotated[
        GivenAddress | list[GivenAddress] | None,
        described("Like `to`; never written into the message.", maxItems=limits.RECIPIENTS_GIVEN_MAX),
    ] = None
    reply_to: Annotated[
        str | None, described(f"A single address. {_ADDRESS}", minLength=1, maxLength=GIVEN_CHARACTERS_MAX)
    ] = None
    subject: Annotated[
        str | None,
        described(
            "Required unless a template supplies it; overrides the template's. At most 500 characters.",
            maxLength=limits.SUBJECT_CHARACTERS_MAX,
        ),
    ] = None
    text: Annotated[str | None, described("Plain-text body.")] = None
    html: Annotated[str | None, described("HTML body.")] = None
    template: Annotated[
        str | None,
        described("Alias of a published template; not together with `text` or `html`.", pattern=ALIAS_PATTERN),
    ] = None
    variables: Annotated[
        dict[str, Any] | None,
        described(
            "Values for the template's `{{name}}` placeholders; only together with `template`. Strings, numbers, "
            "booleans and null; for a template of the engine `handlebars` also lists and objects, 64 KiB in all.",
            maxProperties=limits.VARIABLES_MAX,
        ),
    ] = None
    headers: Annotated[
        dict[str, HeaderValue] | None,
        described(
            "Custom headers. Reserved names (From, To, Subject, Content-* and others) are refused.",
            maxProperties=limits.HEADERS_MAX,
            propertyNames={"minLength": 1, "maxLength": limits.HEADER_NAME_CHARACTERS_MAX},
        ),
    ] = None
    tags: Annotated[
        Tag | list[Tag] | None,
        described(
            "Up to 20 tags of 1 to 128 printable characters, written as `X-Service-Tag` headers.",
            maxItems=limits.TAGS_MAX,
        ),
    ] = None
    attachments: Annotated[
        list[Attachment] | None,
        described(
            "The assembled message is at most 10 MiB, attachments counted as base64.",
            maxItems=limits.ATTACHMENTS_MAX,
        ),
    ] = None
    metadata: Annotated[
        dict[str, MetadataValue] | None,
        described(
            "Pairs for your own programs, never in the mail: shown by GET and in `GET /v1/events`, and a filter of the "
            "list. A name has 1 to 64 letters, digits and `_ . -`.",
            maxProperties=limits.METADATA_MAX,
            propertyNames={"pattern": "^[A-Za-z0-9_.-]{1,64}$"},
        ),
    ] = None
    send_at: Annotated[
        str | None,
        described(
            f"The message is not sent before this time, up to {limits.SEND_AT_DAYS_MAX} days ahead.", format="date-time"
        ),
    ] = None
    content: Annotated[
        str | None,
        described(
            "With `forget`, no one can read subject, headers and body once the message is accepted; they are deleted "
            "within five minutes after its last recipient's result. For codes and links that open something.",
            enum=[kept_content.FORGET, None],
        ),
    ] = None


_OptionalSender = Annotated[GivenAddress | None, Field(alias="from", description=_SENDER)]
_OptionalRecipients = Annotated[
    GivenAddress | list[GivenAddress] | None, described(_TO, minItems=1, maxItems=limits.RECIPIENTS_GIVEN_MAX)
]


class BatchEmail(SendRequest):
    """What is required may be in the `defaults`."""

    sender: _OptionalSender = None  # type: ignore[assignment]
    to: _OptionalRecipients = None  # type: ignore[assignment]


class BatchRequest(Request):
    """Each email is validated by itself, together with the defaults."""

    emails: Annotated[
        list[SkipValidation[BatchEmail]],
        described("The emails, with the fields of POST /emails.", minItems=1, maxItems=limits.BULK_EMAILS_MAX),
    ]
    defaults: Annotated[
        SkipValidation[BatchEmail] | None,
        described("Fields of each email that doesn't have them itself. They are transferred once."),
    ] = None
    all: Annotated[bool, described("Accept all of the emails, or none if one is refused.")] = False


class MoveRequest(Request):
    send_at: Annotated[str, described(f"The new time, up to {limits.SEND_AT_DAYS_MAX} days ahead.", format="date-time")]


class AttachmentMetadata(BaseModel):
    filename: str
    content_type: str
    size: Annotated[int, described("Decoded length in bytes.")]
    content_id: str | None = Field(default=None, description="Absent if none was given.")


class SendResponse(Response):
    id: str
    status: Annotated[str, Field(json_schema_extra={"const": "queued"})]
    source: Annotated[str, Field(json_schema_extra={"const": "api"})]
    sender: Annotated[str, Field(alias="from")]
    to: list[str]
    cc: list[str]
    bcc: list[str]
    reply_to: str | None = Field(default=None, description="Absent if none was given.")
    subject: str | None = Field(default=None, description=_FORGOTTEN)
    billing_status: BillingStatus
    recipient_count: int
    credits_reserved: int
    headers: dict[str, str] | None = Field(default=None, description=_FORGOTTEN)
    tags: list[str]
    attachments: list[AttachmentMetadata]
    send_at: Timestamp | None = Field(default=None, description=_SEND_AT)
    content: str | None = Field(default=None, description=_CONTENT)


class BatchError(Error):
    http_status: Annotated[int, described("The status that POST /emails has for this error.")]


class BatchResponse(Response):
    results: Annotated[
        list[SendResponse | BatchError],
        described("One for each email, in their order: the response of POST /emails, or its error."),
    ]


class Recipient(BaseModel):
    id: str
    email: str
    status: RecipientStatus
    billing_status: BillingStatus
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: OptionalTimestamp
    bounced_at: OptionalTimestamp


class Message(Response):
    id: str
    status: MessageStatus
    source: Source
    sender: Annotated[str, Field(alias="from")]
    subject: str | None = Field(default=None, description=_FORGOTTEN)
    billing_status: BillingStatus
    recipient_count: int
    credits_reserved: int
    created_at: Timestamp
    metadata: dict[str, str] | None = Field(default=None, description="Absent if none was given.")
    recipients: list[Recipient]
    send_at: Timestamp | None = Field(default=None, description=_SEND_AT)
    resent_from: str | None = Field(
        default=None, description="The id of the message that this one sends again, if any."
    )
    content: str | None = Field(default=None, description=_CONTENT)
