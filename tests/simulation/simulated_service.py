"""The simulated service: all its processes, their surroundings, and the steps of a run.

Each method that begins with `step_` is a step. Steps may come at any time and in any order: no promise is broken
after any of them, and once the faults end all mail and webhooks become final.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import structlog

from posthouse import crash
from posthouse.flows.accept.intake import AcceptedMessage, Intake
from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.operate.maintenance import Maintenance
from posthouse.flows.webhooks.sender import WebhookSender
from posthouse.randomness import SeededRandomness
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, RequestId
from posthouse.rules.refusal import Refusal
from posthouse.store import endpoints
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.stream import TicketKind
from tests.simulation.processes import die_here, process_tasks
from tests.simulation.simulated_processes import SimulatedProcesses
from tests.simulation.simulated_world import (
    Faults,
    ProcessStream,
    SharedStream,
    SilentResolver,
    SimulatedCarrier,
    SimulatedWebhookClient,
    StreamFaults,
    VirtualClock,
)
from tests.support.accept_flow import Sender, new_sender
from tests.support.maintenance import new_maintenance
from tests.support.operator_client import Operator
from tests.support.service import service_settings
from tests.support.webhook_steps import ALL_EVENTS, save_webhook

ACCOUNTS: Final = ("acme", "bolt")
KINDS: Final = ("api", "dispatcher", "delivery", "delivery", "webhooks", "webhooks")
SECRET: Final = "whsec_the_secret_of_the_simulation"
# How often workers renew their leases and the dispatcher reclaims expired ones.
HOP_SECONDS: Final = 8.0
# Within this time a death is noticed.
WATCHED_SECONDS: Final = 48.0
# Work that falls due within this time is done together, once there are no more faults.
LEAP_SECONDS: Final = 600.0
FETCHED_MAX: Final = 200
# An older key may have been deleted, and would make a new message.
KEY_HOURS: Final = 23


@dataclass(slots=True)
class SendRequest:
    """A request to send, as its client knows it."""

    account: int
    key: str
    recipients: tuple[str, ...]
    mode: Mode
    at: datetime
    message_id: UUID | None = None


@dataclass(eq=False, kw_only=True)
class SimulatedService(SimulatedProcesses):
    operator: Operator
    senders: list[Sender]
    # A connection that is not the service's.
    observer: Any
    database: Database
    maintenance: Maintenance
    asked: list[SendRequest] = field(default_factory=list)
    sent_log: list[str] = field(default_factory=list)
    suspended: set[int] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    _partitions_until: datetime | None = None

    # Sending

    async def step_send(self, account: int, recipients: tuple[str, ...], mode: Mode = Mode.LIVE) -> None:
        """A client sends a message."""
        asked = SendRequest(account, f"key {len(self.asked)}", recipients, mode, self.clock.now())
        self.asked.append(asked)
        await self._ask(asked)

    async def step_send_again(self, number: int) -> None:
        """A client repeats a request, answered or not."""
        young = [asked for asked in self.asked if self.clock.now() - asked.at < timedelta(hours=KEY_HOURS)]
        if young:
            await self._ask(young[number % len(young)])

    async def _ask(self, asked: SendRequest) -> None:
        process = await self.process_of("api")
        sender = self.senders[asked.account]
        intake: Intake = process.flow
        body = "/".join(asked.recipients).encode()
        draft = sender.draft(asked.recipients)
        request_id = RequestId(ids.new_id(self.clock.now(), SeededRandomness(len(self.sent_log)).id_bytes()))
        fingerprint = intake.fingerprint(body)
        await self.refresh(process)
        try:
            answer: AcceptedMessage | None = await process.do(
                intake.accept(sender.principal(asked.mode), asked.key, draft, fingerprint, request_id)
            )
        except Refusal as refusal:
            process.faults.clear()
            self._note_sent(asked.key, "refused")
            self.steps.append(f"    refused: {refusal.text}")
            return
        if answer is None:
            self._note_sent(asked.key, "unanswered")
            return
        if asked.message_id is not None and asked.message_id != answer.message_id:
            self.complaints.append(f"{asked.key} was answered with two messages")
        asked.message_id = answer.message_id
        self._note_sent(asked.key, "accepted", answer.message_id)

    def _note_sent(self, key: str, outcome: str, message_id: UUID | None = None) -> None:
        line: dict[str, str] = {"via": "http", "outcome": outcome, "key": key}
        if message_id is not None:
            line["id"] = ids.text(ids.MESSAGE, message_id)
        self.sent_log.append(json.dumps(line))

    # The service's own steps

    async def step_dispatch(self) -> None:
        """Publish tickets for what is due."""
        process = await self.process_of("dispatcher")
        await process.do(process.flow.step())
        if process.is_alive:
            await process.do(process.flow.step_calls())
        await self.settle()

    async def step_work(self, which: int, count: int = FETCHED_MAX) -> None:
        """A worker fetches tickets from the stream and starts on them."""
        workers = [process for process in self.processes if process.kind in ("delivery", "webhooks")]
        process = workers[which % len(workers)]
        if not process.is_alive:
            return
        await self.refresh(process)
        kind = TicketKind.DELIVER if process.kind == "delivery" else TicketKind.NOTIFY
        if process.is_alive:
            found = await ProcessStream(self.stream, process).fetch(kind, frozenset(), count, 0)
            await process.do(process.flow.offer(found))
        await self.settle()

    async def step_cycle(self) -> None:
        """Dispatch what is due, and let every worker work."""
        await self.step_dispatch()
        for number in range(4):
            await self.step_work(number)

    async def step_maintenance(self) -> None:
        """Create the partitions of coming days."""
        self._partitions_until = None
        await self._make_partitions()

    # Time

    async def step_wait(self, seconds: float, stalled: int | None = None) -> None:
        """Time passes while the service runs; one process may be stopped meanwhile."""
        process = None if stalled is None else self.processes[stalled % len(self.processes)]
        if process is not None and process.is_alive:
            process.is_stalled = True
            self.doubt(process)
        await self._pass(seconds)
        if process is not None:
            process.is_stalled = False
            await self.maintain(process)

    async def step_leap(self, beyond: float = 0.0) -> None:
        """Time passes until the next work is due, and `beyond` more; then it is done."""
        await self._finish_running_work()
        due = await self.observer.fetchval(
            "SELECT min(next_at) FROM (SELECT next_at FROM delivery_schedule"
            " UNION ALL SELECT next_at FROM webhook_schedule) due"
        )
        if due is not None:
            seconds = max((due - self.clock.now()).total_seconds(), 0.0)
            await self._pass(seconds + max(beyond, seconds if beyond else 0.001))
        await self.step_cycle()

    async def step_jump(self, seconds: float) -> None:
        """The database's clock jumps."""
        self.clock.jump(seconds)
        await self._make_partitions()
        for process in self.processes:
            # Any lease may have expired by that, or lasts longer.
            self.doubt(process)

    async def _finish_running_work(self) -> None:
        while (wake := self.clock.next_wake) is not None:
            await self._pass(wake + 0.001)

    async def _pass(self, seconds: float) -> None:
        """In short hops, as a running service renews and reclaims; in a single hop while nothing happens."""
        began = self.clock.monotonic()
        while (left := began + seconds - self.clock.monotonic()) > 1e-6:
            wake = self.clock.next_wake
            is_watched = self.clock.monotonic() - began >= WATCHED_SECONDS
            is_idle = wake is None and (is_watched or all(process.is_alive for process in self.processes))
            hop = left if is_idle else min(left, HOP_SECONDS, left if wake is None else wake + 0.001)
            self.clock.advance(seconds=hop)
            await self._make_partitions()
            await self._renew_all()
            await self.settle()

    async def _renew_all(self) -> None:
        for process in list(self.processes):
            if not process.is_stalled:
                await self.maintain(process)

    async def _make_partitions(self) -> None:
        now = self.clock.now()
        if self._partitions_until is None or now >= self._partitions_until:
            await self.maintenance.partitions.make()
            self._partitions_until = now + timedelta(days=1)

    # Faults

    async def step_arm(self, point: str, passes: int = 1) -> None:
        """The next process to pass this point dies there."""
        crash.arm(f"{point}:{passes}", die_here)

    async def step_kill(self, which: int) -> None:
        process = self.processes[which % len(self.processes)]
        if process.is_alive:
            process.kill()
            await self.settle()

    async def step_stop(self, which: int) -> None:
        """A process is stopped in the middle of its work, and another replaces it."""
        place = which % len(self.processes)
        process = self.processes[place]
        if not process.is_alive:
            return
        if isinstance(process.flow, Delivery | WebhookSender):
            # Sessions cut off after the dot are recorded as ambiguous; all others were never tried.
            await process.do(process.flow.drain(0.06))
            await self.settle()
        self.doubtful_processes.add(process.name)
        if not process.is_alive:
            self.doubt(process)
        process.is_alive = False
        await self.replace(place)

    async def step_restart(self) -> None:
        """Dead processes are started again."""
        crash.arm(None)
        for place, process in enumerate(self.processes):
            if not process.is_alive:
                await self.replace(place)

    async def step_wipe(self) -> None:
        """The stream loses its data."""
        self.stream.wipe()

    async def step_stream_faults(self, lost: float, twice: float, late: float, deaf: float) -> None:
        self.stream.faults = StreamFaults(lost, twice, late, deaf)

    # Customers and operators

    async def step_suspend(self, account: int) -> None:
        if account not in self.suspended:
            await self.operator.suspend(self.senders[account].account_id)
            self.suspended.add(account)

    async def step_resume(self, account: int) -> None:
        if account in self.suspended:
            await self.operator.resume(self.senders[account].account_id)
            self.suspended.discard(account)

    async def step_endpoint(self, account: int, path: str, enabled: bool = True) -> None:
        """Create or change an account's webhook."""
        account_id = AccountId(self.senders[account].account_id)
        sealed = self.sealer.seal(SECRET.encode(), endpoints.secret_purpose(account_id, account_id))
        url = f"https://hooks.example.com{path}"
        async with self.observer.transaction():
            await save_webhook(self.observer, account_id, url, ALL_EVENTS, enabled, sealed, self.clock.now())

    async def step_sql(self, statement: str) -> None:
        """Change the database behind the service's back."""
        await self.observer.execute(statement)

    # The end of a run

    async def run_until_idle(self, days_max: int = 14) -> None:
        """Faults end, and all work is finished within a bounded time."""
        crash.arm(None)
        self.stream.faults = StreamFaults()
        self.carrier.is_slow = self.caller.is_slow = False
        for account in sorted(self.suspended):
            await self.step_resume(account)
        await self._finish_running_work()
        for place in range(len(self.processes)):
            await self.step_stop(place)
        await self.step_restart()
        end = self.clock.now() + timedelta(days=days_max)
        while await self.open_count():
            await self.step_leap(LEAP_SECONDS)
            # Work that is due even later is finished too late.
            if self.clock.now() > end:
                self.complaints.append(f"after {days_max} days without faults, not everything is final")
                return

    async def open_count(self) -> int:
        return int(
            await self.observer.fetchval(
                "SELECT (SELECT count(*) FROM delivery_schedule) + (SELECT count(*) FROM webhook_schedule)"
            )
        )


@asynccontextmanager
async def open_simulation(
    url: str, seed: int = 0, *, faults: Faults | None = None, **given: Any
) -> AsyncIterator[SimulatedService]:
    clock = VirtualClock()
    planted = faults or Faults()
    loop = asyncio.get_running_loop()
    operator = await Operator.open(service_settings(url), clock)
    observer = await asyncpg.connect(url, server_settings={"jit": "off"})
    database = await Database.open(url, connections_max=1)
    sealer = Sealer({"1": bytes(32)}, "1")
    made = SimulatedService(
        url=url,
        seed=seed,
        clock=clock,
        stream=SharedStream(clock, seed),
        carrier=SimulatedCarrier(clock, seed, planted),
        caller=SimulatedWebhookClient(clock, seed, planted),
        operator=operator,
        senders=[await new_sender(operator, name) for name in ACCOUNTS],
        observer=observer,
        database=database,
        sealer=sealer,
        maintenance=new_maintenance(
            database, clock, randomness=SeededRandomness(seed), resolver=SilentResolver(), sealer=sealer
        ),
        **given,
    )
    configured = structlog.get_config()["processors"]
    others = list(configured)
    configured[:] = [made.check_log_entry]
    loop.set_task_factory(process_tasks)
    try:
        await made.step_endpoint(0, "/fickle")
        made.processes = [await made.start(kind) for kind in KINDS]
        yield made
    finally:
        crash.arm(None)
        for process in made.processes:
            process.kill()
            await process.close()
        loop.set_task_factory(None)
        configured[:] = others
        await database.close()
        await observer.close()
        await operator.close()
