"""The spans of a traced webhook delivery's turn: `webhook`, and in it `ticket`, `claim`, `call` and `record`."""

from collections.abc import Sequence

from posthouse import traces
from posthouse.flows.shared.tickets import Item
from posthouse.rules import ids
from posthouse.rules.ticket import WebhookTicket
from posthouse.store.webhook_schedule import ClaimedWebhook, WebhookOutcome, WebhookResult
from posthouse.traces import Span, Tracer
from posthouse.wire.webhook_client import WebhookAnswer, WebhookCallResult


def begin(tracer: Tracer, item: Item[WebhookTicket], claimed: Sequence[ClaimedWebhook], turn_at: float) -> Span | None:
    """The span of what was claimed, from when its ticket was received; None if it is not traced.

    `turn_at` is when its turn came, by the monotonic clock.
    """
    if not claimed or claimed[0].trace is None:
        return None
    taken_at = tracer.time_of(item.taken_at)
    span = tracer.follow(claimed[0].trace, "webhook", taken_at)
    if span is None:
        return None
    turn = tracer.time_of(turn_at)
    span.note(
        {
            traces.ACCOUNT: ids.text(ids.ACCOUNT, claimed[0].account_id),
            traces.EVENT: ids.text(ids.EVENT, claimed[0].event_id),
            traces.WEBHOOK_DELIVERY: ids.text(ids.WEBHOOK_DELIVERY, claimed[0].id),
            traces.ATTEMPT: claimed[0].attempt_count,
        }
    )
    span.child("ticket", began_at=taken_at).end(ended_at=turn)
    span.child("claim", began_at=turn).end()
    return span


def end_call(call: Span, answer: WebhookCallResult) -> None:
    """The endpoint's address is the customer's secret, if it likes: it is left out."""
    status = answer.status if isinstance(answer, WebhookAnswer) else None
    call.end({traces.HTTP_STATUS: status}, is_error=status is None or not 200 <= status <= 299)


def end(span: Span, record: Span, outcomes: Sequence[WebhookOutcome]) -> None:
    outcome = outcomes[0].result
    record.end({traces.OUTCOME: outcome.value})
    span.end({traces.OUTCOME: outcome.value}, is_error=outcome is WebhookResult.FAILED)
