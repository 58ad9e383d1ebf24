"""Every crash point once, under load: a process dies there, is started again, and no work is lost.

`make crash` runs all of them and prints the audit; `python -m tests.crash.crash_points claim. record.` runs those whose
names begin so.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import aiohttp
import uvloop
from rich.console import Console

from posthouse import crash
from tests.support import inbound_reports
from tests.support.audit_report import audit_result, is_failed, show, write
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import fresh_database
from tests.support.service import uuid
from tests.support.smtp_listeners import dotted
from tests.support.whole_service import WholeService, log_directory, start_whole_service

# The part that passes a point, and the pass at which it dies: late enough to be busy.
ERASED_SECONDS_MAX: Final = 3 * HANG_SECONDS
PART_OF: Final = {
    "accept": "http",
    "cancel": "http",
    "submission": "submission",
    "dispatch": "dispatch",
    "reclaim": "dispatch",
    "worker": "delivery",
    "delivery": "delivery",
    "claim": "delivery",
    "postpone": "delivery",
    "carry": "delivery",
    "record": "delivery",
    "reroute": "delivery",
    "notification": "notification",
    "feedback": "inbound",
    "maintenance": "maintenance",
    "erase": "erase",
}
PASSES: Final = {
    "accept": 20,
    "accept.part_written": 3,
    "submission": 8,
    "submission.authenticated": 2,
    "delivery": 5,
    "claim": 5,
    "carry": 12,
    "carry.connected": 3,
    "record": 5,
    "notification": 8,
}
DEATH_SECONDS_MAX: Final = 120.0
IDLE_SECONDS_MAX: Final = 3 * HANG_SECONDS
OLD_DAY: Final = (
    "CREATE TABLE IF NOT EXISTS bodies_20200101 PARTITION OF bodies FOR VALUES FROM"
    " ('016f5e66-e800-7000-8000-000000000000') TO ('016f638d-4400-7000-8000-000000000000')"
)
CI: Final = (
    "accept.after_commit",
    "claim.after_commit",
    "carry.after_dot",
    "record.after_commit",
    "notification.after_post",
)


async def run_point(whole_service: WholeService, point: str, per_second: float) -> float:
    """The process dies at the point, and another takes its place; how many seconds it took."""
    started = time.monotonic()
    family = point.partition(".")[0]
    dying = PART_OF[family]
    armed = f"{point}:{PASSES.get(point, PASSES.get(family, 1))}"
    if dying == "maintenance":
        await _run_maintenance(whole_service, point)
    elif dying == "erase":
        await _run_erasure(whole_service, point)
    else:
        async with whole_service.busy(per_second=per_second):
            with contextlib.suppress(ProcessLookupError):
                await whole_service.running[dying].terminate()
            known = await _workers(whole_service)
            part = whole_service.start(dying, armed)
            await _provoke(whole_service, point, known)
            await _wait_for_death(whole_service, part, point)
            for name, process in whole_service.running.items():
                if process.running.poll() is not None:
                    whole_service.start(name)
            whole_service.processes.receiver.blocked.clear()
        if dying in ("http", "submission"):
            await whole_service.running["http"].ready()
    return time.monotonic() - started


async def _wait_for_death(whole_service: WholeService, part: Any, point: str) -> None:
    deadline = time.monotonic() + DEATH_SECONDS_MAX
    connections = 0
    while part.running.poll() is None:
        assert time.monotonic() < deadline, f"no process passed {point}:\n{part.said()}"
        connections = len(whole_service.processes.receiver.conversations)
        await asyncio.sleep(0.01)  # a process gives no signal that it is dead
    assert part.running.returncode == -9, f"{point}: {part.running.returncode}\n{part.said()}"
    if part is whole_service.running["delivery"]:
        await whole_service.in_flight.note_death(connections)


async def _provoke(whole_service: WholeService, point: str, known: set[UUID]) -> None:
    """Makes happen what this load doesn't cause."""
    match point.partition(".")[0]:
        case "reclaim":
            # Claims are reclaimed only after a worker dies.
            await asyncio.sleep(5)  # claims to be reclaimed come together
            await whole_service.kill("delivery")
            whole_service.start("delivery")
        case "cancel":
            await _cancel_mail(whole_service)
        case "feedback":
            await _send_bounce(whole_service)
        case "reroute" if point == "reroute.before_bounce":
            await whole_service.send_to_blocked()
        case "reroute":
            await whole_service.send_from_blocked()
        case "postpone":
            await _wait_for_new_worker(whole_service, known)
            tenant = whole_service.tenants[0]
            await whole_service.processes.service.operator.suspend(tenant.id)
            await asyncio.sleep(3)  # its mail comes due meanwhile
            await whole_service.processes.service.operator.resume(tenant.id)
        case "dispatch" if "calls" in point:
            # Retries of mail fall due automatically; webhooks when no worker takes their tickets in time.
            await whole_service.kill("notification")
    if point in ("worker.before_retirement", "worker.retired"):
        await _wait_for_new_worker(whole_service, known)
        whole_service.running["delivery"].running.terminate()


async def _workers(whole_service: WholeService) -> set[UUID]:
    return {row["id"] for row in await whole_service.processes.service.sql("SELECT id FROM workers")}


async def _wait_for_new_worker(whole_service: WholeService, known: set[UUID]) -> None:
    """Waits for a worker that is not known yet, which can then be stopped."""
    await eventually(lambda: _workers(whole_service), lambda workers: not workers <= known)


async def _cancel_mail(whole_service: WholeService) -> None:
    """Scheduled mail is cancelled; the answer may be lost with the process."""
    await whole_service.running["http"].ready()
    tenant = whole_service.tenants[0]
    send_at = (datetime.now(UTC) + timedelta(seconds=20)).isoformat()
    mail = tenant.mail(send_at=send_at, to=f"later@{whole_service.domains[0]}")
    sent = await eventually(
        lambda: tenant.send(mail, key=f"later-{send_at}"),  # the load has numbered keys
        lambda answer: answer.status == 202,
    )
    with contextlib.suppress(OSError, aiohttp.ClientError):
        await tenant.cancel(sent.body["id"])


async def _send_bounce(whole_service: WholeService) -> None:
    """Sends a bounce of a delivered message."""
    await whole_service.listeners.open(whole_service.running["inbound"], whole_service.listeners.inbound_port)
    line = (await eventually(whole_service.processes.lines))[-1]
    bounce = inbound_reports.bounce(line["recipient"], to=line["sender"])
    async with whole_service.listeners.line(is_secure=False, port=whole_service.listeners.inbound_port) as connection:
        await connection.say("EHLO mx.example.org", "MAIL FROM:<>", f"RCPT TO:<{line['sender']}>", "DATA")
        connection.writer.write(dotted(bounce))
        await connection.writer.drain()


async def _run_maintenance(whole_service: WholeService, point: str) -> None:
    """Partitions to create or drop, or keys to delete: it dies, and the next run finishes the work."""
    service = whole_service.processes.service
    match point:
        case "maintenance.before_partition" | "maintenance.partition_made":
            await service.sql("DROP TABLE webhook_deliveries_" + await _last_day(whole_service))
        case (
            "maintenance.before_detaching" | "maintenance.detached" | "maintenance.before_drop" | "maintenance.dropped"
        ):
            await service.sql(OLD_DAY)
        case (
            "maintenance.before_reducing"
            | "maintenance.reduced"
            | "maintenance.before_forgetting_final"
            | "maintenance.forgotten_final"
        ):
            await _run_reduction(whole_service, point)
            return
        case "maintenance.before_forgetting_content" | "maintenance.forgotten_content":
            await _run_forgetting(whole_service, point)
            return
    assert await asyncio.to_thread(whole_service.maintenance, point) == -9, point
    assert await asyncio.to_thread(whole_service.maintenance) == 0
    assert await service.value("SELECT to_regclass('bodies_20200101')") is None
    assert await service.value(f"SELECT to_regclass('webhook_deliveries_{await _last_day(whole_service)}')") is not None


async def _run_reduction(whole_service: WholeService, point: str) -> None:
    """Of two bodies of an old day one is still needed: it dies, and the next run leaves this one alone."""
    service = whole_service.processes.service
    needed, other = (f"016f5e66-e800-7000-8000-0000000000{number}" for number in ("40", "80"))
    await service.sql(OLD_DAY)
    for message_id in (needed, other):
        await service.sql(f"INSERT INTO bodies (account_id, message_id, mime) VALUES ('{needed}', '{message_id}', 'x')")
    await service.sql(
        "INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at)"
        f" VALUES ('{needed}', '{needed}', 1, 'example.org', '2100-01-01')"
    )
    assert await asyncio.to_thread(whole_service.maintenance, point) == -9, point
    assert await asyncio.to_thread(whole_service.maintenance) == 0
    assert await service.value("SELECT to_regclass('bodies_20200101')") is None
    left = "SELECT string_agg(message_id::text, ' ') FROM bodies_20200101_stragglers"
    assert await service.value(left) == needed
    await service.sql("DELETE FROM delivery_schedule WHERE next_at = '2100-01-01'")
    assert await asyncio.to_thread(whole_service.maintenance) == 0
    assert await service.value("SELECT to_regclass('bodies_20200101_stragglers')") is None


async def _run_forgetting(whole_service: WholeService, point: str) -> None:
    """A message whose content is to be forgotten is final: it dies, and the next run leaves no body of it."""
    service, tenant = whole_service.processes.service, whole_service.tenants[0]
    await whole_service.running["http"].ready()
    mail = tenant.mail(content="forget", to=f"{point}@{whole_service.domains[0]}")
    sent = await tenant.send(mail, key=f"forget-{point}")
    number = uuid(sent.body["id"])
    await eventually(lambda: service.value(f"SELECT open_count = 0 FROM messages WHERE id = '{number}'"))
    assert await asyncio.to_thread(whole_service.maintenance, point) == -9, point
    assert await asyncio.to_thread(whole_service.maintenance) == 0
    assert await service.value(f"SELECT count(*) FROM bodies WHERE message_id = '{number}'") == 0
    assert await service.value("SELECT count(*) FROM bodies_to_delete") == 0


async def _run_erasure(whole_service: WholeService, point: str) -> None:
    """An address is erased by a process that dies; another continues, and no table contains the address."""
    processes, tenant = whole_service.processes, whole_service.tenants[0]
    service = processes.service
    await whole_service.running["http"].ready()
    address = f"{point}@{whole_service.domains[0]}"
    sent = uuid((await tenant.send(tenant.mail(to=address), key=point)).body["id"])
    is_final = "SELECT open_count = 0 FROM messages WHERE id = $1"
    await eventually(lambda: service.value(is_final, sent))
    # These are cancelled: a second copy that arrives would count as a duplicate.
    later = tenant.mail(to=address, send_at=(datetime.now(UTC) + timedelta(days=1)).isoformat())
    for number in range(2):
        await tenant.send(later, key=f"{point}-{number}")
    begun = await tenant.call("POST", "/v1/erasures", {"email": address})
    armed = crash.ENVIRONMENT.removeprefix("POSTHOUSE_")
    processes.settings[armed] = point
    dying = processes.start("maintenance")
    del processes.settings[armed]
    # The last phases begin when the search index has all mail from before.
    await eventually(lambda: dying.running.poll() == -9, within=ERASED_SECONDS_MAX, or_say=dying.said)
    part = processes.start("maintenance")
    path = f"/v1/erasures/{begun.body['erasure']['id']}"
    await eventually(
        lambda: tenant.call("GET", path),
        lambda answer: answer.body["erasure"]["status"] == "done",
        within=ERASED_SECONDS_MAX,
    )
    part.kill()
    assert await service.value("SELECT count(*) FROM recipients WHERE lower(email) = $1", address) == 0


async def _last_day(whole_service: WholeService) -> str:
    name: str = await whole_service.processes.service.value(
        "SELECT max(substring(relname FROM 20)) FROM pg_class WHERE relname ~ '^webhook_deliveries_[0-9]{8}$'"
    )
    wanted: str = await whole_service.processes.service.value(
        "SELECT max(substring(relname FROM 10)) FROM pg_class WHERE relname ~ '^messages_[0-9]{8}$'"
    )
    return max(name, wanted)


async def run_points(
    points: Sequence[str], url: str, directory: Path, seed: int, console: Console, per_second: float = 60.0
) -> dict[str, Any]:
    """All of these points on one service that is sent this much, one after the other; then the audit."""
    async with start_whole_service(url, directory, seed) as whole_service:
        async with whole_service.busy(per_second=per_second):
            await asyncio.sleep(2)  # a first load
        for number, point in enumerate(points, 1):
            if point.startswith("reroute."):
                # It waits for messages of its own, which a backlog would delay.
                await whole_service.wait_until_idle(IDLE_SECONDS_MAX)
            seconds = await run_point(whole_service, point, per_second)
            console.print(f"{number:>3} of {len(points)}  {point:<36} {seconds:5.1f} s", highlight=False)
        await whole_service.wait_until_idle(IDLE_SECONDS_MAX)
        return await audit_result(whole_service)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill every process at every crash point, and audit.")
    parser.add_argument("points", nargs="*", help="only points that begin so")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--report", type=Path, help="write the tables here as Markdown, too")
    asked = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"seed {asked.seed}")
    points = sorted(crash.POINTS, key=lambda point: (list(PART_OF).index(point.partition(".")[0]), point))
    chosen = [point for point in points if not asked.points or point.startswith(tuple(asked.points))]
    with tempfile.TemporaryDirectory(dir=log_directory()) as directory, fresh_database("crash") as (_, url):
        report = uvloop.run(run_points(chosen, url, Path(directory), asked.seed, console))
    show(report, console)
    if asked.report is not None:
        how = "`make crash`; every point was reached, and its process died there."
        write(report, "crash", f"{len(chosen)} crash points, seed {asked.seed}", how, asked.report)
    return int(is_failed(report))


if __name__ == "__main__":
    sys.exit(main())
