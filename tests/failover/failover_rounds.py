"""Failover: the whole service under load while primaries are killed, freeze or are cut off, and standbys take over.

`make test-failover`: in each round the primary fails, the standby that received most is promoted, the old primary comes
back for a while where it can, and is made a standby again. No process of the service is restarted. At the end every id
that a sender was given is looked for, and the audit compares all outside logs with the record.
"""

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import uvloop
from rich.console import Console

from posthouse.rules import ids
from posthouse.store.hosts import WritableHost
from tests.failover.replicated_postgres import Node, ReplicatedPostgres, replicated_postgres
from tests.support.audit_report import audit_result, is_failed, show, write
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.whole_service import WholeService, log_directory, start_whole_service

DATABASE: Final = "failover"
IDLE_SECONDS_MAX: Final = 3 * HANG_SECONDS
BACK_SECONDS_MAX: Final = 60.0
# How long a primary fails before the next step, at least and at most.
NOTICED_SECONDS: Final = (1.0, 4.0)
STEADY_SECONDS: Final = 3.0
# Clients that paused would look like a service that is away.
WAITING_MAX: Final = 100_000
# The old primary is back for longer than a statement is waited for.
OLD_PRIMARY_SECONDS: Final = 4.0
POLL_SECONDS: Final = 0.02


def _cut_off(node: Node) -> None:
    assert node.way is not None
    node.way.cut()


def _repair(node: Node) -> None:
    assert node.way is not None
    node.way.restore()


@dataclass(frozen=True, slots=True)
class Failure:
    fail: Callable[[Node], None]
    come_back: Callable[[Node], None] | None
    needs_ways: bool = False


FAILURES: Final[Mapping[str, Failure]] = {
    "killed": Failure(Node.kill, None),
    "frozen": Failure(Node.freeze, Node.thaw),
    "cut-off": Failure(_cut_off, _repair, needs_ways=True),
}


@dataclass(slots=True)
class Rounds:
    cluster: ReplicatedPostgres
    whole_service: WholeService
    randomness: random.Random
    console: Console
    # Seconds from the promotion to the next 202 and 250.
    back_http: list[float] = field(default_factory=list)
    back_smtp: list[float] = field(default_factory=list)

    async def run(self, failure: Failure) -> None:
        await asyncio.sleep(STEADY_SECONDS)
        old = self.cluster.primary
        await self.whole_service.in_flight.note_database_loss()
        accepted = self.whole_service.accepted
        await asyncio.to_thread(failure.fail, old)
        await asyncio.sleep(self.randomness.uniform(*NOTICED_SECONDS))
        answered = dict(self.whole_service.answers)
        promoted_at = await self.cluster.promote()
        http, smtp = await back_after(self.whole_service, answered, promoted_at)
        self.back_http.append(http)
        self.back_smtp.append(smtp)
        if failure.come_back is not None:
            failure.come_back(old)
        await asyncio.sleep(OLD_PRIMARY_SECONDS)
        await asyncio.to_thread(old.kill)
        await self.cluster.add_standby(old)
        self.console.print(
            f"node {old.number} failed, node {self.cluster.primary.number} took over: 202 after {http:.2f} s, 250 after"
            f" {smtp:.2f} s; {self.whole_service.accepted - accepted} accepted since the failure",
            highlight=False,
        )


async def back_after(whole_service: WholeService, before: Mapping[str, int], since: float) -> tuple[float, float]:
    """Seconds since then to the next 202 and to the next 250, of more than there were before."""
    answers = whole_service.answers

    async def back(answer: str) -> float:
        more = before.get(answer, 0) + 1
        await eventually(
            lambda: answers[answer], lambda count: count >= more, every=POLL_SECONDS, or_say=lambda: str(dict(answers))
        )
        return time.monotonic() - since

    http, smtp = await asyncio.gather(back("http: 202"), back("smtp: 250"))
    return http, smtp


def _accepted_ids(sender_log: Path) -> set[str]:
    lines = [json.loads(line) for line in sender_log.read_text().splitlines()]
    return {line["id"] for line in lines if line["outcome"] == "accepted"}


async def lost_ids(reader: Any, sender_log: Path) -> list[str]:
    """Ids that senders were given with a 202 or 250, and that are not on record."""
    given = await asyncio.to_thread(_accepted_ids, sender_log)
    rows = await reader.fetch("SELECT id FROM messages")
    return sorted(given - {ids.text(ids.MESSAGE, row["id"]) for row in rows})


@asynccontextmanager
async def follow_primary(whole_service: WholeService, url: str) -> AsyncIterator[None]:
    """The test's own connections go to the primary, whichever it is."""
    host = WritableHost(url)
    service = whole_service.processes.service
    first, service.pool = (
        service.pool,
        await asyncpg.create_pool(
            url, connect=host.connect, min_size=0, max_size=4, timeout=3, command_timeout=3, statement_cache_size=0
        ),
    )
    host.when_promoted = service.pool.expire_connections
    first.terminate()
    try:
        yield
    finally:
        service.pool.terminate()


async def run_rounds(
    name: str,
    directory: Path,
    *,
    rounds: int,
    seed: int,
    per_second: float,
    clients: int,
    is_synchronous: bool,
    console: Console,
) -> dict[str, Any]:
    failure = FAILURES[name]
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            replicated_postgres(DATABASE, ways=failure.needs_ways, is_synchronous=is_synchronous)
        )
        url = cluster.url(DATABASE)
        # Its first user is a client that needs one host.
        whole_service = await stack.enter_async_context(
            start_whole_service(
                cluster.primary.running.url(DATABASE),
                directory,
                seed,
                DATABASE__URL=url,
                DATABASE__STANDBYS="1" if is_synchronous else "0",
                # Without an operator, what an asynchronous replica lacks would hold everything else.
                DATABASE__HOLD_AFTER_RESTORE=str(is_synchronous).lower(),
                WORKERS__LEASE_SECONDS="30",
                WORKERS__TICKET_LEASE_SECONDS="10",
            )
        )
        await stack.enter_async_context(follow_primary(whole_service, url))
        done = Rounds(cluster, whole_service, random.Random(seed), console)
        started = time.monotonic()
        async with whole_service.busy(clients, max(2, clients // 3), per_second, WAITING_MAX):
            for _ in range(rounds):
                await done.run(failure)
            await asyncio.sleep(STEADY_SECONDS)
        seconds = time.monotonic() - started
        parts = [part for part in whole_service.running.values() if part.running.poll() is not None]
        idle_after = await whole_service.wait_until_idle(IDLE_SECONDS_MAX)
        whole_service.processes.database_url = cluster.primary.running.url(DATABASE)
        whole_service.sender_log.flush()
        report = await audit_result(whole_service)
        report["lost"] = await lost_ids(whole_service.processes.service.pool, Path(whole_service.sender_log.name))
        report["ended"] = [part.words for part in parts]
        report["back_http"], report["back_smtp"] = done.back_http, done.back_smtp
        report["idle_seconds"] = idle_after
        report["per_second"] = whole_service.accepted / seconds
        report["accepted"] = whole_service.accepted
        return report


def summary(name: str, report: dict[str, Any]) -> str:
    return (
        f"{name}: {len(report['back_http'])} rounds, {report['accepted']:,} accepted ({report['per_second']:.0f}/s over"
        f" all), {len(report['lost'])} lost; back after at most {max(report['back_http']):.2f} s (202) and"
        f" {max(report['back_smtp']):.2f} s (250) from the promotion; {len(report['ended'])} processes ended"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="The whole service under load while primaries fail; then the audit.")
    parser.add_argument("failures", nargs="*", metavar="FAILURE", help=f"of {', '.join(FAILURES)}; without it, all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--rate", type=float, default=100.0, help="messages a second, on average over all failures")
    parser.add_argument("--clients", type=int, default=24, help="over HTTP; and a third of that over SMTP")
    parser.add_argument("--asynchronous", action="store_true", help="no commit waits for a standby: count what is lost")
    parser.add_argument("--report", type=Path, help="write the tables here as Markdown, too")
    asked = parser.parse_args()
    if unknown := set(asked.failures) - set(FAILURES):
        parser.error(f"no such failure: {', '.join(sorted(unknown))}; there are {', '.join(FAILURES)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"seed {asked.seed}")
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    is_broken = False
    for name in asked.failures or FAILURES:
        with tempfile.TemporaryDirectory(dir=log_directory()) as directory:
            report = uvloop.run(
                run_rounds(
                    name,
                    Path(directory),
                    rounds=asked.rounds,
                    seed=asked.seed,
                    per_second=asked.rate,
                    clients=asked.clients,
                    is_synchronous=not asked.asynchronous,
                    console=console,
                )
            )
        show(report, console)
        console.print(summary(name, report), highlight=False)
        if asked.report is not None:
            title = f"Primaries {name}, seed {asked.seed}"
            write(report, f"failover-{name}", title, summary(name, report), asked.report)
        is_broken = is_broken or bool(is_failed(report) or report["lost"] or report["ended"])
    return int(is_broken and not asked.asynchronous)


if __name__ == "__main__":
    sys.exit(main())
