"""The schedule of webhook deliveries: which events enter it, who sends them, how often, and the log."""

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from posthouse.rules.ids import AccountId
from posthouse.rules.retry import WEBHOOK
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import delivery_outcomes, endpoint_events, endpoints, webhook_log, webhook_schedule
from posthouse.store.delivery_outcomes import DeliveryResult as MailResult
from posthouse.store.postgres import SETTINGS, Database
from posthouse.store.webhook_schedule import DELETED, DISABLED, WebhookOutcome, WebhookResult
from tests.support import query_plans
from tests.support.bad_input import new_seed
from tests.support.database_checks import database_faults
from tests.support.delivery_steps import LEASE, WAIT, DeliverySteps, record_on
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.webhook_steps import LONGEST_CALL, URL, WebhookSteps, save_webhook

MOMENT = timedelta(milliseconds=1)
DELIVERED, BOUNCED, FAILED = MailResult.DELIVERED, MailResult.BOUNCED, MailResult.FAILED
LOG = "SELECT status, attempt, http_status, error FROM webhook_deliveries"


@pytest.fixture
async def webhooks(webhooks: WebhookSteps) -> WebhookSteps:
    """Of an account with an enabled endpoint for all events."""
    await webhooks.save()
    return webhooks


async def state(steps: DeliverySteps) -> list[Any]:
    tables = ("webhook_schedule", "webhook_deliveries", "endpoints", "events", "accounts")
    return [await steps.fetch(f"SELECT xmin::text, ctid::text, t::text FROM {table} t ORDER BY 3") for table in tables]


# Which events get in


async def test_an_event_of_a_subscribed_type_gets_a_webhook_delivery_and_a_ticket(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    await webhooks.save(events=["email.bounced", "email.failed"])
    (outcome, *_) = outcomes = await webhooks.outcomes(BOUNCED, DELIVERED, FAILED)
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        recorded = await delivery_outcomes.record(tx, outcomes, now, ticket_lease=LEASE)
    assert outcome.event is not None
    assert len({ticket.webhook_delivery_id for ticket in recorded.tickets}) == 2
    account_id = webhooks.account_id
    assert {(ticket.account_id, ticket.fence, ticket.endpoint_id) for ticket in recorded.tickets} == {
        (account_id, 0, account_id)
    }
    assert await steps.fetch(
        """
        SELECT event_id, type, message_id, position, url, status, attempt, max_attempts, created_at,
            last_attempt_at, next_attempt_at, replay_of
        FROM webhook_deliveries WHERE event_id = $1
        """,
        outcome.event.id,
    ) == [(outcome.event.id, "email.bounced", outcome.message_id, 0, URL, "pending", 0, 7, now, None, now, None)]
    assert await steps.fetch(
        "SELECT next_at, fence, worker_id, attempt_count, max_attempts FROM webhook_schedule WHERE event_id = $1",
        outcome.event.id,
    ) == [(now + LEASE, 0, None, 0, WEBHOOK.attempts_max)]
    assert await steps.value("SELECT count(*) FROM events") == 3
    assert await steps.value("SELECT count(*) FROM webhook_schedule") == 2


@pytest.mark.parametrize("kind", ["disabled", "another account's"])
async def test_an_account_without_an_enabled_endpoint_is_sent_nothing(
    kind: str, steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    sender = None
    if kind == "disabled":
        await webhooks.save(enabled=False)
    else:
        sender = await steps.another_sender("silent")
    assert await webhooks.add_events(DELIVERED, BOUNCED, sender=sender) == []
    assert await steps.value("SELECT count(*) FROM events") == 2
    assert await steps.fetch("SELECT FROM webhook_deliveries UNION ALL SELECT FROM webhook_schedule") == []


async def test_in_one_batch_each_account_gets_its_own_events(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    silent, heard = await steps.another_sender("silent"), await steps.another_sender("heard")
    await webhooks.save("https://one.example.com/", ["email.delivered"])
    await webhooks.save("https://two.example.com/", ["email.failed"], account_id=AccountId(heard.account_id))
    outcomes = [
        outcome for by in (None, silent, heard) for outcome in await webhooks.outcomes(DELIVERED, FAILED, sender=by)
    ]
    recorded = await steps.record(*outcomes)
    assert {ticket.account_id for ticket in recorded.tickets} == {webhooks.account_id, heard.account_id}
    assert len(recorded.tickets) == 2
    assert sorted(await steps.fetch("SELECT account_id, url, type FROM webhook_deliveries")) == sorted(
        [
            (webhooks.account_id, "https://one.example.com/", "email.delivered"),
            (heard.account_id, "https://two.example.com/", "email.failed"),
        ]
    )


async def test_recording_a_second_time_or_late_sends_nothing_more(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    (outcome,) = await webhooks.outcomes(DELIVERED)
    assert len((await steps.record(outcome)).tickets) == 1
    before = await state(steps)
    assert (await steps.record(outcome)).tickets == ()
    assert await state(steps) == before


async def test_recording_mail_only_reads_endpoints(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    outcomes = await webhooks.outcomes(DELIVERED, FAILED)
    row = "SELECT xmin::text, xmax::text, ctid::text FROM endpoints"
    before = await steps.fetch(row)
    first, second = outcomes
    assert len((await steps.record(first)).tickets) == 1
    assert await steps.fetch(row) == before
    async with steps.database.transaction() as changing:
        await changing.execute("UPDATE endpoints SET url = url")
        # Recording doesn't wait for a change of the endpoint.
        assert len((await asyncio.wait_for(steps.record(second), HANG_SECONDS)).tickets) == 1


# Leases


async def test_the_longest_due_goes_first_and_a_lease_keeps_it_from_others(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    order = []
    for _ in range(3):
        order += await webhooks.add_events(DELIVERED, lease=timedelta(0))
        steps.clock.advance(seconds=1)
    assert set(await webhooks.lease(2)) == set(order[:2])
    assert await webhooks.lease(2) == order[2:]
    steps.clock.advance(LEASE - MOMENT)
    assert await webhooks.lease() == []
    steps.clock.advance(MOMENT)
    assert set(await webhooks.lease()) == set(order)


async def test_dispatchers_at_work_together_never_lease_the_same_call(webhooks: WebhookSteps) -> None:
    for _ in range(3):
        await webhooks.add_events(*[DELIVERED] * 50, lease=timedelta(0))
    leased: list[WebhookTicket] = []

    async def dispatch() -> None:
        while tickets := await webhooks.lease(7):
            leased.extend(tickets)

    await asyncio.gather(*(dispatch() for _ in range(5)))
    await dispatch()
    assert len(leased) == len({ticket.webhook_delivery_id for ticket in leased}) == 150


# Claims


async def test_a_claim_has_all_that_an_attempt_needs(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    (ticket,) = await webhooks.add_events(DELIVERED)
    (claimed,) = await webhooks.claim([ticket])
    assert (claimed.account_id, claimed.id, claimed.fence) == (webhooks.account_id, ticket.webhook_delivery_id, 1)
    sent = (claimed.url, claimed.secret_sealed, claimed.body)
    assert sent == (URL, b"sealed", b"delivered r0@example.org")
    assert (claimed.attempt_count, claimed.max_attempts, claimed.is_over, claimed.cancelled) == (1, 7, False, None)
    assert claimed.event_id == await steps.value("SELECT id FROM events")
    assert "sealed" not in repr(claimed)
    assert await steps.fetch("SELECT fence, worker_id, attempt_count, next_at FROM webhook_schedule") == [
        (1, steps.worker_id, 1, steps.clock.now() + LONGEST_CALL)
    ]


async def test_of_two_tickets_for_one_call_only_one_is_valid(webhooks: WebhookSteps) -> None:
    tickets = await webhooks.add_events(DELIVERED, FAILED)
    assert len(await webhooks.claim([*tickets, *tickets])) == 2
    assert await webhooks.claim(tickets) == []
    assert await webhooks.claim([]) == []


async def test_workers_with_the_same_tickets_share_them_out(webhooks: WebhookSteps) -> None:
    tickets = await webhooks.add_events(*[DELIVERED] * 50)
    shuffled = [random.sample(tickets, 50) for _ in range(8)]
    shares = await asyncio.gather(*(webhooks.claim(mine, uuid4()) for mine in shuffled))
    assert Counter(call.id for share in shares for call in share) == Counter(
        ticket.webhook_delivery_id for ticket in tickets
    )


async def test_a_ticket_of_another_account_finds_nothing(webhooks: WebhookSteps) -> None:
    (ticket,) = await webhooks.add_events(DELIVERED)
    of_another = WebhookTicket(AccountId(uuid4()), ticket.webhook_delivery_id, 0, ticket.endpoint_id)
    assert await webhooks.claim([of_another]) == []


@pytest.mark.rule("HOOK-07")
async def test_a_new_url_and_secret_apply_to_what_is_pending(webhooks: WebhookSteps, steps: DeliverySteps) -> None:
    (ticket,) = await webhooks.add_events(DELIVERED)
    await webhooks.save("https://new.example.com/")
    async with steps.database.transaction() as tx:
        await endpoints.rotate_secret(tx, webhooks.account_id, webhooks.account_id, b"another", steps.clock.now())
    (claimed,) = await webhooks.claim([ticket])
    assert (claimed.url, claimed.secret_sealed) == ("https://new.example.com/", b"another")


async def test_attempts_of_a_dead_worker_count_and_the_seventh_is_the_last(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    tickets = await webhooks.add_events(DELIVERED)
    for attempt in range(1, 8):
        (claimed,) = await webhooks.claim(tickets)
        assert (claimed.attempt_count, claimed.is_over) == (attempt, False)
        steps.clock.advance(LEASE)
        assert await webhooks.reclaim() == 1
        tickets = await webhooks.lease()
    (over,) = await webhooks.claim(tickets)
    assert (over.is_over, over.attempt_count, over.fence) == (True, 7, 8)
    assert (over.url, over.secret_sealed, over.body) == (None, None, None), "no attempt needs it"
    end = WebhookOutcome(*over.key, WebhookResult.FAILED, error="not every attempt was reported")
    assert await webhooks.record(end) == ((end,), ())
    assert await steps.fetch(LOG) == [("failed", 7, None, "not every attempt was reported")]
    assert await steps.value("SELECT count(*) FROM webhook_schedule") == 0


@pytest.mark.parametrize("how", ["disabled", "deleted"])
async def test_what_has_nowhere_to_go_any_more_is_cancelled_and_not_counted(
    how: str, steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    (ticket,) = await webhooks.add_events(DELIVERED)
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        change = endpoints.disable if how == "disabled" else endpoints.delete
        await change(tx, webhooks.account_id, webhooks.account_id, now)
    (claimed,) = await webhooks.claim([ticket])
    assert claimed.cancelled == (DISABLED if how == "disabled" else DELETED)
    assert (claimed.attempt_count, claimed.url, claimed.secret_sealed, claimed.body) == (0, None, None, None)
    await webhooks.record(WebhookOutcome(*claimed.key, WebhookResult.FAILED, error=claimed.cancelled))
    assert await steps.fetch(LOG) == [("failed", 0, None, claimed.cancelled)]
    assert await steps.fetch("SELECT last_attempt_at, next_attempt_at FROM webhook_deliveries") == [(None, None)]


async def test_a_claim_whose_event_was_lost_has_no_body(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    tickets = await webhooks.add_events(DELIVERED, FAILED)
    async with steps.database.transaction() as tx:
        await tx.execute("DELETE FROM events WHERE type = 'email.failed'")
    assert {ticket.body for ticket in await webhooks.claim(tickets)} == {None, b"delivered r0@example.org"}


async def test_a_claim_that_ends_before_it_begins_can_not_be_made(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    now = steps.clock.now()
    with pytest.raises(ValueError, match="must end in the future"):
        async with steps.database.transaction() as tx:
            await webhook_schedule.claim(tx, steps.worker_id, [], now, now)


async def test_a_claim_lasts_until_its_end_and_is_due_again_then(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    (claimed,) = await webhooks.claimed(DELIVERED)
    steps.clock.advance(LONGEST_CALL - MOMENT)
    assert await webhooks.lease() == []
    steps.clock.advance(MOMENT)
    assert [ticket.fence for ticket in await webhooks.lease()] == [claimed.fence]
    assert await steps.value("SELECT worker_id FROM webhook_schedule") is None


# Overdue


async def test_what_was_due_for_too_long_ends_on_record_however_often_it_was_leased(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    await webhooks.add_events(DELIVERED, BOUNCED, lease=timedelta(0))
    for _ in range(3):
        steps.clock.advance(days=1)
        assert len(await webhooks.lease()) == 2
    (claimed,) = await webhooks.claimed(FAILED)
    steps.clock.advance(MOMENT)
    due_before = steps.clock.now() - timedelta(days=3)
    async with steps.database.transaction() as tx:
        assert await webhook_schedule.end_overdue(tx, due_before, 10) == 2
        assert await webhook_schedule.end_overdue(tx, due_before, 10) == 0
    log = await steps.fetch(LOG + " ORDER BY id")
    assert [row[:2] for row in log] == [("failed", 0), ("failed", 0), ("pending", 0)]
    assert log[0][3] == webhook_schedule.OVERDUE
    assert await steps.value("SELECT id FROM webhook_schedule") == claimed.id


async def test_postponements_do_not_extend_the_three_days_and_a_deferral_does(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    began_at = steps.clock.now()
    postponed, given_back, deferred = await webhooks.add_events(DELIVERED, BOUNCED, FAILED)
    async with steps.database.transaction() as tx:
        assert await webhook_schedule.postpone(tx, {postponed.key: steps.clock.now() + timedelta(days=2)}) == 1
    for claimed in await webhooks.claim([given_back, deferred]):
        is_deferred = claimed.id == deferred.webhook_delivery_id
        result = WebhookResult.DEFERRED if is_deferred else WebhookResult.POSTPONED
        await webhooks.record(webhooks.result(claimed, result))
    async with steps.database.transaction() as tx:
        assert await webhook_schedule.end_overdue(tx, began_at + MOMENT, 10) == 2
    assert await steps.value("SELECT id FROM webhook_schedule") == deferred.webhook_delivery_id
    log = await steps.fetch("SELECT status, error FROM webhook_deliveries ORDER BY position")
    assert log[:2] == [("failed", webhook_schedule.OVERDUE)] * 2


# Dead workers, and claims whose answer was lost


async def test_what_a_dead_worker_had_claimed_is_due_immediately_and_a_living_ones_is_not(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    dead = uuid4()
    await steps.renew(dead)
    lost = await webhooks.claim(await webhooks.add_events(DELIVERED, FAILED), dead)
    steps.clock.advance(LEASE - MOMENT)
    await steps.renew()
    await webhooks.claimed(DELIVERED)
    assert await webhooks.reclaim() == 0
    steps.clock.advance(MOMENT)
    assert await webhooks.reclaim() == 2
    assert await webhooks.reclaim() == 0
    assert {ticket.webhook_delivery_id for ticket in await webhooks.lease()} == {call.id for call in lost}


async def test_a_worker_that_is_forgotten_with_its_mail_loses_its_calls_as_well(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    await webhooks.claimed(DELIVERED)
    steps.clock.advance(LEASE)
    await steps.reclaim()
    assert await steps.value("SELECT count(*) FROM workers") == 0
    assert await webhooks.reclaim() == 1


async def test_reclaiming_takes_its_limit_and_does_not_wait_for_recording(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    first, *_ = await webhooks.claimed(*[DELIVERED] * 4)
    steps.clock.advance(LEASE)
    async with steps.database.transaction() as tx:
        await webhook_schedule.record(tx, [webhooks.result(first, WebhookResult.SUCCEEDED)], steps.clock.now())
        async with steps.database.transaction() as other:
            reclaiming = webhook_schedule.reclaim_expired_workers(other, steps.clock.now(), 2)
            assert await asyncio.wait_for(reclaiming, HANG_SECONDS) == 2
    assert await webhooks.reclaim() == 1


async def test_claims_that_a_worker_does_not_know_are_released(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    other = uuid4()
    await steps.renew(other)
    (theirs,) = await webhooks.claim(await webhooks.add_events(DELIVERED), other)
    known, unheard = await webhooks.claimed(DELIVERED, FAILED)

    async def let_go(*mine: webhook_schedule.ClaimedWebhook) -> int:
        keys = [call.key[:2] for call in mine]
        async with steps.database.transaction() as tx:
            return await webhook_schedule.release_unknown(tx, steps.worker_id, keys, steps.clock.now())

    assert await let_go(known, unheard) == 0
    assert await let_go(known) == 1
    assert [(ticket.webhook_delivery_id, ticket.fence) for ticket in await webhooks.lease()] == [
        (unheard.id, unheard.fence)
    ]
    assert await steps.fetch("SELECT id FROM webhook_schedule WHERE worker_id = $1", other) == [(theirs.id,)]
    assert await let_go() == 1


# Postponements


async def test_a_postponement_counts_no_attempt_and_its_ticket_never_matches_again(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    old, claimed_meanwhile = await webhooks.add_events(DELIVERED, FAILED)
    await webhooks.claim([claimed_meanwhile])
    later = steps.clock.now() + WAIT

    async def postpone(*tickets: WebhookTicket) -> int:
        async with steps.database.transaction() as tx:
            return await webhook_schedule.postpone(tx, {ticket.key: later for ticket in tickets})

    assert await postpone(old, claimed_meanwhile) == 1
    assert await postpone() == 0
    # The log shows when the postponed delivery will be tried; that of the other is unchanged.
    log = "SELECT next_attempt_at, attempt FROM webhook_deliveries ORDER BY position"
    assert await steps.fetch(log) == [(later, 0), (steps.clock.now(), 0)]
    assert await webhooks.claim([old]) == []
    steps.clock.advance(WAIT)
    (new,) = [ticket for ticket in await webhooks.lease() if ticket.webhook_delivery_id == old.webhook_delivery_id]
    assert [(claim.attempt_count, claim.fence) for claim in await webhooks.claim([new])] == [(1, 2)]


# Results


async def test_a_success_fills_the_log_and_removes_the_call(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    (claimed,) = await webhooks.claimed(DELIVERED)
    steps.clock.advance(seconds=3)
    outcome = webhooks.result(claimed, WebhookResult.SUCCEEDED)
    assert await webhooks.record(outcome) == ((outcome,), ())
    assert await steps.fetch(
        """
        SELECT status, attempt, url, http_status, error, duration_ms, response_body, response_truncated,
            last_attempt_at, next_attempt_at
        FROM webhook_deliveries
        """
    ) == [("succeeded", 1, URL, 204, None, 12, b"well", False, steps.clock.now(), None)]
    assert await steps.value("SELECT count(*) FROM webhook_schedule") == 0
    assert await steps.value("SELECT count(*) FROM events") == 1


async def test_a_failure_waits_and_the_next_attempt_writes_over_it(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    (claimed,) = await webhooks.claimed(DELIVERED)
    now = steps.clock.now()
    await webhooks.record(webhooks.result(claimed, WebhookResult.DEFERRED))
    assert await steps.fetch(LOG) == [("pending", 1, 500, "it answered 500")]
    assert await steps.fetch("SELECT last_attempt_at, next_attempt_at FROM webhook_deliveries") == [(now, now + WAIT)]
    assert await steps.fetch("SELECT next_at, fence, worker_id, attempt_count FROM webhook_schedule") == [
        (now + WAIT, 2, None, 1)
    ]
    await webhooks.save("https://new.example.com/")
    steps.clock.advance(WAIT - MOMENT)
    assert await webhooks.lease() == []
    steps.clock.advance(MOMENT)
    (again,) = await webhooks.claim(await webhooks.lease())
    assert again.attempt_count == 2
    unanswered: dict[str, Any] = {"http_status": None, "duration_ms": None, "response_body": None, "error": "no answer"}
    await webhooks.record(webhooks.result(again, WebhookResult.FAILED, **unanswered))
    assert await steps.fetch(LOG) == [("failed", 2, None, "no answer")]
    assert await steps.fetch("SELECT url, response_body, duration_ms, next_attempt_at FROM webhook_deliveries") == [
        ("https://new.example.com/", None, None, None)
    ]


async def test_an_end_without_an_attempt_keeps_the_last_attempts_result(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    (claimed,) = await webhooks.claimed(DELIVERED)
    tried_at = steps.clock.now()
    await webhooks.record(webhooks.result(claimed, WebhookResult.DEFERRED, response_truncated=True))
    steps.clock.advance(WAIT)
    await webhooks.save(enabled=False)
    (again,) = await webhooks.claim(await webhooks.lease())
    await webhooks.record(WebhookOutcome(*again.key, WebhookResult.FAILED, error=again.cancelled))
    assert await steps.fetch(LOG) == [("failed", 1, 500, DISABLED)]
    assert await steps.fetch(
        "SELECT url, response_body, response_truncated, duration_ms, last_attempt_at FROM webhook_deliveries"
    ) == [(URL, b"well", True, 12, tried_at)]


async def test_an_attempt_that_came_to_nothing_is_not_counted(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    (ticket,) = await webhooks.add_events(DELIVERED)
    (claimed,) = await webhooks.claim([ticket])
    outcome = webhooks.result(claimed, WebhookResult.POSTPONED)
    assert await webhooks.record(outcome) == ((outcome,), ())
    assert await steps.fetch(LOG) == [("pending", 0, None, None)]
    assert await steps.fetch("SELECT last_attempt_at, next_attempt_at FROM webhook_deliveries") == [
        (None, outcome.next_at)
    ]
    assert await steps.fetch("SELECT attempt_count, fence, worker_id FROM webhook_schedule") == [(0, 2, None)]
    assert await webhooks.claim([ticket]) == []


async def test_what_is_postponed_after_an_attempt_keeps_its_log(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    (claimed,) = await webhooks.claimed(DELIVERED)
    await webhooks.record(webhooks.result(claimed, WebhookResult.DEFERRED, response_truncated=True))
    everything = "SELECT to_jsonb(log) - 'next_attempt_at' FROM webhook_deliveries log"
    before = await steps.fetch(everything)
    steps.clock.advance(WAIT)
    (again,) = await webhooks.claim(await webhooks.lease())
    outcome = webhooks.result(again, WebhookResult.POSTPONED)
    await webhooks.record(outcome)
    assert await steps.fetch(everything) == before
    assert await steps.value("SELECT next_attempt_at FROM webhook_deliveries") == outcome.next_at


@pytest.mark.parametrize("result", WebhookResult)
async def test_recording_a_second_time_changes_nothing(
    result: WebhookResult, steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    (claimed,) = await webhooks.claimed(DELIVERED)
    await webhooks.record(webhooks.result(claimed, result))
    before = await state(steps)
    steps.clock.advance(seconds=1)
    for again in WebhookResult:
        late = webhooks.result(claimed, again)
        assert await webhooks.record(late) == ((), (late,))
    assert await state(steps) == before


@pytest.mark.parametrize("result", WebhookResult)
async def test_a_late_result_changes_nothing(
    result: WebhookResult, steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    (slow,) = await webhooks.claimed(DELIVERED)
    steps.clock.advance(LEASE)
    assert await webhooks.reclaim() == 1
    (quick,) = await webhooks.claim(await webhooks.lease(), uuid4())
    before = await state(steps)
    late = webhooks.result(slow, result)
    assert await webhooks.record(late) == ((), (late,))
    assert await state(steps) == before
    await webhooks.record(webhooks.result(quick, WebhookResult.SUCCEEDED))
    assert await steps.fetch(LOG) == [("succeeded", 2, 204, None)]


async def test_a_result_counts_until_another_claim(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    (slow,) = await webhooks.claimed(DELIVERED)
    steps.clock.advance(LEASE)
    await webhooks.reclaim()
    tickets = await webhooks.lease()
    assert (await webhooks.record(webhooks.result(slow, WebhookResult.SUCCEEDED))).late == ()
    assert await webhooks.claim(tickets) == []


async def test_of_two_results_of_one_claim_in_one_batch_the_first_counts(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    (claimed,) = await webhooks.claimed(DELIVERED)
    first, second = (webhooks.result(claimed, how) for how in (WebhookResult.FAILED, WebhookResult.SUCCEEDED))
    assert await webhooks.record(first, second) == ((first,), ())
    assert await steps.fetch(LOG) == [("failed", 1, 500, "it answered 500")]


async def test_a_receivers_answer_can_not_fail_a_batch_and_is_truncated(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    first, second = await webhooks.claimed(DELIVERED, DELIVERED)
    odd: dict[str, Any] = {"error": "a\0b\ud800c", "response_body": b"\0\xff" * 1_025, "http_status": 999}
    await webhooks.record(
        webhooks.result(first, WebhookResult.DEFERRED, **odd),
        webhooks.result(second, WebhookResult.SUCCEEDED, response_body=b"x" * 2_048, error="e" * 10_000),
    )
    rows = await steps.fetch(
        "SELECT error, octet_length(response_body), response_truncated FROM webhook_deliveries ORDER BY attempt, id"
    )
    assert sorted(rows) == [("ab?c", 2_048, True), ("e" * webhook_schedule.ERROR_CHARACTERS_MAX, 2_048, False)]


async def test_a_result_whose_log_was_deleted_still_ends_the_call(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    first, second = await webhooks.claimed(DELIVERED, DELIVERED)
    async with steps.database.transaction() as tx:
        await tx.execute("DELETE FROM webhook_deliveries")
    results = webhooks.result(first, WebhookResult.SUCCEEDED), webhooks.result(second, WebhookResult.DEFERRED)
    assert set((await webhooks.record(*results)).counted) == set(results)
    assert await steps.fetch("SELECT id, worker_id FROM webhook_schedule") == [(second.id, None)]


async def test_the_log_is_found_on_any_day(steps: DeliverySteps, webhooks: WebhookSteps) -> None:
    """What is pending may be a day older than what is claimed and recorded together with it."""
    yesterday = await webhooks.add_events(DELIVERED)
    steps.clock.advance(days=1)
    await steps.renew()
    today = await webhooks.add_events(FAILED)
    claimed = await webhooks.claim([*yesterday, *today])
    assert sorted(claim.body or b"" for claim in claimed) == [b"delivered r0@example.org", b"failed r0@example.org"]
    await webhooks.record(*(webhooks.result(claim, WebhookResult.SUCCEEDED) for claim in claimed))
    assert await steps.fetch("SELECT DISTINCT status FROM webhook_deliveries") == [("succeeded",)]
    assert len(await steps.fetch("SELECT DISTINCT tableoid FROM webhook_deliveries")) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"result": WebhookResult.SUCCEEDED, "url": URL, "http_status": 204, "next_at": datetime.now(UTC)},
        {"result": WebhookResult.SUCCEEDED, "url": URL, "http_status": 302},
        {"result": WebhookResult.SUCCEEDED, "url": URL},
        {"result": WebhookResult.SUCCEEDED, "http_status": 200},
        {"result": WebhookResult.DEFERRED, "url": URL},
        {"result": WebhookResult.DEFERRED, "next_at": datetime.now(UTC)},
        {"result": WebhookResult.POSTPONED, "next_at": datetime.now(UTC), "url": URL},
    ],
)
def test_a_result_that_makes_no_sense_can_not_be_made(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"final|attempt|success"):
        WebhookOutcome(AccountId(uuid4()), uuid4(), 1, **given)


async def test_nothing_to_do_is_nothing_done(database: Database) -> None:
    now = datetime.now(UTC)
    async with database.transaction() as tx:
        assert await endpoint_events.enter_mail(tx, [], now, now) == []
        assert await webhook_schedule.postpone(tx, {}) == 0
        assert await webhook_schedule.record(tx, [], now) == ((), ())


async def test_recorders_of_mail_and_webhooks_and_an_endpoint_change_never_deadlock(
    steps: DeliverySteps, webhooks: WebhookSteps
) -> None:
    """Events come in, calls are claimed, recorded and reclaimed, the endpoint is disabled, enabled and emptied."""
    seed = new_seed()
    randomness = random.Random(seed)
    senders = [steps.sender, await steps.another_sender("second"), await steps.another_sender("third")]
    accounts = [AccountId(call.account_id) for call in senders]
    for account_id in accounts:
        await webhooks.save(account_id=account_id)
    outcomes = []
    for number in range(12):
        outcomes += await webhooks.outcomes(*[BOUNCED, DELIVERED, FAILED] * 10, sender=senders[number % 3])
    randomness.shuffle(outcomes)
    settings = {**SETTINGS, "lock_timeout": "20000", "deadlock_timeout": "50"}
    connections = [await asyncpg.connect(steps.url, server_settings=settings) for _ in range(7)]
    batches = [outcomes[start : start + 20] for start in range(0, len(outcomes), 20)]
    tickets: list[WebhookTicket] = []
    is_over = False

    async def mail(connection: Any) -> None:
        while batches:
            tickets.extend((await record_on(connection, batches.pop(), steps.clock.now())).tickets)

    async def call(connection: Any) -> None:
        now = steps.clock.now()
        while not is_over:
            async with connection.transaction():
                leased = await webhook_schedule.lease_due(connection, now, now, 30)
                claimed = await webhook_schedule.claim(connection, steps.worker_id, leased, now, now + LONGEST_CALL)
            results = [
                webhooks.result(claim, randomness.choice([WebhookResult.SUCCEEDED, WebhookResult.FAILED]))
                if claim.url
                else WebhookOutcome(*claim.key, WebhookResult.FAILED, error=claim.cancelled or "over")
                for claim in claimed
            ]
            randomness.shuffle(results)
            async with connection.transaction():
                await webhook_schedule.record(connection, results, now)
            await asyncio.sleep(0)

    async def rule(connection: Any) -> None:
        while not is_over:
            account_id = randomness.choice(accounts)
            for enabled in (False, True):
                async with connection.transaction():
                    await save_webhook(
                        connection, account_id, URL, ["email.bounced"], enabled, b"sealed", steps.clock.now()
                    )
                for change in (webhook_log.cancel_pending, webhook_log.forget):
                    async with connection.transaction():
                        await change(connection, account_id, account_id, 10)
            await asyncio.sleep(0.01)  # an account changes now and then, the rest all the time

    try:
        others = [asyncio.create_task(work) for work in (*map(call, connections[2:5]), *map(rule, connections[5:]))]
        await asyncio.gather(*map(mail, connections[:2]))
        await eventually(
            lambda: steps.value("SELECT count(*) FROM webhook_schedule"), lambda number: number == 0, every=0.05
        )
        is_over = True
        await asyncio.gather(*others)
    finally:
        is_over = True
        for connection in connections:
            await connection.close()
    assert tickets
    assert await steps.value("SELECT count(*) FROM webhook_schedule") == 0
    assert await steps.value("SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'") == 0
    assert await steps.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert await database_faults(steps.url) == {}


STATEMENTS = query_plans.statements(webhook_schedule)
# Maintenance reads the whole schedule, every few minutes.
del STATEMENTS["webhook_schedule._END_OVERDUE"]


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    for scan in await query_plans.scans(database, STATEMENTS[name]):
        condition = query_plans.condition(scan)
        match scan["Relation Name"]:
            case "workers":
                continue
            case "endpoints":
                assert "account_id = " in condition, scan
            case _ if "account_id" in condition:
                assert condition.count(" = ") >= 2, scan
            case _:
                assert any(key in condition for key in ("ctid", "next_at", "worker_id")), scan
