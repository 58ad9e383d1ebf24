"""What is sent, and what comes back, as types. Fields have the names of the HTTP interface; `from_` is its `from`."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from posthouse_sdk import checks, media_types

VariableValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of an email; with a `content_id` it is an inline image, which the HTML shows as `cid:<content_id>`.

    Without a `content_type` it is guessed from the file name's extension, here or by the service.
    """

    filename: str
    content: bytes = field(repr=False)
    content_type: str | None = None
    content_id: str | None = None

    def __post_init__(self) -> None:
        checks.filename(self.filename)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        filename: str | None = None,
        content_type: str | None = None,
        content_id: str | None = None,
    ) -> Attachment:
        """The file is read now; its own name is used unless another is given."""
        file = Path(path)
        return cls(file.name if filename is None else filename, file.read_bytes(), content_type, content_id)

    @classmethod
    def from_stream(
        cls, stream: BinaryIO, filename: str, *, content_type: str | None = None, content_id: str | None = None
    ) -> Attachment:
        """The stream is read to its end now, and left open."""
        return cls(filename, stream.read(), content_type, content_id)

    def to_json(self) -> dict[str, str]:
        fields = {
            "filename": self.filename,
            "content": base64.b64encode(self.content).decode("ascii"),
            "content_type": self.content_type or media_types.of_filename(self.filename),
            "content_id": self.content_id,
        }
        # The content stays even if it is empty: an empty file is a file.
        return {name: value for name, value in fields.items() if value or (name == "content" and value is not None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Email:
    """An email to send. Addresses are bare (`ada@example.com`) or with a name (`Ada <ada@example.com>`).

    One of `text`, `html`, `template` and `attachments` must be given, and a subject unless the template has one.
    """

    from_: str
    to: str | Sequence[str]
    subject: str | None = None
    text: str | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    cc: str | Sequence[str] = ()
    bcc: str | Sequence[str] = ()
    reply_to: str | None = None
    template: str | None = None
    variables: Mapping[str, VariableValue] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    tags: str | Sequence[str] = ()
    attachments: Sequence[Attachment] = ()

    def to_json(self) -> dict[str, Any]:
        """The body of the request, without what is empty."""
        fields: dict[str, Any] = {
            "from": self.from_,
            "to": _one_or_many(self.to),
            "cc": _one_or_many(self.cc),
            "bcc": _one_or_many(self.bcc),
            "reply_to": self.reply_to,
            "subject": self.subject,
            "text": self.text,
            "html": self.html,
            "template": self.template,
            "variables": dict(self.variables),
            "headers": dict(self.headers),
            "tags": _one_or_many(self.tags),
            "attachments": [one.to_json() for one in self.attachments],
        }
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class SentAttachment:
    """What the service says of an attachment it took; `size` is in bytes."""

    filename: str
    content_type: str
    size: int
    content_id: str | None


@dataclass(frozen=True, slots=True)
class Sent:
    """An accepted email: queued, not yet delivered. `replayed`: its key was used before, and this is that email."""

    id: str
    status: str
    source: str
    request_id: str
    from_: str
    to: tuple[str, ...]
    cc: tuple[str, ...]
    bcc: tuple[str, ...]
    reply_to: str | None
    subject: str
    billing_status: str
    recipient_count: int
    credits_reserved: int
    headers: Mapping[str, str]
    tags: tuple[str, ...]
    attachments: tuple[SentAttachment, ...]
    replayed: bool

    @classmethod
    def from_json(cls, given: Mapping[str, Any], *, replayed: bool = False) -> Sent:
        headers = given.get("headers")
        return cls(
            id=_text(given, "id"),
            status=_text(given, "status"),
            source=_text(given, "source"),
            request_id=_text(given, "request_id"),
            from_=_text(given, "from"),
            to=_texts(given, "to"),
            cc=_texts(given, "cc"),
            bcc=_texts(given, "bcc"),
            reply_to=_text(given, "reply_to") or None,
            subject=_text(given, "subject"),
            billing_status=_text(given, "billing_status"),
            recipient_count=_number(given, "recipient_count") or 0,
            credits_reserved=_number(given, "credits_reserved") or 0,
            headers=dict(headers) if isinstance(headers, dict) else {},
            tags=_texts(given, "tags"),
            attachments=tuple(
                SentAttachment(
                    filename=_text(one, "filename"),
                    content_type=_text(one, "content_type"),
                    size=_number(one, "size") or 0,
                    content_id=_text(one, "content_id") or None,
                )
                for one in _objects(given, "attachments")
            ),
            replayed=replayed,
        )


@dataclass(frozen=True, slots=True)
class Recipient:
    """One address of a message and what became of it: `queued`, `deferred`, `delivered`, `bounced` or `failed`."""

    id: str
    email: str
    status: str
    billing_status: str
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: datetime | None
    bounced_at: datetime | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message and what became of it: `queued`, `delivered`, `partial` or `failed`."""

    id: str
    status: str
    source: str
    from_: str
    subject: str
    billing_status: str
    recipient_count: int
    credits_reserved: int
    created_at: datetime | None
    recipients: tuple[Recipient, ...]
    request_id: str

    @property
    def is_final(self) -> bool:
        return self.status != "queued"

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Message:
        return cls(
            id=_text(given, "id"),
            status=_text(given, "status"),
            source=_text(given, "source"),
            from_=_text(given, "from"),
            subject=_text(given, "subject"),
            billing_status=_text(given, "billing_status"),
            recipient_count=_number(given, "recipient_count") or 0,
            credits_reserved=_number(given, "credits_reserved") or 0,
            created_at=moment(given.get("created_at")),
            recipients=tuple(
                Recipient(
                    id=_text(one, "id"),
                    email=_text(one, "email"),
                    status=_text(one, "status"),
                    billing_status=_text(one, "billing_status"),
                    attempt_count=_number(one, "attempt_count") or 0,
                    last_smtp_code=_number(one, "last_smtp_code"),
                    last_smtp_response=_text(one, "last_smtp_response") or None,
                    delivered_at=moment(one.get("delivered_at")),
                    bounced_at=moment(one.get("bounced_at")),
                )
                for one in _objects(given, "recipients")
            ),
            request_id=_text(given, "request_id"),
        )


def moment(value: object) -> datetime | None:
    """A time of RFC 3339, or None if it is absent or something else."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _one_or_many(value: str | Sequence[str]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


# The service may come to tell more than this version knows: what isn't of the expected type is as good as absent.


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""


def _texts(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = given.get(name)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _number(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _objects(given: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = given.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
