"""Measures submission: messages a second accepted durably over SMTP with TLS and a password, ours and its peers.

    make bench-submission                         (or: python bench/submission.py)
    python bench/submission.py --rounds 5
    python bench/submission.py --only postfix,posthouse --quick --output /tmp/bench

The same messages take the same path to all: from a load that submits them as fast as they are accepted, in sessions of
one message and in sessions of twenty. Rounds of all servers in turn, medians over the rounds, ratios within each round.
A figure is given only when every message that was answered with 250 is on the server's disk, and nothing else is.
"""

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import trustme

from bench import dataset, harness, message, peer_servers, report
from bench.dataset import Dataset, with_connection
from bench.harness import Contestant, Run
from bench.peer_servers import SubmissionTerms, greets
from bench.processes import (
    LOAD,
    BenchError,
    MachineTime,
    Measured,
    Process,
    ends_with_parent,
    metered,
    microseconds,
    posthouse_command,
    running,
)
from bench.report import BLUE, GREY, PALE_BLUE, Goal, Plot, RateAndCost, Report, Rows, Runs, goal, middle
from posthouse.rules import ids
from tests.faults.idle_clients import Cost, may_open, open_clients, reset
from tests.support.smtp_listeners import plain
from tools.private_postgres import PrivatePostgres, free_port

ROUNDS: Final = 3
# Each has its own domain and password.
SENDERS: Final = 10
SESSIONS: Final = 40
IDLE_SESSIONS: Final = 2_000
# The share of the messages in a quick run.
QUICK_SHARE: Final = 0.03
MESSAGES_MIN: Final = 80
LOAD_SECONDS_MAX: Final = 300
# What a server still does after its last reply.
SETTLE_SECONDS: Final = 0.3
# Too many to be what is measured: the load comes from one address.
CONNECTIONS_MAX: Final = 4_000

POSTFIX: Final = "Postfix"
HARAKA: Final = "Haraka"
OURS: Final = "Posthouse, one process"
RATIO_MIN: Final = 2.0

_COLOURS: Final = {"submission": BLUE, "PostgreSQL": PALE_BLUE}
_LOAD_PROGRAM: Final = Path(__file__).with_name("submission_load.py")

# Every message with its recipient, its body, its reserved credit and its schedule row.
_STORED: Final = """
SELECT (SELECT count(*) FROM messages WHERE source = 'smtp') AS messages,
       (SELECT count(*) FROM recipients) AS recipients,
       (SELECT count(*) FROM bodies) AS bodies,
       (SELECT count(*) FROM ledger WHERE kind = 'reserve') AS reserved,
       (SELECT count(*) FROM delivery_schedule) AS scheduled,
       (SELECT count(*) FROM messages WHERE id = ANY($1::uuid[])) AS named
"""


class Shape(NamedTuple):
    name: str
    messages: int


SINGLE: Final = Shape("one message a session", 1)
MANY: Final = Shape("20 messages a session", 20)

Found = Mapping[Shape, Runs]


@dataclass(slots=True)
class Server:
    """`families` are the processes, by id, whose time is the server's, with all their descendants'.

    `require_stored` raises unless exactly the messages with these replies are in its database or its queue.
    """

    port: int
    families: Mapping[str, Sequence[int]]
    require_stored: Callable[[Sequence[str]], None]
    replies: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Setup:
    """What the servers share, and the processors on which the load runs."""

    workplace: Path
    terms: SubmissionTerms
    data: Dataset
    haraka: Path | None
    processors: Sequence[int]

    def start_load(self, port: int, messages: int, messages_per_session: int) -> Process:
        senders = [
            {
                "username": sender.username,
                "password": sender.password,
                "sender": f"orders@{sender.domain}",
                "recipient": message.RECIPIENT,
                "content": message.mail(sender.domain).decode(),
            }
            for sender in self.terms.senders
        ]
        plan = self.workplace / "plan.json"
        numbers = {
            "port": port,
            "messages": messages,
            "messages_per_session": messages_per_session,
            "sessions": SESSIONS,
        }
        plan.write_text(json.dumps({**numbers, "senders": senders, "processors": self.processors}))
        return subprocess.Popen(
            [*ends_with_parent(), sys.executable, str(_LOAD_PROGRAM), str(plan)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@dataclass(frozen=True, slots=True)
class ServerUnderTest(Contestant):
    """`messages` of each shape last several seconds, `warm_messages` warm up its processes and caches."""

    messages: Mapping[Shape, int]
    warm_messages: int
    running: Callable[[Setup], AbstractContextManager[Server]]


@contextmanager
def _postfix(setup: Setup) -> Iterator[Server]:
    with peer_servers.postfix_submission(setup.workplace, setup.terms) as peer:
        yield Server(peer.port, {POSTFIX: [peer.process.pid]}, partial(peer_servers.require_in_postfix, peer))


@contextmanager
def _haraka(setup: Setup) -> Iterator[Server]:
    assert setup.haraka is not None
    with peer_servers.haraka_submission(setup.workplace, setup.haraka, setup.terms) as peer:
        yield Server(peer.port, {HARAKA: [peer.process.pid]}, partial(peer_servers.require_in_haraka, peer))


def posthouse_settings(certificate: Path, key: Path, port: int) -> dict[str, str]:
    return {
        "SMTP__TLS_CERTIFICATE_FILE": str(certificate),
        "SMTP__TLS_KEY_FILE": str(key),
        "SUBMISSION__PORT": "0",
        "SUBMISSION__TLS_PORT": str(port),
        "SMTP__CONNECTIONS_MAX": str(CONNECTIONS_MAX),
        "SMTP__CONNECTIONS_PER_ADDRESS_MAX": str(CONNECTIONS_MAX),
        "SERVICE__HOSTNAME": "mail.posthouse.example",
    }


@contextmanager
def posthouse(setup: Setup) -> Iterator[Server]:
    data, port = setup.data, free_port()
    data.clear()
    settings = {
        # On one machine, as the peers' processes talk to each other.
        "DATABASE__URL": f"postgresql://postgres@/{data.database}?host={data.cluster.directory}&port={data.cluster.port}",
        **posthouse_settings(setup.terms.certificate_file, setup.terms.key_file, port),
    }
    command, log = posthouse_command("run", "submission"), data.workplace / "submission.log"
    is_ready = partial(greets, port, is_secure=True)
    with running(command, log, is_ready, environment=data.with_settings(settings)) as process:
        families = {"submission": [process.pid], "PostgreSQL": [data.cluster.pid]}
        yield Server(port, families, partial(_require_in_database, data))


def _require_in_database(data: Dataset, replies: Sequence[str]) -> None:
    named = {ids.parse(ids.MESSAGE, reply.rpartition(" ")[2]) for reply in replies}
    stored = dict(with_connection(data.url, lambda connection: connection.fetchrow(_STORED, list(named))))
    if {len(named), *stored.values()} != {len(replies)}:
        raise BenchError(
            f"{len(replies):,} messages were answered with 250, naming {len(named):,}, and the database has: {stored}"
        )


SERVERS: Final = (
    ServerUnderTest(
        "postfix", POSTFIX, peer_servers.postfix_submission_missing, {SINGLE: 3_000, MANY: 6_000}, 400, _postfix
    ),
    ServerUnderTest("haraka", HARAKA, peer_servers.haraka_missing, {SINGLE: 3_000, MANY: 4_000}, 1_000, _haraka),
    ServerUnderTest("posthouse", OURS, lambda: None, {SINGLE: 5_000, MANY: 12_000}, 400, posthouse),
)


@dataclass(slots=True)
class Load:
    """Messages to a server, as fast as it accepts them; `protocols` are those of its TLS."""

    setup: Setup
    protocols: set[str] = field(default_factory=set)

    def measured(self, server: Server, messages: int, messages_per_session: int) -> Measured:
        """From the load's first connection to the last 250; raises unless every message got one, and is stored."""
        began, began_at = MachineTime.now(), time.monotonic()
        with metered(server.families) as used:
            process = self.setup.start_load(server.port, messages, messages_per_session)
            try:
                output, errors = process.communicate(timeout=LOAD_SECONDS_MAX)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            time.sleep(SETTLE_SECONDS)
        if process.returncode != 0:
            raise BenchError(f"the load failed: {errors.decode(errors='replace')[-2000:]}")
        found: dict[str, Any] = json.loads(output)
        others = MachineTime.now().busy - began.busy - sum(used.values())
        server.replies += found["replies"]
        server.require_stored(server.replies)
        self.protocols.add(found["protocol"])
        each_us = microseconds(used, messages)
        return Measured(
            count=messages,
            seconds=found["seconds"],
            server_us={name: each_us[name] for name in server.families},
            load_us=each_us[LOAD],
            p50_ms=found["p50_ms"],
            p99_ms=found["p99_ms"],
            # Of the processors' time meanwhile: what programs had that are no part of this.
            figures={"others": max(0.0, others / (time.monotonic() - began_at) / (os.cpu_count() or 1))},
        )


def measure(run: Run, chosen: Sequence[ServerUnderTest]) -> Report:
    share = QUICK_SHARE if run.is_quick else run.options.share
    found: dict[Shape, dict[str, list[Measured]]] = {
        shape: {server.name: [] for server in chosen} for shape in (SINGLE, MANY)
    }
    idle: list[str] = []
    with _prepared(run, [server.key for server in chosen]) as (setup, programs):
        load = Load(setup)
        for round_name, contestant in run.interleaved(chosen):
            with run.status(f"{round_name}: {contestant.name}"), contestant.running(setup) as server:
                load.measured(server, max(MESSAGES_MIN, round(contestant.warm_messages * share)), 2)
                for shape, messages in contestant.messages.items():
                    measured = load.measured(server, max(MESSAGES_MIN, round(messages * share)), shape.messages)
                    found[shape][contestant.name].append(measured)
                    run.say(f"{round_name}: {contestant.name}, {shape.name}: {measured}")
        if run.options.idle and OURS in found[SINGLE]:
            idle.append(_idle(setup, run.options.idle))
    rows = _flat(found)
    return Report(
        name="submission",
        title="Submission",
        target="bench-submission",
        machine=report.machine(*programs),
        tables=[_table(found)],
        goals=goals(found),
        more=[*_costs(found), *idle],
        notes=report.notes(
            "submission",
            repeated=report.repeated(run.rounds),
            variation=report.variation(rows),
            others=f"{max(measured.figures['others'] for runs in rows.values() for measured in runs):.0%}",
            protocols=" or ".join(sorted(load.protocols)),
            mail_bytes=f"{len(message.mail('shop0.example')):,}",
            sessions=SESSIONS,
        ),
        plot=Plot(
            "submission.png",
            "Messages accepted a second and processor time per message",
            lambda pyplot: _plot(pyplot, found),
        ),
    )


def _idle(setup: Setup, sessions: int) -> str:
    """The memory of sessions that have authenticated and then send nothing, in words."""
    may_open(sessions)
    sender = setup.terms.senders[0]
    words = [b"EHLO idle.example\r\n", f"{plain(sender.username, sender.password)}\r\n".encode()]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def resident_bytes(pid: int, port: int) -> int:
        try:
            clients = await open_clients(sessions, port, words, context=context)
        except OSError as error:
            raise BenchError(f"idle sessions could not be opened: {error!r}") from error
        after = Cost.of(pid).resident_bytes
        if lost := sum(client.closed_at is not None for client in clients):
            raise BenchError(f"{lost} of {sessions} idle sessions were closed")
        for client in clients:
            reset(client)
        return after

    with posthouse(setup) as server:
        Load(setup).measured(server, MESSAGES_MIN, 2)
        (pid,) = server.families["submission"]
        before = Cost.of(pid).resident_bytes
        after = asyncio.run(resident_bytes(pid, server.port))
    return (
        f"{sessions:,} idle sessions of ours, authenticated: {(after - before) / sessions / 1024:.0f} KB each "
        f"({before / 2**20:.0f} MB resident before, {after / 2**20:.0f} MB with them)"
    )


@contextmanager
def _prepared(run: Run, keys: Sequence[str]) -> Iterator[tuple[Setup, list[str]]]:
    """What the chosen servers need, and the versions of the programs."""
    programs = []
    haraka = peer_servers.install_haraka(run) if "haraka" in keys else None
    if haraka is not None:
        programs.append(peer_servers.haraka_version(haraka))
    if "postfix" in keys:
        programs.append(peer_servers.postfix_version())
    processors = _processors_for_load()
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, accounts, a certificate"):
            data = dataset.make(cluster, run.workplace)
            terms = SubmissionTerms(*make_certificate(run.workplace), data.senders[:SENDERS])
        yield Setup(run.workplace, terms, data, haraka, processors), programs


def _processors_for_load() -> list[int]:
    """The processors that are left for the load; processes started from now on run on the others.

    A client needs more for a handshake than a server does: on the same processors, all servers would look alike.
    """
    *rest, last = sorted(os.sched_getaffinity(0))
    if rest:
        os.sched_setaffinity(0, rest)
    return [last]


def make_certificate(workplace: Path) -> tuple[Path, Path]:
    """A certificate with an ECDSA key on P-256, and that key, as files."""
    issued = trustme.CA().issue_cert("mail.posthouse.example", key_type=trustme.KeyType.ECDSA)
    certificate, key = workplace / "certificate.pem", workplace / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return certificate, key


def goals(found: Found) -> list[Goal]:
    """As far as what they are about was measured."""
    reached = []
    for shape, servers in found.items():
        for peer in (POSTFIX, HARAKA):
            ratio = report.ratio(servers[OURS], servers.get(peer)) if OURS in servers else None
            if ratio is not None:
                text = f"{shape.name}, {OURS}, at {RATIO_MIN:.1f}× {peer} or more: {ratio:.2f}×"
                reached.append(goal(ratio >= RATIO_MIN, text))
    return reached


def _flat(found: Found) -> dict[str, Sequence[Measured]]:
    return {f"{name}, {shape.name}": runs for shape, servers in found.items() for name, runs in servers.items()}


def _table(found: Found) -> Rows:
    rows = _flat(found)

    def to(peer: str, runs: Sequence[Measured], *, is_cost: bool = False) -> str:
        """The ratio to the peer in sessions of the same shape."""
        (servers,) = [servers for servers in found.values() if any(runs is known for known in servers.values())]
        others = servers.get(peer)
        if not is_cost:
            return report.times(report.ratio(runs, others))
        return report.times(None if others is None else report.ratio(others, runs, lambda run: run.cpu_us))

    columns = [
        ("messages/s", middle("{:,.0f}", lambda run: run.per_second)),
        ("× Postfix", lambda runs: to(POSTFIX, runs)),
        ("× Haraka", lambda runs: to(HARAKA, runs)),
        ("p50 ms", middle("{:.0f}", lambda run: run.p50_ms)),
        ("p99 ms", middle("{:.0f}", lambda run: run.p99_ms)),
        ("CPU µs: server", middle("{:,.0f}", lambda run: run.cpu_us)),
        ("× less than Postfix", lambda runs: to(POSTFIX, runs, is_cost=True)),
        ("load", middle("{:,.0f}", lambda run: run.load_us)),
        ("messages", middle("{:,.0f}", lambda run: run.count)),
    ]
    ours = [name for name in rows if name.startswith(OURS)]
    return report.table("Submission: medians of interleaved rounds", "Server", rows, columns, ours)


def _costs(found: Found) -> list[str]:
    return [report.costs_text(name, runs) for name, runs in _flat(found).items() if name.startswith(OURS)]


def _plot(pyplot: Any, found: Found) -> Any:
    servers = len(found[SINGLE])
    figure, grid = pyplot.subplots(
        len(found),
        2,
        figsize=(12, 1.0 + len(found) * (0.9 + 0.45 * servers)),
        width_ratios=(1.2, 1),
        layout="constrained",
        squeeze=False,
    )
    for (shape, by_name), panels in zip(found.items(), grid, strict=True):
        bars = []
        for name, runs in by_name.items():
            ratio = report.ratio(runs, by_name.get(POSTFIX)) if name == OURS else None
            note = "" if ratio is None else f" ({ratio:.1f}× {POSTFIX})"
            bars.append(RateAndCost(name, runs, note, BLUE if name == OURS else GREY))
        titles = (f"Messages accepted a second, {shape.name}", "Processor time per message, µs")
        report.rates_and_costs(tuple(panels), titles, bars, _COLOURS)
    report.legend(figure, _COLOURS)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS)
    parser.add_argument("--idle", type=int, default=IDLE_SESSIONS, help=f"idle sessions, 0: none ({IDLE_SESSIONS})")
    options, chosen = harness.chosen(parser, SERVERS, arguments)
    return harness.main(options, lambda run: measure(run, chosen), *(server.missing for server in chosen))


if __name__ == "__main__":
    sys.exit(main())
