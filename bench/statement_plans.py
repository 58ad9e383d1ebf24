"""How PostgreSQL ran the statements of dispatch and of claims: their plans as run, and the pages that they touched."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bench.backlog_dataset import QUIET, Backlog, Shape
from posthouse.flows.deliver.claim_store import CLAIM_LONGEST
from posthouse.flows.shared.tickets import LEASE
from posthouse.rules.limits import GROUP_COMMIT_ITEMS_MAX
from posthouse.rules.retry import Schedule
from posthouse.store import delivery_claims, delivery_schedule
from posthouse.store.delivery_schedule import DeliveryPostponement
from tests.support import query_plans

# They are explained as they run, by the plans that their connection has made for them.
_EXPLAINING: Final = (
    "LOAD 'auto_explain'",
    "SET auto_explain.log_level = notice",
    "SET auto_explain.log_format = json",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_buffers = on",
    "SET auto_explain.log_timing = off",
    "SET auto_explain.log_min_duration = 0",
)
_NO_LONGER: Final = "SET auto_explain.log_min_duration = -1"
# The day of a partition, and the number of a parameter that a plan happens to use.
_CHANGING: Final = re.compile(r"_\d{8}| \(returns \$\d+\)")
_NAMES: Final = {
    text.strip(): name for name, text in query_plans.statements(delivery_schedule, delivery_claims).items()
}


@dataclass(frozen=True, slots=True)
class Explained:
    """One statement, run once for this many rows."""

    name: str
    rows: int
    pages: int
    plan: tuple[str, ...]


async def explain(backlog: Backlog, retries: Schedule, shape: Shape, *, leased: int, is_full: bool) -> list[Explained]:
    """A batch is leased, a batch of it claimed, and where lanes are full, a batch of the rest postponed."""
    now = backlog.clock.now()
    found: list[Explained] = []
    notices: list[str] = []
    async with backlog.database.connection() as connection:
        for statement in _EXPLAINING:
            await connection.execute(statement)

        def listen(_: object, notice: Any) -> None:
            notices.append(notice.message)

        listened: Any = connection
        listened.add_log_listener(listen)
        async with connection.transaction():
            tickets = await delivery_schedule.lease_due(connection, now, now + LEASE, leased)
        found += _explained(notices, len(tickets))
        in_time = [ticket for ticket in tickets if not is_full or ticket.destination.startswith(QUIET)]
        async with connection.transaction():
            claimed = await delivery_claims.claim(
                connection, backlog.worker_id, in_time[:GROUP_COMMIT_ITEMS_MAX], now, now + CLAIM_LONGEST, retries
            )
        found += _explained(notices, len(claimed))
        if is_full:
            late = [ticket for ticket in tickets if not ticket.destination.startswith(QUIET)][:GROUP_COMMIT_ITEMS_MAX]
            postponements = [
                DeliveryPostponement(ticket.account_id, ticket.message_id, ticket.position, ticket.fence, now + LEASE)
                for ticket in late
            ]
            async with connection.transaction():
                await delivery_schedule.postpone(connection, postponements, now)
            found += [known for known in _explained(notices, len(late)) if known.name == "delivery_schedule.POSTPONE"]
        await connection.execute(_NO_LONGER)
        listened.remove_log_listener(listen)
    await backlog.pass_time(tickets, shape)
    return found


def _explained(notices: list[str], rows: int) -> list[Explained]:
    found = []
    for text in notices:
        if " plan:\n" in text:
            explained = json.loads(text.partition(" plan:\n")[2])
            name = _NAMES.get(explained["Query Text"].strip())
            if name is not None:
                plan = explained["Plan"]
                found.append(Explained(name, rows, _pages(plan), tuple(_lines(plan))))
    notices.clear()
    return found


def _pages(plan: dict[str, Any]) -> int:
    """How often a page was read; a CTE without readers runs after the rest and isn't in the plan's sum."""
    nodes = list(query_plans.nodes(plan))
    read_from = {node.get("CTE Name") for node in nodes}
    apart = [
        node
        for node in nodes
        if (name := node.get("Subplan Name", "")).startswith("CTE ") and name.removeprefix("CTE ") not in read_from
    ]
    return sum(int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"]) for node in (plan, *apart))


def _lines(plan: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """The plan's parts, each under the part that reads from it; those of different days are shown once."""
    kind = plan["Operation"] if plan["Node Type"] == "ModifyTable" else plan["Node Type"]
    words = [
        f"{plan['Subplan Name']}:" if "Subplan Name" in plan else "",
        kind,
        f"using {plan['Index Name']}" if "Index Name" in plan else "",
        f"on {plan['Relation Name']}" if "Relation Name" in plan else "",
    ]
    yield "  " * depth + _CHANGING.sub("", " ".join(word for word in words if word))
    shown: set[tuple[str, ...]] = set()
    for inner in plan.get("Plans", ()):
        lines = tuple(_lines(inner, depth + 1))
        if lines not in shown:
            shown.add(lines)
            yield from lines
