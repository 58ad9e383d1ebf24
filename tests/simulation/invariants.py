"""What holds after every step, whatever the steps were; and what also holds once all work is finished."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Final

from posthouse.flows.operate.audit import Audit, OutsideLogs
from posthouse.rules import ids, retry
from posthouse.rules.audit.promises import AuditTally
from tests.simulation.simulated_service import SimulatedService
from tests.support.accept_flow import SIMULATOR
from tests.support.context import context
from tests.support.database_checks import PROMISES
from tests.support.delivery_flow import IDENTITY

# Only the checks of the database, in one query.
_DATABASE_CHECKS: Final = " UNION ALL ".join(
    f"(SELECT '{name}' AS promise, to_jsonb(broken)::text AS shown FROM ({query}) broken LIMIT 3)"
    for name, query in ((name.replace("'", "''"), query) for name, query in PROMISES.items())
)

_ATTEMPTS: Final = """
SELECT message_id, position, worker_id, started_at, finished_at, outcome FROM attempts
ORDER BY message_id, position, fence
"""

# Every attempt has its outcome recorded, unless its worker died.
_UNRECORDED: Final = """
SELECT message_id, position FROM attempts
WHERE outcome IS NULL AND worker_id <> ALL($1::uuid[]) AND started_at < $2
"""

CLAIM_LONGEST: Final = timedelta(minutes=61)
# Stored times are rounded.
ROUNDING: Final = timedelta(milliseconds=5)
WAITS: Final = [wait * (1 - retry.DELIVERY.spread) for wait in retry.DELIVERY.waits]


class Broken(AssertionError):  # noqa: N818 (reads as what it says)
    """Broken promises."""


async def require(simulation: SimulatedService) -> None:
    """After every step."""
    found = list(simulation.complaints)
    found += [f"{row['promise']}: {row['shown']}" for row in await simulation.observer.fetch(_DATABASE_CHECKS)]
    long_ago = simulation.clock.now() - CLAIM_LONGEST
    rows = await simulation.observer.fetch(_UNRECORDED, list(simulation.doubtful_workers), long_ago)
    found += [f"{_name(row)}: an attempt has no recorded outcome, and no worker died" for row in rows]
    found += await _attempts(simulation)
    found += _calls(simulation)
    if found:
        raise Broken("\n".join(found))


async def require_idle(simulation: SimulatedService) -> AuditTally:
    """When all work is finished: the audit, with all outside logs."""
    await require(simulation)
    found = []
    rows = await simulation.observer.fetch(
        "SELECT id, status FROM messages WHERE open_count > 0 UNION ALL"
        " SELECT id, status FROM webhook_deliveries WHERE status = 'pending'"
    )
    found += [f"{row['id']} is {row['status']}, and nothing is left to do" for row in rows]
    audit = Audit(
        context(
            simulation.database, simulation.clock, sealer=simulation.sealer, return_path=[IDENTITY.return_path_key]
        ),
        return_path_domain=IDENTITY.return_path_domain,
        simulator_domain=SIMULATOR,
    )
    logs = OutsideLogs(sender=simulation.sent_log, receiver=simulation.carrier.log, webhooks=simulation.caller.log)
    tally = await audit.audit(logs, lambda _: None)
    if tally.is_broken:
        found += [
            f"{finding.promise.name} {finding.fault}: {finding.where}: {finding.what}" for finding in tally.findings
        ]
    if found:
        raise Broken("\n".join(found))
    return tally


def _name(row: Sequence[object]) -> str:
    return f"{row['message_id']}/{row['position']}"  # type: ignore[call-overload]


async def _attempts(simulation: SimulatedService) -> list[str]:
    """No attempt is earlier or more frequent than the retry schedule allows."""
    found = []
    by_recipient: dict[str, list[Sequence[object]]] = {}
    for row in await simulation.observer.fetch(_ATTEMPTS):
        by_recipient.setdefault(_name(row), []).append(row)
    for name, rows in by_recipient.items():
        counted = 0
        for earlier, later in pairwise([*rows, None]):
            assert earlier is not None
            _, _, worker_id, _, finished_at, outcome = tuple(earlier)
            counted += outcome != "postponed"
            # A worker that lost its lease may record an outcome after the next attempt.
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
        # A started attempt counts; a postponed attempt does not.
        if counted > retry.DELIVERY.attempts_max:
            found.append(f"{name} was tried {counted} times")
    return found


def _calls(simulation: SimulatedService) -> list[str]:
    """No call is earlier or more frequent than the retry schedule allows."""
    found = []
    waits = [wait.total_seconds() for wait in retry.WEBHOOK.waits]
    for event_id, calls in simulation.caller.by_event.items():
        name = ids.text(ids.EVENT, event_id)
        if len(calls) > retry.WEBHOOK.attempts_max:
            found.append(f"{name} was sent {len(calls)} times")
            continue
        for number, (earlier, later) in enumerate(pairwise(calls)):
            is_doubtful = any(call.process in simulation.doubtful_processes for call in calls[: number + 1])
            if not is_doubtful and later.at < earlier.at + waits[number] - ROUNDING.total_seconds():
                found.append(f"{name} was sent again after {later.at - earlier.at:.1f} seconds, at call {number + 2}")
    return found
