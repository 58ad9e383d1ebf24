"""Content that is to be forgotten is deleted once its message is final."""

from typing import Final

from posthouse import crash
from posthouse.store import forgotten_content
from posthouse.store.postgres import Database

CONTENTS_A_PAGE: Final = 1_000


class ContentForgetting:
    def __init__(self, *, database: Database, page: int = CONTENTS_A_PAGE) -> None:
        self._database = database
        self._page = page

    async def run(self) -> int:
        """Look at all that waits, a page a transaction; returns how many bodies were deleted."""
        after, deleted = forgotten_content.FIRST, 0
        while True:
            async with self._database.transaction() as tx:
                page = await forgotten_content.page(tx, after, self._page)
                final = [content for content in page if content.is_final]
                if final:
                    await forgotten_content.forget(tx, final)
                    crash.point("upkeep.before_forgetting_content")
            if final:
                crash.point("upkeep.forgotten_content")
            deleted += len(final)
            if len(page) < self._page:
                return deleted
            after = page[-1].account_id, page[-1].message_id
