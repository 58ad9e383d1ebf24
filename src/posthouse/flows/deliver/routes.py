"""The routes that mail takes, as the operator set them up: read every few seconds, used for every message."""

from collections.abc import Callable, Mapping, Sequence

import structlog

from posthouse.flows.deliver.address_quotas import Bound, PerDay, WarmingSince
from posthouse.flows.shared.context import Context
from posthouse.rules.ids import AccountId
from posthouse.rules.learned_limits import LaneScope
from posthouse.rules.public_address import Address
from posthouse.rules.route import Relay, Route, RouteTable, with_other_family
from posthouse.store import relays, sending_addresses
from posthouse.store.relays import RelayRow
from posthouse.store.seal import SealError
from posthouse.wire.local_address import is_local

log = structlog.get_logger(__name__)


class Routes:
    """Until the first `read`, mail leaves from the machine's default address: a worker reads before its first mail."""

    def __init__(self, context: Context, is_usable: Callable[[Address], bool] = is_local) -> None:
        self._database = context.database
        self._keys = context.keys
        self._is_usable = is_usable
        self._table = RouteTable()
        self._usable: frozenset[Address] = frozenset()
        self._relay_rows: Sequence[RelayRow] = ()
        self._by_pool: dict[str, tuple[tuple[Route, ...], ...]] = {}
        self._warming: dict[str, WarmingSince] = {}
        self._per_day: dict[str, PerDay] = {}
        self._relay_by_pool: dict[str, Relay] = {}
        self.is_read = False

    async def read(self) -> None:
        async with self._database.connection() as connection:
            table = await sending_addresses.route_table(connection)
            has_relays = any(pool.relay for pool in table.pools.values())
            relay_rows = await relays.list_all(connection) if has_relays else ()
        known = {address.route.source for address in table.addresses}
        usable = frozenset(filter(self._is_usable, known))
        self.is_read = True
        if (table, usable, relay_rows) == (self._table, self._usable, self._relay_rows):
            return
        for lacking in sorted(known - usable, key=str):
            log.warning("address_not_on_this_machine", address=str(lacking))
        self._table, self._usable, self._relay_rows = table, usable, relay_rows
        self._by_pool = {name: table.routes_of(name, usable) for name in table.pools}
        opened = self._opened(relay_rows)
        by_pool = {name: opened.get(table.relay_of(name) or "") for name in table.pools}
        self._relay_by_pool = {name: relay for name, relay in by_pool.items() if relay is not None}
        self._warming = {
            str(address.route.source): WarmingSince(address.warms_up_since)
            for address in table.addresses
            if address.warms_up_since is not None
        }
        self._per_day = {relay.lane: PerDay(relay.per_day) for relay in opened.values() if relay.per_day is not None}

    def routes_of(self, account_id: AccountId) -> tuple[tuple[Route, ...], ...] | None:
        """The routes of the account's pool, then those of its overflow. Empty: mail leaves from the machine's default
        address. None: no route is available now."""
        pool = self._table.pool_of(account_id)
        return () if pool is None else self._by_pool.get(pool) or None

    def relay_of(self, account_id: AccountId) -> Relay | None:
        """The relay that takes the account's mail while it has no route."""
        if not self._relay_by_pool:
            return None
        pool = self._table.pool_of(account_id)
        return None if pool is None else self._relay_by_pool.get(pool)

    def from_route(self, account_id: AccountId, first: Route | None, sender: str) -> tuple[Route, ...] | None:
        """The route, and one for servers of the other IP family; None if the account's mail has other routes by now."""
        levels = self.routes_of(account_id)
        if first is None:
            return () if levels == () else None
        routes = next((routes for routes in levels or () if first in routes), None)
        return None if routes is None else with_other_family(first, routes, sender)

    def bound_of(self, scope: LaneScope) -> Bound | None:
        """What bounds the mail from this address in this lane, or over this relay; None if nothing does."""
        if scope.ip:
            return self._warming.get(scope.ip)
        return self._per_day.get(scope.lane)

    def _opened(self, rows: Sequence[RelayRow]) -> Mapping[str, Relay]:
        opened = {}
        for row in rows:
            try:
                password = self._keys.sealer.open(row.password_sealed, relays.password_purpose(row.name)).decode()
            except SealError as error:
                log.error("relay_password_sealed", relay=row.name, reason=str(error))
                continue
            opened[row.name] = Relay(row.name, row.host, row.port, row.username, password, row.per_second, row.per_day)
        return opened
