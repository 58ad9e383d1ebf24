"""How near accounts are to a limit, for operators, and which are the nearest.

Apart from the other flows of accounts, because what it imports takes time, which commands would pay for.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Final

from posthouse.clock import Clock
from posthouse.flows.operate.accounts import FirstAccounts, all_accounts, first_ids
from posthouse.flows.shared.account_limits import Defaults, working_copy
from posthouse.rules.ids import AccountId
from posthouse.rules.nearest_limit import NearestLimit as NearestLimit
from posthouse.rules.nearest_limit import nearest_limit
from posthouse.store import acceptance, account_figures
from posthouse.store.account_figures import RankedAccount
from posthouse.store.postgres import Connection, Database

# Of each, the days of a week are read.
ACCOUNTS_A_STEP: Final = 1_000


class NearestLimits:
    def __init__(self, *, database: Database, clock: Clock, defaults: Defaults) -> None:
        self._database = database
        self._clock = clock
        self._defaults = defaults

    async def first(self, limit: int) -> FirstAccounts:
        """The nearest first; each of them is among the first of its kind."""
        today, read = self._clock.now().astimezone(UTC).date(), 0
        by_credits: list[RankedAccount] = []
        by_warmup: list[RankedAccount] = []
        async with self._database.connection() as connection:
            async for account_ids in all_accounts(connection, ACCOUNTS_A_STEP):
                by_credits += await account_figures.fewest_days_left(connection, account_ids, today, limit)
                by_warmup += await account_figures.most_warmup_used(
                    connection, account_ids, today, self._defaults.warmup_limits, limit
                )
                read += len(account_ids)
            near = await self._of(connection, [*{*first_ids(by_credits, limit), *first_ids(by_warmup, limit)}])
        ranked = [RankedAccount(account_id, nearest.share) for account_id, nearest in near.items()]
        return FirstAccounts(first_ids(ranked, limit), read)

    async def of(self, account_ids: Sequence[AccountId]) -> Mapping[AccountId, NearestLimit]:
        """Of those of them that are near to one."""
        async with self._database.connection() as connection:
            return await self._of(connection, account_ids)

    async def _of(self, connection: Connection, account_ids: Sequence[AccountId]) -> Mapping[AccountId, NearestLimit]:
        now = self._clock.now()
        paces = await account_figures.paces(connection, account_ids, now.astimezone(UTC).date())
        found = {
            row.id: nearest_limit(working_copy(row, self._defaults), paces[row.id], now)
            for row in await acceptance.read_many(connection, account_ids)
        }
        return {account_id: nearest for account_id, nearest in found.items() if nearest is not None}
