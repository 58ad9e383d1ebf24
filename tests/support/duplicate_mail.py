"""Copies: mail that arrived more often than once, what on record explains each, and how many there may be.

A worker that dies between a server's 250 and its own commit leaves mail that is sent again: no more of it than it had
under way. So whoever kills counts what was under way, and at the end there may be no more copies than that.
"""

import asyncio
import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import asyncpg

from tests.support.service import Service

# What a look at the database may meet after that was restarted; and for how long.
DATABASE_ERRORS: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
DATABASE_AWAY_SECONDS_MAX: Final = 30.0
# What a worker has claimed and not yet recorded, its sessions' recipients: from before it connects until the commit.
CLAIMED: Final = "SELECT worker_id, count(*) AS held FROM schedule WHERE worker_id IS NOT NULL GROUP BY worker_id"
# An outcome is late when the recipient had been claimed anew before it was told.
CAUSES: Final = """
SELECT r.email,
       count(*) FILTER (WHERE a.finished_at IS NULL) AS orphaned,
       count(*) FILTER (WHERE NOT a.is_ambiguous AND EXISTS (
           SELECT FROM attempts b WHERE b.account_id = a.account_id AND b.message_id = a.message_id
               AND b.position = a.position AND b.fence > a.fence AND b.started_at < a.finished_at)) AS late,
       count(*) FILTER (WHERE a.is_ambiguous) AS ambiguous
FROM recipients r JOIN attempts a USING (account_id, message_id, position)
WHERE r.email = ANY($1) GROUP BY r.email
"""


@dataclass(slots=True)
class InFlight:
    """What workers had under way when they died, and when the database went out of their sight."""

    service: Service
    deaths: int = 0
    # By worker, since each dies but once, and what it held stays to be seen until it is taken back.
    at_deaths: dict[UUID, int] = field(default_factory=dict)
    connections_at_deaths: int = 0
    partings: int = 0
    at_partings: int = 0

    async def note_death(self, connections: int) -> None:
        """A worker has died just now; so many connections had it at the servers that take its mail."""
        self.deaths += 1
        self.connections_at_deaths += connections
        for worker_id, held in (await self._held()).items():
            self.at_deaths.setdefault(worker_id, held)

    async def note_parting(self) -> None:
        """The workers are about to lose the database for a while, and may be given up for dead."""
        self.partings += 1
        self.at_partings += sum((await self._held()).values())

    async def _held(self) -> dict[UUID, int]:
        give_up_at = time.monotonic() + DATABASE_AWAY_SECONDS_MAX
        while True:
            try:
                return {row["worker_id"]: row["held"] for row in await self.service.sql(CLAIMED)}
            except DATABASE_ERRORS:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class DuplicateCounts:
    """Every arrival but a recipient's first, by what explains it; where two things could, by the first of these."""

    # By an attempt whose worker died; by one whose worker was given up for dead, and told of it later.
    orphaned: int
    late: int
    # By an attempt that ended without an answer to the final dot.
    ambiguous: int
    unexplained: int
    deaths: int
    connections_at_deaths: int
    under_way_at_deaths: int
    partings: int
    under_way_at_partings: int

    @property
    def is_exceeded(self) -> bool:
        """A machine that stands still has workers given up, too: only both together have a bound for that."""
        by_death = self.orphaned + self.unexplained
        bound = self.under_way_at_deaths + self.under_way_at_partings
        return by_death > self.under_way_at_deaths or by_death + self.late > bound

    def told(self) -> dict[str, Any]:
        return {**asdict(self), "is_exceeded": self.is_exceeded}


async def count_duplicates(log: Path, under_way: InFlight) -> DuplicateCounts:
    """By the receiving server's log, in which every recipient of a message has an address of its own."""
    with log.open() as lines:
        arrivals = Counter([json.loads(line)["recipient"] for line in lines])
    surplus = {recipient: count - 1 for recipient, count in arrivals.items() if count > 1}
    causes = {row["email"]: row for row in await under_way.service.sql(CAUSES, list(surplus))}
    found = Counter[str]()
    for recipient, left in surplus.items():
        for cause in ("orphaned", "late", "ambiguous"):
            explained = min(left, causes[recipient][cause] if recipient in causes else 0)
            found[cause] += explained
            left -= explained
        found["unexplained"] += left
    return DuplicateCounts(
        found["orphaned"],
        found["late"],
        found["ambiguous"],
        found["unexplained"],
        under_way.deaths,
        under_way.connections_at_deaths,
        sum(under_way.at_deaths.values()),
        under_way.partings,
        under_way.at_partings,
    )
