"""Webhooks: verifies that a request is the service's own, and parses it."""

from __future__ import annotations

import hmac
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NoReturn

from posthouse_sdk.errors import InvalidArgumentError, WebhookReason, WebhookVerificationError
from posthouse_sdk.results import moment

SIGNATURE_HEADER: Final = "Service-Signature"
TOLERANCE_SECONDS: Final = 300

_field: Final = re.compile(r"([^=,\s]+)=([^,\s]*)", re.ASCII).fullmatch
_time: Final = re.compile(r"[0-9]{1,12}", re.ASCII).fullmatch
_signature: Final = re.compile(r"[0-9a-f]{64}", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class EventData:
    """Which recipient of which message an event is about. `extra` has the fields that this version has no name for."""

    email_id: str | None = None
    recipient_id: str | None = None
    to: str | None = None
    from_: str | None = None
    subject: str | None = None
    smtp_code: int | None = None
    smtp_response: str | None = None
    test: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """`email.delivered`, `email.bounced`, `email.failed` or `webhook.test`. The same `id` may come more than once."""

    id: str
    type: str
    created_at: datetime
    data: EventData


def verify_webhook(
    raw_body: bytes, header: str | None, secret: str, *, tolerance: float = TOLERANCE_SECONDS, now: float | None = None
) -> Event:
    """The event, if the request is the service's own; WebhookVerificationError otherwise.

    `raw_body` is the request's body as it came, before anything parsed it; `header` the value of Service-Signature;
    `secret` the webhook's, with its `whsec_`. A request is believed for `tolerance` seconds before and after the time
    it was signed, to prevent replays.
    """
    if not secret:
        raise InvalidArgumentError("the webhook's secret is empty; anybody could sign with it")
    if not tolerance >= 0:
        raise InvalidArgumentError("the tolerance must not be below 0")
    signed_at, signatures = _parsed(header)
    expected = hmac.digest(secret.encode(), signed_at.encode() + b"." + raw_body, "sha256").hex()
    if not any(hmac.compare_digest(expected, signature) for signature in signatures):
        _refuse("wrong_signature", "the signature is not that of this body and secret")
    if abs((time.time() if now is None else now) - int(signed_at)) > tolerance:
        _refuse("outside_tolerance", f"it was signed more than {tolerance:g} s before or after now")
    return _event(raw_body)


def _parsed(header: str | None) -> tuple[str, list[str]]:
    fields = [_field(part) for part in (header or "").split(",")]
    pairs = [(field[1], field[2]) for field in fields if field]
    times = [value for name, value in pairs if name == "t"]
    signatures = [value for name, value in pairs if name == "v1"]
    if len(pairs) < len(fields) or len(times) != 1 or not signatures:
        _refuse("malformed_header", f"the header {SIGNATURE_HEADER} is not of the form t=…,v1=…")
    if not _time(times[0]) or not all(map(_signature, signatures)):
        _refuse("malformed_header", f"the header {SIGNATURE_HEADER} has a time or a signature that is none")
    return times[0], signatures


def _event(raw_body: bytes) -> Event:
    try:
        given = json.loads(raw_body.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        _refuse("malformed_body", "the body is no JSON")
    fields = given if isinstance(given, dict) else {}
    created_at, data = moment(fields.get("created_at")), fields.get("data")
    if (
        not _is_text(fields.get("id"))
        or not _is_text(fields.get("type"))
        or not created_at
        or not isinstance(data, dict)
    ):
        _refuse("malformed_body", "the body is no event")
    return Event(fields["id"], fields["type"], created_at, _event_data(data))


def _event_data(data: dict[str, Any]) -> EventData:
    extra = dict(data)

    def text(name: str) -> str | None:
        value = extra.pop(name, None)
        return value if isinstance(value, str) else None

    code, test = extra.pop("smtp_code", None), extra.pop("test", None)
    return EventData(
        email_id=text("email_id"),
        recipient_id=text("recipient_id"),
        to=text("to"),
        from_=text("from"),
        subject=text("subject"),
        smtp_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        smtp_response=text("smtp_response"),
        test=test is True,
        extra=extra,
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _refuse(reason: WebhookReason, message: str) -> NoReturn:
    raise WebhookVerificationError(f"not a genuine webhook: {message}", reason)
