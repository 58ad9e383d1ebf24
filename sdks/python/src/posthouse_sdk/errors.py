"""All errors, with a common base class."""

from __future__ import annotations

from typing import Literal

from posthouse_sdk.results import Message

WebhookReason = Literal["malformed_header", "wrong_signature", "outside_tolerance", "malformed_body"]

RETRYABLE_STATUSES = frozenset({429, 503})


class PosthouseError(Exception):
    """The base of all errors of this library.

    `status`, `code` and `request_id` are the service's, where it answered; quote `request_id` when you ask for help.
    `retry_after` is what it asked to wait, in seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        details = [str(part) for part in (self.status, self.code, self.request_id) if part]
        return f"{self.message} ({', '.join(details)})" if details else self.message

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later. The client has retried it already, as its policy says."""
        return self.status in RETRYABLE_STATUSES or self.code == "idempotency_in_progress"

    @property
    def is_insufficient_credits(self) -> bool:
        return self.code == "insufficient_credits"

    @property
    def is_idempotency_conflict(self) -> bool:
        """Whether the Idempotency-Key was used before, for another email."""
        return self.code == "idempotency_conflict"


class ApiError(PosthouseError):
    """The service answered, but not with what was asked for."""


class ConnectionFailedError(PosthouseError, ConnectionError):
    """The service could not be reached, or the connection ended before its answer was whole."""

    @property
    def is_retryable(self) -> bool:
        return True


class AttemptTimeoutError(PosthouseError, TimeoutError):
    """The service did not answer in time."""

    @property
    def is_retryable(self) -> bool:
        return True


class WaitTimeoutError(PosthouseError, TimeoutError):
    """The message was still queued when the time was up; `last` is how it was last seen."""

    def __init__(self, message: str, last: Message) -> None:
        super().__init__(message)
        self.last = last


class WebhookVerificationError(PosthouseError):
    """A request that is not to be believed; answer it with 400 and do nothing else."""

    def __init__(self, message: str, reason: WebhookReason) -> None:
        super().__init__(message)
        self.reason: WebhookReason = reason


class InvalidArgumentError(PosthouseError, ValueError):
    """An argument or option that can't be used; nothing was sent."""
