"""Sending addresses, their pools, and what DNS lists say about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.rules.ids import AccountId
from posthouse.rules.public_address import Address
from posthouse.rules.route import AddressState, Pool, Route, RouteTable, SendingAddress, Tier
from posthouse.store import accounts
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement

ADDRESSES_READ_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class AddressRow:
    """`findings` are the faults that the last check found; `listed_by` are the DNS lists that contain the address."""

    ip: Address
    hostname: str
    pool: str
    state: AddressState
    created_at: datetime
    changed_at: datetime
    checked_at: datetime | None
    findings: tuple[str, ...]
    warms_up_since: datetime | None
    listed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolRow:
    pool: Pool
    addresses: int
    accounts: int
    created_at: datetime


_IN_USE: Final = """
SELECT ip, hostname, pool, state, warms_up_since FROM sending_addresses WHERE state <> 'retired' ORDER BY ip LIMIT $1
"""
_POOLS: Final = "SELECT name, tier, overflow, relay FROM pools"
# Without pools for tiers, few accounts have a pool.
_ACCOUNT_POOLS: Final = """
SELECT id, pool FROM accounts WHERE pool IS NOT NULL
UNION ALL
SELECT accounts.id, pools.name FROM accounts JOIN pools ON pools.tier = accounts.tier WHERE accounts.pool IS NULL
"""

_ADDRESSES: Final = """
SELECT ip, hostname, pool, state, created_at, changed_at, checked_at, findings, warms_up_since,
    ARRAY(SELECT zone FROM blocklist_entries
        WHERE blocklist_entries.ip = sending_addresses.ip ORDER BY zone) AS listed_by
FROM sending_addresses
"""
_LIST: Final = _ADDRESSES + "ORDER BY state = 'retired', pool, ip LIMIT $1"
_FIND: Final = _ADDRESSES + "WHERE ip = $1 FOR UPDATE"

_PUT: Final = statement("""
INSERT INTO sending_addresses (ip, hostname, pool, state, warms_up_since, created_at, changed_at)
VALUES (:ip, :hostname, :pool, :state, :warms_up_since, :now, :now)
ON CONFLICT (ip) DO UPDATE SET hostname = excluded.hostname, pool = excluded.pool, state = excluded.state,
    warms_up_since = excluded.warms_up_since, changed_at = excluded.changed_at
""")

_PUT_POOL: Final = statement("""
INSERT INTO pools (name, tier, overflow, relay, created_at) VALUES (:name, :tier, :overflow, :relay, :now)
ON CONFLICT (name) DO NOTHING RETURNING 1
""")

_LIST_POOLS: Final = """
SELECT name, tier, overflow, relay, created_at,
    (SELECT count(*) FROM sending_addresses WHERE pool = pools.name AND state <> 'retired') AS addresses,
    (SELECT count(*) FROM accounts
     WHERE pool = pools.name OR pool IS NULL AND tier = pools.tier) AS accounts
FROM pools ORDER BY name
"""

_CHECKED: Final = "UPDATE sending_addresses SET checked_at = $2, findings = $3::text[] WHERE ip = $1"

# A list that did not answer neither adds nor removes a listing.
_DELETE_LISTINGS: Final = """
DELETE FROM blocklist_entries WHERE ip = $1 AND (zone = ANY($2::text[]) OR zone <> ALL($3::text[]))
"""

_LISTED: Final = """
INSERT INTO blocklist_entries (ip, zone, answer, since, seen_at)
SELECT $1, listed.*, $4, $4 FROM unnest($2::text[], $3::text[]) listed
ON CONFLICT (ip, zone) DO UPDATE SET answer = excluded.answer, seen_at = excluded.seen_at
"""

_SET_POOL_RELAY: Final = "UPDATE pools SET relay = $2 WHERE name = $1"
_SET_ACCOUNT_POOL: Final = "UPDATE accounts SET pool = $2 WHERE id = $1"


async def route_table(connection: Connection) -> RouteTable:
    """What delivery needs to know; empty while there are no pools."""
    rows = await connection.fetch(_IN_USE, ADDRESSES_READ_MAX)
    pools = await pools_by_name(connection)
    if not pools:
        return RouteTable()
    return RouteTable(
        tuple(
            SendingAddress(
                Route(row["ip"], row["hostname"]), row["pool"], AddressState(row["state"]), row["warms_up_since"]
            )
            for row in rows
        ),
        pools,
        await _account_pools(connection),
    )


async def pools_by_name(connection: Connection) -> dict[str, Pool]:
    return {row["name"]: _pool(row) for row in await connection.fetch(_POOLS)}


async def list_all(connection: Connection) -> list[AddressRow]:
    """Ordered by pool; retired addresses come last."""
    return [_address(row) for row in await connection.fetch(_LIST, ADDRESSES_READ_MAX)]


async def lock(tx: Connection, ip: Address) -> AddressRow | None:
    """The address, locked until the transaction ends."""
    row = await tx.fetchrow(_FIND, ip)
    return None if row is None else _address(row)


async def put(
    tx: Connection,
    ip: Address,
    hostname: str,
    pool: str,
    state: AddressState,
    now: datetime,
    *,
    warms_up_since: datetime | None,
) -> None:
    bound = _PUT.bind(ip=ip, hostname=hostname, pool=pool, state=state, warms_up_since=warms_up_since, now=now)
    await tx.execute(*bound)


async def record_check(
    tx: Connection,
    ip: Address,
    findings: Sequence[str],
    listings: Mapping[str, str | None],
    zones: Sequence[str],
    now: datetime,
) -> None:
    """`listings` are the answers of the `zones` that answered; None for a list that doesn't contain the address."""
    listed = {zone: answer for zone, answer in listings.items() if answer is not None}
    lifted = [zone for zone in listings if zone not in listed]
    await tx.execute(_CHECKED, ip, now, list(findings))
    await tx.execute(_DELETE_LISTINGS, ip, lifted, list(zones))
    await tx.execute(_LISTED, ip, list(listed), list(listed.values()), now)


async def add_pool(tx: Connection, pool: Pool, now: datetime) -> bool:
    """False if there is one with that name."""
    bound = _PUT_POOL.bind(name=pool.name, tier=pool.tier, overflow=pool.overflow, relay=pool.relay, now=now)
    return await tx.fetchval(*bound) is not None


async def list_pools(connection: Connection) -> list[PoolRow]:
    return [
        PoolRow(_pool(row), row["addresses"], row["accounts"], row["created_at"])
        for row in await connection.fetch(_LIST_POOLS)
    ]


async def set_pool_relay(tx: Connection, pool: str, relay: str | None) -> None:
    await tx.execute(_SET_POOL_RELAY, pool, relay)


async def set_account_pool(tx: Connection, account_id: AccountId, pool: str | None, now: datetime) -> None:
    await tx.execute(_SET_ACCOUNT_POOL, account_id, pool)
    await accounts.touch(tx, account_id, now)


async def _account_pools(connection: Connection) -> Mapping[AccountId, str]:
    rows: Sequence[Row] = await connection.fetch(_ACCOUNT_POOLS)
    return {row["id"]: row["pool"] for row in rows}


def _address(row: Row) -> AddressRow:
    return AddressRow(
        **{
            **row,
            "state": AddressState(row["state"]),
            "findings": tuple(row["findings"]),
            "listed_by": tuple(row["listed_by"]),
        }
    )


def _pool(row: Row) -> Pool:
    tier = row["tier"]
    return Pool(row["name"], None if tier is None else Tier(tier), row["overflow"], row["relay"])
