"""Measures the delivery path: mails a second through a relay, and what they cost, ours beside its peers.

    make bench-deliver                            (or: python bench/deliver.py)
    python bench/deliver.py --rounds 5
    python bench/deliver.py --only bare,postfix --quick --output /tmp/bench

The same letter goes the same way for all: from a load that sends as fast as it is taken, through the
relay, to one sink that counts. Rounds of all relays in turn, medians over the rounds, ratios within each
round. A figure is given only when the sink has every mail exactly once.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from bench import deliver_report, delivered, ground, haraka, postfix, report, source
from bench.delivered import House
from bench.ground import BooksError
from bench.load import LoadError
from bench.relay import Relay, Relayed, measured
from bench.sink import Sink
from tools.private_postgres import PostgresError, PrivatePostgres, find_binaries

ROUNDS: Final = 3
# What is left of the mails when it is only to be shown that it works.
QUICK_SHARE: Final = 0.02
MAILS_MIN: Final = 100

# How many connections the load keeps: as many as each relay is fastest with, or more.
BARE_SESSIONS: Final = 32
POSTFIX_SESSIONS: Final = 16
HARAKA_SESSIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Field:
    """What the relays meet on: the sink, and a directory for whatever they need. What only one needs is optional."""

    sink: Sink
    workplace: Path
    letter: Path
    haraka: Path | None = None
    house: House | None = None


@dataclass(frozen=True, slots=True)
class Contestant:
    """`mails` are enough for several seconds, `warm_mails` for its processes, caches and compilers to be warm."""

    key: str
    name: str
    mails: int
    warm_mails: int
    running: Callable[[Field], AbstractContextManager[Relay]]
    missing: Callable[[], str | None]


@contextmanager
def _bare(field: Field) -> Iterator[Relay]:
    yield source.relay(field.letter, port=field.sink.port, sessions=BARE_SESSIONS, processes={})


def _postfix(*, is_tuned: bool) -> Callable[[Field], AbstractContextManager[Relay]]:
    @contextmanager
    def running(field: Field) -> Iterator[Relay]:
        with postfix.running(field.workplace, field.sink.port, is_tuned=is_tuned) as (port, process):
            yield source.relay(field.letter, port=port, sessions=POSTFIX_SESSIONS, processes={"Postfix": process})

    return running


def _haraka(*, workers: int) -> Callable[[Field], AbstractContextManager[Relay]]:
    @contextmanager
    def running(field: Field) -> Iterator[Relay]:
        assert field.haraka is not None
        with haraka.running(field.workplace, field.haraka, field.sink.port, workers=workers) as (port, process):
            yield source.relay(field.letter, port=port, sessions=HARAKA_SESSIONS, processes={"Haraka": process})

    return running


def _posthouse(*, is_signing: bool) -> Callable[[Field], AbstractContextManager[Relay]]:
    def running(field: Field) -> AbstractContextManager[Relay]:
        assert field.house is not None
        return delivered.running(field.house, is_signing=is_signing)

    return running


CONTESTANTS: Final = (
    Contestant("bare", deliver_report.BARE, 60_000, 5_000, _bare, source.missing),
    Contestant("postfix", deliver_report.POSTFIX, 5_000, 500, _postfix(is_tuned=False), postfix.missing),
    Contestant("haraka", deliver_report.HARAKA, 4_000, 2_000, _haraka(workers=haraka.ALONE), haraka.missing),
    Contestant("posthouse", deliver_report.SIGNED, 8_000, 2_000, _posthouse(is_signing=True), delivered.missing),
    Contestant("unsigned", deliver_report.UNSIGNED, 8_000, 2_000, _posthouse(is_signing=False), delivered.missing),
)
# To see again which way a peer is fastest: named with --only, never in the page by themselves.
VARIANTS: Final = (
    Contestant("postfix-tuned", "Postfix, tuned", 5_000, 500, _postfix(is_tuned=True), postfix.missing),
    Contestant("haraka-workers", "Haraka, two workers", 4_000, 4_000, _haraka(workers=2), haraka.missing),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What each relay came to in each round, and what the two signatures of a letter cost by themselves."""

    rounds: dict[str, list[Relayed]]
    signing_us: list[float]


def measure(field: Field, contestants: Sequence[Contestant], rounds: int, share: float, console: Console) -> Found:
    found = Found({one.name: [] for one in contestants}, [])
    for number in range(rounds):
        # Every other round backwards, so that a machine that slows down or speeds up favours nobody.
        for one in contestants if number % 2 == 0 else reversed(contestants):
            with console.status(f"round {number + 1} of {rounds}: {one.name} …"), one.running(field) as relay:
                measured(relay, field.sink, _part(one.warm_mails, share))
                relayed = measured(relay, field.sink, _part(one.mails, share))
            found.rounds[one.name].append(relayed)
            console.print(
                f"round {number + 1} of {rounds}: {one.name}: [bold]{relayed.per_second:,.0f}[/] mails a second, "
                f"{relayed.mails:,} in {relayed.seconds:.1f} s; CPU µs a mail: relay {relayed.cpu_us:,.0f}, "
                f"sink {relayed.sink_cpu_us:,.0f}, load {relayed.load_cpu_us:,.0f}",
                highlight=False,
            )
            if one.name == deliver_report.SIGNED:
                found.signing_us.append(delivered.signing_us())
    return found


def _part(mails: int, share: float) -> int:
    return max(MAILS_MIN, round(mails * share))


@contextmanager
def laid(workplace: Path, keys: Sequence[str], installed: Path | None, console: Console) -> Iterator[tuple[Field, str]]:
    """The field with what the chosen ones need, and the machine's line with what runs on it."""
    letter = workplace / "letter"
    source.write_letter(letter)
    with ExitStack() as started:
        field = Field(started.enter_context(Sink()), workplace, letter)
        programs = []
        if any(key.startswith("postfix") for key in keys):
            programs.append(f"Postfix {postfix.version()}")
        if any(key.startswith("haraka") for key in keys):
            with console.status("installing Haraka …"):
                directory = installed.resolve() if installed else workplace / "installed-haraka"
                haraka.install(directory)
            field = replace(field, haraka=directory)
            programs.append(f"Haraka {haraka.version(directory)}")
        if {"posthouse", "unsigned"} & set(keys):
            with console.status("laying the ground: a cluster, a database, accounts, keys …"):
                cluster = started.enter_context(PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS))
                accounts = ground.lay(cluster, workplace)
                field = replace(field, house=started.enter_context(delivered.opened(accounts, field.sink.port)))
        yield field, ", ".join([report.machine(_postgres_version()), *programs])


def _postgres_version() -> str:
    said = subprocess.run([find_binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.removeprefix("postgres (PostgreSQL) ")


def main(arguments: Sequence[str] | None = None) -> int:
    known = {one.key: one for one in (*CONTESTANTS, *VARIANTS)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each relay is measured ({ROUNDS})")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of mails, how many (1.0)")
    parser.add_argument("--quick", action="store_true", help="one round of few mails: shows that it works")
    parser.add_argument(
        "--only",
        default=",".join(one.key for one in CONTESTANTS),
        help=f"which ones, of {','.join(known)} (the last two only when named)",
    )
    parser.add_argument("--haraka", type=Path, help="where Haraka is installed or is to be, and stays (temporary)")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help=f"directory for RESULTS.md and {deliver_report.PLOT}"
    )
    given = parser.parse_args(arguments)
    if not set(given.only.split(",")) <= set(known):
        parser.error(f"--only takes some of {','.join(known)}")
    chosen = [one for key, one in known.items() if key in given.only.split(",")]
    rounds, share = (1, QUICK_SHARE) if given.quick else (max(1, given.rounds), given.share)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        missing = dict.fromkeys(told for one in chosen if (told := one.missing() or source.missing()))
        if missing:
            raise LoadError("\n".join(missing))
        with tempfile.TemporaryDirectory(prefix="posthouse-bench-") as directory:
            workplace = Path(directory)
            workplace.chmod(0o755)  # Postfix' daemons are not root
            with laid(workplace, [one.key for one in chosen], given.haraka, console) as (field, machine):
                found = measure(field, chosen, rounds, share, console)
    except (LoadError, BooksError, PostgresError) as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    findings = deliver_report.find(found.rounds)
    console.print(deliver_report.table(findings))
    for bar in deliver_report.bars(findings):
        console.print(bar.text, style="green" if bar.is_reached else "yellow", highlight=False)
    given.output.mkdir(parents=True, exist_ok=True)
    deliver_report.write(given.output, findings, machine, rounds, found.signing_us)
    deliver_report.plot(given.output / deliver_report.PLOT, findings)
    console.print(f"written: {given.output / report.RESULTS}, {given.output / deliver_report.PLOT}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
