"""An expected refusal: its code, the text for the client, and when to retry."""

from dataclasses import dataclass, field
from enum import StrEnum


class Code(StrEnum):
    """A stable name, for programs."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    INSUFFICIENT_CREDITS = "insufficient_credits"
    RATE_LIMITED = "rate_limited"
    WARMUP_LIMITED = "warmup_limited"
    ACCOUNT_SUSPENDED = "account_suspended"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    SERVICE_UNAVAILABLE = "service_unavailable"
    TEMPORARY_FAILURE = "temporary_failure"
    INTERNAL_ERROR = "internal_error"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"


@dataclass(slots=True, eq=True)
class Refusal(Exception):  # noqa: N818 (a refusal is an answer, not an error of ours)
    """Raised by the rule, translated at the entry point.

    The client sees `text`: it says what is wrong and what to do, and contains no secret. SMTP has a separate reply
    for `lacks_capacity`.
    """

    code: Code
    text: str
    retry_after_seconds: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    lacks_capacity: bool = False

    def drop_traceback(self) -> None:
        """Call it once the refusal is answered: the frames of the traceback hold whole messages."""
        self.__traceback__ = self.__cause__ = self.__context__ = None

    def copy(self) -> "Refusal":
        """A copy for another task: the same exception can't be raised in several tasks."""
        copy = Refusal(self.code, self.text, self.retry_after_seconds, dict(self.headers), self.lacks_capacity)
        copy.__cause__ = self.__cause__
        return copy

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


def too_many_waiting() -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, "More requests are waiting than the service takes: try again.", 1)


def invalid(text: str) -> Refusal:
    return Refusal(Code.INVALID_REQUEST, text)


def unreadable_cursor(parameter: str = "cursor") -> Refusal:
    return invalid(f"`{parameter}` was not returned by this endpoint: leave it out to start from the beginning.")
