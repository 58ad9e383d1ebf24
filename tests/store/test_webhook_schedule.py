"""The calendar of webhooks: which events get in, who sends them, how often, and what is written down."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from posthouse.rules.ids import AccountId
from posthouse.rules.retry import WEBHOOK
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import delivery_outcomes, webhook_schedule, webhooks
from posthouse.store.delivery_outcomes import DeliveryResult as MailResult
from posthouse.store.postgres import SETTINGS, Database
from posthouse.store.webhook_schedule import DELETED, DISABLED, WebhookOutcome, WebhookPostponement, WebhookResult
from tests.support import plans
from tests.support.books import faults_in_the_books
from tests.support.rounds import LEASE, WAIT, Rounds, beginning, record_on
from tests.support.webhooks import LONGEST_CALL, URL, Webhooks

MOMENT = timedelta(milliseconds=1)
DELIVERED, BOUNCED, FAILED = MailResult.DELIVERED, MailResult.BOUNCED, MailResult.FAILED
LOG = "SELECT status, attempt, http_status, error FROM webhook_deliveries"


@pytest_asyncio.fixture
async def rounds(database_url: str) -> AsyncIterator[Rounds]:
    async with beginning(database_url) as begun:
        yield begun


@pytest.fixture
def hooks(rounds: Rounds) -> Webhooks:
    return Webhooks(rounds)


async def state(rounds: Rounds) -> list[Any]:
    tables = ("calls", "webhook_deliveries", "webhook_endpoints", "events", "accounts")
    return [await rounds.fetch(f"SELECT xmin::text, ctid::text, t::text FROM {table} t ORDER BY 3") for table in tables]


# Which events get in


async def test_an_event_of_a_subscribed_type_is_to_be_sent_and_its_ticket_is_the_callers_to_publish(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save(events=["email.bounced", "email.failed"])
    (outcome, *_) = outcomes = await hooks.outcomes(BOUNCED, DELIVERED, FAILED)
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        recorded = await delivery_outcomes.record(tx, outcomes, now, ticket_lease=LEASE)
    assert outcome.event is not None
    told = {one.event.webhook_delivery_id for one in outcomes if one.event and one.event.type != "email.delivered"}
    assert {ticket.webhook_delivery_id for ticket in recorded.tickets} == told
    assert {(ticket.account_id, ticket.fence) for ticket in recorded.tickets} == {(hooks.account_id, 0)}
    assert await rounds.fetch(
        """
        SELECT event_id, type, message_id, position, url, status, attempt, max_attempts, created_at,
            last_attempt_at, next_attempt_at, replay_of
        FROM webhook_deliveries WHERE id = $1
        """,
        outcome.event.webhook_delivery_id,
    ) == [(outcome.event.id, "email.bounced", outcome.message_id, 0, URL, "pending", 0, 7, now, None, now, None)]
    assert await rounds.fetch(
        "SELECT event_id, next_at, fence, worker_id, attempt_count, max_attempts FROM calls WHERE id = $1",
        outcome.event.webhook_delivery_id,
    ) == [(outcome.event.id, now + LEASE, 0, None, 0, WEBHOOK.attempts_max)]
    assert await rounds.value("SELECT count(*) FROM events") == 3
    assert await rounds.value("SELECT count(*) FROM calls") == 2


async def test_without_a_lease_it_is_due_at_once(hooks: Webhooks) -> None:
    await hooks.save()
    tickets = await hooks.tell(DELIVERED, lease=timedelta(0))
    assert await hooks.lease() == tickets != []


@pytest.mark.parametrize("kind", ["none", "disabled", "another account's"])
async def test_an_account_without_an_enabled_endpoint_is_sent_nothing(
    kind: str, rounds: Rounds, hooks: Webhooks
) -> None:
    if kind == "disabled":
        await hooks.save(enabled=False)
    elif kind == "another account's":
        other = await rounds.another_sender("other")
        await hooks.save(account_id=AccountId(other.account_id))
    assert await hooks.tell(DELIVERED, BOUNCED) == []
    assert await rounds.value("SELECT count(*) FROM events") == 2
    assert await rounds.fetch("SELECT FROM webhook_deliveries UNION ALL SELECT FROM calls") == []


async def test_an_event_that_has_no_id_for_its_sending_is_not_sent(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await rounds.claimed()
    assert (await rounds.record(rounds.outcome(claimed, DELIVERED))).tickets == ()
    assert await rounds.value("SELECT count(*) FROM calls") == 0


async def test_in_one_batch_each_account_is_told_of_its_own(rounds: Rounds, hooks: Webhooks) -> None:
    silent, heard = await rounds.another_sender("silent"), await rounds.another_sender("heard")
    await hooks.save("https://one.example.com/", ["email.delivered"])
    await hooks.save("https://two.example.com/", ["email.failed"], account_id=AccountId(heard.account_id))
    outcomes = [one for by in (None, silent, heard) for one in await hooks.outcomes(DELIVERED, FAILED, sender=by)]
    recorded = await rounds.record(*outcomes)
    assert {ticket.account_id for ticket in recorded.tickets} == {hooks.account_id, heard.account_id}
    assert len(recorded.tickets) == 2
    assert sorted(await rounds.fetch("SELECT account_id, url, type FROM webhook_deliveries")) == sorted(
        [
            (hooks.account_id, "https://one.example.com/", "email.delivered"),
            (heard.account_id, "https://two.example.com/", "email.failed"),
        ]
    )


async def test_recording_a_second_time_or_late_sends_nothing_more(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (outcome,) = await hooks.outcomes(DELIVERED)
    assert len((await rounds.record(outcome)).tickets) == 1
    before = await state(rounds)
    assert (await rounds.record(outcome)).tickets == ()
    assert await state(rounds) == before


async def test_endpoints_are_only_read_by_whoever_records_mail(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    outcomes = await hooks.outcomes(DELIVERED, FAILED)
    row = "SELECT xmin::text, xmax::text, ctid::text FROM webhook_endpoints"
    before = await rounds.fetch(row)
    first, second = outcomes
    assert len((await rounds.record(first)).tickets) == 1
    assert await rounds.fetch(row) == before
    async with rounds.database.transaction() as changing:
        await changing.execute("UPDATE webhook_endpoints SET url = url")
        # Nobody waits for whoever changes the endpoint at this moment.
        assert len((await asyncio.wait_for(rounds.record(second), 2)).tickets) == 1


# Leases


async def test_the_longest_due_goes_first_and_a_lease_keeps_it_from_others(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    order = []
    for _ in range(3):
        order += await hooks.tell(DELIVERED, lease=timedelta(0))
        rounds.clock.advance(seconds=1)
    assert set(await hooks.lease(2)) == set(order[:2])
    assert await hooks.lease(2) == order[2:]
    rounds.clock.advance(LEASE - MOMENT)
    assert await hooks.lease() == []
    rounds.clock.advance(MOMENT)
    assert {one.webhook_delivery_id for one in await hooks.lease()} == {one.webhook_delivery_id for one in order}


async def test_dispatchers_at_work_together_never_lease_the_same_call(hooks: Webhooks) -> None:
    await hooks.save()
    for _ in range(3):
        await hooks.tell(*[DELIVERED] * 50, lease=timedelta(0))
    leased: list[WebhookTicket] = []

    async def dispatch() -> None:
        while tickets := await hooks.lease(7):
            leased.extend(tickets)

    await asyncio.gather(*(dispatch() for _ in range(5)))
    await dispatch()
    assert len(leased) == len({one.webhook_delivery_id for one in leased}) == 150


# Claims


async def test_a_claim_tells_all_that_an_attempt_needs(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save(secret=b"the sealed secret")
    (ticket,) = await hooks.tell(DELIVERED)
    (claimed,) = await hooks.claim([ticket])
    assert (claimed.account_id, claimed.id, claimed.fence) == (hooks.account_id, ticket.webhook_delivery_id, 1)
    assert (claimed.url, claimed.secret_sealed, claimed.body) == (
        URL,
        b"the sealed secret",
        b"delivered r0@example.org",
    )
    assert (claimed.attempt_count, claimed.max_attempts, claimed.is_over, claimed.is_cancelled) == (1, 7, False, False)
    assert claimed.event_id == await rounds.value("SELECT id FROM events")
    assert "sealed" not in repr(claimed)
    assert await rounds.fetch("SELECT fence, worker_id, attempt_count, next_at FROM calls") == [
        (1, rounds.worker_id, 1, rounds.clock.now() + LONGEST_CALL)
    ]


async def test_of_two_tickets_for_one_call_one_is_worth_something(hooks: Webhooks) -> None:
    await hooks.save()
    tickets = await hooks.tell(DELIVERED, FAILED)
    assert len(await hooks.claim([*tickets, *tickets])) == 2
    assert await hooks.claim(tickets) == []
    assert await hooks.claim([]) == []


async def test_workers_with_the_same_tickets_share_them_out(hooks: Webhooks) -> None:
    await hooks.save()
    tickets = await hooks.tell(*[DELIVERED] * 50)
    shuffled = [random.sample(tickets, 50) for _ in range(8)]
    shares = await asyncio.gather(*(hooks.claim(mine, uuid4()) for mine in shuffled))
    assert Counter(one.id for share in shares for one in share) == Counter(one.webhook_delivery_id for one in tickets)


async def test_a_ticket_of_another_account_finds_nothing(hooks: Webhooks) -> None:
    await hooks.save()
    (ticket,) = await hooks.tell(DELIVERED)
    assert await hooks.claim([WebhookTicket(AccountId(uuid4()), ticket.webhook_delivery_id, 0)]) == []


async def test_a_new_url_and_secret_are_good_for_what_is_pending(hooks: Webhooks, rounds: Rounds) -> None:
    await hooks.save()
    (ticket,) = await hooks.tell(DELIVERED)
    await hooks.save("https://new.example.com/")
    async with rounds.database.transaction() as tx:
        await webhooks.rotate_secret(tx, hooks.account_id, b"another", rounds.clock.now())
    (claimed,) = await hooks.claim([ticket])
    assert (claimed.url, claimed.secret_sealed) == ("https://new.example.com/", b"another")


async def test_attempts_that_nobody_lived_to_report_count_and_the_seventh_is_the_last(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    tickets = await hooks.tell(DELIVERED)
    for attempt in range(1, 8):
        (claimed,) = await hooks.claim(tickets)
        assert (claimed.attempt_count, claimed.is_over) == (attempt, False)
        rounds.clock.advance(LEASE)
        assert await hooks.reclaim() == 1
        tickets = await hooks.lease()
    (over,) = await hooks.claim(tickets)
    assert (over.is_over, over.attempt_count, over.fence) == (True, 7, 8)
    assert (over.url, over.secret_sealed, over.body) == (None, None, None), "nobody is to get it"
    end = WebhookOutcome(*over.key, WebhookResult.FAILED, error="not every attempt was reported")
    assert await hooks.record(end) == ((end,), ())
    assert await rounds.fetch(LOG) == [("failed", 7, None, "not every attempt was reported")]
    assert await rounds.value("SELECT count(*) FROM calls") == 0


@pytest.mark.parametrize("how", ["disabled", "deleted"])
async def test_what_has_nowhere_to_go_any_more_is_cancelled_and_not_counted(
    how: str, rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    (ticket,) = await hooks.tell(DELIVERED)
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        await (webhooks.disable if how == "disabled" else webhooks.delete)(tx, hooks.account_id, now)
    (claimed,) = await hooks.claim([ticket])
    assert claimed.is_cancelled
    assert claimed.cancelled == (DISABLED if how == "disabled" else DELETED)
    assert (claimed.attempt_count, claimed.url, claimed.secret_sealed, claimed.body) == (0, None, None, None)
    await hooks.record(WebhookOutcome(*claimed.key, WebhookResult.FAILED, error=claimed.cancelled))
    assert await rounds.fetch(LOG) == [("failed", 0, None, claimed.cancelled)]
    assert await rounds.fetch("SELECT last_attempt_at, next_attempt_at FROM webhook_deliveries") == [(None, None)]


async def test_a_claim_whose_event_was_lost_has_no_body(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    tickets = await hooks.tell(DELIVERED, FAILED)
    async with rounds.database.transaction() as tx:
        await tx.execute("DELETE FROM events WHERE type = 'email.failed'")
    assert {one.body for one in await hooks.claim(tickets)} == {None, b"delivered r0@example.org"}


async def test_a_claim_that_ends_before_it_begins_can_not_be_made(rounds: Rounds, hooks: Webhooks) -> None:
    now = rounds.clock.now()
    with pytest.raises(ValueError, match="beyond now"):
        async with rounds.database.transaction() as tx:
            await webhook_schedule.claim(tx, rounds.worker_id, [], now, now)


async def test_a_claim_lasts_until_its_end_and_is_due_again_then(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await hooks.claimed(DELIVERED)
    rounds.clock.advance(LONGEST_CALL - MOMENT)
    assert await hooks.lease() == []
    rounds.clock.advance(MOMENT)
    assert [one.fence for one in await hooks.lease()] == [claimed.fence]
    assert await rounds.value("SELECT worker_id FROM calls") is None


# Dead workers, and claims that nobody heard of


async def test_what_a_dead_worker_had_claimed_is_due_at_once_and_a_living_ones_is_not(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    dead = uuid4()
    await rounds.renew(dead)
    lost = await hooks.claim(await hooks.tell(DELIVERED, FAILED), dead)
    rounds.clock.advance(LEASE - MOMENT)
    await rounds.renew()
    await hooks.claimed(DELIVERED)
    assert await hooks.reclaim() == 0
    rounds.clock.advance(MOMENT)
    assert await hooks.reclaim() == 2
    assert await hooks.reclaim() == 0
    assert {one.webhook_delivery_id for one in await hooks.lease()} == {one.id for one in lost}


async def test_a_worker_that_is_forgotten_with_its_mail_loses_its_calls_as_well(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    await hooks.claimed(DELIVERED)
    rounds.clock.advance(LEASE)
    await rounds.reclaim()
    assert await rounds.value("SELECT count(*) FROM workers") == 0
    assert await hooks.reclaim() == 1


async def test_reclaiming_takes_as_many_as_it_is_told_and_does_not_wait_for_what_is_being_recorded(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    first, *_ = await hooks.claimed(*[DELIVERED] * 4)
    rounds.clock.advance(LEASE)
    async with rounds.database.transaction() as tx:
        await webhook_schedule.record(tx, [hooks.result(first, WebhookResult.SUCCEEDED)], rounds.clock.now())
        async with rounds.database.transaction() as other:
            assert (
                await asyncio.wait_for(webhook_schedule.reclaim_expired_workers(other, rounds.clock.now(), 2), 2) == 2
            )
    assert await hooks.reclaim() == 1


async def test_what_a_worker_does_not_know_to_be_its_own_is_let_go(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    other = uuid4()
    await rounds.renew(other)
    (theirs,) = await hooks.claim(await hooks.tell(DELIVERED), other)
    known, unheard = await hooks.claimed(DELIVERED, FAILED)

    async def let_go(*mine: webhook_schedule.ClaimedWebhook) -> int:
        async with rounds.database.transaction() as tx:
            return await webhook_schedule.let_go(
                tx, rounds.worker_id, [one.key[:2] for one in mine], rounds.clock.now()
            )

    assert await let_go(known, unheard) == 0
    assert await let_go(known) == 1
    assert [(one.webhook_delivery_id, one.fence) for one in await hooks.lease()] == [(unheard.id, unheard.fence)]
    assert await rounds.fetch("SELECT id FROM calls WHERE worker_id = $1", other) == [(theirs.id,)]
    assert await let_go() == 1


# Postponements


async def test_a_postponement_counts_no_attempt_and_its_ticket_never_matches_again(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    old, claimed_meanwhile = await hooks.tell(DELIVERED, FAILED)
    await hooks.claim([claimed_meanwhile])
    later = rounds.clock.now() + WAIT

    async def postpone(*tickets: WebhookTicket) -> int:
        told = [WebhookPostponement(one.account_id, one.webhook_delivery_id, one.fence, later) for one in tickets]
        async with rounds.database.transaction() as tx:
            return await webhook_schedule.postpone(tx, told)

    assert await postpone(old, old, claimed_meanwhile) == 1
    assert await postpone() == 0
    # Whoever looks at the log sees when it will be tried; of the other one it tells what it did.
    log = "SELECT next_attempt_at, attempt FROM webhook_deliveries ORDER BY position"
    assert await rounds.fetch(log) == [(later, 0), (rounds.clock.now(), 0)]
    assert await hooks.claim([old]) == []
    rounds.clock.advance(WAIT)
    (new,) = [one for one in await hooks.lease() if one.webhook_delivery_id == old.webhook_delivery_id]
    assert [(one.attempt_count, one.fence) for one in await hooks.claim([new])] == [(1, 2)]


# Results


async def test_a_success_fills_the_log_and_strikes_the_call(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await hooks.claimed(DELIVERED)
    rounds.clock.advance(seconds=3)
    told = hooks.result(claimed, WebhookResult.SUCCEEDED)
    assert await hooks.record(told) == ((told,), ())
    assert await rounds.fetch(
        """
        SELECT status, attempt, url, http_status, error, duration_ms, response_body, response_truncated,
            last_attempt_at, next_attempt_at
        FROM webhook_deliveries
        """
    ) == [("succeeded", 1, URL, 204, None, 12, b"well", False, rounds.clock.now(), None)]
    assert await rounds.value("SELECT count(*) FROM calls") == 0
    assert await rounds.value("SELECT count(*) FROM events") == 1


async def test_a_failure_waits_and_the_next_attempt_writes_over_it(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await hooks.claimed(DELIVERED)
    now = rounds.clock.now()
    await hooks.record(hooks.result(claimed, WebhookResult.DEFERRED))
    assert await rounds.fetch(LOG) == [("pending", 1, 500, "it answered 500")]
    assert await rounds.fetch("SELECT last_attempt_at, next_attempt_at FROM webhook_deliveries") == [(now, now + WAIT)]
    assert await rounds.fetch("SELECT next_at, fence, worker_id, attempt_count FROM calls") == [
        (now + WAIT, 2, None, 1)
    ]
    await hooks.save("https://new.example.com/")
    rounds.clock.advance(WAIT - MOMENT)
    assert await hooks.lease() == []
    rounds.clock.advance(MOMENT)
    (again,) = await hooks.claim(await hooks.lease())
    assert again.attempt_count == 2
    await hooks.record(
        hooks.result(
            again, WebhookResult.FAILED, http_status=None, duration_ms=None, response_body=None, error="no answer"
        )
    )
    assert await rounds.fetch(LOG) == [("failed", 2, None, "no answer")]
    assert await rounds.fetch("SELECT url, response_body, duration_ms, next_attempt_at FROM webhook_deliveries") == [
        ("https://new.example.com/", None, None, None)
    ]


async def test_an_end_without_an_attempt_keeps_what_the_last_attempt_said(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await hooks.claimed(DELIVERED)
    tried_at = rounds.clock.now()
    await hooks.record(hooks.result(claimed, WebhookResult.DEFERRED, response_truncated=True))
    rounds.clock.advance(WAIT)
    await hooks.save(enabled=False)
    (again,) = await hooks.claim(await hooks.lease())
    await hooks.record(WebhookOutcome(*again.key, WebhookResult.FAILED, error=again.cancelled))
    assert await rounds.fetch(LOG) == [("failed", 1, 500, DISABLED)]
    assert await rounds.fetch(
        "SELECT url, response_body, response_truncated, duration_ms, last_attempt_at FROM webhook_deliveries"
    ) == [(URL, b"well", True, 12, tried_at)]


async def test_an_attempt_that_came_to_nothing_is_not_counted(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (ticket,) = await hooks.tell(DELIVERED)
    (claimed,) = await hooks.claim([ticket])
    told = hooks.result(claimed, WebhookResult.POSTPONED)
    assert await hooks.record(told) == ((told,), ())
    assert await rounds.fetch(LOG) == [("pending", 0, None, None)]
    assert await rounds.fetch("SELECT last_attempt_at, next_attempt_at FROM webhook_deliveries") == [
        (None, told.next_at)
    ]
    assert await rounds.fetch("SELECT attempt_count, fence, worker_id FROM calls") == [(0, 2, None)]
    assert await hooks.claim([ticket]) == []


async def test_what_is_put_off_after_an_attempt_still_tells_what_that_brought(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await hooks.claimed(DELIVERED)
    await hooks.record(hooks.result(claimed, WebhookResult.DEFERRED, response_truncated=True))
    everything = """SELECT status, attempt, url, http_status, error, duration_ms, response_body, response_truncated,
                           last_attempt_at FROM webhook_deliveries"""
    before = await rounds.fetch(everything)
    rounds.clock.advance(WAIT)
    (again,) = await hooks.claim(await hooks.lease())
    told = hooks.result(again, WebhookResult.POSTPONED)
    await hooks.record(told)
    assert await rounds.fetch(everything) == before
    assert await rounds.value("SELECT next_attempt_at FROM webhook_deliveries") == told.next_at


@pytest.mark.parametrize("result", WebhookResult)
async def test_recording_a_second_time_changes_nothing(result: WebhookResult, rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await hooks.claimed(DELIVERED)
    await hooks.record(hooks.result(claimed, result))
    before = await state(rounds)
    rounds.clock.advance(seconds=1)
    for again in WebhookResult:
        late = hooks.result(claimed, again)
        assert await hooks.record(late) == ((), (late,))
    assert await state(rounds) == before


@pytest.mark.parametrize("result", WebhookResult)
async def test_a_late_result_changes_nothing(result: WebhookResult, rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (slow,) = await hooks.claimed(DELIVERED)
    rounds.clock.advance(LEASE)
    assert await hooks.reclaim() == 1
    (quick,) = await hooks.claim(await hooks.lease(), uuid4())
    before = await state(rounds)
    late = hooks.result(slow, result)
    assert await hooks.record(late) == ((), (late,))
    assert await state(rounds) == before
    await hooks.record(hooks.result(quick, WebhookResult.SUCCEEDED))
    assert await rounds.fetch(LOG) == [("succeeded", 2, 204, None)]


async def test_a_result_counts_while_nobody_else_has_claimed(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (slow,) = await hooks.claimed(DELIVERED)
    rounds.clock.advance(LEASE)
    await hooks.reclaim()
    tickets = await hooks.lease()
    assert (await hooks.record(hooks.result(slow, WebhookResult.SUCCEEDED))).late == ()
    assert await hooks.claim(tickets) == []


async def test_of_two_results_of_one_claim_in_one_batch_the_first_counts(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    (claimed,) = await hooks.claimed(DELIVERED)
    first, second = hooks.result(claimed, WebhookResult.FAILED), hooks.result(claimed, WebhookResult.SUCCEEDED)
    assert await hooks.record(first, second) == ((first,), ())
    assert await rounds.fetch(LOG) == [("failed", 1, 500, "it answered 500")]


async def test_what_a_receiver_says_can_not_fail_a_batch_and_is_cut_to_what_is_kept(
    rounds: Rounds, hooks: Webhooks
) -> None:
    await hooks.save()
    first, second = await hooks.claimed(DELIVERED, DELIVERED)
    await hooks.record(
        hooks.result(
            first, WebhookResult.DEFERRED, error="a\0b\ud800c", response_body=b"\0\xff" * 1_025, http_status=999
        ),
        hooks.result(second, WebhookResult.SUCCEEDED, response_body=b"x" * 2_048, error="e" * 10_000),
    )
    rows = await rounds.fetch(
        "SELECT error, octet_length(response_body), response_truncated FROM webhook_deliveries ORDER BY attempt, id"
    )
    assert sorted(rows) == [("ab?c", 2_048, True), ("e" * webhook_schedule.ERROR_CHARACTERS_MAX, 2_048, False)]


async def test_a_result_whose_log_was_deleted_ends_the_call_all_the_same(rounds: Rounds, hooks: Webhooks) -> None:
    await hooks.save()
    first, second = await hooks.claimed(DELIVERED, DELIVERED)
    async with rounds.database.transaction() as tx:
        await tx.execute("DELETE FROM webhook_deliveries")
    told = hooks.result(first, WebhookResult.SUCCEEDED), hooks.result(second, WebhookResult.DEFERRED)
    assert set((await hooks.record(*told)).counted) == set(told)
    assert await rounds.fetch("SELECT id, worker_id FROM calls") == [(second.id, None)]


async def test_the_log_is_found_on_whatever_day_it_lies(rounds: Rounds, hooks: Webhooks) -> None:
    """What is pending may be a day older than what is claimed and recorded together with it."""
    await hooks.save()
    yesterday = await hooks.tell(DELIVERED)
    rounds.clock.advance(days=1)
    await rounds.renew()
    today = await hooks.tell(FAILED)
    claimed = await hooks.claim([*yesterday, *today])
    assert sorted(one.body or b"" for one in claimed) == [b"delivered r0@example.org", b"failed r0@example.org"]
    await hooks.record(*(hooks.result(one, WebhookResult.SUCCEEDED) for one in claimed))
    assert await rounds.fetch("SELECT DISTINCT status FROM webhook_deliveries") == [("succeeded",)]
    assert len(await rounds.fetch("SELECT DISTINCT tableoid FROM webhook_deliveries")) == 2


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
        assert await webhook_schedule.enter(tx, [], now, now, 7) == []
        assert await webhook_schedule.postpone(tx, []) == 0
        assert await webhook_schedule.record(tx, [], now) == ((), ())


async def test_recorders_of_mail_and_of_calls_and_someone_at_the_endpoint_never_deadlock(
    rounds: Rounds, hooks: Webhooks
) -> None:
    """Events come in, calls are claimed, recorded and reclaimed, the endpoint is disabled, enabled and emptied."""
    seed = random.randrange(2**32)
    print(f"{seed=}")
    chance = random.Random(seed)
    senders = [rounds.sender, await rounds.another_sender("second"), await rounds.another_sender("third")]
    accounts = [AccountId(one.account_id) for one in senders]
    for account_id in accounts:
        await hooks.save(account_id=account_id)
    outcomes = []
    for number in range(24):
        outcomes += await hooks.outcomes(*[BOUNCED, DELIVERED, FAILED] * 10, sender=senders[number % 3])
    chance.shuffle(outcomes)
    settings = {**SETTINGS, "lock_timeout": "20000", "deadlock_timeout": "50"}
    connections = [await asyncpg.connect(rounds.url, server_settings=settings) for _ in range(7)]
    batches = [outcomes[start : start + 20] for start in range(0, len(outcomes), 20)]
    told: list[WebhookTicket] = []
    is_over = False

    async def mail(connection: Any) -> None:
        while batches:
            told.extend((await record_on(connection, batches.pop(), rounds.clock.now())).tickets)

    async def call(connection: Any) -> None:
        now = rounds.clock.now()
        while not is_over:
            async with connection.transaction():
                leased = await webhook_schedule.lease_due(connection, now, now, 30)
                claimed = await webhook_schedule.claim(connection, rounds.worker_id, leased, now, now + LONGEST_CALL)
            results = [
                hooks.result(one, chance.choice([WebhookResult.SUCCEEDED, WebhookResult.FAILED]))
                if one.url
                else WebhookOutcome(*one.key, WebhookResult.FAILED, error=one.cancelled or "over")
                for one in claimed
            ]
            chance.shuffle(results)
            async with connection.transaction():
                await webhook_schedule.record(connection, results, now)
            await asyncio.sleep(0)

    async def rule(connection: Any) -> None:
        while not is_over:
            account_id = chance.choice(accounts)
            for enabled in (False, True):
                async with connection.transaction():
                    await webhooks.save(
                        connection, account_id, URL, ["email.bounced"], enabled, b"sealed", rounds.clock.now()
                    )
                for change in (webhooks.cancel_pending, webhooks.forget):
                    async with connection.transaction():
                        await change(connection, account_id, 10)
            await asyncio.sleep(0.01)

    try:
        others = [asyncio.create_task(one) for one in (*map(call, connections[2:5]), *map(rule, connections[5:]))]
        await asyncio.gather(*map(mail, connections[:2]))
        for _ in range(600):
            if not await rounds.value("SELECT count(*) FROM calls"):
                break
            await asyncio.sleep(0.05)
        is_over = True
        await asyncio.gather(*others)
    finally:
        is_over = True
        for connection in connections:
            await connection.close()
    assert told
    assert await rounds.value("SELECT count(*) FROM calls") == 0
    assert await rounds.value("SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'") == 0
    assert await rounds.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert await faults_in_the_books(rounds.url) == {}


STATEMENTS = plans.statements(webhook_schedule)


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    for scan in await plans.scans(database, STATEMENTS[name]):
        condition = plans.condition(scan)
        match scan["Relation Name"]:
            case "workers":
                continue
            case "webhook_endpoints":
                assert "account_id = " in condition, scan
            case _ if "account_id" in condition:
                assert condition.count(" = ") >= 2, scan
            case _:
                assert any(key in condition for key in ("ctid", "next_at", "worker_id")), scan
