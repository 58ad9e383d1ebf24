"""Reputation on a real database: what counts, what doesn't, who is suspended, and who is only warned about."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from posthouse import metrics
from posthouse.flows.inbound.reputation import ReputationRun
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId
from posthouse.rules.reputation import ReputationFigures
from posthouse.store import reputation
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.delivery_steps import DeliverySteps
from tests.support.inbound_reports import bounce, complaint
from tests.support.locks import lock_waits
from tests.support.reputation_flow import UNKNOWN, ReputationFlow


@pytest.fixture
def flow(steps: DeliverySteps) -> ReputationFlow:
    return ReputationFlow(steps)


async def test_a_tenth_of_unknown_addresses_suspends_and_the_neighbour_continues(flow: ReputationFlow) -> None:
    neighbour = await flow.steps.another_sender("beta")
    await flow.send(190, 5, sender=neighbour)
    await flow.send(181, 20)
    before = await flow.steps.value("SELECT changed_at FROM accounts WHERE name = 'acme'")
    assert await flow.run() == ReputationRun(checked=2, suspended=0, warned=1)
    await flow.send(0, 1)
    with capture_logs() as logs:
        assert (await flow.run()).suspended == 1
    reasons = await flow.suspended()
    assert reasons["beta"] is None
    assert "of the latest 202 results 10.4 % were unknown addresses" in (reasons["acme"] or "")
    # As an operator's: caches are invalidated.
    assert await flow.steps.value("SELECT changed_at FROM accounts WHERE name = 'acme'") > before
    assert await flow.steps.value("SELECT suspended_at FROM accounts WHERE name = 'acme'") == flow.steps.clock.now()
    assert [entry["event"] for entry in logs] == ["account_suspended_for_its_reputation"]
    assert logs[0]["name"] == "acme"
    query = "SELECT actor, detail->>'reason' AS reason FROM audit_log WHERE action = 'account.suspended'"
    assert [tuple(row) for row in await flow.steps.fetch(query)] == [("posthouse", reasons["acme"])]
    assert (await flow.run()).suspended == 0


async def test_an_operators_change_wins_over_a_suspension_that_was_about_to_happen(flow: ReputationFlow) -> None:
    await flow.send(180, 21)
    account_id = AccountId(flow.steps.sender.account_id)
    async with flow.steps.database.transaction() as tx:
        await reputation.lock(tx, account_id)
        run = asyncio.ensure_future(flow.run())
        await lock_waits(tx, unless=run)
        await tx.execute("UPDATE accounts SET reputation_exempt = true WHERE id = $1", account_id)
    assert await run == ReputationRun(checked=1)
    assert (await flow.suspended())["acme"] is None


async def test_few_results_are_checked_again_until_they_are_enough(flow: ReputationFlow) -> None:
    await flow.send(0, 20)
    assert await flow.run() == ReputationRun(checked=1)
    await flow.send(179)
    assert await flow.run() == ReputationRun(checked=1)
    await flow.send(1)
    # Nothing was suppressed since then, and still it is checked.
    assert await flow.run() == ReputationRun(checked=1, suspended=1)
    assert await flow.run() == ReputationRun()


async def test_few_results_are_not_checked_forever(flow: ReputationFlow) -> None:
    await flow.send(0, 20)
    await flow.run()
    flow.steps.clock.advance(minutes=2)
    await flow.run()
    flow.steps.clock.advance(hours=24)
    assert await flow.run() == ReputationRun(checked=1)
    assert await flow.run() == ReputationRun()


async def test_complaints_and_late_bounces_count_once_each(flow: ReputationFlow) -> None:
    delivered = await flow.send(400)
    await flow.come_back(complaint(), delivered[0], delivered[0], *delivered[5:7])
    await flow.come_back(bounce("x@example.org"), delivered[0], delivered[1], delivered[1])
    await flow.come_back(bounce("x@example.org", status="5.2.2"), delivered[2])
    await flow.come_back(complaint(kind="not-spam"), delivered[3])
    assert await flow.figures() == (400, 2, 3)
    assert await flow.run() == ReputationRun(checked=1, warned=1)
    await flow.come_back(complaint(), *delivered[7:13])
    assert await flow.run() == ReputationRun(checked=1)
    await flow.come_back(complaint(), delivered[13])
    assert (await flow.run()).suspended == 1
    assert "2.50 % were complained about" in ((await flow.suspended())["acme"] or "")


async def test_complaints_from_no_feedback_loop_have_no_consequence(flow: ReputationFlow) -> None:
    delivered = await flow.send(200)
    await flow.come_back(complaint(), *delivered[:50], peer="203.0.113.9")
    assert await flow.figures() == (200, 0, 0)
    assert await flow.run() == ReputationRun()
    assert (await flow.suspended())["acme"] is None


async def test_an_address_complains_once_however_many_messages_it_got(flow: ReputationFlow) -> None:
    await flow.send(200)
    steps = flow.steps
    for number in range(12):
        address = "mallory@example.org" if number % 2 else "Mallory@example.org"
        (claimed,) = await steps.claimed([address])
        await steps.record(steps.outcome(claimed, DeliveryResult.DELIVERED))
        await flow.come_back(complaint(), claimed)
        await flow.come_back(bounce("mallory@example.org"), claimed)
        await steps.fetch("DELETE FROM suppressions")
    assert await flow.figures() == (212, 1, 1)


async def test_a_warning_and_a_suspension_are_in_the_owners_audit_log_and_the_account_is_watched(
    flow: ReputationFlow,
) -> None:
    tiers = "SELECT tier FROM accounts"
    delivered = await flow.send(1_000)
    await flow.steps.fetch("UPDATE accounts SET tier = 'good'")
    assert await flow.run() == ReputationRun()
    assert await flow.steps.fetch(tiers) == [("good",)]
    await flow.come_back(complaint(), *delivered[:3])
    assert await flow.run() == ReputationRun(checked=1, warned=1)
    assert await flow.steps.fetch(tiers) == [("watched",)]
    await flow.steps.fetch("UPDATE accounts SET tier = 'good'")
    await flow.come_back(complaint(), *delivered[3:10])
    assert await flow.run() == ReputationRun(checked=1, suspended=1)
    assert await flow.steps.fetch(tiers) == [("watched",)]
    query = "SELECT action, actor, detail->>'reason' FROM audit_log WHERE actor = 'posthouse' ORDER BY at"
    warned, suspended = await flow.steps.fetch(query)
    assert (warned[:2], suspended[:2]) == (("account.warned", "posthouse"), ("account.suspended", "posthouse"))
    assert "0.30 % were complained about" in warned[2]
    assert "1.00 % were complained about" in suspended[2]


async def test_only_what_a_server_said_counts(flow: ReputationFlow) -> None:
    steps = flow.steps
    await flow.send(3)
    # Unknown domains, blocked senders, full mailboxes: not unknown addresses.
    await flow.send(0, 1, response="5.7.1 blocked", suppress=False)
    await flow.send(0, 1, response="5.2.2 full\n5.1.1 is not what counts", suppress=False)
    await flow.send(0, 1, stage="dot", suppress=False)
    await flow.send(0, 1, response="5.1.10.1 is an address", suppress=False)
    await flow.send(0, 1, response="see below\n5.1.10 null MX")
    assert await flow.figures() == (8, 1, 0)
    # No query was made.
    await flow.send(0, 1, remote_ip=None, mx_host=None, code=None, stage=None, suppress=False)
    await flow.send(0, 1, remote_ip=None, mx_host=None, suppress=False)
    # Simulated mail.
    (test,) = await steps.claimed(["t@example.org"], mode=Mode.TEST)
    await steps.record(steps.outcome(test, DeliveryResult.DELIVERED))
    # On their way; deferred; and an address that was suppressed before.
    await steps.accept(5)
    (deferred,) = await steps.claimed(["d@example.org"])
    await steps.record(steps.outcome(deferred, DeliveryResult.DEFERRED))
    (first,) = await steps.claimed(["s@example.org"])
    await steps.record(steps.outcome(first, DeliveryResult.BOUNCED, **UNKNOWN))
    (second,) = await steps.claimed(["s@example.org"])
    assert second.is_suppressed
    await steps.record(steps.outcome(second, DeliveryResult.BOUNCED, code=None, remote_ip=None, mx_host=None))
    assert await flow.figures() == (9, 2, 0)


async def test_the_latest_count_and_nothing_older_than_a_day(flow: ReputationFlow) -> None:
    await flow.send(0, 30)
    flow.steps.clock.advance(hours=1)
    await flow.send(50)
    assert await flow.figures() == (80, 30, 0)
    assert await flow.figures(recipients_max=50) == (50, 0, 0)
    flow.steps.clock.advance(hours=23, seconds=1)
    assert await flow.figures() == (50, 0, 0)


async def test_counting_restarts_when_an_operator_resumes(flow: ReputationFlow) -> None:
    await flow.send(200, 50)
    assert (await flow.run()).suspended == 1
    assert await flow.steps.value("SELECT reputation_since FROM accounts") is None
    # The operator's clock is the database's: compared with it, this one is ahead.
    await flow.steps.operator.resume(flow.steps.sender.account_id)
    assert await flow.steps.value("SELECT reputation_since FROM accounts") is not None
    await flow.steps.fetch("UPDATE accounts SET reputation_since = $1", flow.steps.clock.now())
    flow.steps.clock.advance(seconds=1)
    await flow.send(0, 1)
    assert await flow.run() == ReputationRun(checked=1)
    assert (await flow.suspended())["acme"] is None


async def test_an_exempt_account_is_warned_about_once_a_day(flow: ReputationFlow) -> None:
    await flow.steps.fetch("UPDATE accounts SET reputation_exempt = true")
    await flow.send(200, 50)
    with capture_logs() as logs:
        assert await flow.run() == ReputationRun(checked=1, warned=1)
        await flow.send(0, 1)
        assert await flow.run() == ReputationRun(checked=1)
        flow.steps.clock.advance(hours=23)
        await flow.send(0, 1)
        assert await flow.run() == ReputationRun(checked=1)
        flow.steps.clock.advance(hours=1)
        await flow.send(0, 249)
        assert await flow.run() == ReputationRun(checked=1, warned=1)
    logged = [(entry["event"], entry["exempt"], entry["results"]) for entry in logs]
    assert logged == [("account_reputation_is_bad", True, 250), ("account_reputation_is_bad", True, 250)]
    assert (await flow.suspended())["acme"] is None


async def test_a_fresh_process_finds_what_happened_before_it(flow: ReputationFlow) -> None:
    await flow.send(200, 50)
    flow.steps.clock.advance(hours=2)
    assert (await flow.run()).suspended == 1


async def test_a_flood_of_suppressions_hides_no_account(flow: ReputationFlow) -> None:
    fill = """
        INSERT INTO suppressions (account_id, email, reason, at)
        SELECT '00000000-0000-0000-0000-000000000001', number::text, 'bounce', $1 FROM generate_series(1, 10001) number
    """
    await flow.steps.fetch(fill, flow.steps.clock.now())
    flow.steps.clock.advance(seconds=1)
    await flow.send(200, 50)
    assert await flow.run() == ReputationRun(checked=2, suspended=1)


async def test_what_members_send_to_themselves_as_a_test_counts_like_any_mail(flow: ReputationFlow) -> None:
    await flow.send(3, 1)
    await flow.steps.fetch("UPDATE messages SET source = 'test'")
    assert await flow.figures() == ReputationFigures(finals=4, unknown=1, complaints=0)


async def test_reasons_of_all_accounts_are_counted_at_once(flow: ReputationFlow) -> None:
    neighbour = await flow.steps.another_sender("beta")
    delivered = await flow.send(2, 3)
    await flow.send(0, 1, sender=neighbour)
    await flow.come_back(complaint(), delivered[0])
    async with flow.steps.database.connection() as connection:
        found = await reputation.reasons(connection, flow.steps.clock.now() - timedelta(hours=1))
        assert found == {flow.steps.sender.account_id: (3, 1), neighbour.account_id: (1, 0)}
        assert await reputation.reasons(connection, flow.steps.clock.now() + timedelta(hours=1)) == {}


async def test_a_locked_account_delays_no_other_and_is_checked_next(flow: ReputationFlow) -> None:
    neighbour = await flow.steps.another_sender("beta")
    await flow.send(180, 20)
    await flow.send(180, 20, sender=neighbour)
    flow.steps.clock.advance(minutes=2)
    async with flow.steps.database.transaction() as tx:
        await reputation.lock(tx, AccountId(flow.steps.sender.account_id))
        with capture_logs() as logs:
            assert await flow.run() == ReputationRun(checked=2, suspended=1)
    assert {name for name, reason in (await flow.suspended()).items() if reason} == {"beta"}
    assert "account_reputation_is_unknown" in [entry["event"] for entry in logs]
    # Nothing was suppressed lately, and still it is checked.
    assert await flow.run() == ReputationRun(checked=1, suspended=1)


async def test_reports_under_a_shared_token_count_once_for_the_message(flow: ReputationFlow) -> None:
    steps = flow.steps
    addresses = flow.addresses(10)
    claimed = await steps.claimed(addresses)
    await steps.record(*[steps.outcome(row, DeliveryResult.DELIVERED) for row in claimed])
    for address in addresses:
        await flow.come_back(bounce(address), claimed[0], is_shared=True, peer="192.0.2.1")
        await flow.come_back(complaint(recipient=address), claimed[0], is_shared=True)
    assert await steps.value("SELECT count(*) FROM suppressions") == 10
    assert await flow.figures() == (10, 1, 1)
    # With their own tokens they all count.
    await flow.come_back(bounce("x@example.org"), *claimed[:4])
    await flow.come_back(complaint(), *claimed[:3])
    figures = await flow.figures()
    assert figures.unknown in (4, 5)
    assert figures.complaints in (3, 4)


@pytest.mark.parametrize("is_named_by_id", [False, True])
async def test_the_account_of_the_services_own_mail_is_never_suspended_and_a_metric_has_it(
    flow: ReputationFlow, is_named_by_id: bool
) -> None:
    account_id = flow.steps.sender.account_id
    named = ReputationFlow(flow.steps, ids.text(ids.ACCOUNT, account_id) if is_named_by_id else "acme")
    before = sum(metrics.SERVICE_ACCOUNT_BAD.values.values())
    await named.send(20, 180)
    assert await named.run() == ReputationRun(checked=1, warned=1)
    await named.send(0, 1)
    assert await named.run() == ReputationRun(checked=1)
    assert (await named.suspended())["acme"] is None
    assert sum(metrics.SERVICE_ACCOUNT_BAD.values.values()) == before + 2
    assert await flow.steps.value("SELECT tier FROM accounts WHERE id = $1", account_id) != "watched"
