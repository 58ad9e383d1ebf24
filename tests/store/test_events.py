"""Events read by their account: in order, from where it stopped, of one type or one message, never another's."""

from datetime import timedelta
from typing import Final
from uuid import UUID

import pytest

from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.store import events
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.events import BEGINNING, SEARCHED_BATCH_MAX, EventRange, StoredEvent
from posthouse.store.postgres import Database
from tests.store.other_events import add_other_events, events_fetched
from tests.support import query_plans
from tests.support.accept_flow import new_id
from tests.support.delivery_steps import DeliverySteps
from tests.support.webhook_steps import WebhookSteps

DELIVERED, BOUNCED, FAILED, DEFERRED = (
    DeliveryResult.DELIVERED, DeliveryResult.BOUNCED, DeliveryResult.FAILED, DeliveryResult.DEFERRED,
)  # fmt: skip
MOMENT: Final = timedelta(milliseconds=1)


async def ended(steps: DeliverySteps, *results: DeliveryResult) -> MessageId:
    """A new message whose recipients had these results, in this order."""
    outcomes = await WebhookSteps(steps).outcomes(*results)
    for outcome in outcomes:
        await steps.record(outcome)
    steps.clock.advance(MOMENT)
    return outcomes[0].message_id


async def read(
    steps: DeliverySteps, after: UUID = BEGINNING, limit: int = 100, event_type: str | None = None, **by: UUID
) -> EventRange:
    account_id = AccountId(by.get("account_id", steps.sender.account_id))
    before = lowest_id(steps.clock.now() + MOMENT)
    async with steps.database.connection() as connection:
        return await events.read(connection, account_id, after, before, limit, event_type)


async def of_message(steps: DeliverySteps, message_id: MessageId, **by: UUID) -> list[StoredEvent]:
    async with steps.database.connection() as connection:
        account_id = AccountId(by.get("account_id", steps.sender.account_id))
        return await events.of_message(connection, account_id, message_id)


async def test_events_are_read_in_order_and_to_their_end(steps: DeliverySteps) -> None:
    assert await read(steps) == EventRange([], BEGINNING, is_all=True)
    for result in (DELIVERED, BOUNCED, FAILED):
        await ended(steps, result)
    whole = await read(steps)
    assert [event.type for event in whole.events] == ["email.delivered", "email.bounced", "email.failed"]
    assert (whole.read_to, whole.is_all) == (whole.events[-1].id, True)
    first = await read(steps, limit=2)
    assert (first.events, first.read_to, first.is_all) == (whole.events[:2], whole.events[1].id, False)
    rest = await read(steps, first.read_to, limit=1)
    assert (rest.events, rest.is_all) == (whole.events[2:], True)
    assert await read(steps, rest.read_to) == EventRange([], rest.read_to, is_all=True)


async def test_what_was_made_after_the_bound_is_not_read_yet(steps: DeliverySteps) -> None:
    await ended(steps, DELIVERED)
    bound = lowest_id(steps.clock.now())
    await ended(steps, BOUNCED)
    async with steps.database.connection() as connection:
        account_id = AccountId(steps.sender.account_id)
        early = await events.read(connection, account_id, BEGINNING, bound, 100)
    assert [event.type for event in early.events] == ["email.delivered"]
    assert [event.type for event in (await read(steps, early.read_to)).events] == ["email.bounced"]


async def test_a_rare_type_is_searched_in_parts(steps: DeliverySteps) -> None:
    now = steps.clock.now()
    made = [new_id(now) for _ in range(SEARCHED_BATCH_MAX + 10)]
    await steps.fetch(
        "INSERT INTO events (account_id, id, type, created_at, body)"
        " SELECT $1, id, 'webhook.test', $3, '' FROM unnest($2::uuid[]) made(id)",
        steps.sender.account_id, made, now,
    )  # fmt: skip
    steps.clock.advance(MOMENT)
    await ended(steps, BOUNCED)
    first = await read(steps, event_type="email.bounced")
    assert (first.events, first.is_all) == ([], False)
    second = await read(steps, first.read_to, event_type="email.bounced")
    assert ([event.type for event in second.events], second.is_all) == (["email.bounced"], True)
    assert second.read_to == second.events[0].id
    # Nothing lies between the parts.
    part = await read(steps, limit=5, event_type="webhook.test")
    assert [event.id for event in part.events] == sorted(made)[:5]
    last = await read(steps, first.read_to, event_type="webhook.test")
    assert [event.id for event in last.events] == sorted(made)[SEARCHED_BATCH_MAX:]


async def test_the_events_of_a_message_are_found_whenever_its_recipients_ended(steps: DeliverySteps) -> None:
    await ended(steps, DELIVERED)
    early, late = await steps.claimed(2)
    await steps.record(steps.outcome(early, DELIVERED), steps.outcome(late, DEFERRED))
    assert [event.type for event in await of_message(steps, early.message_id)] == ["email.delivered"]
    steps.clock.advance(hours=5)
    await steps.renew()
    (again,) = await steps.claim(await steps.lease())
    steps.clock.advance(minutes=2)
    await steps.record(steps.outcome(again, BOUNCED))
    await ended(steps, FAILED)
    found = await of_message(steps, early.message_id)
    assert [event.type for event in found] == ["email.delivered", "email.bounced"]


async def test_the_hour_before_a_result_is_not_searched_for_its_event(steps: DeliverySteps) -> None:
    await add_other_events(steps, 1_000)
    message_id = await ended(steps, DELIVERED, BOUNCED, FAILED)
    # As of recipients that ended without an attempt: it is only known that the events were made within the hour.
    await steps.fetch("DELETE FROM attempts")
    async with steps.database.transaction() as tx:
        found = await events.of_message(tx, AccountId(steps.sender.account_id), message_id)
        assert await events_fetched(tx) < 100
    assert {event.type for event in found} == {"email.delivered", "email.bounced", "email.failed"}
    assert [event.id for event in found] == sorted(event.id for event in found)


async def test_a_message_without_an_end_has_no_events(steps: DeliverySteps) -> None:
    assert await of_message(steps, await steps.accept()) == []
    assert await of_message(steps, MessageId(new_id(steps.clock.now()))) == []


async def test_another_accounts_events_are_not_found(steps: DeliverySteps) -> None:
    message_id = await ended(steps, DELIVERED)
    other_sender = (await steps.another_sender("other")).account_id
    assert (await read(steps, account_id=other_sender)).events == []
    assert (await read(steps, event_type="email.delivered", account_id=other_sender)).events == []
    assert await of_message(steps, message_id, account_id=other_sender) == []
    assert len(await of_message(steps, message_id)) == 1


# What is open is asked of PostgreSQL itself, which keeps no keys of ours.
STATEMENTS = {name: text for name, text in query_plans.statements(events).items() if "pg_stat_activity" not in text}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    scans = await query_plans.scans(database, STATEMENTS[name])
    assert scans
    for scan in scans:
        condition = query_plans.condition(scan)
        assert "account_id = " in condition, scan
        by_id = ("events",) if name == "events._FURTHER_OF_MESSAGE" else ("events", "endpoint_events")
        key = "id " if scan["Relation Name"].startswith(by_id) else "message_id = "
        assert key in condition.replace("account_id", ""), scan
    if name in ("events._AFTER", "events._REACH", "events._FURTHER_AFTER", "events._FURTHER_REACH"):
        # Of the days, only the day within the bounds is read.
        assert len({scan["Relation Name"] for scan in scans}) == 1
