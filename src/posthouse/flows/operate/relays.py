"""External relays, as an operator manages them. Delivery workers see every change within seconds."""

from collections.abc import Sequence
from math import isfinite
from typing import Final

from posthouse.flows.shared.context import Flow
from posthouse.rules import input_checks, route
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.store import relays, sending_addresses
from posthouse.store.audit_log import Detail
from posthouse.store.postgres import Connection
from posthouse.store.relays import RelayRow as RelayRow

PER_SECOND_MAX: Final = 1_000.0
PER_DAY_MAX: Final = 100_000_000
CREDENTIAL_CHARACTERS_MAX: Final = 500


class Relays(Flow):
    async def list_relays(self) -> Sequence[RelayRow]:
        async with self._database.connection() as connection:
            return await relays.list_all(connection)

    async def add(
        self,
        name: str,
        host: str,
        *,
        port: int,
        username: str,
        password: str,
        per_second: float,
        per_day: int | None = None,
    ) -> RelayRow:
        """Add a relay, or change the one with this name."""
        if route.is_name(name) is None:
            raise invalid("A relay's name has 1 to 40 characters: a–z, 0–9 and hyphens, none at its beginning.")
        host = input_checks.domain_name(host)
        if not 1 <= port <= 65_535:
            raise invalid("A port is a number from 1 to 65535.")
        if not isfinite(per_second) or not 0 < per_second <= PER_SECOND_MAX:
            raise invalid(f"The rate is above 0 and at most {PER_SECOND_MAX:.0f} messages per second.")
        if per_day is not None and not 0 < per_day <= PER_DAY_MAX:
            raise invalid(f"The messages per day are above 0 and at most {PER_DAY_MAX:,}.")
        _check_credential("username", username)
        _check_credential("password", password)
        sealed = self._keys.sealer.seal(password.encode(), relays.password_purpose(name))
        relay = RelayRow(name, host, port, username, sealed, per_second, per_day, self._clock.now())
        async with self._database.transaction() as tx:
            await relays.put(tx, relay)
            await self._note(tx, "relay.added", name, {"host": host, "port": port, "per_second": f"{per_second:g}"})
            return next(row for row in await relays.list_all(tx) if row.name == name)

    async def remove(self, name: str) -> None:
        async with self._database.transaction() as tx:
            if name not in await relays.lock(tx):
                raise _no_relay(name)
            users = next(row.pools for row in await relays.list_all(tx) if row.name == name)
            if users:
                raise Refusal(
                    Code.CONFLICT,
                    f"The pool {users[0]} uses the relay {name}: `posthouse pool relay {users[0]} --none` ends that.",
                )
            await relays.remove(tx, name)
            await self._note(tx, "relay.removed", name, {})

    async def set_pool_relay(self, pool: str, relay: str | None) -> None:
        """Send mail of the pool through this relay while none of its addresses may send it; None: it waits."""
        async with self._database.transaction() as tx:
            if relay is not None and relay not in await relays.lock(tx):
                raise _no_relay(relay)
            if pool not in await sending_addresses.pools_by_name(tx):
                raise Refusal(Code.NOT_FOUND, f"There is no pool {pool!r}: create it with `posthouse pool add {pool}`.")
            await sending_addresses.set_pool_relay(tx, pool, relay)
            await self._note(tx, "pool.relay_set", pool, {"relay": relay})

    async def _note(self, tx: Connection, action: str, target: str, detail: Detail) -> None:
        await self._operator_log.add_entry(tx, action, target, self._clock.now(), detail)


def _check_credential(what: str, given: str) -> None:
    if not 1 <= len(given) <= CREDENTIAL_CHARACTERS_MAX or "\0" in given or "\n" in given:
        raise invalid(f"The {what} has 1 to {CREDENTIAL_CHARACTERS_MAX} characters, on one line.")


def _no_relay(name: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"There is no relay {name!r}: `posthouse relay list` shows the relays.")
