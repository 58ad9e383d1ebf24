"""Sending addresses and pools, as an operator manages them.

Delivery workers see every change within seconds. Each change is in the operator's log; a change of an account's pool
is also in the account's audit log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import address_warm_up, input_checks, route
from posthouse.rules.address_warm_up import AddressWarmUp, WarmUpDay
from posthouse.rules.credential import OPERATOR
from posthouse.rules.ids import AccountId
from posthouse.rules.public_address import Address
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.route import DEFAULT_POOL, AddressState, Pool, Tier
from posthouse.store import address_quotas, sending_addresses
from posthouse.store.postgres import Connection
from posthouse.store.sending_addresses import AddressRow as AddressRow
from posthouse.store.sending_addresses import PoolRow as PoolRow
from posthouse.wire.local_address import is_local

ROWS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class ChangedAddress:
    """`is_local`: this machine has the address. `is_last`: no other address of its pool can send."""

    address: AddressRow
    is_local: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class WarmUpView:
    """An address in a lane, today: `used` of its quota, of which `accepted` were accepted so far."""

    ip: str
    warm_up: AddressWarmUp
    used: int
    accepted: int
    slowed: int


class SendingAddresses(Flow):
    def __init__(self, context: Context, *, is_local: Callable[[Address], bool] = is_local) -> None:
        super().__init__(context)
        self._is_local = is_local

    async def list_addresses(self) -> Sequence[AddressRow]:
        async with self._database.connection() as connection:
            return await sending_addresses.list_all(connection)

    async def list_warm_ups(self) -> Sequence[WarmUpView]:
        """For each address and lane, today; if nothing was sent yet, as it will be with the first message."""
        async with self._database.connection() as connection:
            rows = await address_quotas.list_all(connection, ROWS_MAX)
        today = self._clock.now().date()
        views = []
        for row in rows:
            if row.warm_up is None:
                continue
            warm_up = address_warm_up.restored(row.scope.lane, row.warm_up)
            days = (today - row.day).days
            if days > 0:
                day = WarmUpDay(row.accepted, row.slowed, was_blocked=row.was_blocked)
                warm_up = address_warm_up.after_days(warm_up, day, days)
                views.append(WarmUpView(row.scope.ip, warm_up, 0, 0, 0))
            else:
                views.append(WarmUpView(row.scope.ip, warm_up, row.granted, row.accepted, row.slowed))
        return views

    async def add(
        self, given: str, hostname: str | None = None, pool: str | None = None, *, is_warm: bool = False
    ) -> ChangedAddress:
        """Send from this address from now on. A known one keeps its name and pool if they are not given.

        A new one warms up, unless it `is_warm`, that is, known to providers.
        """
        ip = _ip(given)
        hostname = None if hostname is None else input_checks.domain_name(hostname)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            known = await sending_addresses.lock(tx, ip)
            hostname = hostname or (known.hostname if known else None)
            if hostname is None:
                raise invalid(f"Give the name that mail from {ip} greets with, the same as in its PTR record.")
            pool = pool or (known.pool if known else DEFAULT_POOL)
            await self._require_pool(tx, pool, now)
            since = None if is_warm else known.warms_up_since if known else now
            await sending_addresses.put(tx, ip, hostname, pool, AddressState.ACTIVE, now, warms_up_since=since)
            await self._operator_log.add_entry(
                tx,
                "address.added",
                str(ip),
                now,
                {"hostname": hostname, "pool": pool, "warms_up": "no" if since is None else "yes"},
            )
            return await self._changed(tx, ip)

    async def rest(self, given: str) -> ChangedAddress:
        """Send nothing more from it until it is added again."""
        return await self._set_state(given, AddressState.RESTING, "address.rested")

    async def retire(self, given: str) -> ChangedAddress:
        """Send nothing more from it, and remove it from its pool."""
        return await self._set_state(given, AddressState.RETIRED, "address.retired")

    async def list_pools(self) -> Sequence[PoolRow]:
        async with self._database.connection() as connection:
            return await sending_addresses.list_pools(connection)

    async def add_pool(self, name: str, *, overflow: str | None = None, tier: Tier | None = None) -> Pool:
        if route.is_name(name) is None:
            raise invalid("A pool's name has 1 to 40 characters: a–z, 0–9 and hyphens, none at its beginning.")
        now = self._clock.now()
        pool = Pool(name, tier, overflow)
        async with self._database.transaction() as tx:
            known = await sending_addresses.pools_by_name(tx)
            if name in known:
                raise Refusal(Code.CONFLICT, f"There is already a pool named {name!r}: choose another name.")
            if overflow is not None and overflow not in known:
                raise _no_pool(overflow)
            taken = next((other.name for other in known.values() if tier is not None and other.tier is tier), None)
            if taken is not None:
                raise Refusal(Code.CONFLICT, f"The pool {taken!r} is already the pool of {tier} accounts.")
            await sending_addresses.add_pool(tx, pool, now)
            await self._operator_log.add_entry(tx, "pool.added", name, now, {"overflow": overflow, "tier": tier})
        return pool

    async def set_account_pool(self, account_id: AccountId, pool: str | None) -> None:
        """Send the account's mail from this pool; None: it has no pool of its own."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            if pool is not None and pool not in await sending_addresses.pools_by_name(tx):
                raise _no_pool(pool)
            await sending_addresses.set_account_pool(tx, account_id, pool, now)
            await self._audit_log.add_entry(
                tx, account_id, OPERATOR, "account.pool_set", pool or DEFAULT_POOL, now, {"pool": pool}
            )

    async def _set_state(self, given: str, state: AddressState, action: str) -> ChangedAddress:
        ip = _ip(given)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            known = await sending_addresses.lock(tx, ip)
            if known is None:
                raise Refusal(Code.NOT_FOUND, f"{ip} was never added: `posthouse address list` shows what was.")
            if known.state is state:
                raise Refusal(Code.CONFLICT, f"{ip} is already {state}: `posthouse address add {ip}` lets it send.")
            await sending_addresses.put(
                tx, ip, known.hostname, known.pool, state, now, warms_up_since=known.warms_up_since
            )
            await self._operator_log.add_entry(tx, action, str(ip), now, {"pool": known.pool})
            return await self._changed(tx, ip)

    async def _require_pool(self, tx: Connection, pool: str, now: datetime) -> None:
        if pool in await sending_addresses.pools_by_name(tx):
            return
        if pool != DEFAULT_POOL:
            raise _no_pool(pool)
        await sending_addresses.add_pool(tx, Pool(DEFAULT_POOL), now)

    async def _changed(self, tx: Connection, ip: Address) -> ChangedAddress:
        rows = await sending_addresses.list_all(tx)
        changed = next(row for row in rows if row.ip == ip)
        others = [row for row in rows if row.pool == changed.pool and row.ip != ip]
        is_last = not any(row.state is AddressState.ACTIVE for row in others)
        return ChangedAddress(changed, self._is_local(ip), is_last)


def _ip(given: str) -> Address:
    ip = route.parse_ip(given)
    if ip is None:
        raise invalid(f"{given!r} is not an IP address, such as 192.0.2.1 or 2001:db8::1.")
    return ip


def _no_pool(name: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"There is no pool {name!r}: create it with `posthouse pool add {name}`.")
