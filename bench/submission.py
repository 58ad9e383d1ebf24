"""Measures submission: mails a second accepted over SMTP with TLS and a password, durably, ours beside its peers.

    make bench-submission                         (or: python bench/submission.py)
    python bench/submission.py --rounds 5
    python bench/submission.py --only postfix,posthouse --quick --output /tmp/bench

The same mails come the same way to all: from a load that submits them as fast as they are accepted, in sessions of one
mail and in sessions of twenty. Rounds of all servers in turn, medians over the rounds, ratios within each round. A
figure is given only when every mail that was answered with 250 is on the server's disk, and nothing else is.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import trustme

from bench import ground, haraka, harness, postfix, reception, report, submitted
from bench.ground import Ground
from bench.harness import Contestant, Run
from bench.load import LoadError
from bench.reception import Load, Reception, Taken, Terms
from bench.report import BLUE, PALE_BLUE, Goal, Plot, Report, Rows, goal, medians
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 3
# Each has its own domain and its own password.
SENDERS: Final = 10
SESSIONS: Final = 40
IDLE_SESSIONS: Final = 2_000
# The share of the mails in a quick run.
QUICK_SHARE: Final = 0.03
MAILS_MIN: Final = 80

POSTFIX: Final = "Postfix"
HARAKA: Final = "Haraka"
ONE_PROCESS: Final = "Posthouse, one process"
TWO_PROCESSES: Final = "Posthouse, two processes"
OURS: Final = (ONE_PROCESS, TWO_PROCESSES)
RATIO_MIN: Final = 2.0

_COLOURS: Final = {"submission": BLUE, "PostgreSQL": PALE_BLUE}


class Shape(NamedTuple):
    name: str
    mails: int


SINGLE: Final = Shape("one mail a session", 1)
MANY: Final = Shape("20 mails a session", 20)

Found = Mapping[Shape, Mapping[str, Sequence[Taken]]]


@dataclass(frozen=True, slots=True)
class Field:
    """What the servers share."""

    workplace: Path
    terms: Terms
    ground: Ground
    haraka: Path | None
    load: Load


@dataclass(frozen=True, slots=True)
class ServerUnderTest(Contestant):
    """`mails` of each shape are enough for several seconds, `warm_mails` for its processes and caches to be warm."""

    mails: Mapping[Shape, int]
    warm_mails: int
    running: Callable[[Field], AbstractContextManager[Reception]]


def _postfix(field: Field) -> AbstractContextManager[Reception]:
    return postfix.taking(field.workplace, field.terms)


def _haraka(workers: int) -> Callable[[Field], AbstractContextManager[Reception]]:
    def running(field: Field) -> AbstractContextManager[Reception]:
        assert field.haraka is not None
        return haraka.taking(field.workplace, field.haraka, field.terms, workers=workers)

    return running


def _posthouse(processes: int) -> Callable[[Field], AbstractContextManager[Reception]]:
    return lambda field: submitted.running(field.ground, field.terms, processes=processes)


def _nothing_missing() -> str | None:
    return None


_OURS_MAILS: Final = {SINGLE: 5_000, MANY: 12_000}
_HARAKA_MAILS: Final = {SINGLE: 3_000, MANY: 4_000}
SERVERS: Final = (
    ServerUnderTest("postfix", POSTFIX, postfix.missing_for_submission, {SINGLE: 3_000, MANY: 6_000}, 400, _postfix),
    ServerUnderTest("haraka", HARAKA, haraka.missing, _HARAKA_MAILS, 1_000, _haraka(haraka.ALONE)),
    ServerUnderTest("posthouse", ONE_PROCESS, _nothing_missing, _OURS_MAILS, 400, _posthouse(1)),
)
# To see again which way a server is fastest: named with --only, never in the page by themselves. Two processes of ours
# share the port; they are of use where the servers have more than one processor.
VARIANTS: Final = (
    ServerUnderTest("posthouse-two", TWO_PROCESSES, _nothing_missing, _OURS_MAILS, 400, _posthouse(2)),
    ServerUnderTest("haraka-workers", "Haraka, two workers", haraka.missing, _HARAKA_MAILS, 1_000, _haraka(2)),
)


def measure(run: Run, chosen: Sequence[ServerUnderTest]) -> Report:
    found: dict[Shape, dict[str, list[Taken]]] = {
        shape: {server.name: [] for server in chosen} for shape in (SINGLE, MANY)
    }
    idle: list[str] = []
    with _prepared(run, [server.key for server in chosen]) as (field, programs):
        for round_name, contestant in run.interleaved(chosen):
            with run.status(f"{round_name}: {contestant.name}"), contestant.running(field) as server:
                for shape, taken in _shapes(run, contestant, server, field.load):
                    found[shape][contestant.name].append(taken)
                    parts = ", ".join(f"{name} {cost:,.0f}" for name, cost in taken.server_cpu_us.items())
                    run.say(
                        f"{round_name}: {contestant.name}, {shape.name}: [bold]{taken.per_second:,.0f}[/] mails a "
                        f"second, {taken.mails:,} in {taken.seconds:.1f} s, p50 {taken.p50_ms:.0f} ms, p99 "
                        f"{taken.p99_ms:.0f} ms; CPU µs a mail: {parts}, load {taken.load_cpu_us:,.0f}; other "
                        f"programs had {taken.others_share:.0%} of the processors"
                    )
        if run.options.idle and any(server.name in OURS for server in chosen):
            idle.append(_idle(field, run.options.idle))
        size_bytes = len(reception.letter(field.terms.callers[0]))
    return Report(
        name="submission",
        title="Submission",
        target="bench-submission",
        machine=report.machine(*programs),
        tables=[_table(found)],
        goals=goals(found),
        more=[*_costs(found), *idle],
        notes=_notes(found, run.rounds, size_bytes),
        plot=Plot(
            "submission.png", "Mails accepted a second and processor time a mail", lambda pyplot: _plot(pyplot, found)
        ),
    )


def _shapes(run: Run, contestant: ServerUnderTest, server: Reception, load: Load) -> Iterator[tuple[Shape, Taken]]:
    share = QUICK_SHARE if run.is_quick else run.options.share
    sessions = run.options.sessions

    def taken(mails: int, mails_per_session: int) -> Taken:
        count = max(MAILS_MIN, round(mails * share))
        return reception.measured(server, load, mails=count, mails_per_session=mails_per_session, sessions=sessions)

    taken(contestant.warm_mails, 2)
    for shape, mails in contestant.mails.items():
        yield shape, taken(mails, shape.mails)


def _idle(field: Field, sessions: int) -> str:
    """The memory of sessions that have authenticated and then send nothing, in words."""
    with submitted.running(field.ground, field.terms, processes=1) as server:
        reception.measured(server, field.load, mails=MAILS_MIN, mails_per_session=2, sessions=10)
        (pid,) = server.families["submission"]
        before = _resident_bytes(pid)
        process = field.load.start(server.port, mails=0, mails_per_session=0, sessions=sessions)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"idle\n":
                raise LoadError(f"sessions could not be opened: {process.communicate()[1].decode()[-2000:]}")
            after = _resident_bytes(pid)
        finally:
            process.kill()
            process.communicate()
    return (
        f"{sessions:,} idle sessions of ours, authenticated: {(after - before) / sessions / 1024:.0f} KB each "
        f"({before / 2**20:.0f} MB resident before, {after / 2**20:.0f} MB with them)"
    )


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _prepared(run: Run, keys: Sequence[str]) -> Iterator[tuple[Field, list[str]]]:
    """The field with what the chosen servers need, and the versions of the programs."""
    programs = []
    directory = haraka.installed(run) if any(key.startswith("haraka") for key in keys) else None
    if directory is not None:
        programs.append(f"Haraka {haraka.version(directory)}")
    if "postfix" in keys:
        programs.append(f"Postfix {postfix.version()}")
    processors = _parted()
    with PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, accounts, a certificate"):
            accounts = ground.lay(cluster, run.workplace)
            terms = Terms(*_certified(run.workplace), accounts.callers[:SENDERS])
        load = Load.written(run.workplace, terms.callers, processors)
        yield Field(run.workplace, terms, accounts, directory, load), programs


def _parted() -> list[int]:
    """The processors that are left for the load; processes started from now on run on the others.

    A client needs more for a handshake than a server does: on the same processors, all servers would look alike.
    """
    *rest, last = sorted(os.sched_getaffinity(0))
    if rest:
        os.sched_setaffinity(0, rest)
    return [last]


def _certified(workplace: Path) -> tuple[Path, Path]:
    """A certificate with an ECDSA key on P-256, and that key, as files."""
    issued = trustme.CA().issue_cert("mail.posthouse.example", key_type=trustme.KeyType.ECDSA)
    certificate, key = workplace / "certificate.pem", workplace / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return certificate, key


def goals(found: Found) -> list[Goal]:
    """By the faster of ours, as far as what they are about was measured."""
    reached = []
    for shape, servers in found.items():
        ours = [name for name in OURS if name in servers]
        if not ours:
            continue
        best = max(ours, key=lambda name: medians(servers[name], "per_second"))
        for peer in (POSTFIX, HARAKA):
            ratio = report.ratio(servers[best], servers.get(peer))
            if ratio is not None:
                text = f"{shape.name}, {best}, at {RATIO_MIN:.1f}× {peer} or more: {ratio:.2f}×"
                reached.append(goal(ratio >= RATIO_MIN, text))
    return reached


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def _table(found: Found) -> Rows:
    columns = (
        *("Server", "mails/s", "× Postfix", "× Haraka", "p50 ms", "p99 ms"),
        *("CPU µs: server", "× less than Postfix", "load", "mails"),
    )
    rows = [
        [
            f"{name}, {shape.name}",
            f"{medians(runs, 'per_second'):,.0f}",
            _times(report.ratio(runs, servers.get(POSTFIX))),
            _times(report.ratio(runs, servers.get(HARAKA))),
            f"{medians(runs, 'p50_ms'):.0f}",
            f"{medians(runs, 'p99_ms'):.0f}",
            f"{medians(runs, 'cpu_us'):,.0f}",
            _times(report.ratio(servers[POSTFIX], runs, "cpu_us") if POSTFIX in servers else None),
            f"{medians(runs, 'load_cpu_us'):,.0f}",
            f"{runs[0].mails:,}",
        ]
        for shape, servers in found.items()
        for name, runs in servers.items()
    ]
    styles = ["bold" if name in OURS else None for servers in found.values() for name in servers]
    return Rows("Submission: medians of interleaved rounds", columns, rows, styles)


def _costs(found: Found) -> list[str]:
    lines = []
    for shape, servers in found.items():
        for name in OURS:
            if name in servers:
                costs = report.median_of_each(servers[name], "server_cpu_us")
                parts = ", ".join(f"{part} {cost:,.0f}" for part, cost in costs.items())
                lines.append(f"{name}, {shape.name}: of {sum(costs.values()):,.0f} µs a mail, {parts}")
    return lines


def _notes(found: Found, count: int, size_bytes: int) -> str:
    runs = {f"{name}, {shape.name}": taken for shape, servers in found.items() for name, taken in servers.items()}
    repeated, varied = report.variation(
        {name: [run.per_second for run in taken] for name, taken in runs.items()}, count
    )
    protocols = " or ".join(sorted({run.protocol for taken in runs.values() for run in taken}))
    others = max(run.others_share for taken in runs.values() for run in taken)
    return f"""\
What was measured: {repeated}, each from the load's first connection to its last 250. The ratios are to the peer in the
same round. {varied}: compare ratios and processor time rather than rates. The load has one processor to itself, and
each server in its turn, with all its processes, the others: here that is one as well. Programs that are no part of this
had up to {others:.0%} of the processors meanwhile. The less, the better: one process beside them gets a smaller share
than forty do.

- Every session is a new TLS handshake ({protocols}, never resumed) with the same certificate (ECDSA, P-256), within
  TLS from the first byte on, then EHLO and AUTH PLAIN, ten accounts in turn. Then mails of {size_bytes:,} bytes, text
  and HTML, to one recipient. The load sends MAIL, RCPT and DATA together, waits for a mail's reply before the next
  one, and keeps {SESSIONS} sessions open.
- Every server answers 250 when the mail is on its disk, as strace shows: *Postfix* gives its queue file its last name
  and syncs it, *Haraka* syncs its queue file and then gives it its name (a power cut can undo that, and it removes
  unnamed ones when it starts); neither syncs the directory. *Posthouse* has committed to PostgreSQL with `fsync` on;
  mails that arrive together share a transaction. Nothing is delivered: Postfix holds the mail, Haraka's delivery may
  open no connection, Posthouse runs no worker.
- *Postfix* checks passwords by Cyrus SASL in its own processes (sasldb), and asks no DNS; *Haraka* checks them against
  a list in memory, in one process. Their settings, made for speed, are in `bench/peers/`. Postfix logs to a syslog
  that is not stored, Haraka logs errors only. *Posthouse* is `posthouse run submission`, one process, with all
  that it does for a customer: rate limit, warm-up and credits (with numbers too high
  to refuse), the sender's domain, the mail's header read and checked.
- Afterwards every mail that was answered with 250 must be there, by its name in PostgreSQL (with its recipient, its
  body, its reserved credit and its schedule row) and in Postfix' queue, by number in Haraka's; and nothing
  else, or there is no result.
- Processor time is user and system time a mail, of all processes of the server (PostgreSQL is ours) and of the load."""


def _plot(pyplot: Any, found: Found) -> Any:
    servers = len({name for names in found.values() for name in names})
    figure, grid = pyplot.subplots(
        len(found),
        2,
        figsize=(12, 1.0 + len(found) * (0.9 + 0.45 * servers)),
        width_ratios=(1.2, 1),
        layout="constrained",
        squeeze=False,
    )
    for (shape, by_name), panels in zip(found.items(), grid, strict=True):
        rows = []
        for name, runs in by_name.items():
            ratio = report.ratio(runs, by_name.get(POSTFIX))
            rows.append(
                report.RateAndCost(
                    name,
                    medians(runs, "per_second"),
                    report.median_of_each(runs, "server_cpu_us"),
                    note="" if ratio is None else f" ({ratio:.1f}× {POSTFIX})",
                    is_ours=name in OURS,
                )
            )
        titles = (f"Mails accepted a second, {shape.name}", "Processor time a mail, µs")
        report.rates_and_costs(tuple(panels), titles, rows, _COLOURS)
    report.legend(figure, _COLOURS)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help=f"how many are open at a time ({SESSIONS})")
    parser.add_argument("--idle", type=int, default=IDLE_SESSIONS, help=f"idle sessions, 0: none ({IDLE_SESSIONS})")
    chosen = harness.chosen(parser, SERVERS, VARIANTS, arguments)
    return harness.main(chosen.options, lambda run: measure(run, chosen.contestants), *chosen.missing)


if __name__ == "__main__":
    sys.exit(main())
