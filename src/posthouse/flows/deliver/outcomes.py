"""Outcomes: what is recorded of an attempt, and what it means for the lane."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from posthouse.flows.shared.context import Context
from posthouse.flows.shared.result_event import result_event
from posthouse.rules import event, ids, lane, outcome, retry
from posthouse.rules.delivery_reason import without_addresses
from posthouse.rules.ids import MessageId
from posthouse.rules.lane import DeliveryFeedback
from posthouse.rules.learned_limits import Refused
from posthouse.rules.outcome import AttemptResult, DeliveryVerdict, GivenUp, NoReply, Replied, StillBlocked, Suppressed
from posthouse.rules.reply_signal import ReplySignal, ReplySignalKind, may_be_customers, reply_signal_of
from posthouse.rules.reroute import Hold
from posthouse.rules.retry import Schedule
from posthouse.rules.simulator import FollowUp
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult, NewEvent
from posthouse.wire.carrier import CarrierResult

# How much older than its commit the time of an event may be.
EVENT_AGE_MAX: Final = timedelta(seconds=1)
REFUSED_CODE: Final = 400
_BY_GRAVITY: Final = (
    DeliveryFeedback.BLOCKED,
    DeliveryFeedback.SLOW,
    DeliveryFeedback.CONNECTIONS,
    DeliveryFeedback.PER_CONNECTION,
    DeliveryFeedback.PUSHED_BACK,
)


class Attempt(NamedTuple):
    """A claimed recipient and what happened to it; if nothing was tried (None), it is due again at `again_at`.

    `reply_signal` is what the reply says about us, `follow_up` what the simulator does once it is delivered.
    """

    claimed: ClaimedRecipient
    result: AttemptResult | None
    carried: CarrierResult | None = None
    again_at: datetime | None = None
    reply_signal: ReplySignal | None = None
    follow_up: FollowUp | None = None


class Outcomes:
    def __init__(self, context: Context, retries: Schedule) -> None:
        self._clock = context.clock
        self._randomness = context.randomness
        self._retries = retries

    def not_tried(self, claimed: ClaimedRecipient) -> Suppressed | GivenUp | StillBlocked | None:
        """Why the recipient must not be tried; None if it may be."""
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
        # Without a single attempt, the cause is on our side.
        is_released = claimed.attempt_count == 0
        return GivenUp("it could not be delivered in the time that a message may take", is_released=is_released)

    def split(self, claimed: Iterable[ClaimedRecipient]) -> tuple[list[Attempt], list[ClaimedRecipient]]:
        """The recipients that end without being tried, and those that may be tried."""
        attempts, tried = [], []
        for recipient in claimed:
            reason = self.not_tried(recipient)
            if reason is None:
                tried.append(recipient)
            else:
                attempts.append(Attempt(recipient, reason))
        return attempts, tried

    def postponed(self, recipients: Iterable[ClaimedRecipient], wait: timedelta) -> list[Attempt]:
        """Recipients that were not tried after all, and are due again after this wait."""
        again_at = self._clock.now() + wait
        return [Attempt(recipient, None, again_at=again_at) for recipient in recipients]

    def outcome_of(self, attempt: Attempt, hold: Hold | None = None) -> DeliveryOutcome:
        """With a `hold`, the recipient waits although the reply would make it bounce."""
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
            random=self._randomness.fraction(),
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
        carried, reply_signal = attempt.carried, attempt.reply_signal
        return DeliveryOutcome(
            *attempt.claimed.key,
            result,
            event=event,
            next_at=next_at,
            suppress=verdict.suppress,
            is_released=verdict.is_released,
            is_ambiguous=verdict.ambiguous,
            mx_host=carried.mx_host if carried else None,
            remote_ip=carried.remote_ip if carried else None,
            tls=carried.tls if carried else None,
            stage=attempt_result.stage if isinstance(attempt_result, Replied | NoReply) else None,
            code=verdict.code,
            response=verdict.text,
            source_ip=carried.source_ip if carried else None,
            relay=carried.relay if carried else None,
            returns_to_source_ip=(
                carried is not None
                and carried.source_ip is not None
                and reply_signal is not None
                and reply_signal.kind is ReplySignalKind.GREYLISTED
            ),
            reply_signal=None if reply_signal is None else reply_signal.name,
            hold=hold,
            counts_from=attempt.claimed.counts_from,
            follow_up=attempt.follow_up if result is DeliveryResult.DELIVERED else None,
        )

    def dated(self, recorded: DeliveryOutcome, now: datetime) -> DeliveryOutcome:
        """Give an old event a new id: readers of the feed would skip an id that appears late."""
        if recorded.event is None or now - ids.time_of(recorded.event.id) <= EVENT_AGE_MAX:
            return recorded
        event_id = ids.new_id(now, self._randomness.id_bytes())
        body = event.with_new_id(recorded.event.body, event_id, now)
        return replace(recorded, event=NewEvent(event_id, recorded.event.type, body))

    def _event(
        self, claimed: ClaimedRecipient, result: DeliveryResult, verdict: DeliveryVerdict, now: datetime
    ) -> NewEvent:
        message = claimed.message
        return result_event(
            self._randomness,
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
    """The attempts that were carried out, each with what its reply says about us."""
    return [
        Attempt(recipient, result, carried, reply_signal=_reply_signal(lane_name, result))
        for recipient, result in zip(recipients, carried.results, strict=True)
    ]


def _reply_signal(lane_name: str, result: AttemptResult) -> ReplySignal | None:
    return reply_signal_of(lane_name, result.stage, result.reply) if isinstance(result, Replied) else None


def served(
    lane_name: str, destination: str, carried: CarrierResult, message_id: MessageId
) -> tuple[DeliveryFeedback, Refused | None]:
    """What the outcomes mean for the lane; and the reply that refused the mail because of us, if there is one.

    A single domain of a provider can't stop the lane of all, neither with its own servers nor with its own replies.
    """
    if not lane.counts_for(lane_name, destination, carried.mx_host):
        return DeliveryFeedback.OTHERWISE, None
    results = carried.results
    if not [each for each in results if not isinstance(each, Replied) or each.reply.code >= REFUSED_CODE]:
        return DeliveryFeedback.WELL, None
    is_provider = lane.is_provider(lane_name)
    replies = [result for result in results if isinstance(result, Replied)]
    said: dict[DeliveryFeedback, Refused] = {}
    for replied in replies:
        is_theirs = is_provider and may_be_customers(replied.stage, replied.reply)
        reply_signal = None if is_theirs else reply_signal_of(lane_name, replied.stage, replied.reply)
        said[lane.feedback_by(replied.reply.code, reply_signal)] = _refused(replied, reply_signal, carried, message_id)
    # Of several recipients' replies, the most serious counts.
    for gravest in _BY_GRAVITY:
        if gravest in said:
            return gravest, said[gravest]
    if any(not outcome.judge(replied).next_mx_host for replied in replies):
        return DeliveryFeedback.WELL, None
    # One unreachable domain of a provider says nothing about its others.
    if not is_provider and all(
        isinstance(failure, Replied | NoReply) and outcome.judge(failure).next_mx_host for failure in results
    ):
        return DeliveryFeedback.UNREACHABLE, Refused(message_id=message_id)
    return DeliveryFeedback.OTHERWISE, None


def domain_feedback(
    lane_name: str, destination: str, carried: CarrierResult, message_id: MessageId
) -> tuple[DeliveryFeedback, Refused | None]:
    """What the outcomes mean for mail of the sender's domain to this provider; only a provider's own servers count."""
    if not lane.counts_for(lane_name, destination, carried.mx_host):
        return DeliveryFeedback.OTHERWISE, None
    is_taken = False
    for replied in [result for result in carried.results if isinstance(result, Replied)]:
        if replied.reply.code < REFUSED_CODE:
            is_taken = True
            continue
        if may_be_customers(replied.stage, replied.reply):
            continue
        reply_signal = reply_signal_of(lane_name, replied.stage, replied.reply)
        said = lane.domain_feedback_by(reply_signal)
        if said is not None:
            return said, _refused(replied, reply_signal, carried, message_id)
    return DeliveryFeedback.WELL if is_taken else DeliveryFeedback.OTHERWISE, None


def _refused(
    replied: Replied, reply_signal: ReplySignal | None, carried: CarrierResult, message_id: MessageId
) -> Refused:
    reply = replied.reply
    return Refused(
        cause=f"{reply.code} {reply.enhanced}" if reply.enhanced else str(reply.code),
        reply=f"{reply.code} {without_addresses(reply.text)}",
        scope="+".join(sorted(reply_signal.scopes)) if reply_signal else "",
        message_id=message_id,
        asked_seconds=float(reply_signal.wait_seconds or 0) if reply_signal else 0.0,
        taken_before=carried.taken_before,
    )
