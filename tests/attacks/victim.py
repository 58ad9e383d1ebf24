"""A tenant of the running service next to an attacker: how long everything it does takes, and what is refused.

It sends over HTTP and SMTP, logs in, reads, and a peer sends it a report on port 25; its mail goes to a real receiver,
and its webhook is called.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from posthouse.rules import event
from posthouse.rules.ids import AccountId
from posthouse.store import endpoints
from posthouse.store.seal import Sealer
from tests.attacks.attackers import ANSWERING, Target
from tests.support import webhook_accounts
from tests.support.eventually import eventually
from tests.support.server_process import USUAL_PATIENCE
from tests.support.service import PASSWORD, Tenant, service_settings
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.smtp_conversation import Delivered
from tests.support.smtp_listeners import FEEDBACK_ADDRESS, SmtpListeners, raw_mail, submit
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import Request, WebhookReceiver
from tests.support.webhook_steps import ALL_EVENTS, save_webhook

ACTIONS: Final = ("send", "login", "read", "delivery", "webhook", "submission", "port 25")
DESTINATION: Final = "known.example.net"
SILENT: Final = [f"127.0.3.{number}" for number in range(1, 7)]
# What the victim sent must arrive within this time, or counts as refused.
ARRIVAL_SECONDS_MAX: Final = 20.0
PARTS: Final = ("submission", "inbound", "dispatch", "delivery", "notification")
# The parts of a fleet's processes, the first with HTTP.
FLEET: Final = (("submission", "inbound"), ("dispatch",), ("delivery",), ("delivery",), ("notification",))
# The service's default, which other tests set out of the way.
ORDINARY: Final = {
    "HTTP__UNAUTHENTICATED_PER_SECOND": "50",
    "HTTP__UNAUTHENTICATED_BURST": "200",
    "LIMITS__WRITES_PER_SECOND": "10",
    "LIMITS__WRITES_BURST": "60",
    "LIMITS__RATE_PER_SECOND": "20",
    "LIMITS__RATE_BURST": "40",
    "LANES__PER_SECOND": "100",
    "LANES__BURST": "100",
    "DELIVERY__RETRY_MINUTES": "[1, 5, 15]",
    "WORKERS__LEASE_SECONDS": "30",
    "WORKERS__TICKET_LEASE_SECONDS": "60",
}


@dataclass(slots=True)
class Times:
    """Seconds by action, and the refusals by their text."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Stage:
    """All parts of the service in a process, a mail receiver, and webhook endpoints."""

    processes: ServiceProcesses
    listeners: SmtpListeners
    endpoints: WebhookReceiver

    async def add_webhook(self, tenant: Tenant, path: str) -> None:
        given = service_settings(self.processes.database_url)
        account_id = AccountId(tenant.id)
        sealer = Sealer(given.secrets.seal_key_bytes, given.secrets.seal_key_active)
        sealed = sealer.seal(
            f"{event.SECRET_PREFIX}of-the-tests".encode(), endpoints.secret_purpose(account_id, account_id)
        )
        url = f"https://{NAME}:{self.endpoints.port}{path}"
        async with self.processes.service.pool.acquire() as connection, connection.transaction():
            await save_webhook(connection, account_id, url, ALL_EVENTS, True, sealed, datetime.now(UTC))

    async def target(self, attackers: Sequence[Tenant]) -> Target:
        attacker = attackers[0]
        return Target(
            http=self.processes.service.port,
            submission=self.listeners.tls_port,
            starttls=self.listeners.port,
            inbound=self.listeners.inbound_port,
            authority=str(self.listeners.authority.authority_file),
            username=attacker.username,
            password=attacker.password,
            token=await attacker.jwt(),
            domain=attacker.domain,
            email=await attacker.user(),
            inbound_recipient=FEEDBACK_ADDRESS,
            accounts=[(tenant.domain, await tenant.key(), await tenant.key("test")) for tenant in attackers],
        )

    async def forget(self, attackers: Sequence[Tenant]) -> None:
        """The rest of an attack is not sent."""
        ids = [attacker.id for attacker in attackers]
        for table in ("delivery_schedule", "webhook_schedule"):
            await self.processes.service.sql(f"DELETE FROM {table} WHERE account_id = ANY($1::uuid[])", ids)


@asynccontextmanager
async def open_stage(database_url: str, directory: Path, *, is_fleet: bool = False) -> AsyncIterator[Stage]:
    """All parts in one process; or, with `is_fleet`, in several processes with NATS."""
    listeners = SmtpListeners.make(directory)
    authority = directory / "webhooks.pem"
    authority.write_bytes(certificates().authority_pem)
    async with WebhookReceiver(certificates().servers["sound"]) as endpoints:
        settings = {
            **USUAL_PATIENCE,
            **webhook_accounts.webhook_settings(endpoints.port, authority),
            **listeners.settings,
            **ORDINARY,
        }
        silent = dict.fromkeys(SILENT, "hang-connect")
        stream = "nats" if is_fleet else "memory"
        async with prepare_processes(database_url, directory, stream=stream, behaviours=silent, **settings) as made:
            made.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            for name in (DESTINATION, *(f"d{number}.{ANSWERING}" for number in range(100))):
                made.destination(name)
            part = await made.start_http(*(FLEET[0] if is_fleet else PARTS))
            for parts in FLEET[1:] if is_fleet else ():
                made.start(*parts)
            await listeners.open(part, listeners.tls_port, listeners.inbound_port)
            yield Stage(made, listeners, endpoints)


class Victim:
    def __init__(self, stage: Stage, tenant: Tenant, email: str) -> None:
        self._stage = stage
        self._tenant = tenant
        self._email = email
        self._number = 0
        self._sent_at: dict[str, float] = {}
        self._arrived_at: dict[str, float] = {}
        self._notified_at: dict[str, float] = {}
        self._first_id = ""
        receiver = stage.processes.receiver
        self._take_in = receiver.accept
        receiver.accept = self._arrived  # type: ignore[method-assign]
        stage.endpoints.when_answered = self._notified

    @classmethod
    async def make(cls, stage: Stage) -> "Victim":
        tenant = await stage.processes.service.account(credits=10**6)
        await stage.add_webhook(tenant, "/victim")
        victim = cls(stage, tenant, await tenant.user())
        victim._first_id = (await tenant.accepts())["id"]
        return victim

    async def live(self, seconds: float) -> Times:
        """Everything at its own pace for this long, and until all mail sent meanwhile has arrived."""
        times = Times()
        until = time.monotonic() + seconds
        self._sent_at.clear()
        paces: list[tuple[str, float, Callable[[], Awaitable[str]]]] = [
            ("send", 0.1, self._send),
            ("read", 0.1, self._read),
            ("login", 1.0, self._login),
            ("submission", 0.5, self._submit),
            ("port 25", 0.5, self._report),
        ]
        await asyncio.gather(*(self._repeat(times, *pace, until) for pace in paces))
        await self._wait_for_arrivals()
        for address, sent_at in self._sent_at.items():
            arrived_at, notified_at = self._arrived_at.get(address), self._notified_at.get(address)
            if arrived_at is None or notified_at is None:
                times.refused["mail or webhook is late"] += 1
                arrived_at = arrived_at or time.monotonic()
                notified_at = notified_at or time.monotonic()
            times.seconds["delivery"].append(arrived_at - sent_at)
            times.seconds["webhook"].append(notified_at - arrived_at)
        return times

    async def _repeat(
        self, times: Times, action: str, every: float, act: Callable[[], Awaitable[str]], until: float
    ) -> None:
        while (started := time.monotonic()) < until:
            try:
                refusal = await act()
            except (aiohttp.ClientError, OSError, TimeoutError, AssertionError) as error:
                refusal = f"{type(error).__name__}: {error}"[:100]
            times.seconds[action].append(time.monotonic() - started)
            if refusal:
                times.refused[f"{action}: {refusal}"] += 1
            await asyncio.sleep(max(0.02, every - (time.monotonic() - started)))

    async def _send(self) -> str:
        self._number += 1
        address = f"v{self._number}@{DESTINATION}"
        answer = await self._tenant.send(self._tenant.mail(to=[address]))
        if answer.status != 202:
            return _text(answer.status, answer.raw)
        self._sent_at[address] = time.monotonic()
        return ""

    async def _read(self) -> str:
        answer = await self._tenant.get(self._first_id)
        return "" if answer.status == 200 else _text(answer.status, answer.raw)

    async def _login(self) -> str:
        answer = await self._stage.processes.service.login(self._email, PASSWORD)
        return "" if answer.status == 200 else _text(answer.status, answer.raw)

    async def _submit(self) -> str:
        async with self._stage.listeners.session(self._tenant) as line:
            mail = raw_mail(self._tenant, "victim")
            sender = f"news@{self._tenant.domain}"
            reply = await submit(line, mail, ["delivered@simulator.invalid"], sender=sender)
        return "" if reply.startswith("250 ") else reply or "the connection was closed"

    async def _report(self) -> str:
        listeners = self._stage.listeners
        async with listeners.line(is_secure=False, source="127.0.0.90", port=listeners.inbound_port) as line:
            await line.say("EHLO mx.example.org")
            reply = await submit(line, b"Subject: hello\r\n\r\nGood morning.\r\n", [FEEDBACK_ADDRESS], sender="")
        return "" if reply.startswith("250 ") else reply or "the connection was closed"

    async def _wait_for_arrivals(self) -> None:
        async def have_arrived() -> bool:
            return all(address in self._notified_at for address in self._sent_at)

        with suppress(AssertionError):  # counted by the caller
            await eventually(have_arrived, within=ARRIVAL_SECONDS_MAX)

    def _arrived(self, delivered: list[Delivered], then: Callable[[], None]) -> None:
        now = time.monotonic()
        for mail in delivered:
            self._arrived_at.setdefault(mail.recipient, now)
        self._take_in(delivered, then)

    def _notified(self, request: Request) -> None:
        if request.line.split(" ")[1] == "/victim":
            body: dict[str, Any] = json.loads(request.body)
            self._notified_at.setdefault(body["data"].get("to", ""), time.monotonic())
        self._stage.endpoints.requests.clear()


def _text(status: int, raw: bytes) -> str:
    return f"{status} {raw[:100].decode(errors='replace')}"
