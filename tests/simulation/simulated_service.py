"""The town: every process of the service, everyone it meets, and the steps in which its days go by.

Each method that begins with `step_` is one step. All of them may be taken at any time, in any order; whatever the
order, no promise is broken after any of them, and when the faults end everything comes to its end.
"""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import structlog

from posthouse import crash
from posthouse.chance import SeededChance
from posthouse.flows.accept.intake import AcceptedMessage, Intake
from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.deliver.outgoing_mail import Identity, OutgoingMail
from posthouse.flows.operate.upkeep import Retention, Upkeep
from posthouse.flows.shared.account_limits import Defaults
from posthouse.flows.shared.tickets import Tickets
from posthouse.flows.webhooks.sender import WebhookSender
from posthouse.rules import ids, retry
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, RequestId
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Refusal
from posthouse.rules.retry import Schedule
from posthouse.rules.webhook_url import check_url
from posthouse.store import webhooks
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.stream import TicketKind
from tests.simulation.processes import Process, ProcessDatabase, die_here, process_tasks
from tests.simulation.simulated_world import (
    CURRENT,
    SHARDS,
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
from tests.support.operator_client import Operator
from tests.support.service import service_settings

ACCOUNTS: Final = ("acme", "bolt")
KINDS: Final = ("api", "dispatcher", "postman", "postman", "messenger", "messenger")
IDENTITY: Final = Identity("out.posthouse.test", "bounces.posthouse.test", b"a key of the tests")
SIMULATOR: Final = "simulator.invalid"
SECRET: Final = "whsec_the_secret_of_the_simulation"
ALL_EVENTS: Final = ("email.delivered", "email.bounced", "email.failed")
WIDE: Final = LaneLimits(Limits(per_second=1e6, burst=1_000_000, connections_start=20, connections_max=20))
# As often as the workers renew their leases and the dispatcher looks after the dead.
HOP_SECONDS: Final = 8.0
# Within this much time whoever died is noticed.
WATCHED_SECONDS: Final = 48.0
# What falls due within this much time is done together, once there are no more faults.
LEAP_SECONDS: Final = 600.0
SETTLED_SECONDS_MAX: Final = 20.0
FETCHED_MAX: Final = 200
# Above this age a key may have been forgotten, and be a new message's.
KEY_HOURS: Final = 23


@dataclass(slots=True)
class SendRequest:
    """A request to send, as whoever sent it remembers it."""

    account: int
    key: str
    recipients: tuple[str, ...]
    mode: Mode
    at: datetime
    message_id: UUID | None = None


@dataclass(eq=False)
class SimulatedService:
    url: str
    seed: int
    clock: VirtualClock
    stream: SharedStream
    carrier: SimulatedCarrier
    caller: SimulatedWebhookClient
    operator: Operator
    senders: list[Sender]
    # The one who looks on: its connection is none of the service's.
    onlooker: Any
    database: Database
    sealer: Sealer
    upkeep: Upkeep
    delivery_waits: Schedule = retry.DELIVERY
    webhook_waits: Schedule = retry.WEBHOOK
    delivery_kind: type[Delivery] = Delivery
    processes: list[Process] = field(default_factory=list)
    asked: list[SendRequest] = field(default_factory=list)
    sent_log: list[str] = field(default_factory=list)
    # Workers that died, or were given up for dead, and the processes' names: what is doubtful may have been theirs.
    doubtful_workers: set[UUID] = field(default_factory=set)
    doubtful_processes: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)
    suspended: set[int] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    _started: int = 0
    _partitions_until: datetime | None = None

    # Sending.

    async def step_send(self, account: int, recipients: tuple[str, ...], mode: Mode = Mode.LIVE) -> None:
        """Somebody sends a mail."""
        asked = SendRequest(account, f"key {len(self.asked)}", recipients, mode, self.clock.now())
        self.asked.append(asked)
        await self._ask(asked)

    async def step_send_again(self, number: int) -> None:
        """Somebody repeats a request, whether or not it was answered."""
        young = [one for one in self.asked if self.clock.now() - one.at < timedelta(hours=KEY_HOURS)]
        if young:
            await self._ask(young[number % len(young)])

    async def _ask(self, asked: SendRequest) -> None:
        process = await self._one("api")
        sender = self.senders[asked.account]
        intake: Intake = process.flow
        body = "/".join(asked.recipients).encode()
        draft = sender.draft(asked.recipients)
        request_id = RequestId(ids.new_id(self.clock.now(), SeededChance(len(self.sent_log)).bytes(ids.RANDOM_BYTES)))
        fingerprint = intake.fingerprint(body)
        await self._refresh(process)
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

    # The service's own steps.

    async def step_dispatch(self) -> None:
        """What is due gets its tickets."""
        process = await self._one("dispatcher")
        await process.do(process.flow.step())
        if process.is_alive:
            await process.do(process.flow.step_calls())
        await self.settle()

    async def step_work(self, which: int, count: int = FETCHED_MAX) -> None:
        """A worker takes what the stream has for it, and begins."""
        workers = [one for one in self.processes if one.kind in ("postman", "messenger")]
        process = workers[which % len(workers)]
        if not process.is_alive:
            return
        await self._refresh(process)
        kind = TicketKind.DELIVER if process.kind == "postman" else TicketKind.NOTIFY
        if process.is_alive:
            found = await ProcessStream(self.stream, process).fetch(kind, frozenset(), count, 0)
            await process.do(process.flow.offer(found))
        await self.settle()

    async def step_round(self) -> None:
        """As in ordinary life: what is due is dispatched, and everyone works."""
        await self.step_dispatch()
        for number in range(4):
            await self.step_work(number)

    async def step_upkeep(self) -> None:
        """There are days ahead."""
        self._partitions_until = None
        await self._make_days()

    # Time.

    async def step_wait(self, seconds: float, stalled: int | None = None) -> None:
        """Time goes by, as it does in a service that runs; one process may be stopped meanwhile."""
        process = None if stalled is None else self.processes[stalled % len(self.processes)]
        if process is not None and process.is_alive:
            process.is_stalled = True
            self._doubt(process)
        await self._pass(seconds)
        if process is not None:
            process.is_stalled = False
            await self._look_after(process)

    async def step_leap(self, beyond: float = 0.0) -> None:
        """To whatever is due next, and as much farther as is said; then it is done."""
        await self._finish_what_runs()
        due = await self.onlooker.fetchval(
            "SELECT min(next_at) FROM (SELECT next_at FROM schedule UNION ALL SELECT next_at FROM calls) due"
        )
        if due is not None:
            seconds = max((due - self.clock.now()).total_seconds(), 0.0)
            await self._pass(seconds + max(beyond, seconds if beyond else 0.001))
        await self.step_round()

    async def step_jump(self, seconds: float) -> None:
        """The database's clock is set."""
        self.clock.jump(seconds)
        await self._make_days()
        for process in self.processes:
            # Every lease may have ended by that, or lasts for longer.
            self._doubt(process)

    async def _finish_what_runs(self) -> None:
        while (wake := self.clock.next_wake) is not None:
            await self._pass(wake + 0.001)

    async def _pass(self, seconds: float) -> None:
        """In the paces of a service that runs; a long time in which nothing goes on, in one."""
        began = self.clock.monotonic()
        while (left := began + seconds - self.clock.monotonic()) > 1e-6:
            wake = self.clock.next_wake
            is_watched = self.clock.monotonic() - began >= WATCHED_SECONDS
            is_idle = wake is None and (is_watched or all(one.is_alive for one in self.processes))
            hop = left if is_idle else min(left, HOP_SECONDS, left if wake is None else wake + 0.001)
            self.clock.advance(seconds=hop)
            await self._make_days()
            await self._renew_all()
            await self.settle()

    async def _renew_all(self) -> None:
        for process in list(self.processes):
            if not process.is_stalled:
                await self._look_after(process)

    async def _look_after(self, process: Process) -> None:
        """What a process does by itself every few seconds."""
        if not process.is_alive:
            return
        if isinstance(process.flow, Delivery | WebhookSender):
            await process.do(process.flow.renew())
            if process.is_alive:
                await process.do(process.flow.heartbeat())
        elif isinstance(process.flow, Dispatch):
            await process.do(process.flow.reclaim())

    async def _make_days(self) -> None:
        now = self.clock.now()
        if self._partitions_until is None or now >= self._partitions_until:
            await self.upkeep.make_partitions()
            self._partitions_until = now + timedelta(days=1)

    # Faults.

    async def step_arm(self, point: str, passes: int = 1) -> None:
        """Whoever comes to this point dies there."""
        crash.arm(f"{point}:{passes}", die_here)

    async def step_kill(self, which: int) -> None:
        process = self.processes[which % len(self.processes)]
        if process.is_alive:
            process.kill()
            await self.settle()

    async def step_stop(self, which: int) -> None:
        """A process is asked to end, in the middle of whatever it does, and one takes its place."""
        place = which % len(self.processes)
        process = self.processes[place]
        if not process.is_alive:
            return
        if isinstance(process.flow, Delivery | WebhookSender):
            # What is cut off after its dot may have arrived, and says so; all else was never tried.
            await process.do(process.flow.drain(0.06))
            await self.settle()
        self.doubtful_processes.add(process.name)
        if not process.is_alive:
            self._doubt(process)
        process.is_alive = False
        await self._replace(place)

    async def step_restart(self) -> None:
        """Whoever died is started again."""
        crash.arm(None)
        for place, process in enumerate(self.processes):
            if not process.is_alive:
                await self._replace(place)

    async def step_wipe(self) -> None:
        """The stream's data are gone."""
        self.stream.wipe()

    async def step_weather(self, lost: float, twice: float, late: float, deaf: float) -> None:
        self.stream.weather = StreamFaults(lost, twice, late, deaf)

    # Customers and operators.

    async def step_suspend(self, account: int) -> None:
        if account not in self.suspended:
            await self.operator.suspend(self.senders[account].account_id)
            self.suspended.add(account)

    async def step_resume(self, account: int) -> None:
        if account in self.suspended:
            await self.operator.resume(self.senders[account].account_id)
            self.suspended.discard(account)

    async def step_endpoint(self, account: int, path: str, enabled: bool = True) -> None:
        """An account's webhook, made or changed."""
        account_id = AccountId(self.senders[account].account_id)
        sealed = self.sealer.seal(SECRET.encode(), webhooks.secret_purpose(account_id))
        url = f"https://hooks.example.com{path}"
        async with self.onlooker.transaction():
            await webhooks.save(self.onlooker, account_id, url, ALL_EVENTS, enabled, sealed, self.clock.now())

    async def step_sql(self, statement: str) -> None:
        """Somebody meddles."""
        await self.onlooker.execute(statement)

    # The end of all faults.

    async def come_to_rest(self, days_max: int = 14) -> None:
        """Faults end, and everything comes to its end; how far that is away is bounded."""
        crash.arm(None)
        self.stream.weather = StreamFaults()
        self.carrier.is_slow = self.caller.is_slow = False
        for account in sorted(self.suspended):
            await self.step_resume(account)
        await self._finish_what_runs()
        for place in range(len(self.processes)):
            await self.step_stop(place)
        await self.step_restart()
        end = self.clock.now() + timedelta(days=days_max)
        while await self.open_count():
            await self.step_leap(LEAP_SECONDS)
            # Whatever was due only then has come to its end too late, if it has.
            if self.clock.now() > end:
                self.complaints.append(f"after {days_max} days without faults, not everything has come to its end")
                return

    async def open_count(self) -> int:
        return int(
            await self.onlooker.fetchval("SELECT (SELECT count(*) FROM schedule) + (SELECT count(*) FROM calls)")
        )

    async def settle(self) -> None:
        """Until everyone waits for time to go by, or has nothing to do."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLED_SECONDS_MAX
        while True:
            tasks = [task for process in self.processes for task in process.tasks]
            busy = [task for task in tasks if not task.done() and task not in self.clock.parked]
            if not busy:
                break
            if loop.time() > deadline:
                self.complaints.append(f"nothing goes on: {busy}")
                return
            await asyncio.wait(busy, timeout=0.003)
        for process in self.processes:
            if not process.is_alive:
                self._doubt(process)
            self.complaints += [f"{process.name}: {fault!r}" for fault in process.faults]
            process.faults.clear()

    # Processes.

    async def _one(self, kind: str) -> Process:
        """The process of this kind; who died is started again before anything is asked of it."""
        place = next(number for number, one in enumerate(self.processes) if one.kind == kind)
        if not self.processes[place].is_alive:
            await self._replace(place)
        return self.processes[place]

    async def _replace(self, place: int) -> None:
        dead = self.processes[place]
        await dead.bury()
        self.processes[place] = await self.start(dead.kind)

    def _doubt(self, process: Process) -> None:
        self.doubtful_processes.add(process.name)
        if process.worker_id is not None:
            self.doubtful_workers.add(process.worker_id)

    async def _refresh(self, process: Process) -> None:
        await process.do(process.directory.forget_changes())
        if isinstance(process.flow, Delivery | WebhookSender) and process.is_alive and not process.is_stalled:
            await process.do(process.flow.renew())

    async def start(self, kind: str) -> Process:
        self._started += 1
        number = self._started
        database = await ProcessDatabase.open(self.url, connections_max=4)
        directory = ControlCache(database, self.clock.monotonic)
        process = Process(f"{kind} {number}", kind, database, directory)
        chance = SeededChance(self.seed * 1_000 + number)
        tickets = Tickets(ProcessStream(self.stream, process), SHARDS)
        match kind:
            case "api":
                process.flow = Intake(
                    database=database,
                    control_cache=directory,
                    clock=self.clock,
                    chance=chance,
                    defaults=Defaults(rate=Rate(1_000_000, 1_000_000), warmup_limits=None),
                    hostname="posthouse.test",
                    fingerprint_key=b"a key of the tests, thirty-two bytes or more",
                    simulator_domain=SIMULATOR,
                    tickets=tickets,
                )
            case "dispatcher":
                process.flow = Dispatch(database=database, clock=self.clock, tickets=tickets)
            case "postman":
                process.flow = self.delivery_kind(
                    database=database,
                    control_cache=directory,
                    clock=self.clock,
                    chance=chance,
                    resolver=SilentResolver(),
                    carrier=self.carrier,
                    outgoing_mail=OutgoingMail(database=database, clock=self.clock, signing=None, identity=IDENTITY),
                    simulator_domain=SIMULATOR,
                    lane_limits=WIDE,
                    retries=self.delivery_waits,
                    tickets=tickets,
                )
            case _:
                process.flow = WebhookSender(
                    database=database,
                    clock=self.clock,
                    chance=chance,
                    client=self.caller,
                    sealer=self.sealer,
                    target_of=check_url,
                    retries=self.webhook_waits,
                )
        await process.do(directory.forget_changes())
        await self._look_after(process)
        return process

    def hear(self, _: Any, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """What a living process logs as its own fault is one."""
        process = CURRENT.get()
        is_alive = isinstance(process, Process) and process.is_alive
        if is_alive and method in ("error", "exception", "critical"):
            self.complaints.append(f"{process.name if process else ''} logged {entry}")
        raise structlog.DropEvent


@asynccontextmanager
async def open_simulation(
    url: str, seed: int = 0, *, faults: Faults | None = None, **given: Any
) -> AsyncIterator[SimulatedService]:
    clock = VirtualClock()
    planted = faults or Faults()
    loop = asyncio.get_running_loop()
    operator = await Operator.open(service_settings(url))
    onlooker = await asyncpg.connect(url, server_settings={"jit": "off"})
    database = await Database.open(url, connections_max=1)
    sealer = Sealer({"1": bytes(32)}, "1")
    made = SimulatedService(
        url,
        seed,
        clock,
        SharedStream(clock, seed),
        SimulatedCarrier(clock, seed, planted),
        SimulatedWebhookClient(clock, seed, planted),
        operator,
        [await new_sender(operator, name) for name in ACCOUNTS],
        onlooker,
        database,
        sealer,
        Upkeep(
            database=database,
            clock=clock,
            chance=SeededChance(seed),
            resolver=SilentResolver(),
            sealer=sealer,
            retention=Retention(30, 3),
        ),
        **given,
    )
    configured = structlog.get_config()["processors"]
    others = list(configured)
    configured[:] = [made.hear]
    loop.set_task_factory(process_tasks)
    try:
        await made.step_endpoint(0, "/fickle")
        made.processes = [await made.start(kind) for kind in KINDS]
        yield made
    finally:
        crash.arm(None)
        for process in made.processes:
            process.kill()
            await process.bury()
        loop.set_task_factory(None)
        configured[:] = others
        await database.close()
        await onlooker.close()
        await operator.close()
