"""The whole service, each part a process that may die, with outside logs of what was sent and received.

Clients send over HTTP and SMTP and log every answer; an SMTP receiver logs the mail, a webhook receiver the events.
When the service is idle, `posthouse audit` compares the three logs with the record.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import random
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any, Final

import aiohttp

from posthouse import crash
from posthouse.rules import event
from posthouse.rules.ids import AccountId
from posthouse.rules.route import Route, ranked
from posthouse.store import endpoints
from posthouse.store.seal import Sealer
from tests.support import preloaded, webhook_accounts
from tests.support.duplicate_mail import DATABASE_ERRORS, InFlight
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.later_mail import LaterMail
from tests.support.server_process import USUAL_PATIENCE, ServerProcess, environment
from tests.support.service import ABSENT, Service, Tenant, service_settings
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import SmtpListeners, plain, queued_id, raw_mail, submit
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import Request, WebhookReceiver
from tests.support.webhook_steps import ALL_EVENTS, save_webhook

TENANTS: Final = 3
DESTINATIONS: Final = 24
SLOW: Final = "127.0.0.2"
# Accepts no mail from our address.
BLOCKED: Final = "127.0.0.4"
# What it refuses is held for some seconds.
REROUTE_HOURS: Final = 0.002
# A reroute is a twentieth of the second address's mail.
ENOUGH_FOR_A_REROUTE: Final = 30
ENOUGH_SECONDS_MAX: Final = 300.0
# How the receiver treats them: the local parts of the addresses begin with these.
BEHAVIOURS: Final = (*["taken"] * 72, *["550-rcpt"] * 4, *["greylist"] * 3, "lose-dot")
PARTS: Final = ("http", "submission", "inbound", "dispatch", "delivery", "notification")
PAUSE_SECONDS: Final = 0.05
# Most mail has one recipient.
RECIPIENT_COUNTS: Final = (*[1] * 13, 2, 3)
# Emails of a batch request, and the share of such requests.
BATCH_COUNTS: Final = (2, 5, 20, 60)
BATCH_SHARE: Final = 0.02
# Scheduled mail: how far ahead, the shares of batch requests and of cancelled messages.
LATER_SECONDS: Final = (1.0, 6.0)
LATER_BATCH_SHARE: Final = 0.25
CANCELLED_SHARE: Final = 0.5
BODY_REPEATS: Final = (*[1] * 8, 10, 1_000)
MESSAGES_A_CONNECTION: Final = 100
# Clients pause while more than this waits, so that the service is idle soon after they stop.
WAITING_MAX: Final = 5_000
WAITING_POLL_SECONDS: Final = 0.5
ANSWER_SECONDS_MAX: Final = 60.0
AUDIT_SECONDS_MAX: Final = 1_800.0
WAITING: Final = (
    "SELECT (SELECT count(*) FROM delivery_schedule) AS mail, (SELECT count(*) FROM webhook_schedule) AS calls"
)
NOTHING_WAITS: Final = {"mail": 0, "calls": 0}


@dataclass(slots=True)
class SendRate:
    """This many sends a second on average: those that a fault delayed follow afterwards."""

    per_second: float
    started: float = field(default_factory=time.monotonic)
    count: int = 0

    async def turn(self) -> None:
        due = self.started + self.count / self.per_second
        self.count += 1
        await asyncio.sleep(max(0.0, due - time.monotonic()))


@dataclass(slots=True)
class WholeService:
    processes: ServiceProcesses
    listeners: SmtpListeners
    webhook_receiver: WebhookReceiver
    tenants: list[Tenant]
    domains: list[str]
    running: dict[str, ServerProcess]
    sender_log: IO[str]
    webhook_log: IO[str]
    randomness: random.Random
    in_flight: InFlight
    behaviours: Sequence[str] = BEHAVIOURS
    # Of the HTTP requests; zero where a release takes part that has no batch requests.
    batch_share: float = BATCH_SHARE
    answers: Counter[str] = field(default_factory=Counter)
    # According to the answers to all attempts of a message; over SMTP, of the messages of one client in a row.
    tries: Counter[tuple[str, ...]] = field(default_factory=Counter)
    later: LaterMail = field(default_factory=LaterMail)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    # Recipients and webhooks that waited at the last check.
    waiting: tuple[int, int] = (0, 0)
    _has_capacity: asyncio.Event = field(default_factory=asyncio.Event)
    _is_stopping: bool = False

    @property
    def accepted(self) -> int:
        """Messages, as counted by the clients."""
        return self.answers["http: 202"] + self.answers["smtp: 250"]

    # Processes

    def start(self, name: str, crash_at: str | None = None) -> ServerProcess:
        """A process that ended is started at the same port."""
        armed = {} if crash_at is None else {crash.ENVIRONMENT.removeprefix("POSTHOUSE_"): crash_at}
        if name in self.running:
            part = self.running[name]
            part.settings = {**self.processes.settings, **armed}
            part.spawn()
        else:
            part = self.running[name] = self.processes.start(name)
        return part

    async def kill(self, name: str) -> None:
        """SIGKILL; what a worker had in flight is counted."""
        part = self.running[name]
        connections = len(self.processes.receiver.conversations)
        part.kill()
        if name == "delivery":
            await self.in_flight.note_death(connections)

    def maintenance(self, crash_at: str | None = None) -> int:
        """One run of it; the exit status."""
        own = environment(self.processes.database_url, **self.processes.settings)
        if crash_at is not None:
            own[crash.ENVIRONMENT] = crash_at
        return preloaded.run("maintenance", environment=own, directory=self.processes.directory).returncode

    # Clients

    @asynccontextmanager
    async def busy(
        self, http: int = 6, smtp: int = 3, per_second: float = 60.0, waiting_max: int = WAITING_MAX, later: int = 0
    ) -> AsyncIterator[None]:
        """Clients send while the block runs; at its end each waits for its last answer.

        Besides those of `http`, clients of `later` send mail that is due some seconds later, and cancel half of it.
        """
        self._is_stopping = False
        pace = SendRate(per_second)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_queue(waiting_max))
            for number in range(http):
                group.create_task(self._send_by_http(self.tenants[number % len(self.tenants)], pace))
            for number in range(smtp):
                group.create_task(self._send_by_smtp(self.tenants[number % len(self.tenants)], pace))
            for number in range(later):
                group.create_task(self._send_for_later(self.tenants[number % len(self.tenants)], pace))
            try:
                yield
            finally:
                self._is_stopping = True

    async def _watch_queue(self, waiting_max: int) -> None:
        """Clients pause while too much waits."""
        while not self._is_stopping:
            with contextlib.suppress(*DATABASE_ERRORS):
                async with asyncio.timeout(2):
                    (row,) = await self.processes.service.sql(WAITING)
                    self.waiting = row["mail"], row["calls"]
            if max(self.waiting) > waiting_max:
                self._has_capacity.clear()
            else:
                self._has_capacity.set()
            await asyncio.sleep(WAITING_POLL_SECONDS)
        self._has_capacity.set()

    async def _turn(self, pace: SendRate) -> bool:
        """Whether to send."""
        await self._has_capacity.wait()
        await pace.turn()
        return not self._is_stopping

    async def _send_by_http(self, tenant: Tenant, pace: SendRate) -> None:
        while await self._turn(pace):
            if self.randomness.random() < self.batch_share:
                await self.post_batch(tenant)
            else:
                await self.post(tenant)

    async def _send_for_later(self, tenant: Tenant, pace: SendRate) -> None:
        """Some is cancelled at once, and some as it becomes due."""
        while await self._turn(pace):
            seconds = self.randomness.uniform(*LATER_SECONDS)
            send_at = datetime.now(UTC) + timedelta(seconds=seconds)
            if self.randomness.random() < LATER_BATCH_SHARE:
                accepted = await self.post_batch(tenant, send_at)
            else:
                accepted = await self.post(tenant, send_at=send_at)
            await asyncio.sleep(self.randomness.uniform(0, seconds * 1.2))
            for message_id in accepted:
                if self.randomness.random() < CANCELLED_SHARE:
                    await self._cancel(tenant, message_id)

    async def _cancel(self, tenant: Tenant, message_id: str) -> None:
        """Retries until there is an answer."""
        give_up_at = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < give_up_at:
            try:
                answer = await tenant.cancel(message_id)
            except (aiohttp.ClientError, OSError, TimeoutError):
                self.answers["cancel: none"] += 1
            else:
                self.answers[f"cancel: {answer.status}"] += 1
                if answer.status == 200:
                    self.later.cancelled.add(message_id)
                    return
                if answer.status == 409:
                    self.later.refused.add(message_id)
                    return
                assert answer.status in (429, 503), answer.raw
            await asyncio.sleep(PAUSE_SECONDS * 4)

    async def send_to_blocked(self) -> None:
        """A message to its own destination, which refuses our address."""
        destination = self.processes.destination(f"blocked{next(self._numbers)}.example.net", BLOCKED)
        await self.post(self.tenants[0], [f"ada@{destination}", f"bob@{destination}"])

    async def send_from_blocked(self) -> None:
        """Mail of one tenant, from an address that is blocked when another tenant's has brought some mail."""
        service = self.processes.service
        first, second = _addresses_of(self.tenants[0].domain, self.tenants[1].domain)
        await service.sql("UPDATE accounts SET tier = 'good'")
        await service.sql("INSERT INTO pools (name, created_at) VALUES ('default', now()) ON CONFLICT DO NOTHING")
        for ip in (first, second):
            await service.sql(
                "INSERT INTO sending_addresses (ip, hostname, pool, state, created_at, changed_at)"
                f" VALUES ('{ip}', 'mta.example.com', 'default', 'active', now(), now()) ON CONFLICT DO NOTHING"
            )
        destination = self.processes.destination(f"far{next(self._numbers)}.example.net")
        brought = f"SELECT count(*) FROM attempts WHERE source_ip = '{second}' AND mx_host = 'mx.{destination}'"
        async with asyncio.timeout(ENOUGH_SECONDS_MAX):
            # A worker learns of new addresses within seconds; what it sent before doesn't count.
            while await service.value(brought) < ENOUGH_FOR_A_REROUTE:
                # An address that gets two messages would count as a duplicate.
                await self.post(self.tenants[1], [f"taken+{next(self._numbers)}@{destination}"])
                await asyncio.sleep(PAUSE_SECONDS * 4)
        self.processes.receiver.blocked = {first}
        await self.post(self.tenants[0], [f"bob@{destination}"])

    async def post(
        self, tenant: Tenant, to: list[str] | None = None, *, send_at: datetime | None = None
    ) -> Sequence[str]:
        """Retries with the same key until there is an answer; returns the id, if it was accepted."""
        to = to or self._addresses(self.randomness.choice(RECIPIENT_COUNTS))
        fields: dict[str, Any] = {"to": to[:2], "bcc": to[2:]} if len(to) > 2 else {"to": to}
        body = tenant.mail(**fields, **_later(send_at))
        ids: list[str] = []

        def taken(key: str, answer: Answer) -> bool:
            if answer.status == 202:
                self._note_accepted(key, answer.body["id"], send_at, to)
                ids.append(answer.body["id"])
            return answer.status == 202

        await self._post(lambda key, machine: tenant.send(body, key=key, service=machine), tenant, taken)
        return ids

    async def post_batch(self, tenant: Tenant, send_at: datetime | None = None) -> Sequence[str]:
        """The same, of many emails; each is remembered by the key and its index."""
        emails = [{"to": address} for address in self._addresses(self.randomness.choice(BATCH_COUNTS))]
        body = {"defaults": tenant.mail(to=ABSENT, **_later(send_at)), "emails": emails}
        ids: dict[str, None] = {}

        def taken(key: str, answer: Answer) -> bool:
            if answer.status != 200:
                return False
            accepted = {index: result["id"] for index, result in enumerate(answer.body["results"]) if "id" in result}
            for index, message_id in accepted.items():
                self._note_accepted(f" {index} {key}", message_id, send_at, [emails[index]["to"]])
            ids.update(dict.fromkeys(accepted.values()))
            if len(accepted) < len(emails):
                return False
            self.answers["http: 202"] += len(emails)
            return True

        async def send(key: str, machine: Service) -> Answer:
            headers = {"Authorization": tenant.basic, "Idempotency-Key": key}
            return await machine.request("POST", "/emails/batch", headers=headers, json=body)

        await self._post(send, tenant, taken)
        return list(ids)

    async def _post(
        self,
        send: Callable[[str, Service], Awaitable[Answer]],
        tenant: Tenant,
        taken: Callable[[str, Answer], bool],
    ) -> None:
        number = next(self._numbers)
        key = f"{tenant.unique}-{number}"
        give_up_at = time.monotonic() + ANSWER_SECONDS_MAX
        tries: list[str] = []
        while time.monotonic() < give_up_at:
            # With several machines, a retry goes to the next, as a proxy in front of them sends it.
            machine = self.processes.clients[(number + len(tries)) % len(self.processes.clients)]
            try:
                answer = await send(key, machine)
            except (aiohttp.ClientError, OSError, TimeoutError) as fault:
                self.answers["http: none"] += 1
                tries.append(f"http: {type(fault).__name__}")
                self._note(via="http", outcome="unanswered", key=key)
            else:
                self.answers[f"http: {answer.status}"] += 1
                tries.append(f"http: {answer.status} {_codes(answer)}".strip())
                if taken(key, answer):
                    self.tries[tuple(tries)] += 1
                    return
                # 403: the account is suspended. 200: some of many emails were refused.
                assert answer.status in (200, 403, 409, 429, 503), answer.raw
            await asyncio.sleep(PAUSE_SECONDS * 4)

    async def _send_by_smtp(self, tenant: Tenant, pace: SendRate) -> None:
        tries: list[str] = []
        while not self._is_stopping:
            try:
                async with self.listeners.line() as line:
                    replies = await line.say("EHLO load.example", plain(tenant.username, tenant.password))
                    if not replies[1].startswith("235 "):
                        raise ConnectionResetError("no login")
                    for _ in range(MESSAGES_A_CONNECTION):
                        if not await self._turn(pace):
                            break
                        is_accepted = await self._submit(line, tenant)
                        tries.append("smtp: accepted" if is_accepted else "smtp: refused")
                        if is_accepted:
                            self.tries[tuple(tries)] += 1
                            tries.clear()
            except (OSError, ssl.SSLError, asyncio.IncompleteReadError, AssertionError, IndexError) as fault:
                tries.append(f"smtp: {type(fault).__name__}")
                self.answers["smtp: no connection"] += 1
                await asyncio.sleep(PAUSE_SECONDS * 4)

    async def _submit(self, line: Any, tenant: Tenant) -> bool:
        """Whether the mail was accepted."""
        number = next(self._numbers)
        raw = raw_mail(tenant, f"Number {number}", body="Good morning. " * self.randomness.choice(BODY_REPEATS))
        reply = ""
        try:
            to = self._addresses(self.randomness.choice(RECIPIENT_COUNTS))
            reply = await submit(line, raw, to, sender=f"news@{tenant.domain}")
        finally:
            self.answers[f"smtp: {reply[:3] or 'none'}"] += 1
            if reply.startswith("250 "):
                self._note(via="smtp", outcome="accepted", id=queued_id(reply))
            elif reply[:3] in ("", "451", "421"):
                self._note(via="smtp", outcome="unanswered")
        if reply[:3] in ("", "421"):
            raise ConnectionResetError("the server closed the connection")
        return reply.startswith("250 ")

    def _addresses(self, count: int) -> list[str]:
        return [
            f"{self.randomness.choice(self.behaviours)}+{next(self._numbers)}@{self.randomness.choice(self.domains)}"
            for _ in range(count)
        ]

    def _note_accepted(self, key: str, message_id: str, send_at: datetime | None, to: list[str]) -> None:
        self._note(via="http", outcome="accepted", key=key, id=message_id)
        if send_at is not None:
            self.later.note(message_id, send_at, to)

    def _note(self, **line: str) -> None:
        self.sender_log.write(json.dumps(line) + "\n")

    def log_webhook(self, request: Request) -> None:
        line = {
            "at": time.time(),
            "signature": request.headers[event.SIGNATURE_HEADER.lower()],
            "body": base64.b64encode(request.body).decode(),
            "status": 200,
        }
        self.webhook_receiver.requests.clear()
        if not self.webhook_log.closed:
            self.webhook_log.write(json.dumps(line) + "\n")

    # The end of a run

    async def wait_until_idle(self, seconds: float) -> float:
        """Every message and every webhook is final; how many seconds it took."""
        started = time.monotonic()

        async def waiting() -> dict[str, int] | None:
            with contextlib.suppress(*DATABASE_ERRORS):
                return dict((await self.processes.service.sql(WAITING))[0])
            return None

        await eventually(waiting, lambda found: found == NOTHING_WAITS, within=seconds, every=0.2, or_say=self._logs)
        return time.monotonic() - started

    def _logs(self) -> str:
        return "\n".join(f"{name} logged:\n{part.said()[-1500:]}" for name, part in self.running.items())

    async def audit(self, sender: Path | None = None, receiver: Path | None = None) -> dict[str, Any]:
        """The audit with all three outside logs, or others in their place; call it when the service is idle."""
        self.sender_log.flush()
        self.webhook_log.flush()
        logs = ["--sender", sender or self.sender_log.name, "--receiver", receiver or self.processes.log]
        logs += ["--webhooks", self.webhook_log.name]
        # Straight to the database, around any proxy.
        settings = {**self.processes.settings, "DATABASE__URL": self.processes.database_url}
        own = environment(self.processes.database_url, **settings)
        done = await asyncio.to_thread(
            preloaded.run,
            "audit",
            "--json",
            *map(str, logs),
            environment=own,
            directory=self.processes.directory,
            seconds_max=AUDIT_SECONDS_MAX,
        )
        assert done.returncode in (0, 1), done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert report["is_broken"] == (done.returncode == 1)
        return report


def log_directory() -> Path | None:
    """The directory of the outside logs: in memory if possible, because the service needs the disk.

    None is the usual directory of temporary files. The logging processes survive every fault, so memory is safe.
    """
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


@asynccontextmanager
async def start_whole_service(
    database_url: str,
    directory: Path,
    seed: int,
    *,
    stream: str = "nats",
    program: Path | None = None,
    **settings: str,
) -> AsyncIterator[WholeService]:
    """Every part runs, and no client sends yet; `settings` are those of the processes.

    `program` is the `posthouse` of another version, whose defaults are kept for newer settings.

    SIGTERM ends this task, and with it the processes: each has its own process group and would live on.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    listeners = SmtpListeners.make(directory)
    authority = directory / "webhooks.pem"
    authority.write_bytes(certificates().authority_pem)
    async with WebhookReceiver(certificates().servers["sound"]) as webhook_receiver:
        chosen = {
            **USUAL_PATIENCE,
            **webhook_accounts.webhook_settings(webhook_receiver.port, authority),
            **listeners.settings,
            **({} if program else {"DELIVERY__REROUTE": "pool", "DELIVERY__REROUTE_HOURS": str(REROUTE_HOURS)}),
            **settings,
        }
        behaviours = {SLOW: "delay-30", BLOCKED: "blocked-mail"}
        async with prepare_processes(
            database_url,
            directory,
            stream=stream,
            behaviours=behaviours,
            keeps_mail=False,
            logs_messages=True,
            program=program,
            **chosen,
        ) as processes:
            processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            domains = [
                processes.destination(f"d{number}.example.net", SLOW if number % 2 else "127.0.0.1")
                for number in range(DESTINATIONS)
            ]
            running = {"http": await processes.start_http()}
            tenants = [await processes.service.account(credits=10_000_000) for _ in range(TENANTS)]
            await _add_webhooks(processes, tenants, webhook_receiver.port)
            with (
                (directory / "sent.jsonl").open("w", buffering=1) as sent,
                (directory / "webhooks.jsonl").open("w", buffering=1) as received,
            ):
                randomness = random.Random(seed)
                in_flight = InFlight(processes.service)
                whole_service = WholeService(
                    processes, listeners, webhook_receiver, tenants, domains, running, sent, received, randomness,
                    in_flight,
                )  # fmt: skip
                webhook_receiver.when_answered = whole_service.log_webhook
                for name in PARTS:
                    if name not in running:
                        whole_service.start(name)
                await listeners.open(whole_service.running["submission"])
                yield whole_service


async def _add_webhooks(processes: ServiceProcesses, tenants: Sequence[Tenant], port: int) -> None:
    given = service_settings(processes.database_url)
    sealer = Sealer(given.secrets.seal_key_bytes, given.secrets.seal_key_active)
    for number, tenant in enumerate(tenants):
        secret = f"{event.SECRET_PREFIX}{number}-of-the-tests"
        account_id = AccountId(tenant.id)
        sealed = sealer.seal(secret.encode(), endpoints.secret_purpose(account_id, account_id))
        url = f"https://{NAME}:{port}/events?{number}"
        async with processes.service.pool.acquire() as connection, connection.transaction():
            await save_webhook(connection, account_id, url, ALL_EVENTS, True, sealed, datetime.now(UTC))


def _codes(answer: Answer) -> str:
    """Why it refused, or some of its emails."""
    refusals = [answer.body, *answer.body.get("results", ())]
    return " ".join(sorted({refusal["code"] for refusal in refusals if "code" in refusal}))


def _later(send_at: datetime | None) -> dict[str, str]:
    return {} if send_at is None else {"send_at": send_at.isoformat()}


def _addresses_of(first: str, second: str) -> tuple[str, str]:
    """Two addresses far from each other, of which each sender prefers its own."""
    for one, other in itertools.product(range(1, 100), repeat=2):
        pair = ip_address(f"127.1.0.{one}"), ip_address(f"127.2.0.{other}")
        routes = tuple([Route(ip, "mta.example.com") for ip in pair])
        if [ranked(sender, routes)[0].source for sender in (first, second)] == list(pair):
            return str(pair[0]), str(pair[1])
    raise AssertionError("one address has both senders")
