"""What is true after every step, whatever the steps were; and what is true besides once everything has come to rest."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Final

from posthouse.flows.operate.audit import Audit, Logs
from posthouse.rules import ids, retry
from posthouse.rules.audit.promises import AuditTally
from tests.simulation.simulated_service import IDENTITY, SIMULATOR, SimulatedService
from tests.support.database_checks import PROMISES

# Of what the database alone can tell, in one round trip.
_BOOKS: Final = " UNION ALL ".join(
    f"(SELECT '{name}' AS promise, to_jsonb(broken)::text AS shown FROM ({query}) broken LIMIT 3)"
    for name, query in ((name.replace("'", "''"), query) for name, query in PROMISES.items())
)

_ATTEMPTS: Final = """
SELECT message_id, position, worker_id, started_at, finished_at, outcome FROM attempts
ORDER BY message_id, position, fence
"""

# Whoever is tried is tried by a worker that tells what came of it, unless it died over it.
_UNTOLD: Final = """
SELECT message_id, position FROM attempts
WHERE outcome IS NULL AND worker_id <> ALL($1::uuid[]) AND started_at < $2
"""

CLAIM_LONGEST: Final = timedelta(minutes=61)
# What is read of a clock and what is written down differ by rounding.
ROUNDING: Final = timedelta(milliseconds=5)
WAITS: Final = [wait * (1 - retry.DELIVERY.spread) for wait in retry.DELIVERY.waits]


class Broken(AssertionError):  # noqa: N818 (reads as what it says)
    """Promises that don't hold."""


async def require(simulation: SimulatedService) -> None:
    """After every step."""
    found = list(simulation.complaints)
    found += [f"{row['promise']}: {row['shown']}" for row in await simulation.onlooker.fetch(_BOOKS)]
    long_ago = simulation.clock.now() - CLAIM_LONGEST
    rows = await simulation.onlooker.fetch(_UNTOLD, list(simulation.doubtful_workers), long_ago)
    found += [f"{_name(row)}: nobody told what came of an attempt, and nobody died" for row in rows]
    found += await _attempts(simulation)
    found += _calls(simulation)
    if found:
        raise Broken("\n".join(found))


async def require_rest(simulation: SimulatedService) -> AuditTally:
    """When everything has come to its end: the audit, with every witness."""
    await require(simulation)
    found = []
    rows = await simulation.onlooker.fetch(
        "SELECT id, status FROM messages WHERE open_count > 0 UNION ALL"
        " SELECT id, status FROM webhook_deliveries WHERE status = 'pending'"
    )
    found += [f"{row['id']} is {row['status']}, and nothing is left to do" for row in rows]
    audit = Audit(
        database=simulation.database,
        clock=simulation.clock,
        sealer=simulation.sealer,
        return_path_domain=IDENTITY.return_path_domain,
        return_path_key=IDENTITY.return_path_key,
        simulator_domain=SIMULATOR,
    )
    logs = Logs(sender=simulation.sent_log, receiver=simulation.carrier.log, webhooks=simulation.caller.log)
    tally = await audit.audit(logs, lambda _: None)
    if tally.is_broken:
        found += [f"{one.promise.name} {one.fault}: {one.where}: {one.what}" for one in tally.findings]
    if found:
        raise Broken("\n".join(found))
    return tally


def _name(row: Sequence[object]) -> str:
    return f"{row['message_id']}/{row['position']}"  # type: ignore[call-overload]


async def _attempts(simulation: SimulatedService) -> list[str]:
    """No attempt is made earlier, or more often, or later than the schedule has it."""
    found = []
    by_recipient: dict[str, list[Sequence[object]]] = {}
    for row in await simulation.onlooker.fetch(_ATTEMPTS):
        by_recipient.setdefault(_name(row), []).append(row)
    for name, rows in by_recipient.items():
        counted = 0
        for earlier, later in pairwise([*rows, None]):
            assert earlier is not None
            _, _, worker_id, _, finished_at, outcome = tuple(earlier)
            counted += outcome != "postponed"
            # Whoever was given up for dead may tell late what has long been tried again.
            if (
                later is None
                or outcome != "deferred"
                or worker_id in simulation.doubtful_workers
                or counted > len(WAITS)
            ):
                continue
            started_at = tuple(later)[3]
            if started_at < finished_at + WAITS[counted - 1] - ROUNDING:  # type: ignore[operator]
                found.append(f"{name} was tried again at {started_at}, after attempt {counted} ended at {finished_at}")
        # An attempt that was begun is counted; one that was postponed later is not any more.
        if counted > retry.DELIVERY.attempts_max:
            found.append(f"{name} was tried {counted} times")
    return found


def _calls(simulation: SimulatedService) -> list[str]:
    """No call is made earlier or more often than the schedule has it."""
    found = []
    waits = [wait.total_seconds() for wait in retry.WEBHOOK.waits]
    for event_id, calls in simulation.caller.by_event.items():
        name = ids.text(ids.EVENT, event_id)
        if len(calls) > retry.WEBHOOK.attempts_max:
            found.append(f"{name} was told {len(calls)} times")
            continue
        for number, (earlier, later) in enumerate(pairwise(calls)):
            is_doubtful = any(one.process in simulation.doubtful_processes for one in calls[: number + 1])
            if not is_doubtful and later.at < earlier.at + waits[number] - ROUNDING.total_seconds():
                found.append(f"{name} was told again after {later.at - earlier.at:.1f} seconds, at call {number + 2}")
    return found
