"""The bodies of POST /emails and POST /emails/batch as drafts.

Pure functions: the process for large messages runs them too.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final

import pydantic_core
from pydantic import Field, SkipValidation

from posthouse.entrypoints.http.request_body import check_entries, parsed, validated
from posthouse.entrypoints.http.shapes import ALIAS_PATTERN, RequestModel, described, examples
from posthouse.flows.accept.batch import DraftBatch
from posthouse.mail.address import GIVEN_CHARACTERS_MAX
from posthouse.rules import limits, message
from posthouse.rules.draft import AttachmentRequest, Decode, Draft, compose, decode_attachments
from posthouse.rules.message import Fingerprint
from posthouse.rules.refusal import Code, Refusal, invalid

# These limits are only documentation, like those of `described`.
GivenAddress = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": GIVEN_CHARACTERS_MAX})]
Tag = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": limits.TAG_CHARACTERS_MAX})]
MetadataValue = Annotated[str, Field(json_schema_extra={"maxLength": limits.METADATA_VALUE_CHARACTERS_MAX})]
HeaderValue = Annotated[str, Field(json_schema_extra={"maxLength": limits.HEADER_VALUE_BYTES_MAX})]
_ADDRESS: Final = "A bare address (`ada@example.com`) or one with a display name (`Ada <ada@example.com>`)."
SENDER_TEXT: Final = f"{_ADDRESS} Must belong to a verified domain of the account."
TO_TEXT: Final = f"One address or a list. {_ADDRESS} At most 50 unique addresses across `to`, `cc` and `bcc`."
_OptionalSender = Annotated[GivenAddress | None, Field(alias="from", description=SENDER_TEXT)]
_OptionalRecipients = Annotated[
    GivenAddress | list[GivenAddress] | None,
    described(TO_TEXT, minItems=1, maxItems=limits.RECIPIENTS_GIVEN_MAX),
]


class Attachment(RequestModel):
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


class SendRequest(RequestModel):
    model_config = examples(
        {
            "from": "Acme <hello@example.com>",
            "to": "ada@example.net",
            "subject": "Welcome",
            "text": "Good to have you here.",
            "html": "<p>Good to have you here.</p>",
        }
    )

    sender: Annotated[GivenAddress, Field(alias="from", description=SENDER_TEXT)]
    to: Annotated[
        GivenAddress | list[GivenAddress],
        described(TO_TEXT, minItems=1, maxItems=limits.RECIPIENTS_GIVEN_MAX),
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
            "Pairs for your own programs, never part of the mail: shown by GET and in `GET /v1/events`, and a filter "
            "of the list. A name has 1 to 64 letters, digits and `_ . -`.",
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
            "within five minutes after its last recipient's result. For codes and links that give access.",
            enum=[message.FORGET, None],
        ),
    ] = None


def read_draft(body: bytes, fingerprint: Fingerprint) -> tuple[Draft, bytes]:
    """The draft, and the fingerprint of the body's values, whatever their order and spacing."""
    content = parsed(body)
    return draft_in(content), fingerprint(canonical(content))


def draft_of(body: bytes) -> Draft:
    return draft_in(parsed(body))


def canonical(content: dict[str, Any]) -> bytes:
    """The same bytes for all bodies with the same values: sorted keys, no white space."""
    return pydantic_core.to_json(_ordered(content))


def _ordered(value: Any) -> Any:
    match value:
        case dict():
            return {key: _ordered(value[key]) for key in sorted(value)}
        case list():
            return [_ordered(item) for item in value]
        case _:
            return value


def draft_in(content: Mapping[str, Any], decode: Decode | None = None) -> Draft:
    body = validated(SendRequest, content)
    return compose(
        sender=body.sender,
        to=_as_list(body.to),
        cc=_as_list(body.cc),
        bcc=_as_list(body.bcc),
        reply_to=body.reply_to,
        subject=body.subject,
        text=body.text,
        html=body.html,
        template=body.template,
        variables=body.variables,
        headers=body.headers,
        tags=_as_list(body.tags),
        attachments=[
            AttachmentRequest(item.filename, item.content, item.content_type, item.content_id)
            for item in body.attachments or ()
        ],
        send_at=body.send_at,
        decode=decode,
        metadata=body.metadata,
        content=body.content,
    )


def _as_list(given: str | list[str] | None) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else given


class BatchEmail(SendRequest):
    """Required fields may be in the `defaults`."""

    sender: _OptionalSender = None  # type: ignore[assignment]
    to: _OptionalRecipients = None  # type: ignore[assignment]


class BatchRequest(RequestModel):
    """Each email is validated separately, together with the defaults."""

    model_config = examples(
        {
            "defaults": {"from": "Acme <hello@example.com>", "subject": "Your ticket", "text": "It is attached."},
            "emails": [{"to": "ada@example.net"}, {"to": "grace@example.net", "text": "Please collect it."}],
        }
    )

    emails: Annotated[
        list[SkipValidation[BatchEmail]],
        described("The emails, with the fields of POST /emails.", minItems=1, maxItems=limits.BATCH_EMAILS_MAX),
    ]
    defaults: Annotated[
        SkipValidation[BatchEmail] | None,
        described("Fields for every email that doesn't have them itself, so that they are transferred only once."),
    ] = None
    all: Annotated[bool, described("Accept all emails, or none if one is refused.")] = False


def read_batch(body: bytes, fingerprint: Fingerprint) -> DraftBatch:
    """The batch request; its drafts are created one by one, as they are consumed."""
    content = parsed(body, limits.BATCH_ENTRIES_MAX, limits.BATCH_ENTRIES_MAX)
    request = validated(BatchRequest, content)
    given, defaults = content["emails"], content.get("defaults")
    if not 1 <= len(given) <= limits.BATCH_EMAILS_MAX:
        raise invalid(f"`emails` has {len(given)} entries: send 1 to {limits.BATCH_EMAILS_MAX} per request.")
    if not isinstance(defaults, dict | None):
        raise invalid("`defaults` should be an object with fields of POST /emails.")
    emails = [{**(defaults or {}), **email} if isinstance(email, dict) else None for email in given]
    _check_sum(emails)
    _check_recipients(emails)
    return DraftBatch(len(emails), _drafts(emails), fingerprint(b"batch " + canonical(content)), request.all)


def read_whole_batch(body: bytes, fingerprint: Fingerprint) -> DraftBatch:
    """The same, with all drafts created."""
    batch = read_batch(body, fingerprint)
    return batch._replace(drafts=list(batch.drafts))


def _check_sum(emails: Sequence[Mapping[str, Any] | None]) -> None:
    """Defaults count once for each email: a long list in them costs as much as one in each email."""
    left = limits.BATCH_ENTRIES_MAX
    for email in filter(None, emails):
        left -= check_entries(email, left)


def _check_recipients(emails: Sequence[Mapping[str, Any] | None]) -> None:
    """Checked before any draft is created, because recipients are what makes a request expensive."""
    count = 0
    for email in filter(None, emails):
        for name in ("to", "cc", "bcc"):
            given = email.get(name)
            count += len(given) if isinstance(given, list) else given is not None
    if count > limits.BATCH_RECIPIENTS_MAX:
        raise Refusal(
            Code.PAYLOAD_TOO_LARGE,
            f"The `emails` have {count:,} recipients in `to`, `cc` and `bcc` together: send at most "
            f"{limits.BATCH_RECIPIENTS_MAX:,} per request.",
        )


def _drafts(emails: Sequence[Mapping[str, Any] | None]) -> Iterator[Draft | Refusal]:
    # Attachments in the defaults are decoded once.
    decode = lru_cache(maxsize=4)(decode_attachments)
    for email in emails:
        yield _draft_or_refusal(email, decode)


def _draft_or_refusal(email: Mapping[str, Any] | None, decode: Decode) -> Draft | Refusal:
    if email is None:
        return invalid("Each of `emails` should be an object with the fields of POST /emails.")
    try:
        return draft_in(email, decode)
    except Refusal as refusal:
        refusal.drop_traceback()
        return refusal
