"""A restore to a point in time: the whole service under load is lost, and comes back with an older database.

`make test-restore`: every process and PostgreSQL are killed, the database is restored to some seconds before, and the
processes start again. The senders' log and the receiver's are the truth outside: which accepted mail is lost, what came
twice, and what would have come twice. Without what the lost seconds logged, the audit must find nothing.
"""

import argparse
import asyncio
import json
import logging
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import uvloop

from posthouse.rules import ids
from tests.restore.archived_postgres import ArchivedPostgres, archived_postgres, has_pgbackrest
from tests.support import preloaded
from tests.support.duplicate_mail import DATABASE_ERRORS
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.rolling_restart import LONG_LEASES
from tests.support.server_process import environment
from tests.support.whole_service import PARTS, WholeService, log_directory, start_whole_service

DATABASE: Final = "restored"
IDLE_SECONDS_MAX: Final = 3 * HANG_SECONDS
BACK_SECONDS_MAX: Final = 120.0
# Addresses whose server takes a message and closes the connection get copies without a restore too.
AMBIGUOUS: Final = "lose-dot"
# An id is drawn before its message is committed.
COMMITTED_WITHIN: Final = timedelta(seconds=5)
SHOWN_MAX: Final = 40
# No breach: webhooks of events that the restored database doesn't have.
UNKNOWN: Final = "unknown"
_message_id: Final = re.compile(r"^message-id:\s*(\S+)", re.IGNORECASE | re.MULTILINE)

FINAL: Final = "SELECT array_agg(email) FROM recipients WHERE status NOT IN ('queued', 'deferred')"

# Of a recipient's address and its message's Message-ID.
Copies = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Restored:
    """The figures of one restore.

    `lost` are messages with a 202 or 250 that the restored database doesn't have; `lost_sent` of their recipients had
    got them. `wrongly_lost` were accepted before the point, `wrongly_restored` after it. `held_sent` are recipients
    held that had got their mail. Second copies are counted before an operator releases anything, and after. `repeated`
    are recipients of lost requests that their client repeated on its own. `unexplained` is what the audit finds broken
    by logs without the lost seconds.
    """

    accepted: int
    lost: int
    lost_sent: int
    wrongly_lost: int
    wrongly_restored: int
    held: int
    held_sent: int
    second_copies: int
    second_copies_after_release: int
    repeated: int
    new_delivered: int
    seconds_lost: float
    noticed_seconds: float
    unexplained: int


class Run:
    def __init__(self, service: WholeService, postgres: ArchivedPostgres) -> None:
        self.service = service
        self.postgres = postgres
        # Lines of the receiver's log at the point and at the loss, and the recipients that were final at the point.
        self.arrivals_lost = range(0)
        self.final_at_point: frozenset[str] = frozenset()

    async def sql(self, query: str) -> Any:
        return await self.postgres.value(query)

    def copies(self) -> Copies:
        """By the receiver's log."""
        counted: Copies = Counter()
        for line in self.service.processes.lines():
            found = _message_id.search(line["headers"])
            if not line["recipient"].startswith(AMBIGUOUS):
                counted[line["recipient"], found[1] if found else ""] += 1
        return counted

    def accepted(self) -> set[str]:
        """Ids, by the senders' log."""
        self.service.sender_log.flush()
        lines = Path(self.service.sender_log.name).read_text().splitlines()
        return {line["id"] for line in map(json.loads, lines) if line["outcome"] == "accepted"}

    async def command(self, *words: str) -> dict[str, Any]:
        processes = self.service.processes
        done = await asyncio.to_thread(
            preloaded.run, *words, "--json",
            environment=environment(self.postgres.url, **processes.settings), directory=processes.directory,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    async def lose(self, keep_seconds: float, lost_seconds: float) -> datetime:
        """Kills everything `lost_seconds` after the point to which the database is to be restored."""
        await asyncio.sleep(keep_seconds)
        point: datetime = await self.sql("SELECT clock_timestamp()")
        arrivals_at_point = len(self.service.processes.lines())
        await asyncio.sleep(lost_seconds)
        # A machine that is lost takes the last second's WAL along; the point is before that.
        for part in self.service.running.values():
            part.kill()
        await self.postgres.archived_to_now()
        await asyncio.to_thread(self.postgres.kill)
        self.arrivals_lost = range(arrivals_at_point, len(self.service.processes.lines()))
        return point

    async def come_back(self, point: datetime) -> None:
        await asyncio.to_thread(self.postgres.restore, point)
        await self.postgres.start_restored()
        self.final_at_point = frozenset(await self.sql(FINAL) or ())
        for name in PARTS:
            self.service.start(name)

    def logs_without_what_was_lost(self, kept: Collection[str]) -> tuple[Path, Path]:
        """The senders' and the receiver's log without what the restored database can't know.

        That is mail accepted after the point, and in the seconds from the point to the loss every arrival at a
        recipient that was not final at the point.
        """
        directory, known = self.service.processes.directory, {None, *kept}
        senders, receivers = directory / "sent-kept.jsonl", directory / "accepted-kept.jsonl"
        with Path(self.service.sender_log.name).open() as lines, senders.open("w") as written:
            written.writelines(line for line in lines if json.loads(line).get("id") in known)
        with self.service.processes.log.open() as lines, receivers.open("w") as written:
            written.writelines(
                line
                for number, line in enumerate(lines)
                if number not in self.arrivals_lost or json.loads(line)["recipient"] in self.final_at_point
            )
        return senders, receivers

    async def wait_for_new_mail(self, since: datetime) -> None:
        """Mail that was accepted after the restore is delivered."""
        lowest = ids.lowest_id(since)

        async def delivered() -> int:
            with suppress(*DATABASE_ERRORS):
                query = f"SELECT count(*) FROM recipients WHERE message_id >= '{lowest}' AND status = 'delivered'"
                return int(await self.sql(query))
            return 0

        await eventually(delivered, lambda number: number > 0, every=0.5, or_say=self.service._logs)

    async def wait_until_only_held(self) -> None:
        async def waiting() -> int:
            held = "held_by IS DISTINCT FROM 'restore'"
            return int(
                await self.sql(
                    f"SELECT (SELECT count(*) FROM delivery_schedule WHERE {held})"
                    f" + (SELECT count(*) FROM webhook_schedule)"
                )
            )

        await eventually(
            waiting, lambda number: number == 0, within=IDLE_SECONDS_MAX, every=0.5, or_say=self.service._logs
        )


async def run(
    directory: Path,
    *,
    seed: int,
    holds: bool,
    with_pgbackrest: bool,
    keep_seconds: float,
    lost_seconds: float,
    per_second: float,
    after_seconds: float,
) -> Restored:
    hold = {"DATABASE__HOLD_AFTER_RESTORE": str(holds).lower()}
    with ExitStack() as stack:
        given = archived_postgres(DATABASE, with_pgbackrest=with_pgbackrest)
        postgres = await asyncio.to_thread(stack.enter_context, given)
        async with start_whole_service(postgres.url, directory, seed, program=None, **hold, **LONG_LEASES) as service:
            this = Run(service, postgres)
            async with service.busy(6, 2, per_second):
                await asyncio.to_thread(postgres.back_up)
                point = await this.lose(keep_seconds, lost_seconds)
                killed_at = datetime.now(UTC)
                accepted, before = this.accepted(), this.copies()
                await this.come_back(point)
                back_at = datetime.now(UTC)
                started = time.monotonic()
                await this.wait_for_new_mail(back_at)
                noticed_seconds = time.monotonic() - started
                await asyncio.sleep(after_seconds)
            await this.wait_until_only_held()
            return await _figures(this, point, killed_at, back_at, accepted, before, noticed_seconds)


async def _figures(
    this: Run,
    point: datetime,
    killed_at: datetime,
    back_at: datetime,
    accepted: set[str],
    before: Copies,
    noticed_seconds: float,
) -> Restored:
    sql = this.service.processes.service.sql
    kept = {ids.text(ids.MESSAGE, row["id"]) for row in await sql("SELECT id FROM messages")}
    lost = accepted - kept
    shown = await this.command("restore", "show")
    held = await sql(
        "SELECT r.email FROM delivery_schedule s JOIN recipients r USING (account_id, message_id, position)"
        " WHERE s.held_by = 'restore'"
    )
    assert shown["recipients"] == len(held), shown
    held_addresses = {row["email"] for row in held}
    restored = await sql("SELECT email FROM recipients WHERE message_id < $1", ids.lowest_id(back_at))
    restored_addresses = {row["email"] for row in restored}
    sent_before = {recipient for recipient, _ in before}
    now = this.copies()
    again = {key: now[key] - before[key] for key in before if now[key] > before[key]}
    repeated = {recipient for recipient, message in now if (recipient, message) not in before} & sent_before
    await this.command("restore", "release", "--yes")
    await this.service.wait_until_idle(IDLE_SECONDS_MAX)
    after = this.copies()
    print("the audit by the whole logs:", json.dumps(_found(await this.service.audit())))
    report = await this.service.audit(*this.logs_without_what_was_lost(kept))
    print("the audit without what was lost:", json.dumps(_found(report)))
    for finding in [found for found in report["findings"] if found["fault"] != UNKNOWN][:SHOWN_MAX]:
        print(finding)
    return Restored(
        accepted=len(accepted),
        lost=len(lost),
        lost_sent=len(sent_before - restored_addresses),
        wrongly_lost=sum(_time(each) < point - COMMITTED_WITHIN for each in lost),
        wrongly_restored=sum(point < _time(each) < killed_at for each in accepted & kept),
        held=len(held),
        held_sent=len(held_addresses & sent_before),
        second_copies=sum(again.values()),
        second_copies_after_release=sum(after[key] - before[key] for key in before if after[key] > before[key]),
        repeated=len(repeated),
        new_delivered=await this.sql(
            f"SELECT count(*) FROM recipients WHERE message_id >= '{ids.lowest_id(back_at)}' AND status = 'delivered'"
        ),
        seconds_lost=(killed_at - point).total_seconds(),
        noticed_seconds=noticed_seconds,
        unexplained=sum(found[kind] for found in _found(report).values() for kind in found if kind != UNKNOWN),
    )


def _found(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """What does not hold, by promise."""
    kinds = ("lost", "duplicated", "unexpected", UNKNOWN)
    return {
        row["promise"]: {kind: row[kind] for kind in kinds if row[kind]}
        for row in report["promises"]
        if any(row[kind] for kind in kinds)
    }


def _time(message: str) -> datetime:
    found = ids.parse(ids.MESSAGE, message)
    assert found is not None, message
    return ids.time_of(found)


def faults(found: Restored, *, holds: bool) -> list[str]:
    """What breaks the promises."""
    wrong = []
    if found.wrongly_lost or found.wrongly_restored:
        wrong.append(
            f"{found.wrongly_lost} messages from before the point are lost, {found.wrongly_restored} from after kept"
        )
    if holds and found.second_copies:
        wrong.append(f"{found.second_copies} second copies before a release")
    if found.second_copies_after_release > found.held_sent and holds:
        wrong.append(f"{found.second_copies_after_release} second copies, of {found.held_sent} that were held")
    if found.unexplained:
        wrong.append(f"{found.unexplained} findings of the audit that the lost seconds don't explain")
    if not found.new_delivered:
        wrong.append("no new mail was delivered")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Restore the database of a service under load, and count copies.")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--rate", type=float, default=40.0, help="messages a second")
    parser.add_argument("--keep", type=float, default=15.0, help="seconds of load before the point")
    parser.add_argument("--lose", type=float, default=10.0, help="seconds of load after the point")
    parser.add_argument("--after", type=float, default=5.0, help="seconds of load after the restore")
    parser.add_argument("--without-pgbackrest", action="store_true", help="pg_basebackup, and an archive of files")
    parser.add_argument("--only", choices=["held", "not-held"], help="one run instead of both")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    broken = []
    for holds in (True, False):
        if asked.only is not None and holds != (asked.only == "held"):
            continue
        with tempfile.TemporaryDirectory(dir=log_directory()) as directory:
            found = uvloop.run(
                run(
                    Path(directory),
                    seed=asked.seed,
                    holds=holds,
                    with_pgbackrest=has_pgbackrest() and not asked.without_pgbackrest,
                    keep_seconds=asked.keep,
                    lost_seconds=asked.lose,
                    per_second=asked.rate,
                    after_seconds=asked.after,
                )
            )
        print(f"hold_after_restore = {str(holds).lower()}")
        for name, value in asdict(found).items():
            print(f"  {name.replace('_', ' ')}: {value if isinstance(value, int) else round(value, 1)}")
        broken += faults(found, holds=holds)
    for each in broken:
        print(f"BROKEN: {each}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
