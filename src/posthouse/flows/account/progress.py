"""How far a new account has come with its first steps."""

from collections.abc import Mapping
from datetime import datetime

from posthouse.flows.shared.snapshot import snapshot
from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.progress import Step
from posthouse.store import progress
from posthouse.store.postgres import Database


class Progress:
    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def steps(self, account_id: AccountId, user_id: UserId) -> Mapping[Step, datetime | None]:
        """When each step was done; None for those that are not."""
        async with snapshot(self._database) as connection:
            return await progress.steps(connection, account_id, user_id)
