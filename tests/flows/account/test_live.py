"""Live hints: every commit is named once, however late it appears; bounds; the end of streams."""

import json
from contextlib import ExitStack
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from posthouse.flows.account import live as flow
from posthouse.flows.account.live import Live, Watcher
from posthouse.rules import ids
from posthouse.rules import live as rules
from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.live import LiveEvent
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import delivery_outcomes
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.live import EVENTS_SETTLED_AFTER, MESSAGES_SETTLED_AFTER
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps

USER = UserId(uuid4())
LONG = MESSAGES_SETTLED_AFTER + EVENTS_SETTLED_AFTER


async def always() -> None:
    """Whatever happens, the caller is admitted."""


def live_of(steps: DeliverySteps, **options: int) -> Live:
    return Live(context(steps.database, steps.clock), **options)


def account_of(steps: DeliverySteps) -> AccountId:
    return AccountId(steps.sender.account_id)


async def news(watcher: Watcher) -> list[LiveEvent]:
    return await watcher.next(0.01)


def named(events: list[LiveEvent]) -> list[str]:
    """The ids of messages accepted, then those of recipients with their result."""
    found: list[str] = []
    for event in events:
        content = json.loads(event.data)
        found += content.get("message_ids", [])
        found += [recipient["recipient_id"] for recipient in content.get("recipients", [])]
    return found


def message_text(message_id: UUID) -> str:
    return ids.text(ids.MESSAGE, message_id)


async def test_each_commit_is_named_once_and_only_to_its_account(steps: DeliverySteps) -> None:
    live = live_of(steps)
    other = await steps.another_sender("other")
    with (
        live.watch(account_of(steps), USER, always) as watcher,
        live.watch(AccountId(other.account_id), USER, always) as other_watcher,
    ):
        before = await steps.accept()
        await live.look()
        assert await news(watcher) == await news(other_watcher) == [rules.READY]
        sent = await steps.accept()
        await live.look()
        assert named(await news(watcher)) == [message_text(sent)]
        claimed = [found for found in await steps.claim(await steps.lease()) if found.message_id in (sent, before)]
        await steps.record(*[steps.outcome(found, DeliveryResult.DELIVERED) for found in claimed])
        await live.look()
        results = await news(watcher)
        assert [event.name for event in results] == ["final"]
        assert len(named(results)) == 2
        for _ in range(3):
            await live.look()
            steps.clock.advance(LONG)
        assert await news(watcher) == await news(other_watcher) == []


async def test_a_message_that_is_committed_late_is_named_when_it_appears(steps: DeliverySteps) -> None:
    live = live_of(steps)
    first = await steps.accept()
    with live.watch(account_of(steps), USER, always) as watcher:
        await live.look()
        await news(watcher)
        # Its id is older than that of the first, which every look has seen.
        late = ids.MessageId(UUID(int=first.int - (1 << 80)))
        async with steps.database.transaction() as tx:
            await tx.execute("UPDATE messages SET id = $2 WHERE id = $1", first, late)
            await live.look()
            assert await news(watcher) == []
        await live.look()
        assert named(await news(watcher)) == [message_text(late)]


async def test_a_result_of_a_long_transaction_is_named_when_it_appears(steps: DeliverySteps) -> None:
    live = live_of(steps)
    (early, soon) = await steps.claimed(2)
    with live.watch(account_of(steps), USER, always) as watcher:
        await live.look()
        async with steps.database.transaction() as tx:
            await delivery_outcomes.record(tx, [steps.outcome(early, DeliveryResult.DELIVERED)], steps.clock.now())
            for _ in range(3):
                await live.look()
                # Far beyond what a commit may take: only the open transaction holds the horizon back.
                steps.clock.advance(LONG)
        await news(watcher)
        await live.look()
        expected = ids.text(ids.RECIPIENT, ids.recipient_id(early.message_id, early.position))
        assert named(await news(watcher)) == [expected]
        assert soon.message_id == early.message_id


async def test_an_outage_loses_no_hint(steps: DeliverySteps) -> None:
    live = live_of(steps)
    with live.watch(account_of(steps), USER, always) as watcher:
        await live.look()
        await news(watcher)
        sent = await steps.accept()
        steps.clock.advance(timedelta(hours=1))
        await live.look()
        assert named(await news(watcher)) == [message_text(sent)]


async def test_more_than_a_look_reads_is_a_resync(steps: DeliverySteps) -> None:
    live = live_of(steps)
    with live.watch(account_of(steps), USER, always) as watcher, ExitStack() as stack:
        for _ in range(flow.READ_OF_ALL_MAX // flow.READ_MIN):
            stack.enter_context(live.watch(AccountId(uuid4()), UserId(uuid4()), always))
        await live.look()
        await news(watcher)
        for _ in range(flow.READ_MIN):
            await steps.accept()
        await live.look()
        assert await news(watcher) == [rules.RESYNC]


async def test_a_slow_reader_loses_hints_and_is_notified() -> None:
    watcher = Watcher(always)
    large = LiveEvent("accepted", b"x" * (rules.QUEUED_BYTES_MAX // 2))
    watcher.put(large)
    assert await news(watcher) == [large]
    for _ in range(3):
        watcher.put(large)
    watcher.put(rules.READY)
    assert await news(watcher) == [rules.RESYNC, rules.READY]
    assert await news(watcher) == []


async def test_a_caller_that_is_no_longer_admitted_is_ended_with_the_reason(steps: DeliverySteps) -> None:
    live = live_of(steps)
    refusals: list[Refusal] = []

    async def check() -> None:
        if refusals:
            raise refusals[-1]

    with live.watch(account_of(steps), USER, check) as watcher, live.watch(account_of(steps), USER, always) as other:
        await live.look()
        refusals.append(Refusal(Code.SERVICE_UNAVAILABLE, "PostgreSQL is away."))
        await live.look()
        assert not watcher.is_over
        refusals.append(Refusal(Code.FORBIDDEN, "This needs another role."))
        await live.look()
        assert watcher.is_over
        assert [event.name for event in await news(watcher)] == ["ready", "end"]
        assert not other.is_over
        live.close()
        assert [event.name for event in await news(other)] == ["ready", "end"]
    with pytest.raises(Refusal) as caught, live.watch(account_of(steps), USER, always):
        pass
    assert caught.value.code is Code.SERVICE_UNAVAILABLE


async def test_streams_are_bounded_and_places_given_back(steps: DeliverySteps) -> None:
    live = live_of(steps, streams_max=150)

    def opened(stack: ExitStack, user: UserId, account: AccountId) -> Code | None:
        try:
            stack.enter_context(live.watch(account, user, always))
        except Refusal as refusal:
            return refusal.code
        return None

    with ExitStack() as stack:
        mine = [opened(stack, USER, account_of(steps)) for _ in range(rules.STREAMS_PER_USER_MAX + 1)]
        assert mine == [*[None] * rules.STREAMS_PER_USER_MAX, Code.RATE_LIMITED]
        others = [opened(stack, UserId(uuid4()), account_of(steps)) for _ in range(rules.STREAMS_PER_ACCOUNT_MAX)]
        assert others.count(Code.RATE_LIMITED) == rules.STREAMS_PER_USER_MAX
        elsewhere = [opened(stack, UserId(uuid4()), AccountId(uuid4())) for _ in range(60)]
        assert elsewhere == [*[None] * 50, *[Code.TEMPORARY_FAILURE] * 10]
    with ExitStack() as stack:
        assert opened(stack, USER, account_of(steps)) is None
    assert not live._accounts
    assert not live._streams.taken
