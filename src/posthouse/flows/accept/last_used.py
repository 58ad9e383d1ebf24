"""When and from where each credential, key and member was last used or seen: kept in memory, written once a minute.

Writing it with each request would cost a transaction each time. It is also written when the process ends; a process
that is killed loses its last minute.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Final, TypeVar

from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId, UserId
from posthouse.rules.limits import LAST_USED_MAX
from posthouse.store import credentials, users
from posthouse.store.credentials import LastUse, Rehash
from posthouse.store.postgres import Connection, Database

# A statement holds at most this many locks.
WRITTEN_BATCH_MAX: Final = 1_000

Used = TypeVar("Used", CredentialId, ApiKeyId, UserId)


class LastUsed:
    def __init__(self, database: Database, *, remembered_max: int = LAST_USED_MAX) -> None:
        self._database = database
        self._remembered_max = remembered_max
        self._credentials: dict[tuple[AccountId, CredentialId], LastUse] = {}
        self._keys: dict[tuple[AccountId, ApiKeyId], LastUse] = {}
        self._members: dict[tuple[AccountId, UserId], LastUse] = {}

    def of_credential(
        self,
        account_id: AccountId,
        credential_id: CredentialId,
        now: datetime,
        peer: str | None = None,
        rehash: Rehash | None = None,
    ) -> None:
        # More than this are dropped, but no minute has this many in use.
        if len(self._credentials) < self._remembered_max:
            self._credentials[account_id, credential_id] = LastUse(now, peer, rehash)

    def of_key(
        self,
        account_id: AccountId,
        key_id: ApiKeyId,
        now: datetime,
        peer: str | None = None,
        rehash: Rehash | None = None,
    ) -> None:
        if len(self._keys) < self._remembered_max:
            self._keys[account_id, key_id] = LastUse(now, peer, rehash)

    def of_member(self, account_id: AccountId, user_id: UserId, now: datetime) -> None:
        if len(self._members) < self._remembered_max:
            self._members[account_id, user_id] = LastUse(now)

    async def write(self) -> None:
        """Write what is in memory; if that fails, it stays in memory."""
        some, self._credentials = self._credentials, {}
        others, self._keys = self._keys, {}
        members, self._members = self._members, {}
        try:
            await self._write(some, credentials.credentials_used)
            await self._write(others, credentials.keys_used)
            await self._write(members, users.seen)
        finally:
            self._credentials = some | self._credentials
            self._keys = others | self._keys
            self._members = members | self._members

    async def _write(
        self,
        last_used: dict[tuple[AccountId, Used], LastUse],
        write: Callable[[Connection, Mapping[tuple[AccountId, Used], LastUse]], Awaitable[None]],
    ) -> None:
        """Remove the written entries from `last_used`."""
        while last_used:
            some = dict(islice(last_used.items(), WRITTEN_BATCH_MAX))
            async with self._database.transaction() as tx:
                await write(tx, some)
            for used in some:
                del last_used[used]
