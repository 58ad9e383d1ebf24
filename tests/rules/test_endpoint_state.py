"""The state of a webhook endpoint: new until its first 2xx, failing when all calls failed for days."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules.endpoint import FAILING_AFTER, LIMITED_RATE, EndpointState, state_of
from posthouse.rules.retry import WEBHOOK

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
LONG_AGO = NOW - timedelta(days=300)
NEW, ANSWERING, FAILING = EndpointState


@pytest.mark.parametrize(
    ("answered_at", "failing_since", "state"),
    [
        (None, None, NEW),
        (None, NOW - FAILING_AFTER + MOMENT, NEW),
        (None, NOW - FAILING_AFTER, FAILING),
        (LONG_AGO, None, ANSWERING),
        (NOW, None, ANSWERING),
        (LONG_AGO, NOW, ANSWERING),
        (LONG_AGO, NOW - FAILING_AFTER + MOMENT, ANSWERING),
        (LONG_AGO, NOW - FAILING_AFTER, FAILING),
        (LONG_AGO, LONG_AGO, FAILING),
    ],
)
def test_the_state_follows_from_two_times(
    answered_at: datetime | None, failing_since: datetime | None, state: EndpointState
) -> None:
    assert state_of(answered_at, failing_since, NOW, FAILING_AFTER) is state


@pytest.mark.parametrize(("state", "is_limited"), [(NEW, True), (ANSWERING, False), (FAILING, True)])
def test_only_an_endpoint_that_answers_is_not_limited(state: EndpointState, is_limited: bool) -> None:
    assert state.is_limited is is_limited


def test_all_attempts_of_a_single_event_fit_into_the_rate() -> None:
    assert LIMITED_RATE.burst >= WEBHOOK.attempts_max
    assert 1 / LIMITED_RATE.per_second <= WEBHOOK.waits[0].total_seconds()
