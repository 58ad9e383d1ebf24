"""What delivery counts for the metrics: results by mailbox provider, and the state of the lanes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from heapq import nlargest
from typing import Final

from posthouse import metrics
from posthouse.flows.deliver.lane_queues import LaneQueue
from posthouse.rules import ids, lane
from posthouse.rules.lane import Served
from posthouse.rules.standing import Lesson
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult

SIMULATOR: Final = "simulator"
# Lanes of single domains that are shown by name, those with the most mail; the others are added up.
DOMAINS_SHOWN_MAX: Final = 20


class DeliveryMetrics:
    def __init__(self, simulator_domain: str) -> None:
        self._simulator_domain = simulator_domain

    def recorded(
        self, lane_name: str, served: Served, outcomes: Sequence[DeliveryOutcome], now: datetime, seconds: float
    ) -> None:
        """A bundle's outcomes were recorded, so many seconds after its last reply."""
        provider = self._provider(lane_name)
        metrics.LANE_ANSWERS.count(provider, served.value)
        for outcome in outcomes:
            metrics.ATTEMPTS.count(provider, outcome.result.value)
            if outcome.is_ambiguous:
                metrics.AMBIGUOUS.count(provider)
            if outcome.result.is_final:
                since = outcome.counts_from or ids.time_of(outcome.message_id)
                metrics.FINAL_SECONDS.observe((now - since).total_seconds(), provider)
            if outcome.result is DeliveryResult.DELIVERED:
                metrics.UNCOMMITTED_SECONDS.observe(seconds)

    def learnt(self, lesson: Lesson) -> None:
        metrics.LESSONS.count(self._provider(lesson.place.lane), lesson.kind.value)

    def _provider(self, lane_name: str) -> str:
        if lane.is_provider(lane_name):
            return lane_name
        return SIMULATOR if lane_name == self._simulator_domain else metrics.OTHER


def show_lanes(queues: Iterable[LaneQueue], seconds: float, now: datetime) -> None:
    """As gauges: a lane of a provider, or of one of the busiest domains, by its name; all others together.

    Only lanes with mail or a pause are shown.
    """
    busy = [queue for queue in queues if queue.waiting or queue.lane.in_use or queue.lane.pause_left(seconds)]
    domains = [queue for queue in busy if not lane.is_provider(queue.name)]
    named = {queue.name for queue in nlargest(DOMAINS_SHOWN_MAX, domains, key=_mail)}
    waiting, sessions, connections, paused = (Counter[tuple[str, ...]]() for _ in range(4))
    oldest: dict[tuple[str, ...], float] = {}
    for queue in busy:
        is_named = lane.is_provider(queue.name) or queue.name in named
        label = (queue.name if is_named else metrics.OTHER,)
        waiting[label] += queue.waiting
        paused[label] += bool(queue.lane.pause_left(seconds))
        if queue.branch is None:
            sessions[label] += queue.lane.in_use
            connections[label] += queue.lane.connections
        if queue.open_bundles:
            first = min(message_id for message_id, _ in queue.open_bundles)
            oldest[label] = max(oldest.get(label, 0.0), (now - ids.time_of(first)).total_seconds())
    metrics.LANE_WAITING.replace(dict(waiting))
    metrics.LANE_SESSIONS.replace(dict(sessions))
    metrics.LANE_CONNECTIONS.replace(dict(connections))
    metrics.LANES_PAUSED.replace(dict(paused))
    metrics.LANE_OLDEST.replace(oldest)


def _mail(queue: LaneQueue) -> int:
    return queue.waiting + queue.lane.in_use
