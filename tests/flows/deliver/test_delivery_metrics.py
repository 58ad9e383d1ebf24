"""What delivery shows of its lanes and results: by provider, and of very many domains the busiest."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from posthouse import metrics
from posthouse.flows.deliver import telemetry
from posthouse.flows.deliver.lane_queue import Bundle, LaneQueue
from posthouse.flows.deliver.telemetry import DOMAINS_SHOWN_MAX, DeliveryMetrics
from posthouse.rules import ids
from posthouse.rules.delivery_reason import ADDRESS
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import DeliveryFeedback, Lane, Limits
from posthouse.rules.learned_limits import LaneScope, LaneState, LearnedLimits, LimitChange, LimitChangeKind
from posthouse.rules.pace import Moment
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult, NewEvent
from posthouse.store.lanes import LANES_REPORTED_MAX

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


def queue(name: str, waiting: int, *, age_seconds: float = 0.0) -> LaneQueue:
    made = LaneQueue(name, 0, Lane(Limits()))
    made.waiting = waiting
    message_id = ids.new_message_id(NOW - timedelta(seconds=age_seconds), bytes(10))
    account_id = AccountId(UUID(int=waiting))
    made.open_bundles[message_id, name] = Bundle(account_id, message_id, name, [])
    return made


def test_of_a_thousand_destinations_the_busiest_are_named() -> None:
    queues = [queue(f"d{number}.example", number) for number in range(1, 1_001)]
    queues += [queue("google", 1, age_seconds=90), queue("idle.example", 0)]
    telemetry.show_lanes(queues, 0.0, NOW)
    for gauge in (metrics.LANE_WAITING, metrics.LANE_OLDEST, metrics.LANE_SESSIONS, metrics.LANE_CONNECTIONS):
        assert len(gauge.values) == DOMAINS_SHOWN_MAX + 2, gauge.name
    waiting = metrics.LANE_WAITING.values
    assert waiting["d1000.example",] == 1_000
    assert waiting["google",] == 1, "a provider is named, however little waits for it"
    assert ("idle.example",) not in waiting
    assert sum(waiting.values()) == sum(range(1_001)) + 1, "nothing is left out"
    assert metrics.LANE_OLDEST.values["google",] == pytest.approx(90, abs=0.01)
    # Lanes that are gone are not shown.
    telemetry.show_lanes([], 0.0, NOW)
    assert metrics.LANE_WAITING.values == metrics.LANE_OLDEST.values == {}


def test_of_very_many_lanes_the_busiest_are_reported() -> None:
    queues = [queue(f"{number}.example", number % 500) for number in range(1_000)]
    paused = queue("paused.example", 400)
    paused.lane.adopt(
        LearnedLimits(1.0, state=LaneState.RESTING, paused_until=NOW + timedelta(minutes=5)), Moment(0.0, NOW, 0.5)
    )
    states = telemetry.lane_states([*queues, paused], 0.0, NOW)
    assert len(states) == LANES_REPORTED_MAX
    assert min(state.waiting for state in states) == 400
    assert states[-2].lane == "paused.example", "a paused lane is before others with as much mail"


def test_a_reported_reply_names_no_recipient() -> None:
    shop = queue("shop.example", 1)
    shop.counts.last_reply = "550 5.1.1 <ada@shop.example>: unknown"
    (state,) = telemetry.lane_states([shop], 0.0, NOW)
    assert state.last_reply == f"550 5.1.1 {ADDRESS} unknown"


@pytest.mark.parametrize(
    ("lane", "provider"), [("google", "google"), ("sim.invalid", "simulator"), ("shop.example", "other")]
)
def test_results_and_limit_changes_are_counted_by_provider(lane: str, provider: str) -> None:
    message_id: MessageId = ids.new_message_id(NOW - timedelta(seconds=20), bytes(10))
    delivered = DeliveryOutcome(
        AccountId(UUID(int=1)), message_id, 0, 1, DeliveryResult.DELIVERED, event=NewEvent(UUID(int=2), "x", b"{}")
    )
    ambiguous = DeliveryOutcome(
        AccountId(UUID(int=1)), message_id, 1, 1, DeliveryResult.DEFERRED, next_at=NOW, is_ambiguous=True
    )
    for metric in (metrics.ATTEMPTS, metrics.AMBIGUOUS, metrics.LANE_ANSWERS, metrics.FINAL_SECONDS):
        metric.values.clear()
    DeliveryMetrics("sim.invalid").recorded(lane, DeliveryFeedback.WELL, [delivered, ambiguous], NOW, 0.02)
    assert metrics.ATTEMPTS.values == {(provider, "delivered"): 1, (provider, "deferred"): 1}
    assert metrics.AMBIGUOUS.values == {(provider,): 1}
    assert metrics.LANE_ANSWERS.values == {(provider, "well"): 1}
    assert metrics.FINAL_SECONDS.values[(provider,)][-1] == pytest.approx(20, abs=0.01)
    metrics.LIMIT_CHANGES.values.clear()
    limit_change = LimitChange(NOW, LaneScope("", lane), LimitChangeKind.GREW, LearnedLimits(1.0), LearnedLimits(2.0))
    DeliveryMetrics("sim.invalid").learnt(limit_change)
    assert metrics.LIMIT_CHANGES.values == {(provider, "grew"): 1}


def test_the_metrics_name_every_kind_of_limit_change_that_a_lane_learns() -> None:
    by_operators = {LimitChangeKind.UNDONE, LimitChangeKind.PINNED, LimitChangeKind.UNPINNED}
    assert {kind.value for kind in LimitChangeKind if f"`{kind.value}`" in metrics.LIMIT_CHANGES.text} == {
        kind.value for kind in set(LimitChangeKind) - by_operators
    }
