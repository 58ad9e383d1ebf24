"""The draft of a message: a send request that passed every check that needs no account data."""

import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

import pybase64

from posthouse.mail import header_writer as mail_headers
from posthouse.mail.address import AddressError, Mailbox, parse_mailbox
from posthouse.mail.mime import Attachment, MailContent
from posthouse.rules import limits, message, unsubscribe
from posthouse.rules.attachment import DEFAULT_TYPE, type_of_filename
from posthouse.rules.message import CONTROL, TAG_SHAPE, is_forget, is_tag
from posthouse.rules.message import check_metadata as check_metadata
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.template import RenderedTemplate, Variables, check_alias

RESERVED_HEADERS: Final = frozenset(
    {
        "from", "to", "cc", "bcc", "subject", "reply-to", "sender", "date", "message-id", "mime-version",
        "return-path", "received", "received-spf", "dkim-signature", "domainkey-signature",
        "authentication-results", "delivered-to", "errors-to", "bounces-to", "x-service-tag", "tls-required",
    }
)  # fmt: skip
RESERVED_PREFIXES: Final = ("content-", "arc-", "resent-", "cfbl-")
SENDERS_CACHED_MAX: Final = 4_096

_UNSUBSCRIBE: Final = unsubscribe.HEADER.lower()
# They have a meaning over SMTP, where a request has no fields; here they would be written into the message.
_CONTENT_HEADER: Final = "x-service-content"
_METADATA_HEADERS: Final = "x-service-metadata-"
_HEADER_NAME: Final = re.compile(r"[!-9;-~]+\Z")
_CONTENT_ID: Final = re.compile(rf"[A-Za-z0-9._@+-]{{1,{limits.CONTENT_ID_CHARACTERS_MAX}}}\Z")
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE: Final = re.compile(
    rf"({_WORD})/{_WORD}(?:[ \t]*;[ \t]*{_WORD}=(?:{_WORD}|\"(?:[ !#-\[\]-~]|\\[ -~])*\"))*\Z"
)
_WHITE_SPACE: Final = b" \t\r\n\x0b\x0c"


class AttachmentRequest(NamedTuple):
    filename: str
    content: str
    content_type: str | None = None
    content_id: str | None = None


Decode = Callable[[tuple[AttachmentRequest, ...]], tuple[Attachment, ...]]


class DraftRecipient(NamedTuple):
    field: str
    email: str
    destination: str


class RequestFields(NamedTuple):
    """The fields as the client wrote them, returned in the response."""

    sender: str
    to: tuple[str, ...]
    cc: tuple[str, ...]
    bcc: tuple[str, ...]
    reply_to: str | None
    headers: tuple[tuple[str, str], ...]


class Draft(NamedTuple):
    request_fields: RequestFields
    sender: Mailbox
    to: tuple[Mailbox, ...]
    cc: tuple[Mailbox, ...]
    reply_to: Mailbox | None
    recipients: tuple[DraftRecipient, ...]
    subject: str | None
    text: str | None
    html: str | None
    template: str | None
    variables: Variables
    headers: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]
    attachments: tuple[Attachment, ...]
    mailing_list: str | None
    one_click: bool
    metadata: Mapping[str, str]
    send_at: datetime | None
    forgets_content: bool

    def mail_content(self, rendered: RenderedTemplate | None) -> MailContent:
        """The content to write as MIME: the draft's own, or that of its rendered template."""
        subject = self.subject if self.subject is not None or rendered is None else rendered.subject
        if subject is None:
            raise invalid("`subject` is required: neither the request nor the template has one.")
        return MailContent(
            sender=self.sender,
            to=self.to,
            cc=self.cc,
            reply_to=self.reply_to,
            subject=subject,
            text=self.text if rendered is None else rendered.text,
            html=self.html if rendered is None else rendered.html,
            headers=self.headers,
            tags=self.tags,
            attachments=self.attachments,
        )


def compose(
    *,
    sender: str,
    to: Sequence[str],
    cc: Sequence[str] = (),
    bcc: Sequence[str] = (),
    reply_to: str | None = None,
    subject: str | None = None,
    text: str | None = None,
    html: str | None = None,
    template: str | None = None,
    variables: Variables | None = None,
    headers: Mapping[str, str] | None = None,
    tags: Sequence[str] = (),
    attachments: Sequence[AttachmentRequest] = (),
    send_at: str | None = None,
    decode: Decode | None = None,
    metadata: Mapping[str, str] | None = None,
    content: str | None = None,
) -> Draft:
    """The draft of a well-formed request, or a Refusal that names the field and the fix.

    `decode` replaces `decode_attachments` where emails share their attachments.
    """
    _check_content(subject or None, text or None, html or None, template, variables, attachments)
    boxes = {field: _mailboxes(field, given) for field, given in (("to", to), ("cc", cc), ("bcc", bcc)) if given}
    if "to" not in boxes:
        raise invalid("`to` needs at least one address.")
    given_headers = _headers(headers or {})
    given_tags = _tags(tags)
    option = _unsubscribe_option(given_headers, given_tags)
    return Draft(
        request_fields=RequestFields(sender, tuple(to), tuple(cc), tuple(bcc), reply_to, given_headers),
        sender=_sender(sender),
        to=boxes["to"],
        cc=boxes.get("cc", ()),
        reply_to=None if reply_to is None else _mailbox("reply_to", reply_to),
        recipients=_unique(boxes),
        subject=_subject(subject or None),
        text=_body("text", text or None),
        html=_body("html", html or None),
        template=template,
        variables=variables or {},
        headers=tuple([(name, value) for name, value in given_headers if name.lower() != _UNSUBSCRIBE]),
        tags=given_tags,
        attachments=(decode or decode_attachments)(tuple(attachments)),
        mailing_list=option.mailing_list,
        one_click=option.one_click,
        metadata=check_metadata(metadata) if metadata else {},
        send_at=None if send_at is None else message.parse_send_time(send_at),
        forgets_content=content is not None and is_forget(content),
    )


def _check_content(
    subject: str | None,
    text: str | None,
    html: str | None,
    template: str | None,
    variables: Variables | None,
    attachments: Sequence[AttachmentRequest],
) -> None:
    if template is not None:
        check_alias(template, "template")
        if text is not None or html is not None:
            raise invalid("`template` can't be combined with `text` or `html`: leave one of them out.")
    elif variables is not None:
        raise invalid("`variables` needs a `template`: name one, or leave `variables` out.")
    elif subject is None:
        raise invalid("`subject` is required unless a `template` supplies it.")
    elif text is None and html is None and not attachments:
        raise invalid("The message is empty: give at least one of `text`, `html`, `attachments`, `template`.")
    if variables is not None:
        _check_variables(variables)


def _check_variables(variables: Variables) -> None:
    if len(variables) > limits.VARIABLES_MAX:
        raise invalid(f"`variables` has {len(variables)} keys: at most {limits.VARIABLES_MAX} are allowed.")
    for name, value in variables.items():
        if isinstance(value, str) and "\0" in value:
            raise invalid(f"`variables.{name[:64]}` contains a NUL character: remove it.")


def _mailbox(field: str, given: str) -> Mailbox:
    try:
        return parse_mailbox(given)
    except AddressError as error:
        raise invalid(f"`{field}` {error}") from error


@lru_cache(SENDERS_CACHED_MAX)
def _sender(given: str) -> Mailbox:
    """Cached, since a sender's messages mostly have the same From."""
    return _mailbox("from", given)


def _mailboxes(field: str, given: Sequence[str]) -> tuple[Mailbox, ...]:
    if len(given) == 1:
        return (_mailbox(field, given[0]),)
    # Bounded before parsing: a list of a million addresses costs nothing. Duplicates are allowed, so unique
    # addresses are counted later.
    if len(given) > limits.RECIPIENTS_GIVEN_MAX:
        raise _too_many(len(given))
    return tuple([_mailbox(f"{field}[{index}]", address) for index, address in enumerate(given)])


def _unique(boxes: Mapping[str, tuple[Mailbox, ...]]) -> tuple[DraftRecipient, ...]:
    unique: dict[str, DraftRecipient] = {}
    for field, mailboxes in boxes.items():
        for mailbox in mailboxes:
            key = mailbox.key
            if key not in unique:
                unique[key] = DraftRecipient(field, mailbox.address, mailbox.domain)
    if len(unique) > limits.RECIPIENTS_MAX:
        raise _too_many(len(unique))
    return tuple(unique.values())


def _too_many(count: int) -> Refusal:
    return invalid(
        f"`to`, `cc` and `bcc` name {count} recipients: at most {limits.RECIPIENTS_MAX} unique addresses "
        "fit one message, so split it."
    )


def _refuse_control(field: str, given: str) -> None:
    if (given.isascii() and given.isprintable()) or not CONTROL.search(given):
        return
    raise invalid(f"`{field}` holds a control character (such as a line break): remove it.")


def _subject(given: str | None) -> str | None:
    if given is None:
        return None
    if len(given) > limits.SUBJECT_CHARACTERS_MAX:
        raise invalid(f"`subject` has {len(given)} characters: at most {limits.SUBJECT_CHARACTERS_MAX} are allowed.")
    _refuse_control("subject", given)
    return given


def _body(field: str, given: str | None) -> str | None:
    if given is None:
        return None
    if len(given) > limits.MIME_BYTES_MAX:
        raise too_large()
    if "\0" in given:
        raise invalid(f"`{field}` contains a NUL character: remove it.")
    return given


def _headers(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if not given:
        return ()
    if len(given) > limits.HEADERS_MAX:
        raise invalid(f"`headers` has {len(given)} entries: at most {limits.HEADERS_MAX} are allowed.")
    seen: set[str] = set()
    total = 0
    for name, value in given.items():
        _check_header_name(name, seen)
        total += len(name) + _check_header_value(name, value)
    if total > limits.HEADERS_BYTES_MAX:
        raise invalid(f"`headers` is {total} bytes in all: at most {limits.HEADERS_BYTES_MAX} are allowed.")
    return tuple(given.items())


def _check_header_name(name: str, seen: set[str]) -> None:
    if not _HEADER_NAME.match(name):
        raise invalid(f"`headers`: {name[:100]!r} is no header name: use printable ASCII without spaces and colons.")
    if len(name) > limits.HEADER_NAME_CHARACTERS_MAX:
        raise invalid(
            f"`headers`: the name {name[:100]!r} has {len(name)} characters: "
            f"at most {limits.HEADER_NAME_CHARACTERS_MAX} are allowed."
        )
    lower = name.lower()
    if lower == _CONTENT_HEADER or lower.startswith(_METADATA_HEADERS):
        field = "content" if lower == _CONTENT_HEADER else "metadata"
        raise invalid(f"`headers`: {name!r} is for email over SMTP: use the field `{field}` instead.")
    if lower in RESERVED_HEADERS or lower.startswith(RESERVED_PREFIXES):
        raise invalid(f"`headers`: {name!r} is reserved; the service writes it itself, so leave it out.")
    if lower in seen:
        raise invalid(f"`headers`: {name!r} is given twice in different spellings: keep one.")
    seen.add(lower)


def _check_header_value(name: str, value: str) -> int:
    """The value's length in bytes, if it can be written as a header field."""
    _refuse_control(f"headers.{name}", value)
    length = len(value) if value.isascii() else len(value.encode())
    if length > limits.HEADER_VALUE_BYTES_MAX:
        raise invalid(f"`headers.{name}` is {length} bytes: at most {limits.HEADER_VALUE_BYTES_MAX} are allowed.")
    if mail_headers.is_structured(name):
        if not value.isascii():
            raise invalid(f"`headers.{name}` takes only ASCII.")
        try:
            mail_headers.structured(name, value)
        except mail_headers.HeaderError as error:
            raise invalid(f"`headers.{name}`: {error}") from error
    return length


def _tags(given: Sequence[str]) -> tuple[str, ...]:
    if len(given) > limits.TAGS_MAX:
        raise invalid(f"`tags` has {len(given)} entries: at most {limits.TAGS_MAX} are allowed.")
    for tag in given:
        if not is_tag(tag):
            raise invalid(f"`tags`: each tag has {TAG_SHAPE}; {tag[:40]!r} doesn't fit.")
    return tuple(given)


def _unsubscribe_option(headers: Sequence[tuple[str, str]], tags: Sequence[str]) -> unsubscribe.UnsubscribeOption:
    if not headers and not tags:
        return unsubscribe.NO_LIST
    by_name = {name.lower(): value for name, value in headers}
    option = unsubscribe.unsubscribe_option(tags, by_name.get(_UNSUBSCRIBE), has_own="list-unsubscribe" in by_name)
    if option.one_click and "list-unsubscribe-post" in by_name:
        raise invalid("`headers.List-Unsubscribe-Post` needs a `List-Unsubscribe`; leave it out for one-click.")
    return option


def decode_attachments(given: tuple[AttachmentRequest, ...]) -> tuple[Attachment, ...]:
    if not given:
        return ()
    if len(given) > limits.ATTACHMENTS_MAX:
        raise invalid(f"`attachments` has {len(given)} entries: at most {limits.ATTACHMENTS_MAX} are allowed.")
    ids = [attachment.content_id for attachment in given if attachment.content_id is not None]
    if len(set(ids)) < len(ids):
        raise invalid("`attachments`: two of them have the same `content_id`: make each unique.")
    encoded = [_encoded(f"attachments[{index}].content", request.content) for index, request in enumerate(given)]
    if sum(map(len, encoded)) > limits.MIME_BYTES_MAX:
        raise too_large()
    return tuple([_attachment(f"attachments[{index}]", request, encoded[index]) for index, request in enumerate(given)])


def _attachment(field: str, given: AttachmentRequest, encoded: bytes) -> Attachment:
    _check_filename(f"{field}.filename", given.filename)
    if given.content_id is not None and not _CONTENT_ID.match(given.content_id):
        raise invalid(
            f"`{field}.content_id` takes 1 to {limits.CONTENT_ID_CHARACTERS_MAX} letters, digits or any of . _ @ + -"
        )
    content_type = given.content_type
    if content_type is None:
        content_type = type_of_filename(given.filename)
    else:
        _check_content_type(f"{field}.content_type", content_type)
    try:
        content: bytes = pybase64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise _not_base64(f"{field}.content") from error
    return Attachment(given.filename, content_type, content, given.content_id)


def _check_filename(field: str, filename: str) -> None:
    _refuse_control(field, filename)
    if not 1 <= len(filename) <= limits.FILENAME_CHARACTERS_MAX:
        raise invalid(f"`{field}` has 1 to {limits.FILENAME_CHARACTERS_MAX} characters.")
    if "/" in filename or "\\" in filename or filename in {".", ".."}:
        raise invalid(f"`{field}` is a file name without a path: remove the slashes.")


def _check_content_type(field: str, content_type: str) -> None:
    if len(content_type) > limits.CONTENT_TYPE_CHARACTERS_MAX:
        raise invalid(f"`{field}` has at most {limits.CONTENT_TYPE_CHARACTERS_MAX} characters.")
    found = _CONTENT_TYPE.match(content_type)
    if found is None:
        raise invalid(f"`{field}` is not a media type: write it like `application/pdf`.")
    if found[1].lower() in {"multipart", "message"}:
        raise invalid(f"`{field}` can't be multipart/* or message/*: attach such a file as {DEFAULT_TYPE}.")


def _encoded(field: str, content: str) -> bytes:
    if not content.isascii():
        raise _not_base64(field)
    return content.encode("ascii").translate(None, _WHITE_SPACE)


def _not_base64(field: str) -> Refusal:
    return invalid(f"`{field}` is not valid base64: use the standard alphabet with padding, and nothing around it.")


def too_large() -> Refusal:
    return Refusal(
        Code.PAYLOAD_TOO_LARGE,
        f"The message is larger than {limits.MIME_BYTES_MAX // limits.MIB} MiB once assembled "
        "(attachments count as base64): send less, or link to the files.",
    )
