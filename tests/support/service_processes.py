"""The service as real processes, with PostgreSQL, NATS, DNS and a scripted SMTP receiver.

`destination` makes domains whose mail goes to that receiver; its log holds every accepted recipient, and
`broken_promises` compares the log with the database.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from tests.support.accept_flow import SIMULATOR
from tests.support.database_checks import database_faults
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.nameserver import Nameserver
from tests.support.nats import PrivateNats
from tests.support.server_process import ServerProcess
from tests.support.service import Service, Tenant
from tests.support.smtp_receiver import SmtpReceiver

HOSTNAME: Final = "mail.posthouse.example"
RETURN_PATH_DOMAIN: Final = "bounces.posthouse.example"
# Four attempts, a second or so apart.
RETRY_MINUTES: Final = (0.02, 0.02, 0.02)
WORKER_LEASE_SECONDS: Final = 3
# Where no worker is killed: one that stands still for minutes has not died.
LONG_LEASE: Final[dict[str, Any]] = {"WORKERS__LEASE_SECONDS": "600"}
TICKET_LEASE_SECONDS: Final = 5
# Too high to matter, as the limits of the tests' accounts are.
LANE: Final = {"LANES__PER_SECOND": "100000", "LANES__BURST": "100000", "LANES__CONNECTIONS_MAX": "20"}
OPEN: Final = frozenset({"queued", "deferred"})


@dataclass(frozen=True, slots=True)
class RecipientResult:
    """A recipient's status; `excused` attempts may have arrived without our knowledge."""

    email: str
    status: str
    excused: int


@dataclass(slots=True)
class ServiceProcesses:
    database_url: str
    directory: Path
    settings: dict[str, str]
    nameserver: Nameserver
    receiver: SmtpReceiver
    nats: PrivateNats | None
    parts: list[ServerProcess] = field(default_factory=list)
    clients: list[Service] = field(default_factory=list)
    # The `posthouse` of another version, for processes started from now on; None is this one.
    program: Path | None = None
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def service(self) -> Service:
        """The client of the first HTTP process."""
        return self.clients[0]

    @property
    def log(self) -> Path:
        return self.directory / "accepted.jsonl"

    def destination(self, name: str, address: str = "127.0.0.1") -> str:
        """A domain with one mail server, at this address."""
        self.nameserver.records[name, "MX"] = [f"10 mx.{name}."]
        self.nameserver.records[f"mx.{name}", "A"] = [address]
        return name

    def start(self, *words: str) -> ServerProcess:
        """A further process with these parts. Await `ready` if it has `http`."""
        number = next(self._numbers)
        log = self.directory / f"{number}-{'-'.join(words)}.log"
        part = ServerProcess(self.database_url, log, dict(self.settings), words=words, program=self.program)
        part.spawn()
        self.parts.append(part)
        return part

    async def start_http(self, *others: str) -> ServerProcess:
        part = self.start("http", *others)
        await part.ready()
        self.clients.append(await part.open_client())
        return part

    async def start_worker(self) -> tuple[ServerProcess, UUID]:
        """A delivery worker and its worker id."""
        known = await self._workers()
        part = self.start("delivery")

        async def new_workers() -> set[UUID]:
            self.check()
            return await self._workers() - known

        (worker_id,) = await eventually(new_workers, every=0.05, or_say=part.said)
        return part, worker_id

    async def _workers(self) -> set[UUID]:
        return {row["id"] for row in await self.service.sql("SELECT id FROM workers")}

    def check(self, but: Iterable[ServerProcess] = ()) -> None:
        """Fails if a process ended on its own."""
        for part in self.parts:
            if part not in but and part.process is not None and part.process.poll() not in (None, -9, 0):
                raise AssertionError(f"{part.words} ended with {part.process.returncode}:\n{part.said()}")

    async def wait_until_final(
        self, tenant: Tenant, ids: Sequence[str], seconds: float = HANG_SECONDS
    ) -> list[dict[str, Any]]:
        """The messages as GET shows them, once all their recipients are final.

        Meanwhile it checks that no message is final before all its recipients are.
        """

        async def read() -> list[dict[str, Any]]:
            messages = [(await tenant.get(message_id)).body for message_id in ids]
            for message in messages:
                is_open = message["status"] == "queued"
                assert is_open == (message["billing_status"] == "reserved"), message
                # The message is read before its recipients, so only this direction can be checked.
                assert is_open or not any(recipient["status"] in OPEN for recipient in message["recipients"]), message
            self.check()
            return messages

        def are_final(messages: list[dict[str, Any]]) -> bool:
            return all(message["status"] != "queued" for message in messages)

        return await eventually(read, are_final, within=seconds, every=0.1, or_say=self._open)

    async def wait_until_all_final(self, seconds: float = HANG_SECONDS) -> float:
        """Waits until every message is final; returns how many seconds it took."""
        started = time.monotonic()

        async def open_messages() -> int:
            self.check()
            return int(await self.service.value("SELECT count(*) FROM messages WHERE status = 'queued'"))

        await eventually(open_messages, lambda number: number == 0, within=seconds, every=0.25, or_say=self._open)
        return time.monotonic() - started

    async def _open(self) -> str:
        rows = await self.service.sql(
            """SELECT r.email, r.status, s.attempt_count, s.fence, s.next_at - now() AS due_in, s.worker_id,
                      w.expires_at - now() AS lease_ends_in, r.last_smtp_response
               FROM recipients r LEFT JOIN delivery_schedule s USING (account_id, message_id, position)
               LEFT JOIN workers w ON w.id = s.worker_id
               WHERE r.status IN ('queued', 'deferred') LIMIT 10"""
        )
        number = await self.service.value("SELECT count(*) FROM recipients WHERE status IN ('queued', 'deferred')")
        said = [f"{part.words} logged:\n{part.said()}" for part in self.parts if "http" not in part.words]
        return "\n".join([f"{number} recipients, among them", *(str(dict(row)) for row in rows), *said])

    def lines(self) -> list[dict[str, Any]]:
        """The receiver's log: a line for each accepted recipient."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def copies(self) -> Counter[str]:
        return Counter(line["recipient"] for line in self.lines())

    async def delivers(self, more: int) -> None:
        """Returns when this many more recipients' mail arrived."""
        wanted = len(self.lines()) + more
        await eventually(lambda: len(self.lines()), lambda number: number >= wanted, every=0.1, or_say=self._open)

    async def results(self) -> list[RecipientResult]:
        """Meaningful only if every recipient of real mail has its own address."""
        rows = await self.service.sql(
            """SELECT r.email, r.status,
                      count(a.fence) FILTER (WHERE a.finished_at IS NULL OR a.is_ambiguous) AS excused
               FROM recipients r JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id
               LEFT JOIN attempts a ON a.account_id = r.account_id AND a.message_id = r.message_id
                   AND a.position = r.position
               WHERE m.source <> 'test' AND r.email NOT LIKE '%@' || $1
               GROUP BY r.account_id, r.message_id, r.position, r.email, r.status""",
            SIMULATOR,
        )
        return [RecipientResult(**row) for row in rows]

    async def broken_promises(self) -> dict[str, list[Any]]:
        """Broken promises about the database, arrivals and duplicates; call when everything is final."""
        broken = await database_faults(self.database_url)
        copies = self.copies()
        delivered: Counter[str] = Counter()
        excused: Counter[str] = Counter()
        for result in await self.results():
            delivered[result.email] += result.status == "delivered"
            excused[result.email] += result.excused
        found: dict[str, list[Any]] = {
            "what is delivered has arrived": [email for email in delivered if copies[email] < delivered[email]],
            "nothing arrived more often than recorded as delivered or ambiguous": [
                (email, copies[email], await self._attempts(email))
                for email in copies
                if copies[email] > delivered[email] + excused[email]
            ],
        }
        return broken | {name: rows[:5] for name, rows in found.items() if rows}

    async def _attempts(self, address: str) -> list[dict[str, Any]]:
        rows = await self.service.sql(
            """SELECT a.fence, a.worker_id, a.started_at, a.finished_at, a.outcome, a.is_ambiguous, a.response
               FROM attempts a JOIN recipients r USING (account_id, message_id, position)
               WHERE r.email = $1 ORDER BY a.message_id, a.fence""",
            address,
        )
        return [dict(row) for row in rows]

    async def duplicates(self) -> int:
        delivered = {result.email for result in await self.results() if result.status == "delivered"}
        return sum(number - 1 for email, number in self.copies().items() if email in delivered)

    async def orphans(self, worker_id: UUID | None = None) -> int:
        """Attempts that began and have no recorded end."""
        query = "SELECT count(*) FROM attempts WHERE finished_at IS NULL AND ($1::uuid IS NULL OR worker_id = $1)"
        return int(await self.service.value(query, worker_id))

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        for part in self.parts:
            await asyncio.to_thread(part.kill)


@dataclass(slots=True)
class Senders:
    """Clients that keep posting; every recipient has its own address."""

    processes: ServiceProcesses
    tenant: Tenant
    domains: Sequence[str]
    # How the receiver treats them, in turn: the local parts of the addresses begin with these.
    behaviours: Sequence[str] = ("taken", "taken", "taken", "550-rcpt", "greylist")
    recipients: int = 3
    # No more than few workers on a busy machine deliver meanwhile: a backlog would have to be awaited.
    pause_seconds: float = 0.1
    answers: "Counter[int]" = field(default_factory=Counter)
    _is_stopping: bool = False
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @asynccontextmanager
    async def sending(self, senders: int = 4) -> AsyncIterator[None]:
        """They post while the block runs; at its end each waits for its last answer."""
        async with asyncio.TaskGroup() as group:
            for _ in range(senders):
                group.create_task(self._post_on())
            try:
                yield
            finally:
                self._is_stopping = True

    async def accepts(self, more: int) -> None:
        """Returns when this many more messages were accepted."""
        wanted = self.answers[202] + more
        await eventually(lambda: self.answers[202], lambda number: number >= wanted)

    async def _post_on(self) -> None:
        while not self._is_stopping:
            numbers = [next(self._numbers) for _ in range(self.recipients)]
            answer = await self.tenant.send(self.tenant.mail(to=[self._address(number) for number in numbers]))
            self.answers[answer.status] += 1
            await asyncio.sleep(self.pause_seconds)

    def _address(self, number: int) -> str:
        behaviour = self.behaviours[number % len(self.behaviours)]
        return f"{behaviour}+{number}@{self.domains[number // 7 % len(self.domains)]}"


@asynccontextmanager
async def prepare_processes(
    database_url: str,
    directory: Path,
    *,
    stream: str = "nats",
    behaviours: Mapping[str, str] | None = None,
    keeps_mail: bool = True,
    logs_messages: bool = False,
    program: Path | None = None,
    **settings: str,
) -> AsyncIterator[ServiceProcesses]:
    """No process has been started yet; `behaviours` are those of further addresses that the receiver listens on.

    With `stream="memory"` there is no NATS, so a process that dispatches must also deliver.
    """
    async with AsyncExitStack() as stack:
        nats = await asyncio.to_thread(stack.enter_context, PrivateNats()) if stream == "nats" else None
        nameserver = await stack.enter_async_context(Nameserver())
        log = directory / "accepted.jsonl"
        made = SmtpReceiver(behaviours=behaviours, log=log, keeps_mail=keeps_mail, logs_messages=logs_messages)
        receiver = await stack.enter_async_context(made)
        chosen = {
            "STREAM__SERVERS": nats.url if nats else "memory",
            "SERVICE__HOSTNAME": HOSTNAME,
            "INBOUND__RETURN_PATH_DOMAIN": RETURN_PATH_DOMAIN,
            "DELIVERY__SIMULATOR_DOMAIN": SIMULATOR,
            "SERVICE__RESOLVERS": f"127.0.0.1:{nameserver.port}",
            "DELIVERY__PORT": str(receiver.port),
            "DELIVERY__ALLOW_LOOPBACK": "true",
            "DELIVERY__RETRY_MINUTES": json.dumps(RETRY_MINUTES),
            "WORKERS__LEASE_SECONDS": str(WORKER_LEASE_SECONDS),
            "WORKERS__TICKET_LEASE_SECONDS": str(TICKET_LEASE_SECONDS),
            **LANE,
            **settings,
        }
        processes = ServiceProcesses(database_url, directory, chosen, nameserver, receiver, nats, program=program)
        stack.push_async_callback(processes.close)
        yield processes


@asynccontextmanager
async def run_processes(
    database_url: str, directory: Path, *, stream: str = "nats", workers: int = 1, **how: Any
) -> AsyncIterator[ServiceProcesses]:
    """Each part a process, with this many delivery workers; or one process for all parts, with the memory stream."""
    async with prepare_processes(database_url, directory, stream=stream, **how) as processes:
        if stream == "memory":
            await processes.start_http("dispatch", "delivery")
        else:
            for words in [("dispatch",), *([("delivery",)] * workers)]:
                processes.start(*words)
            await processes.start_http()
        yield processes
