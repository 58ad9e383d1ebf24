"""The answers of the service, as types. Fields have the names of the HTTP interface; `from_` is its `from`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class SentAttachment:
    """An attachment that the service accepted; `size` is in bytes."""

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
                    filename=_text(item, "filename"),
                    content_type=_text(item, "content_type"),
                    size=_number(item, "size") or 0,
                    content_id=_text(item, "content_id") or None,
                )
                for item in _objects(given, "attachments")
            ),
            replayed=replayed,
        )


@dataclass(frozen=True, slots=True)
class Recipient:
    """An address of a message and its status: `queued`, `deferred`, `delivered`, `bounced` or `failed`."""

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
    """A message and its status: `queued`, `delivered`, `partial` or `failed`."""

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
                    id=_text(item, "id"),
                    email=_text(item, "email"),
                    status=_text(item, "status"),
                    billing_status=_text(item, "billing_status"),
                    attempt_count=_number(item, "attempt_count") or 0,
                    last_smtp_code=_number(item, "last_smtp_code"),
                    last_smtp_response=_text(item, "last_smtp_response") or None,
                    delivered_at=moment(item.get("delivered_at")),
                    bounced_at=moment(item.get("bounced_at")),
                )
                for item in _objects(given, "recipients")
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


# A later version of the service may return more: a value of an unexpected type counts as absent.


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""


def _texts(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = given.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _number(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _objects(given: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = given.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
