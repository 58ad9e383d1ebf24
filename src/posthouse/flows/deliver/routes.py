"""The routes that mail takes, as the operator set them up: read every few seconds, and asked for every mail."""

from collections.abc import Callable

import structlog

from posthouse.rules.ids import AccountId
from posthouse.rules.public_address import Address
from posthouse.rules.route import Route, RouteTable, with_other_family
from posthouse.store import addresses
from posthouse.store.postgres import Database
from posthouse.wire.local_address import is_local

log = structlog.get_logger(__name__)


class Routes:
    """Until the first `read`, mail leaves as the machine sends by itself; so a worker reads before its first mail."""

    def __init__(self, database: Database, is_usable: Callable[[Address], bool] = is_local) -> None:
        self._database = database
        self._is_usable = is_usable
        self._table = RouteTable()
        self._usable: frozenset[Address] = frozenset()
        self._by_pool: dict[str, tuple[Route, ...]] = {}
        self.is_read = False

    async def read(self) -> None:
        async with self._database.connection() as connection:
            table = await addresses.route_table(connection)
        known = {address.route.source for address in table.addresses}
        usable = frozenset(filter(self._is_usable, known))
        self.is_read = True
        if (table, usable) == (self._table, self._usable):
            return
        for lacking in sorted(known - usable, key=str):
            log.warning("address_not_on_this_machine", address=str(lacking))
        self._table, self._usable = table, usable
        self._by_pool = {name: table.routes_of(name, usable) for name in table.pools}

    def of(self, account_id: AccountId) -> tuple[Route, ...] | None:
        """The routes of the account's pool; empty: as the machine sends by itself. None while its mail has to wait."""
        pool = self._table.pool_of(account_id)
        return () if pool is None else self._by_pool.get(pool) or None

    def from_route(self, account_id: AccountId, first: Route | None, sender: str) -> tuple[Route, ...] | None:
        """The route, and one for servers of the other family; None if the account's mail leaves by others by now."""
        routes = self.of(account_id)
        if first is None:
            return () if routes == () else None
        return with_other_family(first, routes, sender) if routes and first in routes else None
