"""When each credential and key was last used: kept in memory and written once a minute.

Writing it with each request would cost a transaction each. It is also written when the process ends; a process that
is killed loses its last minute.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Final, TypeVar

from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId
from posthouse.rules.limits import LAST_USED_MAX
from posthouse.store import credentials
from posthouse.store.postgres import Connection, Database

# A statement holds at most this many locks.
WRITTEN_AT_ONCE_MAX: Final = 1_000

Used = TypeVar("Used", CredentialId, ApiKeyId)


class LastUsed:
    def __init__(self, database: Database, *, remembered_max: int = LAST_USED_MAX) -> None:
        self._database = database
        self._remembered_max = remembered_max
        self._credentials: dict[tuple[AccountId, CredentialId], datetime] = {}
        self._keys: dict[tuple[AccountId, ApiKeyId], datetime] = {}

    def of_credential(self, account_id: AccountId, credential_id: CredentialId, now: datetime) -> None:
        # What doesn't fit is dropped: so many are never used within a minute.
        if len(self._credentials) < self._remembered_max:
            self._credentials[account_id, credential_id] = now

    def of_key(self, account_id: AccountId, key_id: ApiKeyId, now: datetime) -> None:
        if len(self._keys) < self._remembered_max:
            self._keys[account_id, key_id] = now

    async def write(self) -> None:
        """Write what is in memory; if that fails, it stays in memory."""
        some, self._credentials = self._credentials, {}
        others, self._keys = self._keys, {}
        try:
            await self._write(some, credentials.credentials_used)
            await self._write(others, credentials.keys_used)
        finally:
            self._credentials = some | self._credentials
            self._keys = others | self._keys

    async def _write(
        self,
        last_used: dict[tuple[AccountId, Used], datetime],
        write: Callable[[Connection, Mapping[tuple[AccountId, Used], datetime]], Awaitable[None]],
    ) -> None:
        """Removes from `last_used` what was written."""
        while last_used:
            some = dict(islice(last_used.items(), WRITTEN_AT_ONCE_MAX))
            async with self._database.transaction() as tx:
                await write(tx, some)
            for used in some:
                del last_used[used]
