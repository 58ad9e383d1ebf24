"""Measures the delivery path: messages a second through a relay, and what they cost, ours next to its peers.

    make bench-deliver                            (or: python bench/deliver.py)
    python bench/deliver.py --rounds 5
    python bench/deliver.py --only bare,postfix --quick --output /tmp/bench

The same mail takes the same path for all: from a load that sends as fast as it is accepted, through the relay, to one
sink that counts. Rounds of all relays in turn, medians over the rounds, ratios within each round. A figure is given
only when the sink has every message exactly once.
"""

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, message, peer_servers, peer_signers, report, smtp_sink, wrk_load
from bench.dataset import EmptyServices, with_connection
from bench.harness import Contestant, Run
from bench.peer_signers import Signer
from bench.processes import LOAD, BenchError, Measured, Process, metered, microseconds
from bench.report import BLUE, GREY, PALE_BLUE, Cell, Goal, Plot, RateAndCost, Report, Rows, Runs, goal, middle
from bench.smtp_sink import Sink
from bench.wrk_load import HttpServer
from posthouse.mail import dkim
from tests.support.service_processes import ServiceProcesses
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 3
# The share of the messages in a quick run.
QUICK_SHARE: Final = 0.02
MESSAGES_MIN: Final = 100
LOAD_SECONDS_MAX: Final = 600
LOAD_STOP_SECONDS_MAX: Final = 30.0
RECORD_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.05
# What a relay still does after its last message: the end of a queue file, of a connection.
SETTLE_SECONDS: Final = 0.5

BARE: Final = "bare: smtp-source to smtp-sink"
POSTFIX: Final = "Postfix"
POSTFIX_RSPAMD: Final = "Postfix + rspamd, signing"
POSTFIX_OPENDKIM: Final = "Postfix + OpenDKIM, signing"
HARAKA: Final = "Haraka"
SIGNED: Final = "Posthouse, with DKIM"
RSA_SIGNED: Final = "Posthouse, with DKIM (RSA alone)"
UNSIGNED: Final = "Posthouse, without DKIM"
OURS: Final = (SIGNED, RSA_SIGNED, UNSIGNED)
# Ours, a peer that signs the same, and how many times the processor time of ours a message of it takes, at least.
LEAST: Final = (
    (RSA_SIGNED, POSTFIX_RSPAMD, 1.7),
    (RSA_SIGNED, POSTFIX_OPENDKIM, 2.7),
)
BEYOND_SIGNATURES_US_MAX: Final = 200

# How many connections the load keeps: as many as each relay is fastest with, or more.
BARE_SESSIONS: Final = 32
POSTFIX_SESSIONS: Final = 16
HARAKA_SESSIONS: Final = 64

# Of ours: each sender has its own domain and its own keys.
SENDERS: Final = 10
# Enough to spread over the stream's shards: a single destination would belong to one shard, and to one process.
DESTINATIONS: Final = 16
TTL_SECONDS: Final = 3600
# Too high to be what is measured. A lane of more than 200 a second would have parts in several shards.
CREDITS: Final = 1_000_000_000
RATE: Final = (1_000_000, 1_000_000)
LANES: Final = {"LANES__PER_SECOND": "200", "LANES__BURST": "1000000", "LANES__CONNECTIONS_MAX": "100"}
# Short runs, of which the cheapest counts: what a busy machine adds is not the signatures' cost.
SIGNING_RUNS: Final = 10
SIGNED_A_RUN: Final = 30

_OPEN: Final = "SELECT count(*) FROM delivery_schedule"
# The message, its recipient, its only attempt and its event agree.
_OUTCOMES: Final = """
SELECT (SELECT count(*) FROM messages WHERE status = 'delivered' AND billing_status = 'settled') AS messages,
       (SELECT count(*) FROM recipients WHERE status = 'delivered' AND attempt_count = 1) AS recipients,
       (SELECT count(*) FROM attempts WHERE outcome = 'delivered') AS attempts,
       (SELECT count(*) FROM events WHERE type = 'email.delivered') AS events,
       (SELECT count(*) FROM ledger WHERE kind = 'settle') AS settled
"""

# As the columns of ratios name them.
_PEERS: Final = {
    "Postfix": POSTFIX,
    "Postfix + rspamd": POSTFIX_RSPAMD,
    "Postfix + OpenDKIM": POSTFIX_OPENDKIM,
    "Haraka": HARAKA,
}
_COLOURS: Final = {
    "http": "#1d4e80",
    "dispatch": "#4f89c4",
    "delivery": BLUE,
    "PostgreSQL": PALE_BLUE,
    "NATS": "#b5cfea",
}


@dataclass(frozen=True, slots=True)
class SmtpRelay:
    """A relay whose load comes over SMTP; it does not say when it is done. Without processes it is the sink itself.

    `families` are the processes, by id, whose time is the relay's, with all their descendants'.
    """

    file: Path
    port: int
    sessions: int
    processes: Mapping[str, Process]

    @property
    def families(self) -> Mapping[str, Sequence[int]]:
        return {name: [process.pid] for name, process in self.processes.items()}

    def start_load(self, messages: int) -> Process:
        return smtp_sink.start_source(self.file, port=self.port, messages=messages, sessions=self.sessions)

    def end_load(self, load: Process, messages: int) -> None:
        _, errors = load.communicate(timeout=LOAD_STOP_SECONDS_MAX)
        if load.returncode != 0:
            raise BenchError(f"the load of {messages:,} messages failed: {errors.decode(errors='replace')[-2000:]}")

    def require_running(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise BenchError(f"{name} ended ({process.returncode}) before the sink had every mail")

    def finish(self, messages: int) -> None:
        pass


@dataclass(slots=True)
class PosthouseRelay:
    """Each part is its own process, on NATS, which shows what each part needs."""

    processes: ServiceProcesses
    postgres: int
    requests: list[str]
    _sent: int = 0
    _loads: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def families(self) -> Mapping[str, Sequence[int]]:
        assert self.processes.nats is not None
        parts = {part.words[0]: [part.running.pid] for part in self.processes.parts}
        return {**parts, "PostgreSQL": [self.postgres], "NATS": [self.processes.nats.pid]}

    def start_load(self, messages: int) -> Process:
        http = self.processes.parts[0]
        return wrk_load.start(
            HttpServer(http.running, http.port, http.log),
            self.requests,
            seconds=LOAD_SECONDS_MAX,
            connections=min(wrk_load.CONNECTIONS, messages),
            name=f"run{next(self._loads)}",
            most=messages,
        )

    def end_load(self, load: Process, messages: int) -> None:
        if load.poll() is None:
            load.send_signal(signal.SIGINT)
        said = wrk_load.result(load, LOAD_STOP_SECONDS_MAX)
        if (said["requests"], said["refused"], said["broken"]) != (messages, 0, 0):
            raise BenchError(f"not every one of {messages:,} requests was answered with 202: {said}")

    def require_running(self) -> None:
        self.processes.check()

    def finish(self, messages: int) -> None:
        """Returns once every outcome is recorded; raises unless all were delivered, at the first attempt."""
        self._sent += messages
        url = self.processes.database_url
        deadline = time.monotonic() + RECORD_SECONDS_MAX
        while with_connection(url, lambda connection: connection.fetchval(_OPEN)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        outcomes = dict(with_connection(url, lambda connection: connection.fetchrow(_OUTCOMES)))
        if set(outcomes.values()) != {self._sent}:
            raise BenchError(
                f"the sink has {self._sent:,} messages, and the database disagrees: {outcomes}; "
                f"delivery's log ends:\n{self.processes.parts[-1].said()}"
            )


Relay = SmtpRelay | PosthouseRelay


@dataclass(frozen=True, slots=True)
class Setup:
    """What the relays share: the sink, and a directory. What only some need is optional."""

    sink: Sink
    workplace: Path
    haraka: Path | None = None
    services: EmptyServices | None = None

    @property
    def mail_file(self) -> Path:
        return self.workplace / "mail"


@dataclass(frozen=True, slots=True)
class RelayUnderTest(Contestant):
    """`messages` last several seconds, `warm_messages` warm up its processes, caches and compilers."""

    messages: int
    warm_messages: int
    running: Callable[[Setup], AbstractAsyncContextManager[Relay]]
    is_optional: bool = False
    """Left out, with a line that says so, where its programs are missing."""


@asynccontextmanager
async def _bare(setup: Setup) -> AsyncIterator[Relay]:
    yield SmtpRelay(setup.mail_file, setup.sink.port, BARE_SESSIONS, {})


@asynccontextmanager
async def _postfix(setup: Setup) -> AsyncIterator[Relay]:
    with peer_servers.postfix_relay(setup.workplace, setup.sink.port) as peer:
        yield SmtpRelay(setup.mail_file, peer.port, POSTFIX_SESSIONS, {POSTFIX: peer.process})


@asynccontextmanager
async def _signing_postfix(
    setup: Setup, name: str, signs: Callable[[Path], AbstractContextManager[Signer]]
) -> AsyncIterator[Relay]:
    async with peer_signers.signing_postfix(setup.workplace, setup.sink.port, setup.mail_file, signs) as relay:
        processes = {POSTFIX: relay.postfix.process, name: relay.signer.process}
        yield SmtpRelay(setup.mail_file, relay.postfix.port, POSTFIX_SESSIONS, processes)


@asynccontextmanager
async def _haraka(setup: Setup) -> AsyncIterator[Relay]:
    assert setup.haraka is not None
    with peer_servers.haraka_relay(setup.workplace, setup.haraka, setup.sink.port) as peer:
        yield SmtpRelay(setup.mail_file, peer.port, HARAKA_SESSIONS, {HARAKA: peer.process})


@asynccontextmanager
async def _posthouse(setup: Setup, *, is_signing: bool, with_ed25519: bool = True) -> AsyncIterator[Relay]:
    assert setup.services is not None
    settings = {
        **LANES,
        "DELIVERY__PORT": str(setup.sink.port),
        "DELIVERY__DKIM_ENABLED": "true" if is_signing else "false",
    }
    async with setup.services.prepared(settings) as processes:
        http = await processes.start_http()
        processes.nameserver.ttl = TTL_SECONDS
        destinations = [processes.destination(f"customer{number}.example") for number in range(DESTINATIONS)]
        senders = [await processes.service.account(credits=CREDITS, rate=RATE) for _ in range(SENDERS)]
        if not with_ed25519:
            await processes.service.sql("UPDATE domains SET ed25519_published = false")
        # Long ago: a server drops an account that changed lately from its cache.
        await processes.service.sql("UPDATE accounts SET changed_at = now() - interval '1 hour'")
        await processes.service.sql("CHECKPOINT")
        for part in ("dispatch", "delivery"):
            processes.start(part)
        requests = []
        for domain, sender in itertools.product(destinations, senders):
            fields = message.fields(sender.domain, to=f"ada@{domain}", text=message.LONG_TEXT)
            requests.append(wrk_load.post(sender.basic, fields, http.port))
        yield PosthouseRelay(processes, setup.services.cluster.pid, requests)


RELAYS: Final = (
    RelayUnderTest("bare", BARE, smtp_sink.missing, 60_000, 5_000, _bare),
    RelayUnderTest("postfix", POSTFIX, peer_servers.postfix_missing, 5_000, 500, _postfix),
    RelayUnderTest(
        "rspamd",
        POSTFIX_RSPAMD,
        peer_signers.rspamd_missing,
        3_000,
        500,
        partial(_signing_postfix, name="rspamd", signs=peer_signers.rspamd),
        is_optional=True,
    ),
    RelayUnderTest(
        "opendkim",
        POSTFIX_OPENDKIM,
        peer_signers.opendkim_missing,
        3_000,
        500,
        partial(_signing_postfix, name="OpenDKIM", signs=peer_signers.opendkim),
        is_optional=True,
    ),
    RelayUnderTest("haraka", HARAKA, peer_servers.haraka_missing, 4_000, 2_000, _haraka),
    RelayUnderTest("posthouse", SIGNED, wrk_load.missing, 8_000, 2_000, partial(_posthouse, is_signing=True)),
    RelayUnderTest(
        "rsa", RSA_SIGNED, wrk_load.missing, 8_000, 2_000, partial(_posthouse, is_signing=True, with_ed25519=False)
    ),
    RelayUnderTest("unsigned", UNSIGNED, wrk_load.missing, 8_000, 2_000, partial(_posthouse, is_signing=False)),
)


def _measured(relay: Relay, sink: Sink, messages: int) -> Measured:
    """From the load's start to the sink's last message; raises unless exactly this many came."""
    expected = sink.count + messages
    with metered({**relay.families, "sink": [sink.pid]}) as used:
        started_at = time.monotonic()
        load = relay.start_load(messages)

        def require_running() -> None:
            if load.poll() not in (None, 0):
                relay.end_load(load, messages)
            relay.require_running()

        try:
            ended_at = sink.wait_for(expected, require_running)
            relay.end_load(load, messages)
        finally:
            if load.poll() is None:
                load.kill()
                load.wait()
        relay.finish(messages)
        finished_at = time.monotonic()
        time.sleep(SETTLE_SECONDS)
    if sink.count != expected:
        raise BenchError(f"{messages:,} messages were sent, and the sink has {sink.count - expected + messages:,}")
    each_us = microseconds(used, messages)
    return Measured(
        count=messages,
        seconds=ended_at - started_at,
        server_us={name: each_us[name] for name in relay.families},
        load_us=each_us[LOAD],
        figures={"sink_us": each_us["sink"], "finished_seconds": finished_at - ended_at},
    )


def signing_us() -> float:
    """What the two signatures of a message cost without the rest, here and now: the least that DKIM can cost."""
    keys = [
        dkim.load_signing_key("mail0.example", "selector", pair.private_der)
        for pair in (dkim.new_key_pair(), dkim.new_ed25519_key_pair())
    ]
    mail, now = message.mail(), datetime.now(UTC)
    dkim.signatures(mail, keys, now)  # the first call prepares the keys

    def run_us() -> float:
        started = time.process_time()
        for _ in range(SIGNED_A_RUN):
            dkim.signatures(mail, keys, now)
        return (time.process_time() - started) / SIGNED_A_RUN * 1e6

    return min(run_us() for _ in range(SIGNING_RUNS))


async def measure(run: Run, chosen: Sequence[RelayUnderTest], setup: Setup) -> tuple[Runs, list[float]]:
    share = QUICK_SHARE if run.is_quick else run.options.share
    rows: dict[str, list[Measured]] = {relay.name: [] for relay in chosen}
    signing: list[float] = []
    for round_name, contestant in run.interleaved(chosen):
        with run.status(f"{round_name}: {contestant.name}"):
            async with contestant.running(setup) as relay:
                # The loop keeps running meanwhile: it answers DNS.
                for messages in (contestant.warm_messages, contestant.messages):
                    count = max(MESSAGES_MIN, round(messages * share))
                    measured = await asyncio.to_thread(_measured, relay, setup.sink, count)
        rows[contestant.name].append(measured)
        run.say(f"{round_name}: {contestant.name}: {measured}")
        if contestant.name == SIGNED:
            signing.append(signing_us())
    return rows, signing


def report_of(run: Run, chosen: Sequence[RelayUnderTest]) -> Report:
    keys = {relay.key for relay in chosen}
    programs = []
    with ExitStack() as started:
        setup = Setup(started.enter_context(Sink()), run.workplace)
        smtp_sink.write_mail(setup.mail_file)
        if {"postfix", "rspamd", "opendkim"} & keys:
            programs.append(peer_servers.postfix_version())
        if "rspamd" in keys:
            programs.append(peer_signers.rspamd_version())
        if "opendkim" in keys:
            programs.append(peer_signers.opendkim_version())
        if "haraka" in keys:
            directory = peer_servers.install_haraka(run)
            setup = replace(setup, haraka=directory)
            programs.append(peer_servers.haraka_version(directory))
        if {"posthouse", "rsa", "unsigned"} & keys:
            cluster = started.enter_context(PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS))
            dataset.migrate(cluster, run.workplace)
            setup = replace(setup, services=EmptyServices(cluster, run.workplace))
        rows, signing = asyncio.run(measure(run, chosen, setup))
    return Report(
        name="deliver",
        title="The delivery path",
        target="bench-deliver",
        machine=report.machine(*programs),
        tables=[_table(rows)],
        goals=goals(rows, min(signing, default=None)),
        more=_costs(rows, signing),
        notes=report.notes(
            "deliver",
            repeated=report.repeated(run.rounds),
            variation=report.variation(rows),
            mail_bytes=f"{len(message.mail()):,}",
            sample_messages=peer_signers.SAMPLE_MESSAGES,
        ),
        plot=Plot(
            "deliver.png", "Messages a second and processor time per message", lambda pyplot: _plot(pyplot, rows)
        ),
    )


def goals(rows: Runs, signing_us: float | None) -> list[Goal]:
    """As far as what they are about was measured."""
    found = []
    for ours, peer, least in LEAST:
        cheaper = report.ratio(rows[peer], rows.get(ours), lambda run: run.cpu_us) if peer in rows else None
        if cheaper is not None:
            text = f"{peer} takes {least:.1f}× the processor time of {ours} or more: {cheaper:.2f}×"
            found.append(goal(cheaper >= least, text))
    if signing_us is not None and SIGNED in rows and UNSIGNED in rows:
        delivery = [report.costs(rows[name])["delivery"] for name in (SIGNED, UNSIGNED)]
        beyond = delivery[0] - delivery[1] - signing_us
        text = f"signing costs {BEYOND_SIGNATURES_US_MAX} µs or less beyond the two signatures: {beyond:.0f} µs"
        found.append(goal(beyond <= BEYOND_SIGNATURES_US_MAX, text))
    return found


def _times(rows: Runs, peer: str, runs: Sequence[Measured]) -> str:
    return report.times(report.ratio(runs, rows.get(peer)))


def _table(rows: Runs) -> Rows:
    columns: list[tuple[str, Cell]] = [
        ("messages/s", middle("{:,.0f}", lambda run: run.per_second)),
        *((f"× {peer}", partial(_times, rows, name)) for peer, name in _PEERS.items()),
        ("CPU µs: relay", lambda runs: f"{median(run.cpu_us for run in runs):,.0f}" if runs[0].server_us else "–"),
        ("sink", middle("{:,.0f}", lambda run: run.figures["sink_us"])),
        ("load", middle("{:,.0f}", lambda run: run.load_us)),
        ("messages", middle("{:,.0f}", lambda run: run.count)),
        ("seconds", middle("{:.1f}", lambda run: run.seconds)),
    ]
    return report.table("The delivery path: medians of interleaved rounds", "Relay", rows, columns, OURS)


def _costs(rows: Runs, signing_us: Sequence[float]) -> list[str]:
    lines = [report.costs_text(name, rows[name]) for name in (POSTFIX_RSPAMD, POSTFIX_OPENDKIM) if name in rows]
    for name in OURS:
        if name in rows:
            after = median(run.figures["finished_seconds"] for run in rows[name])
            lines.append(
                f"{report.costs_text(name, rows[name])}; the last outcome was recorded {after:.2f} s after the sink's "
                "last mail"
            )
    if signing_us:
        lines.append(f"A message's two signatures alone, made one after the other: {min(signing_us):,.0f} µs")
    return lines


def _plot(pyplot: Any, rows: Runs) -> Any:
    # The bare rate is not a relay's; drawn to scale it would leave no space for theirs.
    shown = {name: runs for name, runs in rows.items() if runs[0].server_us}
    figure, panels = pyplot.subplots(
        1, 2, figsize=(12, 1.6 + 0.6 * len(shown)), sharey=True, width_ratios=(1.2, 1), layout="constrained"
    )
    without = f"\n(without a relay: {report.rate(rows[BARE]):,.0f})" if BARE in rows else "\n"
    bars = []
    for name, runs in shown.items():
        ratio = report.ratio(runs, rows.get(POSTFIX)) if name in OURS else None
        note = "" if ratio is None else f" ({ratio:.2f}× {POSTFIX})"
        bars.append(RateAndCost(name, runs, note, BLUE if name in OURS else GREY))
    titles = (f"Messages relayed a second{without}", "Processor time per message, µs\n")
    report.rates_and_costs(tuple(panels), titles, bars, _COLOURS)
    if any(name in OURS for name in shown):
        report.legend(figure, _COLOURS)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    options, asked = harness.chosen(harness.parser(__doc__, rounds=ROUNDS), RELAYS, arguments)
    chosen = []
    for relay in asked:
        if relay.is_optional and (why := relay.missing()):
            print(f"left out: {relay.name}: {why}")
        else:
            chosen.append(relay)
    missing = [relay.missing for relay in chosen]
    return harness.main(options, lambda run: report_of(run, chosen), smtp_sink.missing, *missing)


if __name__ == "__main__":
    sys.exit(main())
