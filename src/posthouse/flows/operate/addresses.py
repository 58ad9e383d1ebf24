"""Sending addresses and pools, as an operator manages them.

Delivery workers see every change within seconds. Each is in the operator's log; an account's pool also is in the
account's audit log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.operator_log import OperatorLog
from posthouse.rules import input_checks, route
from posthouse.rules.actor import OPERATOR
from posthouse.rules.ids import AccountId
from posthouse.rules.public_address import Address
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.route import DEFAULT_POOL, AddressState, Pool, Tier
from posthouse.store import addresses
from posthouse.store.addresses import AddressRow as AddressRow
from posthouse.store.addresses import PoolRow as PoolRow
from posthouse.store.postgres import Connection, Database
from posthouse.wire.local_address import is_local


@dataclass(frozen=True, slots=True)
class ChangedAddress:
    """`is_local`: this machine has the address. `is_last`: no other address of its pool sends."""

    address: AddressRow
    is_local: bool
    is_last: bool


class Addresses:
    def __init__(
        self, *, database: Database, clock: Clock, chance: Chance, is_local: Callable[[Address], bool] = is_local
    ) -> None:
        self._database = database
        self._clock = clock
        self._audit_log = AuditLog(chance)
        self._log = OperatorLog(chance)
        self._is_local = is_local

    async def list_addresses(self) -> Sequence[AddressRow]:
        async with self._database.connection() as connection:
            return await addresses.list_all(connection)

    async def add(
        self, given: str, hostname: str | None = None, pool: str | None = None, *, is_warm: bool = False
    ) -> ChangedAddress:
        """Send from this address from now on. A known one keeps the name and the pool that are not given.

        A new one warms up, unless it `is_warm`: then providers know it, as they know one from before warm-ups.
        """
        ip = _ip(given)
        hostname = None if hostname is None else input_checks.domain_name(hostname)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            known = await addresses.lock(tx, ip)
            hostname = hostname or (known.hostname if known else None)
            if hostname is None:
                raise invalid(f"Give the name that mail from {ip} greets with, the one its PTR record names.")
            pool = pool or (known.pool if known else DEFAULT_POOL)
            await self._require_pool(tx, pool, now)
            since = None if is_warm else known.warms_up_since if known else now
            await addresses.put(tx, ip, hostname, pool, AddressState.ACTIVE, now, warms_up_since=since)
            await self._log.note(
                tx,
                "address.added",
                str(ip),
                now,
                {"hostname": hostname, "pool": pool, "warms_up": "no" if since is None else "yes"},
            )
            return await self._changed(tx, ip)

    async def rest(self, given: str) -> ChangedAddress:
        """Nothing more leaves from it until it is added again."""
        return await self._set_state(given, AddressState.RESTING, "address.rested")

    async def retire(self, given: str) -> ChangedAddress:
        """Nothing more leaves from it, and its pool no longer counts it."""
        return await self._set_state(given, AddressState.RETIRED, "address.retired")

    async def list_pools(self) -> Sequence[PoolRow]:
        async with self._database.connection() as connection:
            return await addresses.list_pools(connection)

    async def add_pool(self, name: str, *, overflow: str | None = None, tier: Tier | None = None) -> Pool:
        if route.is_name(name) is None:
            raise invalid("A pool's name has 1 to 40 characters: a–z, 0–9 and hyphens, none at its beginning.")
        now = self._clock.now()
        pool = Pool(name, tier, overflow)
        async with self._database.transaction() as tx:
            known = await addresses.pools_by_name(tx)
            if name in known:
                raise Refusal(Code.CONFLICT, f"There is a pool named {name!r} already: choose another name.")
            if overflow is not None and overflow not in known:
                raise _no_pool(overflow)
            taken = next((other.name for other in known.values() if tier is not None and other.tier is tier), None)
            if taken is not None:
                raise Refusal(Code.CONFLICT, f"The pool {taken!r} is that of {tier} accounts already.")
            await addresses.add_pool(tx, pool, now)
            await self._log.note(tx, "pool.added", name, now, {"overflow": overflow, "tier": tier})
        return pool

    async def set_account_pool(self, account_id: AccountId, pool: str | None) -> None:
        """The account's mail leaves from this pool; None: it has none of its own."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            if pool is not None and pool not in await addresses.pools_by_name(tx):
                raise _no_pool(pool)
            await addresses.set_account_pool(tx, account_id, pool, now)
            await self._audit_log.note(
                tx, account_id, OPERATOR, "account.pool_set", pool or DEFAULT_POOL, now, {"pool": pool}
            )

    async def _set_state(self, given: str, state: AddressState, action: str) -> ChangedAddress:
        ip = _ip(given)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            known = await addresses.lock(tx, ip)
            if known is None:
                raise Refusal(Code.NOT_FOUND, f"{ip} was never added: `posthouse address list` shows what was.")
            if known.state is state:
                raise Refusal(Code.CONFLICT, f"{ip} is {state} already: `posthouse address add {ip}` lets it send.")
            await addresses.put(tx, ip, known.hostname, known.pool, state, now, warms_up_since=known.warms_up_since)
            await self._log.note(tx, action, str(ip), now, {"pool": known.pool})
            return await self._changed(tx, ip)

    async def _require_pool(self, tx: Connection, pool: str, now: datetime) -> None:
        if pool in await addresses.pools_by_name(tx):
            return
        if pool != DEFAULT_POOL:
            raise _no_pool(pool)
        await addresses.add_pool(tx, Pool(DEFAULT_POOL), now)

    async def _changed(self, tx: Connection, ip: Address) -> ChangedAddress:
        rows = await addresses.list_all(tx)
        changed = next(row for row in rows if row.ip == ip)
        others = [row for row in rows if row.pool == changed.pool and row.ip != ip]
        is_last = not any(row.state is AddressState.ACTIVE for row in others)
        return ChangedAddress(changed, self._is_local(ip), is_last)


def _ip(given: str) -> Address:
    ip = route.parse_ip(given)
    if ip is None:
        raise invalid(f"{given!r} is no IP address, such as 192.0.2.1 or 2001:db8::1.")
    return ip


def _no_pool(name: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"There is no pool {name!r}: make it with `posthouse pool add {name}`.")
