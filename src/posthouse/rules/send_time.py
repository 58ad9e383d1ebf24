"""The time before which a message is not sent, as the sender gives it."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from posthouse.rules import limits
from posthouse.rules.refusal import invalid

AHEAD_MAX: Final = timedelta(days=limits.SEND_AT_DAYS_MAX)
# A sender's clock may be behind ours, and a request takes a while. What is longer ago is a mistake.
PAST_MAX: Final = timedelta(minutes=5)

# RFC 3339. The year keeps conversions to UTC within what a datetime can hold.
_FORM: Final = re.compile(r"2\d{3}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)


def parse(given: str) -> datetime:
    """The time in UTC, wherever it lies."""
    try:
        if not _FORM.match(given):
            raise ValueError(given)
        return datetime.fromisoformat(given.upper()).astimezone(UTC)
    except ValueError:
        raise invalid(
            "`send_at` is a time with its offset from UTC, like `2030-06-01T09:00:00Z` or `2030-06-01T09:00:00+02:00`."
        ) from None


def check(at: datetime | None, now: datetime) -> None:
    """Raises if the time is too far away."""
    if at is None:
        return
    if at > now + AHEAD_MAX:
        raise invalid(f"`send_at` is more than {limits.SEND_AT_DAYS_MAX} days ahead: give an earlier time.")
    if at < now - PAST_MAX:
        raise invalid("`send_at` is in the past: give a time to come, or leave it out to send at once.")


def is_ahead(at: datetime | None, now: datetime) -> bool:
    return at is not None and at > now
