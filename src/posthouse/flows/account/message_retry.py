"""The next try of a message now, for its deferred recipients."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.account.message_detail import message_id_of, no_message
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.snapshot import snapshot
from posthouse.rules import ids, rate_limit, retry, retry_request
from posthouse.rules.actor import Actor
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.rate_limit import RateWait
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.retry import Schedule
from posthouse.rules.retry_request import RetryAnswer, RetryResult
from posthouse.store import message_detail, message_retries
from posthouse.store.message_detail import RecipientTimeline, Timeline
from posthouse.store.postgres import Connection, Database


@dataclass(frozen=True, slots=True)
class RetriedRecipient:
    id: UUID
    email: str
    result: RetryResult


class MessageRetry:
    def __init__(self, *, database: Database, clock: Clock, chance: Chance, retries: Schedule = retry.DELIVERY) -> None:
        self._database = database
        self._clock = clock
        self._audit_log = AuditLog(chance)
        self._retries = retries

    async def retry(
        self, account_id: AccountId, actor: Actor, given_id: str, email: str | None = None
    ) -> list[RetriedRecipient]:
        """Make the message's deferred recipients due now, or that with this address; what happens to each.

        A request that moves nothing counts for nothing.
        """
        message_id = message_id_of(given_id)
        async with snapshot(self._database) as connection:
            timeline = await message_detail.timeline(connection, account_id, message_id, self._clock.now())
        if timeline is None:
            raise no_message()
        chosen = [recipient for recipient in timeline.recipients if email is None or _is(recipient, email)]
        if not chosen:
            raise invalid("`recipient` is not an address of this message: leave it out, or name one that is.")
        results = {recipient.position: self._judge(timeline, recipient) for recipient in chosen}
        fences = {
            recipient.position: recipient.waiting.fence
            for recipient in chosen
            if results[recipient.position].result is RetryAnswer.NOW and recipient.waiting is not None
        }
        if fences:
            moved = await self._move(account_id, actor, message_id, fences)
            results |= dict.fromkeys(fences.keys() - moved, retry_request.taken())
        return [
            RetriedRecipient(
                ids.recipient_id(message_id, recipient.position), recipient.email, results[recipient.position]
            )
            for recipient in chosen
        ]

    def _judge(self, timeline: Timeline, recipient: RecipientTimeline) -> RetryResult:
        waiting = recipient.waiting
        return retry_request.judge(
            recipient.status,
            timeline.wait(recipient),
            None if waiting is None else waiting.next_at,
            0 if waiting is None else waiting.attempt_count,
            self._retries.attempts_max,
        )

    async def _move(
        self, account_id: AccountId, actor: Actor, message_id: MessageId, fences: Mapping[int, int]
    ) -> set[int]:
        async with self._database.transaction() as tx:
            now = self._clock.now()
            moved = await message_retries.make_due(tx, account_id, message_id, list(fences.items()), now)
            if moved:
                count = await self._count(tx, account_id, message_id)
                detail = {"recipients": len(moved), "retries": count}
                target = ids.text(ids.MESSAGE, message_id)
                await self._audit_log.note(tx, account_id, actor, "message.retried", target, now, detail)
        return moved

    async def _count(self, tx: Connection, account_id: AccountId, message_id: MessageId) -> int:
        """Raises, and so undoes the rest, when the message or the account was retried too often."""
        now = self._clock.now()
        taken = rate_limit.take(retry_request.RATE, await message_retries.rate_full_at(tx, account_id, now), now)
        if isinstance(taken, RateWait):
            raise Refusal(
                Code.RATE_LIMITED,
                f"An account may ask for {retry_request.RATE.burst} retries at once, and one a minute after that: try "
                f"again in {taken.seconds} s.",
                taken.seconds,
            )
        await message_retries.set_rate_full_at(tx, account_id, taken.full_at)
        count = await message_retries.count(tx, account_id, message_id, now)
        if count > retry_request.PER_MESSAGE_MAX:
            raise Refusal(
                Code.CONFLICT,
                f"This message was retried {retry_request.PER_MESSAGE_MAX} times on request: its next tries are made "
                "at their time.",
            )
        return count


def _is(recipient: RecipientTimeline, email: str) -> bool:
    return recipient.email.lower() == email.strip().lower()
