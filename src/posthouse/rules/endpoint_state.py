"""The state of a webhook endpoint, and the rate at which an endpoint that does not answer is called.

A URL may name a host that is not the customer's, or one that no longer exists. Until it answers with a 2xx, and again
when all calls to it have failed for days, it gets one call at a time, at a low rate. Attempts are postponed because of
that, never skipped.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.rules.rate_limit import Rate

FAILING_AFTER: Final = timedelta(days=2)
# A host that lets each call time out gets one call in 5 seconds; a host that refuses immediately gets no more. The
# burst keeps the first events, and all attempts of a single event, on the contract's schedule.
LIMITED_RATE: Final = Rate(1 / 5, 10)


class EndpointState(StrEnum):
    NEW = "new"  # the URL has not answered with a 2xx yet
    ANSWERING = "answering"
    FAILING = "failing"  # all calls have failed for as long as the operator has set

    @property
    def is_limited(self) -> bool:
        return self is not EndpointState.ANSWERING


def state_of(
    answered_at: datetime | None, failing_since: datetime | None, now: datetime, failing_after: timedelta
) -> EndpointState:
    """`answered_at` is the URL's first 2xx; `failing_since` the first failed call after its last 2xx."""
    if failing_since is not None and now - failing_since >= failing_after:
        return EndpointState.FAILING
    return EndpointState.NEW if answered_at is None else EndpointState.ANSWERING
