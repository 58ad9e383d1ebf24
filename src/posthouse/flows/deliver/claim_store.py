"""How recipients are claimed, recorded and postponed: the part of `shared.claims` that is specific to delivery."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse import crash
from posthouse.flows.deliver.outcomes import Outcomes
from posthouse.flows.deliver.outgoing_mail import OutgoingMail
from posthouse.flows.shared.claims import Claims, ClaimStore, CrashPoints, Postponement, Recorded
from posthouse.flows.shared.tickets import Tickets
from posthouse.rules import ids
from posthouse.rules.erasure import ErasureKey
from posthouse.rules.retry import Schedule
from posthouse.rules.ticket import DeliveryTicket, Ticket
from posthouse.rules.unsubscribe import ListMember
from posthouse.store import (
    delivery_claims,
    delivery_outcomes,
    delivery_schedule,
    endpoint_events,
    reports,
    suppressions,
)
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome
from posthouse.store.delivery_schedule import DeliveryPostponement
from posthouse.store.endpoint_events import MailEvent
from posthouse.store.postgres import Connection
from posthouse.store.reports import NewSuppression

# Longer than the longest attempt, including the wait for a reply after the dot. A recipient that a living worker
# forgot is due again after this.
CLAIM_LONGEST: Final = timedelta(minutes=60)


DeliveryClaims = Claims[DeliveryTicket, ClaimedRecipient, DeliveryOutcome]


class DeliveryClaimStore(ClaimStore[DeliveryTicket, ClaimedRecipient, DeliveryOutcome]):
    kind = "mail"
    points = CrashPoints(
        before_claim_commit="claim.before_commit",
        after_claim_commit="claim.after_commit",
        before_record_commit="record.before_commit",
        after_record_commit="record.after_commit",
        before_ack="delivery.before_ack",
        after_ack="delivery.acked",
        before_postpone_commit="postpone.before_commit",
        after_postpone_commit="postpone.after_commit",
    )

    def __init__(
        self,
        *,
        outcomes: Outcomes,
        outgoing_mail: OutgoingMail,
        tickets: Tickets | None,
        retries: Schedule,
        erasure_keys: Sequence[ErasureKey] = (),
    ) -> None:
        """Without `tickets`, the webhook deliveries that an outcome creates are due now, and dispatch finds them."""
        self._outcomes = outcomes
        self._outgoing_mail = outgoing_mail
        self._tickets = tickets
        self._retries = retries
        self._erasure_keys = erasure_keys

    async def claim(
        self, tx: Connection, worker_id: UUID, tickets: Sequence[DeliveryTicket], now: datetime
    ) -> Sequence[ClaimedRecipient]:
        return await delivery_claims.claim(
            tx, worker_id, tickets, now, now + CLAIM_LONGEST, self._retries, self._erasure_keys
        )

    async def release_unknown(
        self, tx: Connection, worker_id: UUID, known: Collection[ClaimedRecipient], now: datetime
    ) -> None:
        await delivery_schedule.release_unknown(tx, worker_id, [claimed.key[:3] for claimed in known], now)

    async def record(
        self, tx: Connection, outcomes: Sequence[DeliveryOutcome], now: datetime
    ) -> Recorded[DeliveryOutcome]:
        recorded = await delivery_outcomes.record(
            tx,
            [self._outcomes.dated(outcome, now) for outcome in outcomes],
            now,
            ticket_lease=self._tickets.lease if self._tickets is not None else timedelta(0),
        )
        follow_ups = [outcome for outcome in recorded.counted if outcome.follow_up is not None]
        if follow_ups:
            await _follow_up(tx, follow_ups, now)
        return Recorded(recorded.late, recorded.tickets, recorded.settled, recorded.released)

    async def postpone(
        self, tx: Connection, postponements: Sequence[Postponement[DeliveryTicket]], now: datetime
    ) -> None:
        rows = [
            DeliveryPostponement(*late.ticket.key, late.next_at, late.is_held, late.held_by) for late in postponements
        ]
        await delivery_schedule.postpone(tx, rows, now)

    def log_fields(self, work: DeliveryTicket | DeliveryOutcome) -> Mapping[str, str]:
        return {
            "account": ids.text(ids.ACCOUNT, work.account_id),
            "message": ids.text(ids.MESSAGE, work.message_id),
        }

    def is_claimed_alone(self, claimed: ClaimedRecipient) -> bool:
        return self._outgoing_mail.is_personal(claimed.message)

    def publish(self, tickets: Sequence[Ticket]) -> None:
        if self._tickets is not None:
            self._tickets.publish(tickets)
            crash.point("record.published")


async def _follow_up(tx: Connection, outcomes: Sequence[DeliveryOutcome], now: datetime) -> None:
    """Record what follows simulated deliveries, as it would follow real ones."""
    suppressed, leavers = [], []
    events: list[MailEvent] = []
    for outcome in outcomes:
        if outcome.follow_up is None:
            continue
        email, report, left_list = outcome.follow_up
        if report is not None:
            noted = await reports.add_reports(tx, outcome.account_id, outcome.message_id, [report], now)
            events += endpoint_events.of_reports(outcome.account_id, outcome.message_id, noted, now)
            if report.suppress:
                suppressed.append(NewSuppression(outcome.account_id, email, report.kind, report.code, report.response))
        if left_list is not None:
            leavers.append(ListMember(outcome.account_id, left_list, email.lower()))
    await reports.suppress(tx, suppressed, now)
    # Always in the same order, which prevents deadlocks.
    left = [leaver for leaver in sorted(leavers) if await suppressions.unsubscribe(tx, leaver, now)]
    if events:
        await endpoint_events.enter_mail(tx, events, now, now)
    if left:
        await endpoint_events.enter_of_account(tx, [endpoint_events.of_leaver(leaver) for leaver in left], now)
