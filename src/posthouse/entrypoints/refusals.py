"""The HTTP status and the SMTP reply of each refusal code.

Over SMTP, a temporary refusal is a 4xx, so that the client's own queue tries again; a permanent refusal is a 5xx.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from posthouse.rules.refusal import Code, Refusal


class RefusalReply(NamedTuple):
    """`smtp` is a reply code and an enhanced status (RFC 3463)."""

    http: int
    smtp: tuple[int, str]


REPLIES: Final[Mapping[Code, RefusalReply]] = {
    Code.INVALID_REQUEST: RefusalReply(400, (550, "5.6.0")),
    Code.UNAUTHORIZED: RefusalReply(401, (535, "5.7.8")),
    Code.INSUFFICIENT_CREDITS: RefusalReply(402, (450, "4.7.1")),
    Code.FORBIDDEN: RefusalReply(403, (550, "5.7.1")),
    Code.ACCOUNT_SUSPENDED: RefusalReply(403, (450, "4.7.1")),
    Code.NOT_FOUND: RefusalReply(404, (550, "5.1.1")),
    Code.CONFLICT: RefusalReply(409, (451, "4.3.0")),
    Code.IDEMPOTENCY_CONFLICT: RefusalReply(409, (451, "4.3.0")),
    Code.IDEMPOTENCY_IN_PROGRESS: RefusalReply(409, (451, "4.3.0")),
    Code.PAYLOAD_TOO_LARGE: RefusalReply(413, (552, "5.3.4")),
    Code.RATE_LIMITED: RefusalReply(429, (450, "4.7.1")),
    Code.WARMUP_LIMITED: RefusalReply(429, (451, "4.7.1")),
    Code.INTERNAL_ERROR: RefusalReply(500, (451, "4.3.0")),
    Code.SERVICE_UNAVAILABLE: RefusalReply(503, (451, "4.3.0")),
    Code.TEMPORARY_FAILURE: RefusalReply(503, (451, "4.3.0")),
}

# RFC 3463, X.3.1: the system's storage is full. SMTP clients can distinguish it from our other failures.
NO_CAPACITY: Final = (452, "4.3.1")


def http_status(code: Code) -> int:
    return REPLIES[code].http


def smtp_reply(refusal: Refusal) -> tuple[int, str, str]:
    """Reply code, enhanced status and text."""
    return *(NO_CAPACITY if refusal.lacks_capacity else REPLIES[refusal.code].smtp), refusal.text
