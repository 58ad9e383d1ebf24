"""A message's timeline: whatever was written about it is found again, and nothing of its neighbours'."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from posthouse.flows.operate.monitor import Monitor
from posthouse.rules import ids
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Refusal
from posthouse.rules.reports import ReportNote
from posthouse.store import message_detail, messages, reports, webhook_log
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.delivery_schedule import DeliveryPostponement, postpone
from posthouse.store.message_detail import Timeline
from tests.store.other_events import add_other_events, events_fetched
from tests.support.accept_flow import new_id
from tests.support.context import context
from tests.support.delivery_steps import LEASE, LONGEST_ATTEMPT, WAIT, DeliverySteps
from tests.support.query_plans import condition, scans, statements
from tests.support.webhook_steps import enter_replay, save_webhook


async def timeline_of(steps: DeliverySteps, message_id: MessageId) -> Timeline:
    monitor = Monitor(context(steps.database, steps.clock))
    return await monitor.timeline(ids.text(ids.MESSAGE, message_id))


async def test_a_message_is_found_in_whichever_account_has_it(steps: DeliverySteps) -> None:
    other = await steps.another_sender("beta")
    mine, theirs = await steps.accept(), await steps.accept(["ada@example.org", "bob@example.net"], sender=other)
    assert (await timeline_of(steps, mine)).account_name == "acme"
    found = await timeline_of(steps, theirs)
    assert (found.account_name, found.account_id, found.id) == ("beta", other.account_id, theirs)
    assert (found.source, found.status, found.billing_status, found.subject) == ("api", "queued", "reserved", "Hello")
    assert (found.recipient_count, found.credits_reserved) == (2, 2)
    assert found.created_at == found.read_at == steps.clock.now()
    assert [recipient.email for recipient in found.recipients] == ["ada@example.org", "bob@example.net"]
    assert not found.is_shortened


async def test_an_id_that_names_nothing_is_refused_in_words(steps: DeliverySteps) -> None:
    await steps.accept()
    monitor = Monitor(context(steps.database, steps.clock))
    unknown = ("em_00000000000000000000000000", ids.text(ids.MESSAGE, uuid4()))
    invalid = ("rc_00000000000000000000000000", "hello", "")
    for given, code in (dict.fromkeys(unknown, "not_found") | dict.fromkeys(invalid, "invalid_request")).items():
        with pytest.raises(Refusal, match=code):
            await monitor.timeline(given)


async def test_mail_that_was_not_tried_yet_waits(steps: DeliverySteps) -> None:
    (recipient,) = (await timeline_of(steps, await steps.accept())).recipients
    waiting = recipient.waiting
    assert waiting is not None
    assert (waiting.fence, waiting.worker_id, waiting.attempt_count) == (0, None, 0)
    assert (recipient.attempts, recipient.event, recipient.suppression, recipient.final_at) == ((), None, None, None)


async def test_attempts_come_in_their_order_and_the_event_with_the_end(steps: DeliverySteps) -> None:
    (first,) = await steps.claimed()
    await steps.record(steps.outcome(first, DeliveryResult.DEFERRED, is_ambiguous=True))
    steps.clock.advance(WAIT)
    (second,) = await steps.claim(await steps.lease())
    steps.clock.advance(seconds=20)
    delivered = steps.outcome(second, DeliveryResult.DELIVERED)
    steps.clock.advance(seconds=2)
    await steps.record(delivered)
    await steps.accept()

    (recipient,) = (await timeline_of(steps, first.message_id)).recipients
    found = [(attempt.outcome, attempt.is_ambiguous, attempt.fence) for attempt in recipient.attempts]
    assert found == [("deferred", True, first.fence), ("delivered", False, second.fence)]
    last = recipient.attempts[-1]
    assert (last.mx_host, last.remote_ip, last.tls, last.code) == ("mx.example.org", "192.0.2.1", "TLSv1.3", 250)
    assert (recipient.status, recipient.billing_status, recipient.waiting) == ("delivered", "settled", None)
    assert recipient.final_at == steps.clock.now()
    assert delivered.event is not None
    assert recipient.event is not None
    assert (recipient.event.id, recipient.event.type) == (delivered.event.id, "email.delivered")


async def test_each_recipient_has_its_own_event(steps: DeliverySteps) -> None:
    claimed = await steps.claimed(3)
    outcomes = [steps.outcome(claim, DeliveryResult.BOUNCED) for claim in claimed]
    await steps.record(*outcomes)
    found = await timeline_of(steps, claimed[0].message_id)
    event_ids = [recipient.event and recipient.event.id for recipient in found.recipients]
    assert event_ids == [outcome.event and outcome.event.id for outcome in outcomes]


async def test_a_suppressed_recipient_has_an_end_and_an_event_without_an_attempt(steps: DeliverySteps) -> None:
    (bounced,) = await steps.claimed(["Ada@example.org"])
    await steps.record(steps.outcome(bounced, DeliveryResult.BOUNCED, suppress=True))
    steps.clock.advance(hours=2)
    (suppressed,) = await steps.claimed(["ada@Example.org"])
    assert suppressed.is_suppressed
    outcome = steps.outcome(suppressed, DeliveryResult.BOUNCED, code=None, response="suppressed", mx_host=None)
    await steps.record(outcome)
    (recipient,) = (await timeline_of(steps, suppressed.message_id)).recipients
    assert recipient.attempts == ()
    assert recipient.suppression is not None
    assert (recipient.suppression.reason, recipient.suppression.code) == ("bounce", 550)
    assert recipient.event is not None
    # Another account is not told.
    theirs = await steps.accept(["ada@example.org"], sender=await steps.another_sender("beta"))
    assert (await timeline_of(steps, theirs)).recipients[0].suppression is None


async def test_the_hour_before_a_result_is_not_searched_for_its_event(steps: DeliverySteps) -> None:
    await add_other_events(steps, 1_000)
    claimed = await steps.claimed(3)
    await steps.record(*(steps.outcome(claim, DeliveryResult.BOUNCED) for claim in claimed))
    # As of recipients that ended without an attempt: it is only known that the events were made within the hour.
    await steps.fetch("DELETE FROM attempts")
    account_id, message_id = AccountId(steps.sender.account_id), claimed[0].message_id
    async with steps.database.transaction() as tx:
        found = await message_detail.timeline(tx, account_id, message_id, steps.clock.now())
        assert await events_fetched(tx) < 100
    assert found is not None
    assert all(recipient.event is not None for recipient in found.recipients)


async def test_a_worker_is_alive_for_as_long_as_its_lease(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    next_at = steps.clock.now() + LONGEST_ATTEMPT
    for is_alive in (True, False):
        (recipient,) = (await timeline_of(steps, claimed.message_id)).recipients
        waiting = recipient.waiting
        assert waiting is not None
        assert (waiting.worker_id, waiting.is_worker_alive, waiting.next_at) == (steps.worker_id, is_alive, next_at)
        assert recipient.attempts[0].outcome is None
        steps.clock.advance(LEASE + timedelta(seconds=1))


async def test_a_hold_is_shown(steps: DeliverySteps) -> None:
    message_id = await steps.accept()
    (ticket,) = await steps.lease()
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        held = DeliveryPostponement(ticket.account_id, message_id, 0, ticket.fence, now + WAIT, is_held=True)
        assert await postpone(tx, [held], now) == 1
    await steps.operator.suspend(steps.sender.account_id)
    found = await timeline_of(steps, message_id)
    assert found.suspended_at is not None
    assert found.recipients[0].waiting is not None
    assert found.recipients[0].waiting.held_since == now
    steps.clock.advance(WAIT)
    found = await timeline_of(steps, message_id)
    assert found.recipients[0].waiting is not None
    assert found.recipients[0].waiting.held == WAIT


@pytest.mark.rule("MSD-05")
async def test_a_report_is_shown_with_its_recipient_or_separately(steps: DeliverySteps) -> None:
    other, mine = await steps.accept(2), await steps.accept(["ada@example.org", "bob@example.net"])
    notes = [
        ReportNote("bounce", 1, "bob@example.net", "5.1.1", 550, "5.1.1 unknown", suppress=True),
        ReportNote("bounce", None, "eve@example.net", "5.1.1", 550, "5.1.1 unknown"),
    ]
    async with steps.database.transaction() as tx:
        for message_id in (other, mine):
            await reports.add_reports(tx, AccountId(steps.sender.account_id), message_id, notes, steps.clock.now())
    steps.clock.advance(hours=1)
    complained = ReportNote("complaint", 1, "abuse", response="stop it", suppress=True)
    async with steps.database.transaction() as tx:
        await reports.add_reports(tx, AccountId(steps.sender.account_id), mine, [complained], steps.clock.now())
    found = await timeline_of(steps, mine)
    assert [(report.kind, report.detail) for report in found.reports] == [("bounce", "eve@example.net")]
    assert found.recipients[0].reports == ()
    assert [(report.kind, report.status, report.suppressed) for report in found.recipients[1].reports] == [
        ("bounce", "5.1.1", True),
        ("complaint", None, True),
    ]
    assert len((await timeline_of(steps, other)).recipients[1].reports) == 1


async def sent_by_webhook(steps: DeliverySteps) -> MessageId:
    """A message whose event was sent to its account's webhook."""
    account_id = AccountId(steps.sender.account_id)
    async with steps.database.transaction() as tx:
        await save_webhook(tx, account_id, "https://example.com/", ["email.delivered"], True, b"", steps.clock.now())
    (claimed,) = await steps.claimed()
    await steps.record(steps.outcome(claimed, DeliveryResult.DELIVERED))
    return claimed.message_id


async def replay(steps: DeliverySteps, delivery_id: UUID) -> UUID:
    account_id, now = AccountId(steps.sender.account_id), steps.clock.now()
    async with steps.database.transaction() as tx:
        original = await webhook_log.find_delivery(tx, account_id, delivery_id)
        assert original is not None
        return (await enter_replay(tx, original, new_id(now), 7, now, now)).id


async def test_a_replay_is_found_though_it_came_days_after_its_event(steps: DeliverySteps) -> None:
    message_id = await sent_by_webhook(steps)
    other = await sent_by_webhook(steps)
    (recipient,) = (await timeline_of(steps, message_id)).recipients
    assert recipient.event is not None
    (first,) = recipient.event.sendings
    assert (first.event_id, first.status, first.attempt, first.replay_of) == (recipient.event.id, "pending", 0, None)
    replays = []
    for _ in range(2):
        steps.clock.advance(days=3)
        replays.append(await replay(steps, first.id))
    (recipient,) = (await timeline_of(steps, message_id)).recipients
    assert recipient.event is not None
    assert [delivery.id for delivery in recipient.event.sendings] == [*reversed(replays), first.id]
    assert [delivery.replay_of for delivery in recipient.event.sendings] == [first.id, first.id, None]
    (neighbour,) = (await timeline_of(steps, other)).recipients
    assert neighbour.event is not None
    assert len(neighbour.event.sendings) == 1


async def test_only_the_days_since_the_event_are_read_for_its_deliveries(steps: DeliverySteps) -> None:
    message_id = await sent_by_webhook(steps)
    now = steps.clock.now()
    values = f"'{steps.sender.account_id}', '{message_id}'"
    async with steps.database.connection() as connection:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE sendings AS {message_detail._SENDINGS.text}")
        for days, most in ((0, 2), (3, 5)):
            since, until = now - timedelta(seconds=5), now + timedelta(days=days, seconds=5)
            bounds = f"'{ids.lowest_id(since)}', '{ids.lowest_id(until)}'"
            plan = await connection.fetch(f"EXPLAIN EXECUTE sendings({values}, {bounds}, 501)")
            partitions_read = [line for (line,) in plan if " on webhook_deliveries_" in line]
            assert 1 <= len(partitions_read) <= most, plan
        await connection.execute("DEALLOCATE sendings")
        await connection.execute("RESET plan_cache_mode")


async def test_of_very_many_webhook_deliveries_the_latest_are_shown(steps: DeliverySteps) -> None:
    message_id = await sent_by_webhook(steps)
    (recipient,) = (await timeline_of(steps, message_id)).recipients
    assert recipient.event is not None
    (first,) = recipient.event.sendings
    steps.clock.advance(seconds=1)
    last = [await replay(steps, first.id) for _ in range(3)]
    await steps.fetch(
        "INSERT INTO webhook_deliveries (account_id, id, event_id, endpoint_id, type, message_id, position, url,"
        " status, max_attempts, created_at)"
        " SELECT account_id, overlay(id::text placing to_hex(number + 4096) from 15)::uuid, event_id,"
        " endpoint_id, type, message_id, position, url, 'failed', 7, created_at"
        " FROM webhook_deliveries, generate_series(1, 500) number WHERE id = $1",
        first.id,
    )
    found = await timeline_of(steps, message_id)
    assert found.is_shortened
    assert found.recipients[0].event is not None
    shown = [delivery.id for delivery in found.recipients[0].event.sendings]
    assert len(shown) == message_detail.SENDINGS_SHOWN_MAX
    assert set(last) <= set(shown)


async def test_nothing_is_read_that_is_not_found_by_its_key(steps: DeliverySteps) -> None:
    """Except an operator's lookup by the id alone, which goes through the accounts, and links that have expired."""
    for name, statement in statements(messages, message_detail).items():
        if name not in ("message_detail._MESSAGE", "message_detail._MESSAGE_OF_ANY", "messages._ADD_CAPTURE"):
            for scan in await scans(steps.database, statement):
                assert condition(scan), f"{name} reads all of {scan['Relation Name']}"
