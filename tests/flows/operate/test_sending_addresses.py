"""Sending addresses and pools, as an operator manages them."""

from collections.abc import Mapping

import pytest

from posthouse.flows.operate.monitor import Monitor
from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code
from posthouse.rules.route import Tier
from posthouse.store import reputation
from posthouse.store import sending_addresses as store
from tests.flows.account_flows import AccountFlows, assert_refused
from tests.support.context import context


@pytest.fixture
def addresses(flows: AccountFlows) -> SendingAddresses:
    return SendingAddresses(context(flows.database, flows.clock))


async def listed(addresses: SendingAddresses) -> list[tuple[str, str, str, str]]:
    return [(str(row.ip), row.hostname, row.pool, row.state) for row in await addresses.list_addresses()]


async def test_an_address_is_added_rested_and_retired(addresses: SendingAddresses) -> None:
    added = await addresses.add("127.0.0.7", "MTA7.Example.com.")
    assert (added.is_local, added.is_last) == (True, True)
    assert not (await addresses.add("2001:DB8::1", "six.example.com")).is_local
    assert await listed(addresses) == [
        ("127.0.0.7", "mta7.example.com", "default", "active"),
        ("2001:db8::1", "six.example.com", "default", "active"),
    ]
    assert not (await addresses.rest("127.0.0.7")).is_last
    assert (await addresses.retire("2001:db8::1")).is_last
    assert [row[3] for row in await listed(addresses)] == ["resting", "retired"]
    await addresses.add("127.0.0.7")
    assert (await listed(addresses))[0] == ("127.0.0.7", "mta7.example.com", "default", "active")


async def test_an_added_address_moves_to_another_name_and_pool(addresses: SendingAddresses) -> None:
    await addresses.add("127.0.0.7", "mta7.example.com")
    await addresses.add_pool("own", overflow="default")
    await addresses.add("127.0.0.7", "new7.example.com", "own")
    assert await listed(addresses) == [("127.0.0.7", "new7.example.com", "own", "active")]
    assert [
        (row.pool.name, row.pool.overflow, row.addresses, row.accounts) for row in await addresses.list_pools()
    ] == [("default", None, 0, 0), ("own", "default", 1, 0)]


async def test_what_can_not_be_is_refused_with_what_to_do(addresses: SendingAddresses) -> None:
    await assert_refused(addresses.add("example.com", "a.example"), Code.INVALID_REQUEST, "is not an IP address")
    await assert_refused(addresses.add("127.0.0.7"), Code.INVALID_REQUEST, "PTR record")
    await assert_refused(addresses.add("127.0.0.7", "a b"), Code.INVALID_REQUEST, "`name`")
    await assert_refused(addresses.add("127.0.0.7", "a.example", "own"), Code.NOT_FOUND, "posthouse pool add own")
    await assert_refused(addresses.rest("127.0.0.7"), Code.NOT_FOUND, "never added")
    await addresses.add("127.0.0.7", "a.example")
    await addresses.rest("127.0.0.7")
    await assert_refused(addresses.rest("127.0.0.7"), Code.CONFLICT, "already resting")
    await assert_refused(addresses.add_pool("Own"), Code.INVALID_REQUEST, "1 to 40 characters")
    await assert_refused(addresses.add_pool("default"), Code.CONFLICT, "already")
    await assert_refused(addresses.add_pool("own", overflow="absent"), Code.NOT_FOUND, "'absent'")


async def test_an_account_gets_its_own_pool(flows: AccountFlows, addresses: SendingAddresses) -> None:
    acme = await flows.account("Acme")
    await assert_refused(addresses.set_account_pool(acme, "own"), Code.NOT_FOUND, "'own'")
    await addresses.add_pool("own")
    await addresses.set_account_pool(acme, "own")
    assert [(row.pool.name, row.accounts) for row in await addresses.list_pools()] == [("own", 1)]
    async with flows.database.connection() as connection:
        noted = await connection.fetch("SELECT actor, action, target FROM audit_log WHERE action LIKE '%pool%'")
    assert [tuple(row) for row in noted] == [("operator", "account.pool_set", "own")]
    await addresses.set_account_pool(acme, None)
    assert [row.accounts for row in await addresses.list_pools()] == [0]


async def test_an_account_without_its_own_pool_sends_from_that_of_its_tier(
    flows: AccountFlows, addresses: SendingAddresses
) -> None:
    acme, other = await flows.account("Acme"), await flows.account("Other")
    await addresses.add("127.0.0.7", "a.example")
    await addresses.add_pool("own")
    await addresses.add_pool("newcomers", tier=Tier.NEW)
    await addresses.add_pool("watched", tier=Tier.WATCHED)
    await addresses.set_account_pool(other, "own")
    assert await pools_of(flows) == {acme: "newcomers", other: "own"}
    async with flows.database.transaction() as tx:
        await reputation.watch(tx, acme)
        await reputation.watch(tx, other)
    assert await pools_of(flows) == {acme: "watched", other: "own"}
    rows = {row.pool.name: (row.pool.tier, row.accounts) for row in await addresses.list_pools()}
    assert rows == {"default": (None, 0), "newcomers": ("new", 0), "own": (None, 1), "watched": ("watched", 1)}
    await assert_refused(addresses.add_pool("another", tier=Tier.NEW), Code.CONFLICT, "'newcomers'")


async def pools_of(flows: AccountFlows) -> Mapping[AccountId, str]:
    async with flows.database.connection() as connection:
        return (await store.route_table(connection)).account_pools


async def test_every_change_is_in_the_operators_log(addresses: SendingAddresses, flows: AccountFlows) -> None:
    await addresses.add_pool("own")
    for change in (
        addresses.add("127.0.0.7", "a.example", "own"),
        addresses.rest("127.0.0.7"),
        addresses.retire("127.0.0.7"),
    ):
        await change
    entries = [found.entry for found in await Monitor(context(flows.database, flows.clock)).operator_log(10)]
    assert [(entry.action, entry.target) for entry in entries[:3]] == [
        ("address.retired", "127.0.0.7"),
        ("address.rested", "127.0.0.7"),
        ("address.added", "127.0.0.7"),
    ]
    assert [dict(entry.detail) for entry in entries[2:4]] == [
        {"hostname": "a.example", "pool": "own", "warms_up": "yes"},
        {"overflow": None, "tier": None},
    ]
