"""Conduct: accounts whose mail nobody has or nobody wants are warned about, and suspended, before all suffer for it.

A round looks at accounts with newly suppressed addresses, and again at those of them that had too few results to
be judged. A suspension is the same as an operator's: mail is held, not dropped, until `account resume`.
"""

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from posthouse.clock import Clock
from posthouse.rules import conduct as rules
from posthouse.rules import ids
from posthouse.rules.conduct import WINDOW, Figures
from posthouse.rules.ids import AccountId
from posthouse.store import accounts, conduct
from posthouse.store.conduct import Standing
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)

WARN_AGAIN: Final = timedelta(days=1)
SUPPRESSIONS_A_ROUND_MAX: Final = 10_000
UNDECIDED_MAX: Final = 1_000
# A suppression is stamped before its transaction commits: what commits within this is still seen.
COMMIT_LONGEST: Final = timedelta(seconds=60)


class Round(NamedTuple):
    """What one round did."""

    looked: int = 0
    warned: int = 0
    suspended: int = 0


class Conduct:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._looked_to: datetime | None = None
        # Too few results so far, and until when those that there are count.
        self._undecided: OrderedDict[AccountId, datetime] = OrderedDict()

    async def round(self) -> Round:
        now = self._clock.now()
        since = now - WINDOW if self._looked_to is None else self._looked_to - COMMIT_LONGEST
        async with self._database.connection() as connection:
            found = await conduct.suppressing(connection, since, now, SUPPRESSIONS_A_ROUND_MAX)
        for account_id in found.account_ids:
            self._undecided[account_id] = now + WINDOW
            self._undecided.move_to_end(account_id)
        while len(self._undecided) > max(UNDECIDED_MAX, len(found.account_ids)):
            self._undecided.popitem(last=False)
        done = Round()
        for account_id in list(self._undecided):
            warned, suspended = await self._look(account_id)
            done = Round(done.looked + 1, done.warned + warned, done.suspended + suspended)
        self._looked_to = found.read_to
        return done

    async def _look(self, account_id: AccountId) -> tuple[bool, bool]:
        """Whether the account was warned about, and whether it was suspended."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            standing = await conduct.standing(connection, account_id)
            if standing is None or standing.suspended_at is not None:
                self._undecided.pop(account_id, None)
                return False, False
            since = rules.counted_since(standing.since, now)
            # To count what became of a day's mail takes a third of a second, and most have no reason for it.
            if not rules.can_be_bad(*await conduct.reasons(connection, account_id, since)):
                del self._undecided[account_id]
                return False, False
            figures = await conduct.figures(connection, account_id, since)
        if figures.finals >= rules.FINALS_MIN or self._undecided[account_id] <= now:
            del self._undecided[account_id]
        match rules.judge(*figures):
            case rules.Conduct.WELL:
                return False, False
            case rules.Conduct.SUSPEND if not standing.exempt:
                return False, await self._suspend(standing, figures)
            case _:
                return await self._warn(standing, figures), False

    async def _suspend(self, standing: Standing, figures: Figures) -> bool:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            # An operator who was here meanwhile is right.
            if await conduct.lock(tx, standing.account_id) != standing:
                return False
            await accounts.suspend(tx, standing.account_id, f"Its conduct: {rules.described(figures)}.", now)
        log.warning("account_suspended_for_its_conduct", **_told(standing, figures))
        return True

    async def _warn(self, standing: Standing, figures: Figures) -> bool:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            is_time = await conduct.warn(tx, standing.account_id, now, now - WARN_AGAIN)
        if is_time:
            log.warning("account_conduct_is_bad", exempt=standing.exempt, **_told(standing, figures))
        return is_time


def _told(standing: Standing, figures: Figures) -> dict[str, object]:
    return {
        "account": ids.text(ids.ACCOUNT, standing.account_id),
        "name": standing.name,
        "results": figures.finals,
        "unknown_percent": round(figures.unknown_percent, 2),
        "complaints_percent": round(figures.complaints_percent, 2),
    }
