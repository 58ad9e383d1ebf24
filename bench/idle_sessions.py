"""Measures idle SMTP sessions: what they cost the server, and whether new clients are served as well as without them.

    make bench-idle                                      (or: python bench/idle_sessions.py)
    python bench/idle_sessions.py --sessions 500 --seconds 2 --output /tmp/bench

The server is real, in its own process, on a private PostgreSQL; `bench/idle_session_costs.py` says how it is
measured. Exits with 1 when an idle session was lost, a message was not accepted, or a client over the limit was let in.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, report
from bench.harness import Run
from bench.idle_session_costs import Findings, is_bounded, measure_both
from bench.processes import BenchError
from bench.report import Goal, Report, Rows, goal
from tests.faults.idle_clients import may_open
from tools.private_postgres import PrivatePostgres

SESSIONS: Final = 10_000
SECONDS: Final = 10.0
NEW_SESSIONS: Final = 100
NEW_SESSION_RATIO_MAX: Final = 1.5

_COST_COLUMNS: Final = (
    *("Idle sessions", "opened in", "resident before", "with them", "KB each", "after them"),
    *("processor", "descriptors before", "when full", "after them"),
)
_NEW_SESSION_COLUMNS: Final = ("New clients", "session p50 ms", "most", "message p50 ms", "most", "both ×")


def report_of(run: Run) -> Report:
    options = run.options
    may_open(options.sessions)
    with PrivatePostgres.start() as cluster:
        dataset.migrate(cluster, run.workplace)
        url = cluster.url(dataset.DATABASE)
        found = asyncio.run(measure_both(url, run.workplace, options.sessions, options.seconds, options.new_sessions))
    new_sessions = [row for findings in found for row in _new_session_rows(findings)]
    made = Report(
        name="idle",
        title="Idle SMTP sessions",
        target="bench-idle",
        machine=report.machine(),
        tables=[
            Rows("Idle SMTP sessions in one process", _COST_COLUMNS, [_cost_cells(findings) for findings in found]),
            Rows("New clients during them", _NEW_SESSION_COLUMNS, new_sessions),
        ],
        goals=goals(found),
        notes=report.notes(
            "idle",
            sessions_max=f"{found[0].sessions_max:,}",
            descriptors_max=f"{found[0].descriptors_max:,}",
            seconds=f"{options.seconds:.0f}",
            new_sessions=options.new_sessions,
        ),
    )
    if not is_bounded(found):
        made.show(run.console)
        raise BenchError("a client over the limit was let in, or descriptors were not given back")
    return made


def goals(found: Sequence[Findings]) -> list[Goal]:
    reached = []
    for findings in found:
        most, kind, replies = f"{findings.sessions_max:,}", findings.kind, findings.replies
        listed = "; ".join(f"{count} × {text.rstrip('.')}" for text, count in Counter(replies).most_common())
        is_closed = all(text.startswith("421 ") or text == "hung up" for text in replies)
        descriptors = f"{findings.full.descriptors:,} of {findings.descriptors_max:,}"
        reached += [
            goal(
                findings.has_bounded_descriptors,
                f"descriptors with {most} sessions ({kind}) and {len(replies)} more that came: {descriptors}, and "
                f"{findings.left.descriptors} when they had left",
            ),
            goal(is_closed, f"no client over the limit of {most} was let in: {listed}"),
            goal(
                findings.new_session_ratio <= NEW_SESSION_RATIO_MAX,
                f"a new session and its message, p50 during {findings.sessions:,} idle ones ({kind}) at "
                f"{NEW_SESSION_RATIO_MAX}× or less of without: {findings.new_session_ratio:.2f}×",
            ),
        ]
    return reached


def _cost_cells(findings: Findings) -> list[str]:
    return [
        f"{findings.sessions:,} {findings.kind}",
        f"{findings.opening_seconds:.1f} s",
        f"{findings.before.resident_bytes / 2**20:.0f} MB",
        f"{findings.idle.resident_bytes / 2**20:.0f} MB",
        f"{findings.bytes_each / 1024:.1f}",
        f"{findings.left.resident_bytes / 2**20:.0f} MB",
        f"{findings.processor_part:.1%}",
        f"{findings.before.descriptors}",
        f"{findings.full.descriptors:,}",
        f"{findings.left.descriptors}",
    ]


def _new_session_rows(findings: Findings) -> list[list[str]]:
    rows = []
    for when, new_sessions, ratio in (
        ("before", findings.sessions_before, "1.00"),
        ("during", findings.sessions_during, f"{findings.new_session_ratio:.2f}"),
        ("after", findings.sessions_after, "1.00"),
    ):
        cells = []
        for seconds in (
            [session.session_seconds for session in new_sessions],
            [session.message_seconds for session in new_sessions],
        ):
            cells += [f"{median(seconds) * 1e3:.1f}", f"{max(seconds) * 1e3:.1f}"]
        rows.append([f"{when} {findings.sessions:,} idle ones, {findings.kind}", *cells, ratio])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=1, seconds=SECONDS)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help=f"how many ({SESSIONS:,})")
    parser.add_argument("--new-sessions", type=int, default=NEW_SESSIONS, help=f"new clients each ({NEW_SESSIONS})")
    return harness.main(parser.parse_args(arguments), report_of)


if __name__ == "__main__":
    sys.exit(main())
