"""Administration against a real database: what an operator does, and is refused."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from posthouse.rules import credential, ids
from posthouse.rules.actor import OPERATOR
from posthouse.rules.refusal import Code
from posthouse.store import audit_log
from posthouse.store.postgres import Database
from tests.support.office import PEPPER, Office, opened, refused


@pytest.fixture
async def office(database: Database) -> AsyncIterator[Office]:
    async with opened(database) as one:
        yield one


async def test_a_new_account_comes_with_a_working_default_credential(office: Office) -> None:
    made = await office.accounts.create_account("Acme")
    row = made.credential.credential
    assert row.is_default
    stored = await office.value("SELECT secret_hash FROM credentials WHERE username = $1", row.username)
    assert credential.matches(made.credential.password, stored, PEPPER)
    assert made.credential.password not in repr(made)


async def test_an_account_is_found_by_name_or_id(office: Office) -> None:
    made = await office.accounts.create_account("Acme")
    by_name = await office.accounts.account("acme")
    by_id = await office.accounts.account(ids.text(ids.ACCOUNT, made.account.id))
    assert by_name.account.id == by_id.account.id == made.account.id
    assert [row.name for row in await office.accounts.list_accounts()] == ["Acme"]


@pytest.mark.parametrize("name", ["nobody", "ac_00000000000000000000000000", "ac_"])
async def test_an_unknown_account_is_not_found(office: Office, name: str) -> None:
    await refused(office.accounts.account(name), Code.NOT_FOUND, "account list")


async def test_a_name_is_given_once_and_never_looks_like_an_id(office: Office) -> None:
    await office.accounts.create_account("Acme")
    await refused(office.accounts.create_account("ACME "), Code.CONFLICT, "already")
    await refused(office.accounts.create_account("ac_me"), Code.INVALID_REQUEST, "can't begin with")
    await refused(office.accounts.create_account("  "), Code.INVALID_REQUEST)


async def test_suspension_is_set_once_and_lifted_once(office: Office) -> None:
    await office.accounts.create_account("Acme")
    await refused(office.accounts.suspend("Acme", " "), Code.INVALID_REQUEST, "reason")
    await office.stamps(lambda: office.accounts.suspend("Acme", "spam"))
    await refused(office.accounts.suspend("Acme", "again"), Code.CONFLICT, "spam")
    row = (await office.accounts.account("Acme")).account
    assert row.suspended_reason == "spam"
    await office.stamps(lambda: office.accounts.resume("Acme"))
    await refused(office.accounts.resume("Acme"), Code.CONFLICT)


async def test_limits_that_are_not_given_stay(office: Office) -> None:
    await office.accounts.create_account("Acme")
    await office.stamps(lambda: office.accounts.set_limits("Acme", rate_per_second=5, warmup=[1, 2]))
    await office.accounts.set_limits("Acme", rate_burst=9)
    row = (await office.accounts.account("Acme")).account
    assert (row.rate_per_second, row.rate_burst, row.warmup_limits, row.warmup_exempt) == (5, 9, (1, 2), False)
    row = await office.accounts.set_limits("Acme", rate_per_second="default", warmup="exempt")
    assert (row.rate_per_second, row.rate_burst, row.warmup_limits, row.warmup_exempt) == (None, 9, None, True)
    row = await office.accounts.set_limits("Acme", warmup="default")
    assert (row.warmup_limits, row.warmup_exempt) == (None, False)


@pytest.mark.parametrize(
    "limits", [{"rate_per_second": 0}, {"rate_burst": -1}, {"warmup": []}, {"warmup": [0]}, {"rate_burst": 10**10}]
)
async def test_impossible_limits_are_refused(office: Office, limits: dict[str, Any]) -> None:
    await office.accounts.create_account("Acme")
    await refused(office.accounts.set_limits("Acme", **limits), Code.INVALID_REQUEST)


async def test_grants_add_up_and_a_mistake_is_taken_back_but_never_below_zero(office: Office) -> None:
    await office.accounts.create_account("Acme")
    await office.stamps(lambda: office.accounts.grant_credits("Acme", 100, "start"))
    assert (await office.accounts.grant_credits("Acme", -40, "typing error")).available == 60
    await refused(office.accounts.grant_credits("Acme", -61, "too much"), Code.CONFLICT, "60")
    view = await office.accounts.account("Acme")
    assert (view.account.available, view.granted) == (60, 60)


@pytest.mark.parametrize("amount", [0, 10**12 + 1, -(10**13)])
async def test_an_impossible_amount_is_refused(office: Office, amount: int) -> None:
    await office.accounts.create_account("Acme")
    await refused(office.accounts.grant_credits("Acme", amount, "why"), Code.INVALID_REQUEST)


async def test_what_an_operator_does_to_an_account_is_there_for_its_owners_to_read(office: Office) -> None:
    made = await office.accounts.create_account("Acme")
    await office.accounts.suspend("Acme", "unpaid")
    await office.accounts.resume("Acme")
    await office.accounts.set_limits("Acme", rate_per_second=5, warmup=[10, 20])
    await office.accounts.set_limits("Acme", warmup="exempt")
    await office.accounts.grant_credits("Acme", 100, "bought")
    await office.accounts.conduct("Acme", exempt=True)
    await office.accounts.conduct("Acme")
    await refused(office.accounts.resume("Acme"), Code.CONFLICT)
    async with office.database.connection() as connection:
        entries = await audit_log.page(connection, made.account.id, audit_log.END, 100)
    assert {(entry.actor, entry.target) for entry in entries} == {(OPERATOR, "Acme")}
    assert [(entry.action, entry.detail) for entry in reversed(entries)] == [
        ("account.created", {}),
        ("account.suspended", {"reason": "unpaid"}),
        ("account.resumed", {}),
        ("account.limits_set", {"rate_per_second": 5, "rate_burst": None, "warmup": "10, 20"}),
        ("account.limits_set", {"rate_per_second": 5, "rate_burst": None, "warmup": "exempt"}),
        ("credits.granted", {"amount": 100, "reason": "bought"}),
        ("account.conduct_exemption_set", {"exempt": True}),
    ]
