"""Administration against a real database: what an operator does, and is refused."""

import json
from typing import Any

import pytest

from posthouse.flows.operate.accounts import AccountOrder
from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code
from posthouse.rules.search import AuditLogFilters
from posthouse.rules.send_quota import LimitKind
from posthouse.store import audit_log
from posthouse.store.postgres import Database
from tests.flows.account_flows import DAY, NOON, AccountFlows, assert_refused, open_account_flows
from tests.support.context import PEPPERS


async def test_a_new_account_comes_with_a_working_default_credential(flows: AccountFlows) -> None:
    made = await flows.accounts.create_account("Acme")
    row = made.credential.credential
    assert row.is_default
    stored = await flows.value("SELECT secret_hash FROM credentials WHERE username = $1", row.username)
    assert PEPPERS.matches(made.credential.password, stored)
    assert made.credential.password not in repr(made)


async def test_an_account_is_found_by_name_or_id(flows: AccountFlows, acme: AccountId) -> None:
    for given in ("acme", ids.text(ids.ACCOUNT, acme)):
        assert (await flows.accounts.account(given)).account.id == acme
    for unknown in ("nobody", "ac_00000000000000000000000000", "ac_"):
        await assert_refused(flows.accounts.account(unknown), Code.NOT_FOUND, "account list")


async def test_the_list_of_accounts_is_read_page_by_page_to_its_end(
    flows: AccountFlows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.flows.operate.accounts.LIST_MAX", 2)
    for name in ("delta", "Beta", "alpha", "Zoe", "gamma"):
        await flows.accounts.create_account(name)
    assert [row.name for row in await flows.accounts.list_accounts()] == ["alpha", "Beta", "delta", "gamma", "Zoe"]


@pytest.mark.usefixtures("acme")
async def test_a_name_is_given_once_and_never_looks_like_an_id(flows: AccountFlows) -> None:
    await assert_refused(flows.accounts.create_account("ACME "), Code.CONFLICT, "already")
    await assert_refused(flows.accounts.create_account("ac_me"), Code.INVALID_REQUEST, "can't begin with")
    await assert_refused(flows.accounts.create_account("  "), Code.INVALID_REQUEST)


async def test_an_account_is_suspended_once_and_resumed_once(flows: AccountFlows) -> None:
    await flows.accounts.create_account("Acme")
    await assert_refused(flows.accounts.suspend("Acme", " "), Code.INVALID_REQUEST, "reason")
    await flows.stamps(lambda: flows.accounts.suspend("Acme", "spam"))
    await assert_refused(flows.accounts.suspend("Acme", "again"), Code.CONFLICT, "spam")
    row = (await flows.accounts.account("Acme")).account
    assert row.suspended_reason == "spam"
    await flows.stamps(lambda: flows.accounts.resume("Acme"))
    await assert_refused(flows.accounts.resume("Acme"), Code.CONFLICT)


async def test_limits_that_are_not_given_stay(flows: AccountFlows) -> None:
    await flows.accounts.create_account("Acme")
    await flows.stamps(lambda: flows.accounts.set_limits("Acme", rate_per_second=5, warmup=[1, 2]))
    await flows.accounts.set_limits("Acme", rate_burst=9)
    row = (await flows.accounts.account("Acme")).account
    assert (row.rate_per_second, row.rate_burst, row.warmup_limits, row.warmup_exempt) == (5, 9, (1, 2), False)
    row = await flows.accounts.set_limits("Acme", rate_per_second="default", warmup="exempt")
    assert (row.rate_per_second, row.rate_burst, row.warmup_limits, row.warmup_exempt) == (None, 9, None, True)
    row = await flows.accounts.set_limits("Acme", warmup="default")
    assert (row.warmup_limits, row.warmup_exempt) == (None, False)


@pytest.mark.usefixtures("acme")
async def test_impossible_limits_and_amounts_are_refused(flows: AccountFlows) -> None:
    impossible: list[dict[str, Any]] = [
        {"rate_per_second": 0}, {"rate_burst": -1}, {"warmup": []}, {"warmup": [0]}, {"rate_burst": 10**10},
    ]  # fmt: skip
    for limits in impossible:
        await assert_refused(flows.accounts.set_limits("Acme", **limits), Code.INVALID_REQUEST)
    for amount in (0, 10**12 + 1, -(10**13)):
        await assert_refused(flows.accounts.grant_credits("Acme", amount, "why"), Code.INVALID_REQUEST)


async def test_grants_add_up_and_a_mistake_is_taken_back_but_never_below_zero(flows: AccountFlows) -> None:
    await flows.accounts.create_account("Acme")
    await flows.stamps(lambda: flows.accounts.grant_credits("Acme", 100, "start"))
    assert (await flows.accounts.grant_credits("Acme", -40, "typing error")).available == 60
    await assert_refused(flows.accounts.grant_credits("Acme", -61, "too much"), Code.CONFLICT, "60")
    view = await flows.accounts.account("Acme")
    assert (view.account.available, view.granted) == (60, 60)


async def test_a_repeated_request_grants_once(flows: AccountFlows) -> None:
    await flows.accounts.create_account("Acme")
    await flows.accounts.create_account("Other")
    for _ in range(2):
        assert (await flows.accounts.grant_credits("Acme", 100, "start", "k1")).available == 100
    await assert_refused(flows.accounts.grant_credits("Acme", 101, "start", "k1"), Code.IDEMPOTENCY_CONFLICT)
    assert (await flows.accounts.grant_credits("Other", 101, "start", "k1")).available == 101
    assert (await flows.accounts.grant_credits("Acme", 100, "start", "k2")).available == 200
    assert (await flows.accounts.account("Acme")).granted == 200


@pytest.mark.rule("LOG-03")
async def test_owners_can_read_what_an_operator_does_to_their_account(flows: AccountFlows, acme: AccountId) -> None:
    await flows.accounts.suspend("Acme", "unpaid")
    await flows.accounts.resume("Acme")
    await flows.accounts.set_limits("Acme", rate_per_second=5, warmup=[10, 20])
    await flows.accounts.set_limits("Acme", warmup="exempt")
    await flows.accounts.grant_credits("Acme", 100, "bought")
    await flows.accounts.reputation("Acme", exempt=True)
    await flows.accounts.reputation("Acme")
    await assert_refused(flows.accounts.resume("Acme"), Code.CONFLICT)
    async with flows.database.connection() as connection:
        entries, _ = await audit_log.page(connection, acme, AuditLogFilters(), 100)
    assert {(entry.actor, entry.target) for entry in entries} == {(OPERATOR, "Acme")}
    assert [(entry.action, entry.detail) for entry in reversed(entries)] == [
        ("account.created", {}),
        ("account.suspended", {"reason": "unpaid"}),
        ("account.resumed", {}),
        ("account.limits_set", {"rate_per_second": 5, "rate_burst": None, "warmup": "10, 20"}),
        ("account.limits_set", {"rate_per_second": 5, "rate_burst": None, "warmup": "exempt"}),
        ("credits.granted", {"amount": 100, "reason": "bought"}),
        ("account.reputation_exemption_set", {"exempt": True}),
    ]


TODAY = NOON.date()


async def used_warmup(flows: AccountFlows, name: str, used: int, *, days_ago: int = 0, begun_days_ago: int = 0) -> None:
    change = "UPDATE accounts SET warmup_used = $2, warmup_day = $3, warmup_started_on = $4 WHERE name = $1"
    await flows.change(change, name, used, TODAY - DAY * days_ago, TODAY - DAY * begun_days_ago)


async def sent(flows: AccountFlows, name: str, recipients: int, *, days_ago: int) -> None:
    insert = "INSERT INTO usage_days (account_id, day, accepted) SELECT id, $3, $2 FROM accounts WHERE name = $1"
    await flows.change(insert, name, recipients, TODAY - DAY * days_ago)


async def near(flows: AccountFlows, limit: int = 50) -> list[tuple[str, LimitKind, float]]:
    """Names of the accounts nearest to a limit, each with the limit and how near it is: in percent, or in days."""
    first = await flows.accounts.first(AccountOrder.LIMITS, limit)
    limits = await flows.accounts.nearest_limits(first.account_ids)
    shown = []
    for row in await flows.accounts.rows(first.account_ids):
        kind, share, days_left = limits[row.id]
        shown.append((row.name, kind, round(share * 100, 3) if days_left is None else round(days_left, 3)))
    return shown


@pytest.mark.parametrize("step", [1, 3, 1_000])
async def test_accounts_nearest_to_a_limit_come_first_however_many_are_read_at_once(
    flows: AccountFlows, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("posthouse.flows.operate.accounts.NEAREST_LIMITS_A_STEP", step)
    credits_of = {"a day": 100, "two days": 200, "a week": 700, "none": 0, "both": 600, "suspended": 0, "silent": 0}
    for name in (*credits_of, "half", "most", "closed", "yesterday", "over", "exempt", "own", "ahead"):
        await flows.accounts.create_account(name)
        if credits_of.get(name):
            await flows.accounts.grant_credits(name, credits_of[name], "bought")
    for name in ("a day", "two days", "a week", "none", "both", "suspended"):
        # What is older than a week before today is not its pace, and today is not over.
        for days_ago, recipients in ((0, 99), *((before, 100) for before in range(1, 8)), (8, 10**6)):
            await sent(flows, name, recipients, days_ago=days_ago)
    await used_warmup(flows, "both", 190)
    await used_warmup(flows, "half", 150, begun_days_ago=1)
    await used_warmup(flows, "most", 184)
    await used_warmup(flows, "closed", 200)
    await used_warmup(flows, "yesterday", 200, days_ago=1, begun_days_ago=1)
    await used_warmup(flows, "over", 200, begun_days_ago=3)
    await used_warmup(flows, "exempt", 200)
    await flows.accounts.set_limits("exempt", warmup="exempt")
    await used_warmup(flows, "own", 10, begun_days_ago=1)
    await flows.accounts.set_limits("own", warmup=[1, 40])
    ahead = json.dumps({TODAY.isoformat(): 60, (TODAY + DAY).isoformat(): 200})
    await flows.change("UPDATE accounts SET warmup_ahead = $1 WHERE name = 'ahead'", ahead)
    await flows.accounts.suspend("suspended", "spam")
    await flows.accounts.close_account("closed", "left")
    expected = [
        ("none", LimitKind.CREDITS, 0),
        ("both", LimitKind.WARMUP, 95),
        ("most", LimitKind.WARMUP, 92),
        ("a day", LimitKind.CREDITS, 1),
        ("two days", LimitKind.CREDITS, 2),
        ("half", LimitKind.WARMUP, 50),
        ("ahead", LimitKind.WARMUP, 30),
        ("own", LimitKind.WARMUP, 25),
    ]
    assert await near(flows) == expected
    assert await near(flows, 4) == expected[:4]
    read = await flows.accounts.first(AccountOrder.LIMITS, 1)
    assert read.read == len(await flows.accounts.list_accounts())


async def test_a_pace_is_that_of_today_if_it_is_faster_than_before(flows: AccountFlows) -> None:
    await flows.accounts.create_account("new")
    await flows.accounts.grant_credits("new", 50, "bought")
    await sent(flows, "new", 100, days_ago=0)
    assert await near(flows) == [("new", LimitKind.CREDITS, 0.5)]
    await sent(flows, "new", 1_400, days_ago=1)
    assert await near(flows) == [("new", LimitKind.CREDITS, 0.25)]


async def test_without_a_warm_up_only_accounts_with_their_own_have_one(database: Database) -> None:
    async with open_account_flows(database, warmup_limits=None) as flows:
        for name in ("default", "own"):
            await flows.accounts.create_account(name)
            await used_warmup(flows, name, 100)
        await flows.accounts.set_limits("own", warmup=[400])
        assert await near(flows) == [("own", LimitKind.WARMUP, 25)]
