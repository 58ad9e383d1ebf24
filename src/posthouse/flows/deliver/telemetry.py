"""What delivery reports of its work: metrics, and spans of traces."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from heapq import nlargest
from typing import Final

from posthouse import metrics, traces
from posthouse.flows.deliver.lane_queue import LaneQueue
from posthouse.flows.shared.tickets import Item
from posthouse.rules import ids, lane
from posthouse.rules.delivery_reason import without_addresses
from posthouse.rules.lane import DeliveryFeedback
from posthouse.rules.learned_limits import LimitChange
from posthouse.rules.outcome import AttemptResult, NoReply, Replied
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult
from posthouse.store.lanes import LANES_REPORTED_MAX, ReportedLane
from posthouse.traces import Span, Tracer
from posthouse.wire.carrier import CarrierResult

# What delivery counts for the metrics: results by mailbox provider, and the state of the lanes.


SIMULATOR: Final = "simulator"
# How many lanes of single domains are shown by name, those with the most mail; the others are added up.
DOMAINS_SHOWN_MAX: Final = 20


class DeliveryMetrics:
    def __init__(self, simulator_domain: str) -> None:
        self._simulator_domain = simulator_domain

    def recorded(
        self,
        lane_name: str,
        served: DeliveryFeedback,
        outcomes: Sequence[DeliveryOutcome],
        now: datetime,
        seconds: float,
    ) -> None:
        """Count a bundle's recorded outcomes, and the seconds from its last reply until they were recorded."""
        provider = self._provider(lane_name)
        metrics.LANE_ANSWERS.count(provider, str(served))
        for outcome in outcomes:
            metrics.ATTEMPTS.count(provider, str(outcome.result))
            if outcome.is_ambiguous:
                metrics.AMBIGUOUS.count(provider)
            if outcome.result.is_final:
                since = outcome.counts_from or ids.time_of(outcome.message_id)
                metrics.FINAL_SECONDS.observe((now - since).total_seconds(), provider)
            if outcome.result is DeliveryResult.DELIVERED:
                metrics.UNCOMMITTED_SECONDS.observe(seconds)

    def learnt(self, limit_change: LimitChange) -> None:
        metrics.LIMIT_CHANGES.count(self._provider(limit_change.scope.lane), limit_change.kind.value)

    def _provider(self, lane_name: str) -> str:
        if lane.is_provider(lane_name):
            return lane_name
        return SIMULATOR if lane_name == self._simulator_domain else metrics.OTHER


def lane_states(queues: Iterable[LaneQueue], seconds: float, now: datetime) -> list[ReportedLane]:
    """The state of each lane, for operators; if there are very many lanes, only of the busiest."""
    lanes: dict[str, list[LaneQueue]] = {}
    for queue in queues:
        lanes.setdefault(queue.name, []).append(queue)
    busiest = nlargest(LANES_REPORTED_MAX, lanes.values(), key=lambda parts: _activity(parts, seconds))
    return [_lane_state(parts, seconds, now) for parts in busiest]


def _lane_state(parts: Sequence[LaneQueue], seconds: float, now: datetime) -> ReportedLane:
    wholes = [queue for queue in parts if queue.branch is None]
    pause = max(queue.lane.pause_left(seconds) for queue in wholes)
    return ReportedLane(
        lane=parts[0].name,
        waiting=sum(queue.waiting for queue in parts),
        in_flight=sum(queue.lane.in_use for queue in wholes),
        connections=sum(queue.lane.connections for queue in wholes),
        delivered_total=sum(queue.counts.delivered for queue in parts),
        deferred_total=sum(queue.counts.deferred for queue in parts),
        paused_until=now + timedelta(seconds=pause) if pause else None,
        last_reply=next((without_addresses(each.counts.last_reply) for each in parts if each.counts.last_reply), None),
    )


def _activity(parts: Sequence[LaneQueue], seconds: float) -> tuple[int, bool, int]:
    """Called for every lane, so it does little."""
    mail, is_paused, delivered = 0, False, 0
    for queue in parts:
        mail += _mail(queue)
        is_paused = is_paused or queue.lane.pause_left(seconds) > 0
        delivered += queue.counts.delivered
    return mail, is_paused, delivered


def show_lanes(queues: Iterable[LaneQueue], seconds: float, now: datetime) -> None:
    """Set the gauges: lanes of a provider, or of one of the busiest domains, by name; all others together.

    Only lanes that have mail or are paused are shown.
    """
    busy = [queue for queue in queues if queue.waiting or queue.lane.in_use or queue.lane.pause_left(seconds)]
    domains = [queue for queue in busy if not lane.is_provider(queue.name)]
    others = {queue.name for queue in domains} - {queue.name for queue in nlargest(DOMAINS_SHOWN_MAX, domains, _mail)}
    shown: defaultdict[tuple[str, ...], list[LaneQueue]] = defaultdict(list)
    for queue in busy:
        shown[metrics.OTHER if queue.name in others else queue.name,].append(queue)

    def show(metric: metrics.Gauge, figure: Callable[[list[LaneQueue]], float]) -> None:
        metric.replace({label: figure(queues) for label, queues in shown.items()})

    show(metrics.LANE_WAITING, lambda queues: sum([queue.waiting for queue in queues]))
    show(metrics.LANE_SESSIONS, lambda queues: sum([queue.lane.in_use for queue in queues if queue.branch is None]))
    show(
        metrics.LANE_CONNECTIONS,
        lambda queues: sum([queue.lane.connections for queue in queues if queue.branch is None]),
    )
    show(metrics.LANES_PAUSED, lambda queues: sum([queue.lane.pause_left(seconds) > 0 for queue in queues]))
    oldest = {
        label: min(waiting)
        for label, queues in shown.items()
        if (waiting := [each for queue in queues for each, _ in queue.open_bundles])
    }
    metrics.LANE_OLDEST.replace({label: (now - ids.time_of(first)).total_seconds() for label, first in oldest.items()})


def _mail(queue: LaneQueue) -> int:
    return queue.waiting + queue.lane.in_use


# The spans of a traced bundle's turn: `deliver`, and in it `ticket`, `claim`, `smtp` and `record`.


def begin(
    tracer: Tracer,
    items: Sequence[Item[DeliveryTicket]],
    claimed: Sequence[ClaimedRecipient],
    turn_at: float,
) -> Span | None:
    """The span of a claimed bundle, from when its ticket was received; None if its message is not traced.

    `turn_at` is when its lane's turn came, by the monotonic clock.
    """
    if not claimed or claimed[0].message.trace is None:
        return None
    message = claimed[0].message
    taken_at, turn = tracer.times_of(min(item.taken_at for item in items), turn_at)
    span = tracer.follow(message.trace, "deliver", taken_at)
    if span is None:
        return None
    span.set_attributes(
        {
            traces.ACCOUNT: ids.text(ids.ACCOUNT, claimed[0].account_id),
            traces.MESSAGE: ids.text(ids.MESSAGE, message.id),
            traces.RECIPIENTS: len(claimed),
            traces.ATTEMPT: claimed[0].attempt_count,
        }
    )
    span.child("ticket", began_at=taken_at).end(ended_at=turn)
    span.child("claim", began_at=turn).end()
    return span


def end_session(session: Span, carried: CarrierResult | None) -> None:
    """`carried` is None if there was no result. The text of a reply is left out, because it may name the recipient."""
    if carried is None:
        session.end(is_error=True)
        return
    last = carried.results[-1]
    session.end(
        {
            traces.SERVER: carried.mx_host,
            traces.PEER: carried.remote_ip,
            traces.TLS: carried.tls,
            traces.SMTP_STAGE: last.stage.value if isinstance(last, Replied | NoReply) else None,
            traces.SMTP_CODE: last.reply.code if isinstance(last, Replied) else None,
        },
        is_error=not any(_is_taken(result) for result in carried.results),
    )


def end(span: Span, record: Span, outcomes: Sequence[DeliveryOutcome]) -> None:
    outcome = ",".join(sorted({outcome.result.value for outcome in outcomes}))
    record.end({traces.OUTCOME: outcome})
    span.end({traces.OUTCOME: outcome})


def _is_taken(result: AttemptResult) -> bool:
    return isinstance(result, Replied) and 200 <= result.reply.code < 300
