"""Measures the delivery path: mails a second through a relay, and what they cost, ours beside its peers.

    make bench-deliver                            (or: python bench/deliver.py)
    python bench/deliver.py --rounds 5
    python bench/deliver.py --only bare,postfix --quick --output /tmp/bench

The same mail takes the same way for all: from a load that sends as fast as it is accepted, through the relay, to one
sink that counts. Rounds of all relays in turn, medians over the rounds, ratios within each round. A figure is given
only when the sink has every mail exactly once.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import delivered, ground, haraka, harness, postfix, report, served, source
from bench.deliver_letter import written
from bench.delivered import Installation
from bench.harness import Contestant, Run
from bench.relay import Relay, Relayed, measured
from bench.report import BLUE, PALE_BLUE, Goal, Plot, Report, Rows, goal, medians
from bench.sink import Sink
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 3
# The share of the mails in a quick run.
QUICK_SHARE: Final = 0.02
MAILS_MIN: Final = 100

BARE: Final = "bare: smtp-source to smtp-sink"
POSTFIX: Final = "Postfix"
HARAKA: Final = "Haraka"
SIGNED: Final = "Posthouse, with DKIM"
UNSIGNED: Final = "Posthouse, without DKIM"
OURS: Final = (SIGNED, UNSIGNED)
LEAST: Final = {POSTFIX: 1.5, HARAKA: 2.0}

# How many connections the load keeps: as many as each relay is fastest with, or more.
BARE_SESSIONS: Final = 32
POSTFIX_SESSIONS: Final = 16
HARAKA_SESSIONS: Final = 64

_COLOURS: Final = {
    "http": "#1d4e80",
    "dispatch": "#4f89c4",
    "delivery": BLUE,
    "PostgreSQL": PALE_BLUE,
    "NATS": "#b5cfea",
}

Rounds = Mapping[str, Sequence[Relayed]]


@dataclass(frozen=True, slots=True)
class Field:
    """What the relays share: the sink, and a directory. What only one needs is optional."""

    sink: Sink
    workplace: Path
    letter: Path
    haraka: Path | None = None
    installation: Installation | None = None


@dataclass(frozen=True, slots=True)
class RelayUnderTest(Contestant):
    """`mails` are enough for several seconds, `warm_mails` for its processes, caches and compilers to be warm."""

    mails: int
    warm_mails: int
    running: Callable[[Field], AbstractContextManager[Relay]]


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
        assert field.installation is not None
        return delivered.running(field.installation, is_signing=is_signing)

    return running


RELAYS: Final = (
    RelayUnderTest("bare", BARE, source.missing, 60_000, 5_000, _bare),
    RelayUnderTest("postfix", POSTFIX, postfix.missing, 5_000, 500, _postfix(is_tuned=False)),
    RelayUnderTest("haraka", HARAKA, haraka.missing, 4_000, 2_000, _haraka(workers=haraka.ALONE)),
    RelayUnderTest("posthouse", SIGNED, served.missing, 8_000, 2_000, _posthouse(is_signing=True)),
    RelayUnderTest("unsigned", UNSIGNED, served.missing, 8_000, 2_000, _posthouse(is_signing=False)),
)
# To see again which way a peer is fastest: named with --only, never in the page by themselves.
VARIANTS: Final = (
    RelayUnderTest("postfix-tuned", "Postfix, tuned", postfix.missing, 5_000, 500, _postfix(is_tuned=True)),
    RelayUnderTest("haraka-workers", "Haraka, two workers", haraka.missing, 4_000, 4_000, _haraka(workers=2)),
)


def measure(run: Run, chosen: Sequence[RelayUnderTest]) -> Report:
    share = QUICK_SHARE if run.is_quick else run.options.share
    rounds: dict[str, list[Relayed]] = {relay.name: [] for relay in chosen}
    signing_us: list[float] = []
    with _prepared(run, [relay.key for relay in chosen]) as (field, programs):
        for round_name, contestant in run.interleaved(chosen):
            with run.status(f"{round_name}: {contestant.name}"), contestant.running(field) as relay:
                measured(relay, field.sink, max(MAILS_MIN, round(contestant.warm_mails * share)))
                relayed = measured(relay, field.sink, max(MAILS_MIN, round(contestant.mails * share)))
            rounds[contestant.name].append(relayed)
            run.say(
                f"{round_name}: {contestant.name}: [bold]{relayed.per_second:,.0f}[/] mails a second, "
                f"{relayed.mails:,} in {relayed.seconds:.1f} s; CPU µs a mail: relay {relayed.cpu_us:,.0f}, "
                f"sink {relayed.sink_cpu_us:,.0f}, load {relayed.load_cpu_us:,.0f}"
            )
            if contestant.name == SIGNED:
                signing_us.append(delivered.signing_us())
    return Report(
        name="deliver",
        title="The delivery path",
        target="bench-deliver",
        machine=report.machine(*programs),
        tables=[_table(rounds)],
        goals=goals(rounds),
        more=_costs(rounds, signing_us),
        notes=_notes(rounds, run.rounds),
        plot=Plot("deliver.png", "Mails a second and processor time a mail", lambda pyplot: _plot(pyplot, rounds)),
    )


@contextmanager
def _prepared(run: Run, keys: Sequence[str]) -> Iterator[tuple[Field, list[str]]]:
    """The field with what the chosen relays need, and the versions of the programs."""
    letter = run.workplace / "letter"
    source.write_letter(letter)
    with ExitStack() as started:
        field = Field(started.enter_context(Sink()), run.workplace, letter)
        programs = []
        if any(key.startswith("postfix") for key in keys):
            programs.append(f"Postfix {postfix.version()}")
        if any(key.startswith("haraka") for key in keys):
            directory = haraka.installed(run)
            field = replace(field, haraka=directory)
            programs.append(f"Haraka {haraka.version(directory)}")
        if {"posthouse", "unsigned"} & set(keys):
            with run.status("creating a cluster, a database, accounts, keys"):
                cluster = started.enter_context(PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS))
                accounts = ground.lay(cluster, run.workplace)
                field = replace(field, installation=started.enter_context(delivered.opened(accounts, field.sink.port)))
        yield field, programs


def _to(rounds: Rounds, name: str, peer: str) -> str:
    found = report.ratio(rounds[name], rounds.get(peer))
    return "–" if found is None else f"{found:.2f}"


def goals(rounds: Rounds) -> list[Goal]:
    """As far as what they are about was measured."""
    found = []
    for peer, least in LEAST.items():
        ratio = report.ratio(rounds[SIGNED], rounds.get(peer)) if SIGNED in rounds else None
        if ratio is not None:
            found.append(goal(ratio >= least, f"{SIGNED}, end to end, at {least:.1f}× {peer} or more: {ratio:.2f}×"))
    return found


def _table(rounds: Rounds) -> Rows:
    columns = ("Relay", "mails/s", "× Postfix", "× Haraka", "CPU µs: relay", "sink", "load", "mails", "seconds")
    rows = [
        [
            name,
            f"{medians(runs, 'per_second'):,.0f}",
            _to(rounds, name, POSTFIX),
            _to(rounds, name, HARAKA),
            f"{medians(runs, 'cpu_us'):,.0f}" if runs[0].relay_cpu_us else "–",
            f"{medians(runs, 'sink_cpu_us'):,.0f}",
            f"{medians(runs, 'load_cpu_us'):,.0f}",
            f"{runs[0].mails:,}",
            f"{medians(runs, 'seconds'):.1f}",
        ]
        for name, runs in rounds.items()
    ]
    styles = ["bold" if name in OURS else None for name in rounds]
    return Rows("The delivery path: medians of interleaved rounds", columns, rows, styles)


def _costs(rounds: Rounds, signing_us: Sequence[float]) -> list[str]:
    lines = []
    for name in OURS:
        if name in rounds:
            costs = report.median_of_each(rounds[name], "relay_cpu_us")
            parts = ", ".join(f"{part} {cost:,.0f}" for part, cost in costs.items())
            lines.append(
                f"{name}: of {sum(costs.values()):,.0f} µs a mail, {parts}; the last outcome was recorded "
                f"{medians(rounds[name], 'finished_seconds'):.2f} s after the sink's last mail"
            )
    if signing_us:
        lines.append(f"A mail's two signatures by themselves, made one after the other: {median(signing_us):,.0f} µs")
    return lines


def _notes(rounds: Rounds, count: int) -> str:
    rates = {name: [relayed.per_second for relayed in runs] for name, runs in rounds.items()}
    repeated, varied = report.variation(rates, count)
    return f"""\
What was measured: {repeated}, each from the start of the load to the moment at which the sink had counted its last
mail. The sink is one `smtp-sink -c` for all of them and for the whole run. The ratios are to the peer in the same
round. {varied}: compare ratios and processor time rather than rates.

- Every mail is the same, text and HTML, {len(written()):,} bytes before a relay adds its own lines; the load sends it
  as fast as it is accepted, and has no part in what happens then.
- *bare* has no relay in between: what the load and the sink can do with connections that are kept.
- *Postfix* and *Haraka* get the mail from `smtp-source`, over connections that it keeps, and send it to one
  next hop, so that they ask no DNS; they sign nothing. Each was given the settings with which it was fastest
  here, in `bench/peers/`. Both sync a mail's file to the disk before they answer, as they do by default.
  Postfix logs to a syslog that is not stored, Haraka logs errors only.
- *Posthouse* is `posthouse run http`, `run dispatch` and `run delivery` on PostgreSQL with `fsync` on and on NATS.
  `wrk` sends the mail to `POST /emails`, with authentication and a new Idempotency-Key each time, for ten accounts
  in turn, each with its own domain, to sixteen destinations, which are looked up in DNS. With DKIM, every mail
  has two signatures, RSA with 2048 bits and Ed25519. Afterwards every mail must be recorded as delivered at
  its first attempt, with its event, and settled, or there is no result.
- Processor time is user and system time a mail, of all processes of the relay (PostgreSQL and NATS are ours), of the
  sink, and of the load, which share the cores. It is read after the relay has finished its work after the last mail."""


def _plot(pyplot: Any, rounds: Rounds) -> Any:
    # The bare rate is not a relay's; drawn to scale it would leave no room for theirs.
    shown = {name: runs for name, runs in rounds.items() if runs[0].relay_cpu_us}
    figure, (rates, costs) = pyplot.subplots(
        1, 2, figsize=(12, 1.6 + 0.6 * len(shown)), sharey=True, width_ratios=(1.2, 1), layout="constrained"
    )
    without = f"\n(without a relay: {medians(rounds[BARE], 'per_second'):,.0f})" if BARE in rounds else "\n"
    report.rates_and_costs(
        (rates, costs),
        (f"Mails relayed a second{without}", "Processor time a mail, µs\n"),
        [
            report.RateAndCost(
                name,
                medians(runs, "per_second"),
                report.median_of_each(runs, "relay_cpu_us"),
                note="" if _to(rounds, name, POSTFIX) == "–" else f" ({_to(rounds, name, POSTFIX)}× {POSTFIX})",
                is_ours=name in OURS,
            )
            for name, runs in shown.items()
        ],
        _COLOURS,
    )
    if any(name in OURS for name in shown):
        report.legend(figure, _COLOURS)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS)
    chosen = harness.chosen(parser, RELAYS, VARIANTS, arguments)
    return harness.main(chosen.options, lambda run: measure(run, chosen.contestants), *chosen.missing, source.missing)


if __name__ == "__main__":
    sys.exit(main())
