"""The routes that mail takes, as the operator set them up: read every few seconds, and asked for every mail."""

from collections.abc import Callable

import structlog

from posthouse.rules.ids import AccountId
from posthouse.rules.public_address import Address
from posthouse.rules.route import Route, RouteTable, choose, with_other_family
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

    @property
    def are_set(self) -> bool:
        """Whether any address was added."""
        return bool(self._table.addresses)

    def is_waiting(self, account_id: AccountId) -> bool:
        """Whether all addresses of the account's pool rest, or are on other machines."""
        pool = self._table.pool_of(account_id)
        return pool is not None and not self._by_pool.get(pool)

    def of(self, account_id: AccountId, domain: str) -> tuple[Route, ...] | None:
        """The route of mail from the domain, and another for servers of the other family.

        Empty: as the machine sends by itself. None while the account's mail has to wait.
        """
        pool = self._table.pool_of(account_id)
        if pool is None:
            return ()
        routes = self._by_pool.get(pool, ())
        first = choose(domain, routes)
        return None if first is None else with_other_family(first, routes, domain)
