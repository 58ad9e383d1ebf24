"""Duplicates: mail that arrived more than once, the record that explains each copy, and how many are allowed.

A worker that dies between a server's 250 and its own commit has its claimed recipients sent again: at most those. So
each kill counts what was in flight, and at the end there may be no more duplicates than that.
"""

import json
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import asyncpg

from tests.support.eventually import eventually
from tests.support.service import Service

# Errors of a query while the database restarts, and for how long they are tolerated.
DATABASE_ERRORS: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# What a worker has claimed and not yet recorded: from before it connects until the commit.
CLAIMED: Final = (
    "SELECT worker_id, count(*) AS held FROM delivery_schedule WHERE worker_id IS NOT NULL GROUP BY worker_id"
)
# An outcome is late when the recipient was claimed again before it was recorded.
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
    """What workers had in flight when they died, and when they lost the database."""

    service: Service
    deaths: int = 0
    # By worker: each dies once, and its claims stay visible until they are reclaimed.
    at_deaths: dict[UUID, int] = field(default_factory=dict)
    connections_at_deaths: int = 0
    database_losses: int = 0
    at_losses: int = 0

    async def note_death(self, connections: int) -> None:
        """A worker has just died; it had this many connections to receiving servers."""
        self.deaths += 1
        self.connections_at_deaths += connections
        for worker_id, held in (await self._held()).items():
            self.at_deaths.setdefault(worker_id, held)

    async def note_database_loss(self) -> None:
        """The workers are about to lose the database for a while, and may lose their leases."""
        self.database_losses += 1
        self.at_losses += sum((await self._held()).values())

    async def _held(self) -> dict[UUID, int]:
        async def held() -> dict[UUID, int] | None:
            with suppress(*DATABASE_ERRORS):
                return {row["worker_id"]: row["held"] for row in await self.service.sql(CLAIMED)}
            return None

        return await eventually(held, lambda read: read is not None) or {}


@dataclass(frozen=True, slots=True)
class DuplicateCounts:
    """Every arrival but a recipient's first, by its cause; where two causes fit, the first of these."""

    # An attempt whose worker died; one whose worker lost its lease and recorded the outcome later.
    orphaned: int
    late: int
    # An attempt without an answer to the final dot.
    ambiguous: int
    unexplained: int
    deaths: int
    connections_at_deaths: int
    in_flight_at_deaths: int
    database_losses: int
    in_flight_at_losses: int

    @property
    def is_exceeded(self) -> bool:
        """A machine that stands still also costs workers their leases: only both causes together have that bound."""
        by_death = self.orphaned + self.unexplained
        bound = self.in_flight_at_deaths + self.in_flight_at_losses
        return by_death > self.in_flight_at_deaths or by_death + self.late > bound

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_exceeded": self.is_exceeded}


async def count_duplicates(log: Path, in_flight: InFlight) -> DuplicateCounts:
    """From the receiving server's log, in which every recipient of a message has its own address."""
    with log.open() as lines:
        arrivals = Counter([json.loads(line)["recipient"] for line in lines])
    surplus = {recipient: count - 1 for recipient, count in arrivals.items() if count > 1}
    causes = {row["email"]: row for row in await in_flight.service.sql(CAUSES, list(surplus))}
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
        in_flight.deaths,
        in_flight.connections_at_deaths,
        sum(in_flight.at_deaths.values()),
        in_flight.database_losses,
        in_flight.at_losses,
    )
