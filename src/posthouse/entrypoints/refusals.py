"""Refusals as callers hear them: which HTTP status, and which SMTP reply, each code has.

Over SMTP, what may pass is a 4xx, so that the client's own queue tries again; what never will is a 5xx.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from posthouse.rules.refusal import Code, Refusal


class Telling(NamedTuple):
    """How one code is told: `smtp` is a reply code and an enhanced status (RFC 3463)."""

    http: int
    smtp: tuple[int, str]


TELLINGS: Final[Mapping[Code, Telling]] = {
    Code.INVALID_REQUEST: Telling(400, (550, "5.6.0")),
    Code.UNAUTHORIZED: Telling(401, (535, "5.7.8")),
    Code.INSUFFICIENT_CREDITS: Telling(402, (450, "4.7.1")),
    Code.FORBIDDEN: Telling(403, (550, "5.7.1")),
    Code.ACCOUNT_SUSPENDED: Telling(403, (450, "4.7.1")),
    Code.NOT_FOUND: Telling(404, (550, "5.1.1")),
    Code.CONFLICT: Telling(409, (451, "4.3.0")),
    Code.IDEMPOTENCY_CONFLICT: Telling(409, (451, "4.3.0")),
    Code.IDEMPOTENCY_IN_PROGRESS: Telling(409, (451, "4.3.0")),
    Code.PAYLOAD_TOO_LARGE: Telling(413, (552, "5.3.4")),
    Code.RATE_LIMITED: Telling(429, (450, "4.7.1")),
    Code.WARMUP_LIMITED: Telling(429, (451, "4.7.1")),
    Code.INTERNAL_ERROR: Telling(500, (451, "4.3.0")),
    Code.SERVICE_UNAVAILABLE: Telling(503, (451, "4.3.0")),
    Code.TEMPORARY_FAILURE: Telling(503, (451, "4.3.0")),
}

# RFC 3463, X.3.1: the system's storage is full. A client that speaks SMTP knows it from other faults of ours.
NO_ROOM: Final = (452, "4.3.1")


def http_status(code: Code) -> int:
    return TELLINGS[code].http


def smtp_reply(refusal: Refusal) -> tuple[int, str, str]:
    """Reply code, enhanced status and text."""
    return *(NO_ROOM if refusal.lacks_room else TELLINGS[refusal.code].smtp), refusal.text
