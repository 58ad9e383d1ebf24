"""The spans of a traced bundle's turn: `deliver`, and in it `ticket`, `claim`, `smtp` and `record`."""

from collections.abc import Sequence

from posthouse import traces
from posthouse.flows.shared.tickets import Item
from posthouse.rules import ids
from posthouse.rules.outcome import AttemptResult, NoReply, Replied
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome
from posthouse.traces import Span, Tracer
from posthouse.wire.carrier import CarrierResult


def begin(
    tracer: Tracer,
    items: Sequence[Item[DeliveryTicket]],
    claimed: Sequence[ClaimedRecipient],
    turn_at: float,
) -> Span | None:
    """The span of a bundle that was claimed, from when its ticket was received; None if its mail is not traced.

    `turn_at` is when its lane's turn came, by the monotonic clock.
    """
    if not claimed or claimed[0].message.trace is None:
        return None
    message = claimed[0].message
    taken_at = tracer.time_of(min(item.taken_at for item in items))
    span = tracer.follow(message.trace, "deliver", taken_at)
    if span is None:
        return None
    turn = tracer.time_of(turn_at)
    span.note(
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
    """`carried` is None when there was no result. A reply's text is left out: it may name the recipient."""
    if carried is None:
        session.end(is_error=True)
        return
    last = carried.results[-1]
    session.end(
        {
            traces.SERVER: carried.exchange,
            traces.PEER: carried.address,
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
