"""A message's next try now: one attempt more and never a second copy, counted for the message and the account."""

import asyncio
from collections import Counter
from uuid import uuid4

import pytest

from posthouse.flows.account.message_changes import MessageChanges
from posthouse.flows.account.message_search import MessageSearch
from posthouse.flows.shared.account_limits import Defaults
from posthouse.rules import ids, retry
from posthouse.rules.credential import Actor
from posthouse.rules.ids import AccountId, MessageId, UserId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.retry import RetryAnswer
from posthouse.rules.wait_reason import WaitReason
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.accept_flow import RATE
from tests.support.context import context
from tests.support.delivery_steps import WAIT, DeliverySteps

ACTOR = Actor(UserId(uuid4()), "ada@example.org")


async def deferred(steps: DeliverySteps, recipients: int = 1) -> MessageId:
    claimed = await steps.claimed(recipients)
    await steps.record(*[steps.outcome(found, DeliveryResult.DEFERRED) for found in claimed])
    return claimed[0].message_id


def flow(steps: DeliverySteps) -> MessageChanges:
    given = context(steps.database, steps.clock)
    return MessageChanges(given, search=MessageSearch(given), defaults=Defaults(rate=RATE, warmup_limits=None))


async def retried(steps: DeliverySteps, message_id: MessageId, email: str | None = None) -> list[str]:
    account_id = AccountId(steps.sender.account_id)
    found = await flow(steps).retry(account_id, ACTOR, ids.text(ids.MESSAGE, message_id), email)
    return [recipient.result.result for recipient in found]


async def refused(steps: DeliverySteps, message_id: MessageId) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await retried(steps, message_id)
    return caught.value


@pytest.mark.rule("MSR-01")
async def test_the_next_attempt_is_made_now_and_counts(steps: DeliverySteps) -> None:
    message_id = await deferred(steps, 2)
    assert await steps.lease() == []
    assert await retried(steps, message_id, "R0@example.org ") == [RetryAnswer.NOW]
    (ticket,) = await steps.lease()
    (claimed,) = await steps.claim([ticket])
    assert (claimed.position, claimed.attempt_count) == (0, 2)
    assert await retried(steps, message_id) == [WaitReason.SENDING, RetryAnswer.NOW]


async def test_a_ticket_that_is_on_its_way_makes_no_second_copy(steps: DeliverySteps) -> None:
    message_id = await deferred(steps)
    steps.clock.advance(WAIT)
    (on_its_way,) = await steps.lease()
    assert await retried(steps, message_id) == [RetryAnswer.NOW]
    (second,) = await steps.lease()
    assert len(await steps.claim([on_its_way])) == 1
    assert await steps.claim([second]) == []


@pytest.mark.rule("MSR-02")
async def test_what_a_worker_has_claimed_stays_claimed(steps: DeliverySteps) -> None:
    message_id = await deferred(steps)
    steps.clock.advance(WAIT)
    await steps.renew()
    (claimed,) = await steps.claim(await steps.lease())
    assert await retried(steps, message_id) == [WaitReason.SENDING]
    assert await steps.lease() == []
    await steps.record(steps.outcome(claimed, DeliveryResult.DELIVERED))
    assert await retried(steps, message_id) == [RetryAnswer.FINAL]
    assert await steps.value("SELECT count(*) FROM message_retries") == 0


async def test_mail_of_a_suspended_account_stays_held(steps: DeliverySteps) -> None:
    message_id = await deferred(steps)
    await steps.suspend()
    await steps.fetch("UPDATE delivery_schedule SET held_since = $1", steps.clock.now())
    assert await retried(steps, message_id) == [WaitReason.ACCOUNT_SUSPENDED]


@pytest.mark.rule("MSR-03")
async def test_a_message_is_retried_a_limited_number_of_times(steps: DeliverySteps) -> None:
    message_id = await deferred(steps)
    for _ in range(retry.REQUESTS_PER_MESSAGE_MAX):
        assert await retried(steps, message_id) == [RetryAnswer.NOW]
        (claimed,) = await steps.claim(await steps.lease())
        await steps.record(steps.outcome(claimed, DeliveryResult.DEFERRED))
    assert (await refused(steps, message_id)).code is Code.CONFLICT
    assert await steps.lease() == []
    details = await steps.fetch("SELECT detail->>'retries' FROM audit_log WHERE action = 'message.retried' ORDER BY 1")
    assert details == [(str(number + 1),) for number in range(retry.REQUESTS_PER_MESSAGE_MAX)]


@pytest.mark.rule("MSR-03")
async def test_an_account_has_a_rate_of_retries(steps: DeliverySteps) -> None:
    await steps.fetch(
        "INSERT INTO retry_limits VALUES ($1, $2)",
        steps.sender.account_id,
        steps.clock.now() + (retry.REQUEST_RATE.burst - 1) * WAIT / 5,
    )
    assert await retried(steps, await deferred(steps)) == [RetryAnswer.NOW]
    another = await deferred(steps)
    refusal = await refused(steps, another)
    assert (refusal.code, refusal.retry_after_seconds) == (Code.RATE_LIMITED, 60)
    steps.clock.advance(seconds=60)
    assert await retried(steps, another) == [RetryAnswer.NOW]


async def test_of_two_simultaneous_requests_only_one_counts(steps: DeliverySteps) -> None:
    message_id = await deferred(steps)
    results = await asyncio.gather(*[retried(steps, message_id) for _ in range(4)])
    counted = Counter(result for (result,) in results)
    assert counted[RetryAnswer.NOW] == 1
    assert await steps.value("SELECT count FROM message_retries WHERE message_id = $1", message_id) == 1


async def test_another_accounts_message_is_not_found(steps: DeliverySteps) -> None:
    message_id = await deferred(steps)
    other = await steps.another_sender("other")
    with pytest.raises(Refusal) as caught:
        await flow(steps).retry(AccountId(other.account_id), ACTOR, ids.text(ids.MESSAGE, message_id))
    assert caught.value.code is Code.NOT_FOUND
    assert await steps.lease() == []
