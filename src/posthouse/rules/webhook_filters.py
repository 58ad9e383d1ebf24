"""The filters of the log of webhook deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from posthouse.rules.refusal import invalid
from posthouse.rules.search import time_bound

_LOWEST: Final = UUID(int=0)
_HIGHEST: Final = UUID(int=2**128 - 1)


class WebhookStatus(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WebhookFilters:
    """Ids from `lowest` up to, not including, `before`; None means any status or type."""

    status: WebhookStatus | None = None
    type: str | None = None
    lowest: UUID = _LOWEST
    before: UUID = _HIGHEST


def webhook_filters(
    status: str | None,
    type_: str | None,
    since: str | None,
    until: str | None,
    types: Sequence[str],
) -> WebhookFilters:
    """The filters as given by the client; a Refusal if one is invalid."""
    if status is not None and status not in list(WebhookStatus):
        raise invalid(f"`status` is one of {', '.join(WebhookStatus)}.")
    if type_ is not None and type_ not in types:
        raise invalid(f"`type` is one of {', '.join(types)}.")
    return WebhookFilters(
        None if status is None else WebhookStatus(status),
        type_,
        _LOWEST if since is None else time_bound("since", since),
        _HIGHEST if until is None else time_bound("until", until),
    )
