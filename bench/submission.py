"""Measures submission: mails a second taken over SMTP with TLS and a password, durably, ours beside its peers.

    make bench-submission                         (or: python bench/submission.py)
    python bench/submission.py --rounds 5
    python bench/submission.py --only postfix,posthouse --quick --output /tmp/bench

The same letters come the same way to all: from a load that hands them in as fast as they are taken, in sessions of one
mail and in sessions of twenty. Rounds of all servers in turn, medians over the rounds, ratios within each round. A
figure is given only when every mail that was answered with 250 is on the server's disk, and nothing else is.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import trustme
from rich.console import Console

from bench import ground, haraka, postfix, reception, report, submission_report, submitted
from bench.ground import BooksError, Ground
from bench.load import LoadError
from bench.reception import Load, Reception, Taken, Terms
from bench.submission_report import Idle, Shape
from tools.private_postgres import PostgresError, PrivatePostgres

ROUNDS: Final = 3
# Each has its own domain and its own password.
SENDERS: Final = 10
IDLE_SESSIONS: Final = 2_000
# What is left of the mails when it is only to be shown that it works.
QUICK_SHARE: Final = 0.03
MAILS_MIN: Final = 80

ALONE: Final = Shape("one mail a session", 1)
TOGETHER: Final = Shape("20 mails a session", 20)


@dataclass(frozen=True, slots=True)
class Field:
    """What the servers meet on."""

    workplace: Path
    terms: Terms
    ground: Ground
    haraka: Path
    load: Load


@dataclass(frozen=True, slots=True)
class Contestant:
    """`mails` of each shape are enough for several seconds, `warm_mails` for its processes and caches to be warm.

    The load keeps as many sessions open as the server is fastest with.
    """

    key: str
    name: str
    sessions: int
    mails: dict[Shape, int]
    warm_mails: int
    running: Callable[[Field], AbstractContextManager[Reception]]
    missing: Callable[[], str | None]


def _postfix(field: Field) -> AbstractContextManager[Reception]:
    return postfix.taking(field.workplace, field.terms)


def _haraka(workers: int) -> Callable[[Field], AbstractContextManager[Reception]]:
    return lambda field: haraka.taking(field.workplace, field.haraka, field.terms, workers=workers)


def _posthouse(processes: int) -> Callable[[Field], AbstractContextManager[Reception]]:
    return lambda field: submitted.running(field.ground, field.terms, processes=processes)


def _nothing_missing() -> str | None:
    return None


CONTESTANTS: Final = (
    Contestant(
        "postfix", submission_report.POSTFIX, 40, {ALONE: 3_000, TOGETHER: 6_000}, 400, _postfix,
        postfix.missing_for_submission,
    ),
    Contestant(
        "haraka", submission_report.HARAKA, 40, {ALONE: 3_000, TOGETHER: 4_000}, 1_000, _haraka(haraka.ALONE),
        haraka.missing,
    ),
    Contestant(
        "posthouse", submission_report.ONE_PROCESS, 40, {ALONE: 5_000, TOGETHER: 12_000}, 400, _posthouse(1),
        _nothing_missing,
    ),
)  # fmt: skip
# To see again which way a server is fastest: named with --only, never in the page by themselves. Two processes of ours
# share the port; they are of use where the servers have more than one processor.
VARIANTS: Final = (
    Contestant(
        "posthouse-two",
        submission_report.TWO_PROCESSES,
        40,
        {ALONE: 5_000, TOGETHER: 12_000},
        400,
        _posthouse(2),
        _nothing_missing,
    ),
    Contestant(
        "haraka-workers", "Haraka, two workers", 40, {ALONE: 3_000, TOGETHER: 4_000}, 1_000, _haraka(2), haraka.missing
    ),
)

Found = dict[Shape, dict[str, list[Taken]]]


def measure(
    field: Field, contestants: Sequence[Contestant], rounds: int, share: float, sessions: int | None, console: Console
) -> Found:
    found: Found = {shape: {one.name: [] for one in contestants} for shape in (ALONE, TOGETHER)}
    for number in range(rounds):
        # Every other round backwards, so that a machine that slows down or speeds up favours nobody.
        for one in contestants if number % 2 == 0 else reversed(contestants):
            with console.status(f"round {number + 1} of {rounds}: {one.name} …"), one.running(field) as server:
                for shape, taken in _shapes(one, server, field.load, share, sessions or one.sessions):
                    found[shape][one.name].append(taken)
                    console.print(
                        f"round {number + 1} of {rounds}: {one.name}, {shape.name}: [bold]{taken.per_second:,.0f}[/] "
                        f"mails a second, {taken.mails:,} in {taken.seconds:.1f} s, p50 {taken.p50_ms:.0f} ms, "
                        f"p99 {taken.p99_ms:.0f} ms; CPU µs a mail: "
                        + ", ".join(f"{name} {cost:,.0f}" for name, cost in taken.server_cpu_us.items())
                        + f", load {taken.load_cpu_us:,.0f}; others had {taken.others_share:.0%} of the processors",
                        highlight=False,
                    )
    return found


def _shapes(
    one: Contestant, server: Reception, load: Load, share: float, sessions: int
) -> Iterator[tuple[Shape, Taken]]:
    warm_mails = max(MAILS_MIN, round(one.warm_mails * share))
    reception.measured(server, load, mails=warm_mails, mails_per_session=2, sessions=sessions)
    for shape, usual in one.mails.items():
        mails = max(MAILS_MIN, round(usual * share))
        yield (
            shape,
            reception.measured(server, load, mails=mails, mails_per_session=shape.mails, sessions=sessions),
        )


def idle(field: Field, sessions: int) -> Idle:
    """What sessions cost a server of ours that have authenticated and say nothing."""
    with submitted.running(field.ground, field.terms, processes=1) as server:
        reception.measured(server, field.load, mails=MAILS_MIN, mails_per_session=2, sessions=10)
        (pid,) = server.families["submission"]
        before = _resident_bytes(pid)
        process = field.load.start(server.port, mails=0, mails_per_session=0, sessions=sessions)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"idle\n":
                raise LoadError(f"sessions could not be opened: {process.communicate()[1].decode()[-2000:]}")
            return Idle(sessions, before, _resident_bytes(pid))
        finally:
            process.kill()
            process.communicate()


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def laid(workplace: Path, keys: Sequence[str], installed: Path | None, console: Console) -> Iterator[tuple[Field, str]]:
    """The field with what the chosen ones need, and the machine's line with what runs on it."""
    programs = []
    directory = installed.resolve() if installed else workplace / "installed-haraka"
    if any(key.startswith("haraka") for key in keys):
        with console.status("installing Haraka …"):
            haraka.install(directory)
        programs.append(f"Haraka {haraka.version(directory)}")
    if "postfix" in keys:
        programs.append(f"Postfix {postfix.version()}")
    processors = _parted()
    with PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS) as cluster:
        with console.status("laying the ground: a cluster, a database, accounts, a certificate …"):
            accounts = ground.lay(cluster, workplace)
            terms = Terms(*_certified(workplace), accounts.callers[:SENDERS])
        yield (
            Field(workplace, terms, accounts, directory, Load.written(workplace, terms.callers, processors)),
            ", ".join([report.machine(accounts.version()), *programs]),
        )


def _parted() -> list[int]:
    """The processors that are left for the load; whatever is started from now on runs on the others.

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


def main(arguments: Sequence[str] | None = None) -> int:
    known = {one.key: one for one in (*CONTESTANTS, *VARIANTS)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each server is measured ({ROUNDS})")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of mails, how many (1.0)")
    parser.add_argument("--sessions", type=int, help="how many are open at a time, for all (as is best for each)")
    parser.add_argument("--idle", type=int, default=IDLE_SESSIONS, help=f"idle sessions, 0: none ({IDLE_SESSIONS})")
    parser.add_argument("--quick", action="store_true", help="one round of few mails: shows that it works")
    parser.add_argument(
        "--only",
        default=",".join(one.key for one in CONTESTANTS),
        help=f"which ones, of {','.join(known)} (the last two only when named)",
    )
    parser.add_argument("--haraka", type=Path, help="where Haraka is installed or is to be, and stays (temporary)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent,
        help=f"directory for RESULTS.md and {submission_report.PLOT}",
    )
    given = parser.parse_args(arguments)
    if not set(given.only.split(",")) <= set(known):
        parser.error(f"--only takes some of {','.join(known)}")
    chosen = [one for key, one in known.items() if key in given.only.split(",")]
    rounds, share = (1, QUICK_SHARE) if given.quick else (max(1, given.rounds), given.share)
    console = Console(width=None if sys.stdout.isatty() else 240)
    try:
        missing = dict.fromkeys(told for one in chosen if (told := one.missing()))
        if missing:
            raise LoadError("\n".join(missing))
        with tempfile.TemporaryDirectory(prefix="posthouse-bench-") as directory:
            workplace = Path(directory)
            workplace.chmod(0o755)  # Postfix' daemons are not root
            with laid(workplace, [one.key for one in chosen], given.haraka, console) as (field, machine):
                found = measure(field, chosen, rounds, share, given.sessions, console)
                is_ours_chosen = any(one.key.startswith("posthouse") for one in chosen)
                resting = idle(field, given.idle) if given.idle and is_ours_chosen else None
    except (LoadError, BooksError, PostgresError) as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    findings = submission_report.find(found)
    console.print(submission_report.table(findings))
    for bar in submission_report.bars(findings):
        console.print(bar.text, style="green" if bar.is_reached else "yellow", highlight=False)
    if resting is not None:
        console.print(resting.text, highlight=False)
    given.output.mkdir(parents=True, exist_ok=True)
    size_bytes = len(reception.letter(field.terms.callers[0]))
    submission_report.write(given.output, findings, machine, rounds, size_bytes, resting)
    submission_report.plot(given.output / submission_report.PLOT, findings)
    console.print(f"written: {given.output / report.RESULTS}, {given.output / submission_report.PLOT}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
