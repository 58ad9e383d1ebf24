"""The processes of the simulated service: how each is composed, what it repeats, and how it is replaced."""

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import structlog

from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.deliver.outgoing_mail import OutgoingMail
from posthouse.flows.shared.tickets import Tickets
from posthouse.flows.webhooks.sender import WebhookPolicy, WebhookSender
from posthouse.randomness import SeededRandomness
from posthouse.rules import retry
from posthouse.rules.retry import Schedule
from posthouse.rules.webhook_url import check_url
from posthouse.store.control_cache import ControlCache
from posthouse.store.seal import Sealer
from tests.simulation.processes import Process, ProcessDatabase
from tests.simulation.simulated_world import (
    CURRENT,
    SHARDS,
    ProcessStream,
    SharedStream,
    SilentResolver,
    SimulatedCarrier,
    SimulatedWebhookClient,
    VirtualClock,
)
from tests.support.accept_flow import new_intake
from tests.support.context import context
from tests.support.delivery_flow import IDENTITY, WIDE, new_delivery
from tests.support.eventually import HANG_SECONDS

SETTLED_SECONDS_MAX: Final = HANG_SECONDS


@dataclass(eq=False, kw_only=True)
class SimulatedProcesses:
    url: str
    seed: int
    clock: VirtualClock
    stream: SharedStream
    carrier: SimulatedCarrier
    caller: SimulatedWebhookClient
    sealer: Sealer
    delivery_waits: Schedule = retry.DELIVERY
    webhook_waits: Schedule = retry.WEBHOOK
    delivery_kind: type[Delivery] = Delivery
    processes: list[Process] = field(default_factory=list)
    # Workers that died or lost their lease, and their processes: unrecorded outcomes may be theirs.
    doubtful_workers: set[UUID] = field(default_factory=set)
    doubtful_processes: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)
    _started: int = 0

    async def start(self, kind: str) -> Process:
        self._started += 1
        number = self._started
        database = await ProcessDatabase.open(self.url, connections_max=4)
        control_cache = ControlCache(database, self.clock.monotonic)
        process = Process(f"{kind} {number}", kind, database, control_cache)
        randomness = SeededRandomness(self.seed * 1_000 + number)
        tickets = Tickets(ProcessStream(self.stream, process), SHARDS)
        match kind:
            case "api":
                process.flow = new_intake(database, control_cache, self.clock, randomness=randomness, tickets=tickets)
            case "dispatcher":
                process.flow = Dispatch(database=database, clock=self.clock, tickets=tickets)
            case "delivery":
                process.flow = new_delivery(
                    self.delivery_kind,
                    database=database,
                    control_cache=control_cache,
                    clock=self.clock,
                    randomness=randomness,
                    resolver=SilentResolver(),
                    carrier=self.carrier,
                    outgoing_mail=OutgoingMail(database=database, clock=self.clock, signing=None, identity=IDENTITY),
                    limits=WIDE,
                    retries=self.delivery_waits,
                    tickets=tickets,
                )
            case _:
                process.flow = WebhookSender(
                    context(database, self.clock, randomness, sealer=self.sealer),
                    client=self.caller,
                    target_of=check_url,
                    policy=WebhookPolicy(retries=self.webhook_waits),
                )
        await process.do(control_cache.forget_changes())
        await self.maintain(process)
        return process

    async def process_of(self, kind: str) -> Process:
        """The process of this kind; a dead process is replaced first."""
        place = next(number for number, process in enumerate(self.processes) if process.kind == kind)
        if not self.processes[place].is_alive:
            await self.replace(place)
        return self.processes[place]

    async def replace(self, place: int) -> None:
        dead = self.processes[place]
        await dead.close()
        self.processes[place] = await self.start(dead.kind)

    def doubt(self, process: Process) -> None:
        self.doubtful_processes.add(process.name)
        if process.worker_id is not None:
            self.doubtful_workers.add(process.worker_id)

    async def refresh(self, process: Process) -> None:
        await process.do(process.control_cache.forget_changes())
        if isinstance(process.flow, Delivery | WebhookSender) and process.is_alive and not process.is_stalled:
            await process.do(process.flow.renew())

    async def maintain(self, process: Process) -> None:
        """What a process repeats every few seconds."""
        if not process.is_alive:
            return
        if isinstance(process.flow, Delivery | WebhookSender):
            await process.do(process.flow.renew())
            if process.is_alive:
                await process.do(process.flow.heartbeat())
        elif isinstance(process.flow, Dispatch):
            await process.do(process.flow.reclaim())

    async def settle(self) -> None:
        """Wait until every task waits for the clock or has nothing to do."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLED_SECONDS_MAX
        while True:
            tasks = [task for process in self.processes for task in process.tasks]
            waiting = self._waiting_for_turns()
            busy = [
                task
                for task in tasks
                if not task.done() and task not in self.clock.parked and _awaited(task) not in waiting
            ]
            if not busy:
                break
            if loop.time() > deadline:
                self.complaints.append(f"no progress: {busy}")
                return
            await asyncio.wait(busy, timeout=0.003)
        for process in self.processes:
            if not process.is_alive:
                self.doubt(process)
            self.complaints += [f"{process.name}: {fault!r}" for fault in process.faults]
            process.faults.clear()

    def _waiting_for_turns(self) -> set["asyncio.Future[Any] | None"]:
        """What calls to a limited endpoint wait for while another is under way, which waits for the clock itself."""
        flows = [process.flow for process in self.processes if isinstance(process.flow, WebhookSender)]
        accounts = [account for flow in flows for account in flow._accounts.values()]
        turns = [destination.turn for account in accounts for destination in account.destinations.values()]
        return {waiter for turn in turns for waiter in turn._waiters or ()}

    def check_log_entry(self, _: Any, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """An error that a living process logs is a fault."""
        process = CURRENT.get()
        is_alive = isinstance(process, Process) and process.is_alive
        if is_alive and method in ("error", "exception", "critical"):
            self.complaints.append(f"{process.name if process else ''} logged {entry}")
        raise structlog.DropEvent


def _awaited(task: "asyncio.Task[Any]") -> "asyncio.Future[Any] | None":
    return task._fut_waiter  # type: ignore[no-any-return, attr-defined]
