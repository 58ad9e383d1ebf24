"""The body of POST /emails as a draft. Pure functions: a process for large mails runs them too."""

from collections.abc import Mapping
from typing import Any

import pydantic_core

from posthouse.entrypoints.http.request_body import parsed, validated
from posthouse.entrypoints.http.schemas.emails import SendRequest
from posthouse.rules.draft import AttachmentRequest, Decode, Draft, compose
from posthouse.rules.fingerprint import Fingerprint


def read_draft(body: bytes, fingerprint: Fingerprint) -> tuple[Draft, bytes]:
    """The draft, and the fingerprint of the body's values, whatever their order and spacing."""
    content = parsed(body)
    return draft_in(content), fingerprint(canonical(content))


def draft_of(body: bytes) -> Draft:
    return draft_in(parsed(body))


def canonical(content: dict[str, Any]) -> bytes:
    """The same bytes for all bodies with the same values: keys in order, no white space."""
    return pydantic_core.to_json(_ordered(content))


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
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
