"""The sandbox domain: a verified domain of the operator's account that new accounts may send their first mail from.

Each account gets its own row for it, verified and marked as shared. So its mail is from a domain that it has
(promise 11), and return paths, suppressions and unsubscriptions belong to the account as for any other domain. Only
the keys are the operator's. Mail from it may go only to members of the account and to the simulator
(`accept.preparation`).

Rows are never deleted, because the audit compares old mail with them. A row that is no longer shared is not verified,
and not shown.
"""

from datetime import datetime
from typing import Final

from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.rules import ids
from posthouse.rules.ids import AccountId, DomainId
from posthouse.store import accounts, domains
from posthouse.store.domains import DomainRow
from posthouse.store.postgres import Connection

CHANGED_BATCH_MAX: Final = 500


class SandboxDomain(Flow):
    def __init__(self, context: Context, *, name: str, account: str) -> None:
        """`account` is the name or id of the account that has the domain; with an empty `name`, nothing is shared."""
        super().__init__(context)
        self.name = name
        self.account = account

    async def share(self, tx: Connection, account_id: AccountId, now: datetime) -> None:
        """Give a new account its row, if the domain is verified."""
        source = await self._source(tx)
        if source is not None and source.account_id != account_id:
            await domains.insert(tx, self._row(source, account_id, now), now)

    async def is_verified(self, connection: Connection) -> bool:
        return await self._source(connection) is not None

    async def run(self) -> int:
        """Give rows to accounts without a verified domain, take back those no longer shared; returns the number."""
        async with self._database.connection() as connection:
            source = await self._source(connection)
        changed = 0
        while True:
            async with self._database.transaction() as tx:
                count = await self._step(tx, source)
            changed += count
            if not count:
                return changed

    async def _step(self, tx: Connection, source: DomainRow | None) -> int:
        now = self._clock.now()
        count = await domains.unshare(tx, "" if source is None else source.name, now, CHANGED_BATCH_MAX)
        if source is None or count:
            return count
        count = await domains.share_again(tx, source, now, CHANGED_BATCH_MAX)
        for account_id in await domains.accounts_without(tx, source.name, CHANGED_BATCH_MAX - count):
            await domains.insert(tx, self._row(source, account_id, now), now)
            count += 1
        return count

    async def _source(self, connection: Connection) -> DomainRow | None:
        if not self.name:
            return None
        account_id = ids.parse(ids.ACCOUNT, self.account)
        if account_id is None:
            found = await accounts.find_by_name(connection, self.account)
            account_id = None if found is None else found.id
        row = None if account_id is None else await domains.find(connection, AccountId(account_id), self.name)
        is_shareable = row is not None and row.verified_at is not None and not row.is_shared
        return row if is_shareable else None

    def _row(self, source: DomainRow, account_id: AccountId, now: datetime) -> DomainRow:
        domain_id = DomainId(new_id(self._randomness, now))
        return DomainRow(
            account_id=account_id,
            id=domain_id,
            name=source.name,
            token="",
            selector=source.selector,
            dkim_public=source.dkim_public,
            created_at=now,
            verified_at=now,
            checked_at=None,
            missing_since=None,
            # The key itself is only in the operator's row.
            dkim_sealed=self._keys.sealer.seal(b"", domains.dkim_purpose(account_id, domain_id)),
            shared_from=source.account_id,
        )
