"""Measures what storing bodies costs PostgreSQL: as they are, and compressed by it with lz4.

    make bench-bodies                             (or: python bench/bodies.py)
    python bench/bodies.py --quick --output /tmp/bench

The server's own accepting statements run in batches, as in `make bench`, with nothing in front of them.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import accept_floor, dataset, harness, message, report
from bench.accept_floor import WAL_KB
from bench.dataset import Dataset, with_connection
from bench.harness import Run
from bench.processes import Measured
from bench.report import Goal, Report, Runs, goal, middle
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 3
SECONDS: Final = 6
QUICK_SECONDS: Final = 1
BATCH: Final = 50
STORED_KB: Final = "stored KB"

# As PostgreSQL stores them where it has no lz4, and where it has.
_PLAIN: Final = "SET STORAGE EXTERNAL, SET (toast_tuple_target = 8160)"
_LZ4: Final = "SET STORAGE MAIN, ALTER COLUMN mime SET COMPRESSION lz4, SET (toast_tuple_target = 1024)"

_PARTITIONS: Final = "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'bodies'::regclass"
_SIZE: Final = "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'bodies'::regclass"


@dataclass(frozen=True, slots=True)
class Phase:
    kind: str
    mail: bytes
    is_compressed: bool

    @property
    def name(self) -> str:
        return f"{self.kind}, {'lz4' if self.is_compressed else 'as it is'}"

    def run(self, data: Dataset, seconds: int) -> Measured:
        with_connection(data.url, self._set_storage)
        measured = accept_floor.run(data, batch=BATCH, clients=2, seconds=seconds, mail=self.mail)
        size = with_connection(data.url, lambda connection: connection.fetchval(_SIZE))
        stored = {STORED_KB: float(size) / measured.count / 1024}
        return replace(measured, figures={**measured.figures, **stored})

    async def _set_storage(self, connection: Any) -> None:
        for row in await connection.fetch(_PARTITIONS):
            changes = _LZ4 if self.is_compressed else _PLAIN
            await connection.execute(f"ALTER TABLE {row['name']} ALTER COLUMN mime {changes}")


@dataclass(frozen=True, slots=True)
class Kind:
    """`saved_min` is how much less write-ahead log is wanted."""

    name: str
    mail: bytes
    saved_min: float | None = None

    @property
    def plain(self) -> Phase:
        return Phase(self.name, self.mail, is_compressed=False)

    @property
    def compressed(self) -> Phase:
        return Phase(self.name, self.mail, is_compressed=True)


KINDS: Final = (
    Kind("3 KB, the mail of the other benchmarks", accept_floor.stored_mail(), 0.40),
    Kind("3 KB of HTML", message.newsletter(3_000)),
    Kind("30 KB of HTML", message.newsletter(30_000), 0.70),
    Kind("90 KB of base64", message.attachment(90_000)),
)
PHASES: Final = tuple(phase for kind in KINDS for phase in (kind.plain, kind.compressed))


def measure(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    rows: dict[str, list[Measured]] = {phase.name: [] for phase in PHASES}
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, a thousand accounts"):
            data = dataset.make(cluster, run.workplace)
        for round_name, phase in run.interleaved(PHASES):
            with run.status(f"{round_name}: {phase.name}"):
                rows[phase.name].append(phase.run(data, seconds))
            run.say(f"{round_name}: {phase.name}: {rows[phase.name][-1]}")
    columns = [
        ("messages/s", middle("{:,.0f}", lambda run: run.per_second)),
        ("CPU µs: PostgreSQL", middle("{:.0f}", lambda run: run.server_us["PostgreSQL"])),
        ("WAL KB", middle("{:.1f}", lambda run: run.figures[WAL_KB])),
        ("stored KB", middle("{:.1f}", lambda run: run.figures[STORED_KB])),
    ]
    compressed = [phase.name for phase in PHASES if phase.is_compressed]
    return Report(
        name="bodies",
        title="Bodies",
        target="bench-bodies",
        machine=report.machine(),
        tables=[report.table("Bodies: medians of interleaved rounds", "Mail", rows, columns, compressed)],
        goals=goals(rows),
        notes=report.notes(
            "bodies",
            repeated=report.repeated(run.rounds),
            seconds=seconds,
            batch=BATCH,
            variation=report.variation(rows),
        ),
    )


def goals(rows: Runs) -> list[Goal]:
    found = []
    for kind in KINDS:
        if kind.saved_min is not None:
            ratio = report.ratio(rows[kind.compressed.name], rows[kind.plain.name], lambda run: run.figures[WAL_KB])
            saved = 1 - (ratio or 1.0)
            text = f"{kind.name}: at least {kind.saved_min:.0%} less WAL with lz4: {saved:.0%}"
            found.append(goal(saved >= kind.saved_min, text))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, measure, accept_floor.missing)


if __name__ == "__main__":
    sys.exit(main())
