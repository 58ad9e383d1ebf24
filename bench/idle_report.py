"""The report on idle SMTP sessions: what they cost, and how new clients are served beside them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from bench import report
from bench.report import Goal, Report, Rows, goal

# Of those who are being turned away, and of connections to PostgreSQL that came or went meanwhile.
DESCRIPTORS_MORE_MAX: Final = 20
VISIT_RATIO_MAX: Final = 1.5

_COST_COLUMNS: Final = (
    *("Idle sessions", "opened in", "resident before", "with them", "KB each", "after them"),
    *("processor", "descriptors before", "when full", "after them"),
)
_VISIT_COLUMNS: Final = ("New clients", "session p50 ms", "most", "mail p50 ms", "most", "both ×")


class Visit(NamedTuple):
    """How long it took to be let in, from the first packet to the password's acceptance; and then to hand in a mail."""

    session_seconds: float
    mail_seconds: float


@dataclass(frozen=True, slots=True)
class Findings:
    """`replies` are those to clients that came when the server was full."""

    kind: str
    sessions: int
    sessions_max: int
    opening_seconds: float
    before_bytes: int
    idle_bytes: int
    left_bytes: int
    processor_part: float
    before_descriptors: int
    full_descriptors: int
    left_descriptors: int
    descriptors_max: int
    visits_before: Sequence[Visit]
    visits_beside: Sequence[Visit]
    visits_after: Sequence[Visit]
    replies: Sequence[str]

    @property
    def bytes_each(self) -> float:
        return (self.idle_bytes - self.before_bytes) / self.sessions

    @property
    def answer_seconds(self) -> list[float]:
        """Of new clients while the idle were there."""
        return [sum(visit) for visit in self.visits_beside]

    @property
    def visit_ratio(self) -> float:
        """Of a session and its mail beside the idle, to those before and after them."""
        without = median(sum(visit) for visit in (*self.visits_before, *self.visits_after))
        return median(self.answer_seconds) / without

    @property
    def has_bounded_descriptors(self) -> bool:
        return (
            self.full_descriptors <= self.before_descriptors + self.sessions_max + DESCRIPTORS_MORE_MAX
            and self.left_descriptors <= self.before_descriptors + DESCRIPTORS_MORE_MAX
        )


def goals(found: Sequence[Findings]) -> list[Goal]:
    reached = []
    for one in found:
        answers = "; ".join(f"{count} × {text.rstrip('.')}" for text, count in Counter(one.replies).most_common())
        is_closed = all(text.startswith("421 ") or text == "hung up" for text in one.replies)
        reached += [
            goal(
                one.has_bounded_descriptors,
                f"descriptors with {one.sessions_max:,} sessions ({one.kind}) and {len(one.replies)} more that came: "
                f"{one.full_descriptors:,} of {one.descriptors_max:,}, and {one.left_descriptors} when they had left",
            ),
            goal(is_closed, f"no client over the limit of {one.sessions_max:,} was let in: {answers}"),
            goal(
                one.visit_ratio <= VISIT_RATIO_MAX,
                f"a new session and its mail, p50 beside {one.sessions:,} idle ones ({one.kind}) at "
                f"{VISIT_RATIO_MAX}× or less of without: {one.visit_ratio:.2f}×",
            ),
        ]
    return reached


def _cost_cells(one: Findings) -> list[str]:
    return [
        f"{one.sessions:,} {one.kind}",
        f"{one.opening_seconds:.1f} s",
        f"{one.before_bytes / 2**20:.0f} MB",
        f"{one.idle_bytes / 2**20:.0f} MB",
        f"{one.bytes_each / 1024:.1f}",
        f"{one.left_bytes / 2**20:.0f} MB",
        f"{one.processor_part:.1%}",
        f"{one.before_descriptors}",
        f"{one.full_descriptors:,}",
        f"{one.left_descriptors}",
    ]


def _visit_rows(one: Findings) -> list[list[str]]:
    def cells(name: str, visits: Sequence[Visit], ratio: str) -> list[str]:
        def ms(value: Callable[[list[float]], float], place: int) -> str:
            return f"{value([visit[place] for visit in visits]) * 1e3:.1f}"

        return [name, ms(median, 0), ms(max, 0), ms(median, 1), ms(max, 1), ratio]

    idle = f"{one.sessions:,} idle ones, {one.kind}"
    return [
        cells(f"before {idle}", one.visits_before, "1.00"),
        cells(f"beside {idle}", one.visits_beside, f"{one.visit_ratio:.2f}"),
        cells(f"after {idle}", one.visits_after, "1.00"),
    ]


def made(found: Sequence[Findings], seconds: float) -> Report:
    visits = [row for findings in found for row in _visit_rows(findings)]
    return Report(
        name="idle",
        title="Idle SMTP sessions",
        target="bench-idle",
        machine=report.machine(),
        tables=[
            Rows("Idle SMTP sessions in one process", _COST_COLUMNS, [_cost_cells(findings) for findings in found]),
            Rows("New clients beside them", _VISIT_COLUMNS, visits),
        ],
        goals=goals(found),
        notes=_notes(found[0], seconds),
    )


def _notes(first: Findings, seconds: float) -> str:
    return f"""\
What was measured: one process of `posthouse run submission`, a new one for each kind of session, with
`smtp_connections_max` at {first.sessions_max:,}. It may open {first.descriptors_max:,} files.

- The idle come from several addresses; those *in the clear* have said EHLO and might begin TLS, the others have done so
  from the first byte on and have authenticated. Then they say nothing for {seconds:.0f} s, over which the processor's
  part is taken, and while new clients come. None of them was disconnected, or there is no result. Their memory
  stays with the process afterwards, for later sessions.
- *New clients* come one after the other, {len(first.visits_before)} each time, before the idle, beside them and after
  them: a TLS handshake, EHLO and AUTH, which is the *session*; then a mail, which is on PostgreSQL's disk when it is
  answered. The ratio is of both together, beside the idle to the median of before and after.
- A client that comes when the server is full gets a 421 in the clear. Within TLS from the first byte on the connection
  is closed instead: a handshake costs what is short. Mail programs retry after either."""
