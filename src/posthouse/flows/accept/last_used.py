"""When and from where each credential, key and member was last used or seen: kept in memory, written once a minute.

Writing it with each request would cost a transaction each time. It is also written when the process ends; a process
that is killed loses its last minute.
"""

from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final, TypeVar

from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId, UserId
from posthouse.rules.limits import LAST_USED_MAX
from posthouse.store import credentials, users
from posthouse.store.credentials import LastUse
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

    def note_credential(self, account_id: AccountId, credential_id: CredentialId, use: LastUse) -> None:
        self._note(self._credentials, (account_id, credential_id), use)

    def note_key(self, account_id: AccountId, key_id: ApiKeyId, use: LastUse) -> None:
        self._note(self._keys, (account_id, key_id), use)

    def note_member(self, account_id: AccountId, user_id: UserId, use: LastUse) -> None:
        self._note(self._members, (account_id, user_id), use)

    def _note(self, uses: dict[tuple[AccountId, Used], LastUse], used: tuple[AccountId, Used], use: LastUse) -> None:
        # More than this are dropped, but no minute has this many in use.
        if len(uses) < self._remembered_max:
            uses[used] = use

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
