"""An email to send and its attachments. Fields have the names of the HTTP interface; `from_` is its `from`."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
        """The stream is read to its end now, and stays open."""
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
    With `send_at` it is sent then and not before; `metadata` is for your own programs, and never in the mail.
    With `content="forget"` no one can read it once it is accepted, and it is deleted after its result.
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
    send_at: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    content: str | None = None

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
            "attachments": [attachment.to_json() for attachment in self.attachments],
            "send_at": None if self.send_at is None else self.send_at.astimezone(UTC).isoformat(),
            "metadata": dict(self.metadata),
            "content": self.content,
        }
        return {name: value for name, value in fields.items() if value}


def _one_or_many(value: str | Sequence[str]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)
