"""All workers together keep a provider's limits, seen from the provider, while workers join, leave and are killed."""

import asyncio
import bisect
import itertools
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.server_process import ServerProcess
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.smtp_conversation import SmtpConversation
from tests.support.whole_service import SendRate

pytestmark = pytest.mark.nightly

# A busy or slow machine delivers less.
PER_SECOND: Final = int(os.environ.get("WORKERS_PER_SECOND", "50"))
CONNECTIONS: Final = 20
WORKERS: Final = 4
# More than the limit lets through.
OFFERED_PER_SECOND: Final = 1.3 * PER_SECOND
SENDERS: Final = 24
# This many always wait, or the limit would not be what bounds the rate.
BACKLOG_MIN: Final = 6 * PER_SECOND
MAILBOXES, HOSTED = "127.0.0.1", "127.0.0.2"
# Some ten connections are needed for the rate.
SLOW: Final = "delay-50"
HOSTED_DOMAINS: Final = 20
STEADY_SECONDS: Final = 60.0
RECOVERY_SECONDS: Final = 15.0
OBSERVED_SECONDS: Final = 5.0
FINAL_SECONDS_MAX: Final = 4 * HANG_SECONDS
LIMITS: Final = {"google": {"per_second": PER_SECOND, "connections_max": CONNECTIONS}}


class Conversations(set[SmtpConversation]):
    """The open connections, and when there were more of them than before in this period."""

    most = 0

    def add(self, conversation: SmtpConversation) -> None:
        super().add(conversation)
        self.most = max(self.most, len(self))


@dataclass
class Provider:
    """What arrived at the provider, and when."""

    processes: ServiceProcesses
    conversations: Conversations
    _arrivals: list[float] = field(default_factory=list)
    _read: int = 0

    def arrivals(self) -> list[float]:
        """The times at which mail was accepted, in order."""
        with self.processes.log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if line.endswith(b"\n"):
                    self._arrivals.append(json.loads(line)["time"])
                    self._read += len(line)
        self._arrivals.sort()
        return self._arrivals

    def per_second(self, begin: float, seconds: float) -> float:
        arrivals = self.arrivals()
        return (bisect.bisect_left(arrivals, begin + seconds) - bisect.bisect_left(arrivals, begin)) / seconds

    def most_per_second(self, begin: float, end: float, seconds: float = 10.0) -> float:
        """In any period of this many seconds within that time."""
        arrivals = [at for at in self.arrivals() if begin <= at < end]
        first = 0
        most = 0
        for last, at in enumerate(arrivals):
            while at - arrivals[first] >= seconds:
                first += 1
            most = max(most, last + 1 - first)
        return most / seconds


@dataclass
class Workers:
    processes: ServiceProcesses
    running: dict[UUID, ServerProcess] = field(default_factory=dict)

    async def join(self) -> None:
        part, worker_id = await self.processes.start_worker()
        self.running[worker_id] = part

    async def _holder(self) -> UUID | None:
        """The worker that sends to the provider."""
        rows = await self.processes.service.sql(
            """SELECT worker_id FROM lane_reports WHERE lane = 'google' AND in_flight + waiting > 0
               ORDER BY reported_at DESC, in_flight + waiting DESC"""
        )
        return next((row["worker_id"] for row in rows if row["worker_id"] in self.running), None)

    async def holder(self) -> ServerProcess:
        worker_id = await eventually(self._holder, lambda found: found is not None)
        assert worker_id is not None
        return self.running.pop(worker_id)

    async def kill_holder(self) -> None:
        await asyncio.to_thread((await self.holder()).kill)

    async def stop_holder(self) -> None:
        part = await self.holder()
        assert await part.terminate() == 0, part.said()

    async def kill_another(self) -> None:
        holder = await self._holder()
        worker_id = next(worker_id for worker_id in self.running if worker_id != holder)
        await asyncio.to_thread(self.running.pop(worker_id).kill)


@dataclass
class Load:
    """Clients that offer more than the limit: nine messages of ten to gmail.com, the rest to domains hosted there."""

    tenant: Tenant
    pace: SendRate
    accepted: int = 0
    is_stopping: bool = False
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def send_on(self) -> None:
        while not self.is_stopping:
            await self.pace.turn()
            number = next(self._numbers)
            domain = "gmail.com" if number % 10 else f"customer{number // 10 % HOSTED_DOMAINS}.example.net"
            answer = await self.tenant.send(self.tenant.mail(to=[f"taken+{number}@{domain}"]))
            self.accepted += answer.status == 202


@pytest.fixture
async def processes(database_url: str, tmp_path: Path) -> AsyncIterator[ServiceProcesses]:
    async with prepare_processes(
        database_url,
        tmp_path,
        behaviours={MAILBOXES: SLOW, HOSTED: SLOW},
        keeps_mail=False,
        LANES__BY_NAME=json.dumps(LIMITS),
        # As an installation has them without settings.
        WORKERS__LEASE_SECONDS="30",
        WORKERS__TICKET_LEASE_SECONDS="60",
    ) as processes:
        names = processes.nameserver.records
        names["gmail.com", "MX"] = ["5 gmail-smtp-in.l.google.com."]
        names["gmail-smtp-in.l.google.com", "A"] = [MAILBOXES]
        names["aspmx.l.google.com", "A"] = [HOSTED]
        for number in range(HOSTED_DOMAINS):
            names[f"customer{number}.example.net", "MX"] = ["1 aspmx.l.google.com."]
        await processes.start_http()
        processes.start("dispatch")
        yield processes


async def test_a_providers_limit_holds_while_workers_join_leave_and_are_killed(processes: ServiceProcesses) -> None:
    conversations = Conversations()
    processes.receiver.conversations = conversations
    provider = Provider(processes, conversations)
    workers = Workers(processes)
    for _ in range(WORKERS):
        await workers.join()
    load = Load(await processes.service.account(credits=1_000_000), SendRate(OFFERED_PER_SECOND))
    async with asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(load.send_on())
        await eventually(lambda: load.accepted - len(provider.arrivals()) >= BACKLOG_MIN, every=0.5)
        conversations.most = len(conversations)
        began_at = time.time()
        await asyncio.sleep(STEADY_SECONDS)
        steady = provider.per_second(began_at, STEADY_SECONDS)
        print(
            f"{WORKERS} workers: {steady:.2f} a second over {STEADY_SECONDS:.0f} s, at most "
            f"{provider.most_per_second(began_at, time.time()):.1f} over any 10 s; "
            f"at most {conversations.most} connections; {load.accepted} messages accepted"
        )
        assert 0.95 * PER_SECOND <= steady <= 1.05 * PER_SECOND
        assert conversations.most <= CONNECTIONS * 1.1
        for change in (
            workers.join,
            workers.kill_holder,
            workers.stop_holder,
            workers.join,
            workers.kill_holder,
            workers.join,
            workers.kill_another,
            workers.join,
        ):
            conversations.most = len(conversations)
            changed_at = time.time()
            await change()
            await asyncio.sleep(changed_at + RECOVERY_SECONDS + OBSERVED_SECONDS - time.time())
            recovered = provider.per_second(changed_at + RECOVERY_SECONDS, OBSERVED_SECONDS)
            most = provider.most_per_second(changed_at - 10.0, time.time())
            print(
                f"{change.__name__}: {recovered:.1f} a second after {RECOVERY_SECONDS:.0f} s, at most {most:.1f} over "
                f"any 10 s and {conversations.most} connections; {len(workers.running)} workers; "
                f"each second since: {[round(provider.per_second(changed_at + at, 1.0)) for at in range(15)]}"
            )
            assert recovered >= 0.9 * PER_SECOND
            assert most <= 1.1 * PER_SECOND
            assert conversations.most <= CONNECTIONS * 1.1
        load.is_stopping = True
    seconds = await processes.wait_until_all_final(FINAL_SECONDS_MAX)
    print(
        f"{load.accepted} messages accepted; all final {seconds:.0f} s later; {await processes.orphans()} orphans, "
        f"{await processes.duplicates()} duplicates; at most {provider.most_per_second(0.0, time.time()):.1f} a second "
        "over any 10 s in all"
    )
    assert await processes.broken_promises() == {}
