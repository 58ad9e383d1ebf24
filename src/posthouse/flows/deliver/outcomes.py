"""Outcomes: what is recorded of an attempt, and what it means for the lane."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.result_event import result_event
from posthouse.rules import event, ids, lane, outcome, retry
from posthouse.rules.ids import MessageId
from posthouse.rules.lane import Served
from posthouse.rules.outcome import AttemptResult, DeliveryVerdict, GivenUp, NoReply, Replied, StillBlocked, Suppressed
from posthouse.rules.remark import Remark, RemarkKind, may_be_customers, remark_of
from posthouse.rules.reply_text import without_addresses
from posthouse.rules.rescue import Hold
from posthouse.rules.retry import Schedule
from posthouse.rules.simulator import FollowUp
from posthouse.rules.standing import Refused
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult, NewEvent
from posthouse.wire.carrier import CarrierResult

# How much older than its commit an event's time may be.
EVENT_AGE_MAX: Final = timedelta(seconds=1)
REFUSED_CODE: Final = 400
_BY_GRAVITY: Final = (Served.BLOCKED, Served.SLOW, Served.CONNECTIONS, Served.PER_CONNECTION, Served.PUSHED_BACK)


class Attempt(NamedTuple):
    """A claimed recipient and what happened; if nothing was tried (None), it is due again at `again_at`.

    `remark` is what the reply says about us, `follow_up` what the simulator does once it is delivered.
    """

    claimed: ClaimedRecipient
    result: AttemptResult | None
    carried: CarrierResult | None = None
    again_at: datetime | None = None
    remark: Remark | None = None
    follow_up: FollowUp | None = None


class Outcomes:
    def __init__(self, *, clock: Clock, chance: Chance, retries: Schedule) -> None:
        self._clock = clock
        self._chance = chance
        self._retries = retries

    def not_tried(self, claimed: ClaimedRecipient) -> Suppressed | GivenUp | StillBlocked | None:
        """Why the recipient must not be tried, if so."""
        if claimed.is_suppressed:
            return Suppressed(claimed.message.mailing_list if claimed.has_left else None)
        if not claimed.is_over:
            return None
        if claimed.first_code is not None:
            return StillBlocked(claimed.first_code, claimed.first_response or "")
        if claimed.attempt_count >= self._retries.attempts_max:
            return GivenUp(f"it was tried {claimed.attempt_count} times, and not every time brought an answer")
        if claimed.suspended >= retry.HOLD_MAX:
            return GivenUp("it was held for 7 days because the account was suspended", is_released=True)
        # Without one attempt, it was we who did not try.
        is_released = claimed.attempt_count == 0
        return GivenUp("it could not be delivered in the time that a message may take", is_released=is_released)

    def of(self, attempt: Attempt, hold: Hold | None = None) -> DeliveryOutcome:
        """With a `hold`, the recipient waits, although the reply would make it bounce."""
        claimed, attempt_result = attempt.claimed, attempt.result
        now = self._clock.now()
        if attempt_result is None:
            return DeliveryOutcome(*claimed.key, DeliveryResult.POSTPONED, next_at=attempt.again_at or now)
        verdict = outcome.judge(attempt_result)
        if hold is not None:
            return self._tried(attempt, attempt_result, verdict, DeliveryResult.POSTPONED, hold.next_at, hold=hold)
        consequence = outcome.recipient_update(
            verdict,
            attempts=claimed.attempt_count,
            accepted_at=claimed.counts_from,
            now=now,
            random=self._chance.fraction(),
            held=claimed.held,
            schedule=self._retries,
        )
        result = DeliveryResult(consequence.status)
        return self._tried(
            attempt,
            attempt_result,
            verdict,
            result,
            consequence.next_at,
            event=self._event(claimed, result, verdict, now) if result.is_final else None,
        )

    def _tried(
        self,
        attempt: Attempt,
        attempt_result: AttemptResult,
        verdict: DeliveryVerdict,
        result: DeliveryResult,
        next_at: datetime | None,
        *,
        event: NewEvent | None = None,
        hold: Hold | None = None,
    ) -> DeliveryOutcome:
        carried, remark = attempt.carried, attempt.remark
        return DeliveryOutcome(
            *attempt.claimed.key,
            result,
            event=event,
            next_at=next_at,
            suppress=verdict.suppress,
            is_released=verdict.is_released,
            is_ambiguous=verdict.ambiguous,
            exchange=carried.exchange if carried else None,
            address=carried.address if carried else None,
            tls=carried.tls if carried else None,
            stage=attempt_result.stage if isinstance(attempt_result, Replied | NoReply) else None,
            code=verdict.code,
            response=verdict.text,
            source=carried.source if carried else None,
            relay=carried.relay if carried else None,
            returns_to_source=(
                carried is not None
                and carried.source is not None
                and remark is not None
                and remark.kind is RemarkKind.GREYLISTED
            ),
            remark=None if remark is None else remark.name,
            hold=hold,
            counts_from=attempt.claimed.counts_from,
            follow_up=attempt.follow_up if result is DeliveryResult.DELIVERED else None,
        )

    def dated(self, recorded: DeliveryOutcome, now: datetime) -> DeliveryOutcome:
        """With a new event id if the event is old: readers of the feed would skip an id that appears late."""
        if recorded.event is None or now - ids.time_of(recorded.event.id) <= EVENT_AGE_MAX:
            return recorded
        event_id, delivery_id = (ids.new_id(now, self._chance.bytes(ids.RANDOM_BYTES)) for _ in range(2))
        body = event.with_new_id(recorded.event.body, event_id, now)
        return replace(recorded, event=NewEvent(event_id, recorded.event.type, body, delivery_id))

    def _event(
        self, claimed: ClaimedRecipient, result: DeliveryResult, verdict: DeliveryVerdict, now: datetime
    ) -> NewEvent:
        message = claimed.message
        return result_event(
            self._chance,
            now,
            result,
            verdict,
            message_id=claimed.message_id,
            position=claimed.position,
            to=claimed.email,
            sender=message.envelope_sender,
            subject=message.subject,
        )


def attempts_of(lane_name: str, recipients: Sequence[ClaimedRecipient], carried: CarrierResult) -> list[Attempt]:
    """The attempts that were carried, with what each reply says about us."""
    return [
        Attempt(recipient, result, carried, remark=_remark(lane_name, result))
        for recipient, result in zip(recipients, carried.results, strict=True)
    ]


def _remark(lane_name: str, result: AttemptResult) -> Remark | None:
    return remark_of(lane_name, result.stage, result.reply) if isinstance(result, Replied) else None


def served(
    lane_name: str, destination: str, carried: CarrierResult, message_id: MessageId
) -> tuple[Served, Refused | None]:
    """What it means for the lane; and the reply that refused the mail because of us, if one did.

    A single domain of a provider can't stop the lane of all, neither by servers of its own nor by words of its own.
    """
    if not lane.counts_for(lane_name, destination, carried.exchange):
        return Served.OTHERWISE, None
    results = carried.results
    if all(isinstance(result, Replied) and result.reply.code < REFUSED_CODE for result in results):
        return Served.WELL, None
    is_provider = lane.is_provider(lane_name)
    replies = [result for result in results if isinstance(result, Replied)]
    said: dict[Served, Refused] = {}
    for replied in replies:
        is_theirs = is_provider and may_be_customers(replied.stage, replied.reply)
        remark = None if is_theirs else remark_of(lane_name, replied.stage, replied.reply)
        said[lane.served_by(replied.reply.code, remark)] = _refused(replied, remark, carried, message_id)
    # Of several recipients' replies, the gravest counts.
    for gravest in _BY_GRAVITY:
        if gravest in said:
            return gravest, said[gravest]
    if any(not outcome.judge(replied).next_exchange for replied in replies):
        return Served.WELL, None
    # One unreachable domain of a provider says nothing about its others.
    if not is_provider and all(
        isinstance(failure, Replied | NoReply) and outcome.judge(failure).next_exchange for failure in results
    ):
        return Served.UNREACHABLE, Refused(message_id=message_id)
    return Served.OTHERWISE, None


def domain_served(
    lane_name: str, destination: str, carried: CarrierResult, message_id: MessageId
) -> tuple[Served, Refused | None]:
    """What it means for mail of the sender's domain to this provider; only a provider's own servers say it."""
    if not lane.is_provider(lane_name) or not lane.counts_for(lane_name, destination, carried.exchange):
        return Served.OTHERWISE, None
    is_taken = False
    for replied in [result for result in carried.results if isinstance(result, Replied)]:
        if replied.reply.code < REFUSED_CODE:
            is_taken = True
            continue
        if may_be_customers(replied.stage, replied.reply):
            continue
        remark = remark_of(lane_name, replied.stage, replied.reply)
        said = lane.domain_served_by(remark)
        if said is not None:
            return said, _refused(replied, remark, carried, message_id)
    return Served.WELL if is_taken else Served.OTHERWISE, None


def _refused(replied: Replied, remark: Remark | None, carried: CarrierResult, message_id: MessageId) -> Refused:
    reply = replied.reply
    return Refused(
        cause=f"{reply.code} {reply.enhanced}" if reply.enhanced else str(reply.code),
        reply=f"{reply.code} {without_addresses(reply.text)}",
        scope="+".join(sorted(remark.scopes)) if remark else "",
        message_id=message_id,
        asked_seconds=float(remark.wait_seconds or 0) if remark else 0.0,
        taken_before=carried.taken_before,
    )
