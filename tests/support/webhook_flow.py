"""Webhooks end to end in one process: real PostgreSQL, DNS and HTTPS, the in-process stream, a settable clock."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

from posthouse.flows.deliver.dispatch import DISPATCH_BATCH_MIN, Dispatch
from posthouse.flows.shared.tickets import Tickets
from posthouse.flows.webhooks.sender import WebhookPolicy, WebhookSender
from posthouse.randomness import SeededRandomness
from posthouse.rules.ids import AccountId
from posthouse.rules.public_address import Address
from posthouse.rules.ticket import unpack
from posthouse.rules.webhook_url import WebhookTarget, check_url
from posthouse.store import webhook_log
from posthouse.store.delivery_outcomes import DeliveryResult as MailResult
from posthouse.store.endpoints import secret_purpose
from posthouse.store.seal import Sealer
from posthouse.store.webhook_log import WebhookDelivery
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from posthouse.wire.webhook_client import HttpWebhookClient, WebhookCallResult, WebhookClient
from tests.support.accept_flow import Sender
from tests.support.certificates import Certificates, trusting_webhooks
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.nameserver import Nameserver
from tests.support.webhook_receiver import Request, WebhookReceiver
from tests.support.webhook_steps import ALL_EVENTS, WebhookSteps

SHARDS: Final = 4
SEED: Final = 2026
NAME: Final = "hooks.example.com"
SECRET: Final = "whsec_the_secret_of_the_tests"
PATIENCE_SECONDS: Final = 30.0
# Status, attempt, HTTP status and error of a delivery.
DeliveryStatus = tuple[str, int, int | None, str | None]


@cache
def certificates() -> Certificates:
    return Certificates.make(NAME)


@dataclass(slots=True)
class WebhookFlow:
    """A webhook sender and its surroundings. `run_due` sends all that is due at the clock's time.

    A query makes an account's path unique: `/status/500?acme`. `ports` are those that may be called.
    `another_worker` makes one more sender; its arguments override those of the first.
    """

    steps: DeliverySteps
    nameserver: Nameserver
    webhook_receiver: WebhookReceiver
    ports: set[int]
    stream: MemoryStream
    tickets: Tickets
    dispatch: Dispatch
    notification: WebhookSender
    caller: HttpWebhookClient
    sealer: Sealer
    another_worker: Callable[..., WebhookSender]

    @property
    def clock(self) -> SettableClock:
        return self.steps.clock

    @property
    def store(self) -> WebhookSteps:
        return WebhookSteps(self.steps)

    @property
    def account_id(self) -> AccountId:
        return AccountId(self.steps.sender.account_id)

    def url(self, path: str = "/events", *, host: str = NAME, port: int = 0) -> str:
        return f"https://{host}:{port or self.webhook_receiver.port}{path}"

    def sealed(
        self, secret: str = SECRET, account_id: AccountId | None = None, endpoint_id: UUID | None = None
    ) -> bytes:
        to = account_id or self.account_id
        return self.sealer.seal(secret.encode(), secret_purpose(to, endpoint_id or to))

    async def subscribe(
        self,
        path: str = "/events",
        *,
        url: str = "",
        events: Sequence[str] = ALL_EVENTS,
        enabled: bool = True,
        sender: Sender | None = None,
        is_answering: bool = True,
    ) -> None:
        """Creates or changes an account's endpoint, which has answered before or not; a new one's secret is SECRET."""
        account_id = AccountId(sender.account_id) if sender else self.account_id
        await self.store.save(
            url or self.url(path), events, enabled, account_id=account_id, secret=self.sealed(account_id=account_id)
        )
        await self.steps.fetch(
            "UPDATE endpoints SET answered_at = $2 WHERE account_id = $1",
            account_id,
            self.clock.now() if is_answering else None,
        )

    async def add_events(self, *results: MailResult, sender: Sender | None = None) -> list[UUID]:
        """A new message whose recipients have these results; its webhook deliveries in order, due now."""
        made = await self.store.add_events(*(results or (MailResult.DELIVERED,)), lease=timedelta(0), sender=sender)
        rows = await self.steps.fetch(
            "SELECT id FROM webhook_deliveries WHERE id = ANY($1::uuid[]) ORDER BY position",
            [ticket.webhook_delivery_id for ticket in made],
        )
        return [delivery_id for (delivery_id,) in rows]

    async def add_event(self, result: MailResult = MailResult.DELIVERED, *, sender: Sender | None = None) -> UUID:
        (delivery_id,) = await self.add_events(result, sender=sender)
        return delivery_id

    async def run_due(self) -> int:
        """Dispatches what is due and sends it; returns how many tickets there were."""
        await self.notification.renew()
        await self.dispatch_due()
        return await self.send_fetched()

    async def dispatch_due(self) -> None:
        while await self.dispatch.step_calls() >= DISPATCH_BATCH_MIN:
            pass

    async def send_fetched(self) -> int:
        """Sends what is in the stream."""
        number = await self.offer()
        await self.notification.settle()
        return number

    async def offer(self) -> int:
        """Gives the sender what is in the stream, without waiting for the calls."""
        found = await self.stream.fetch(TicketKind.NOTIFY, frozenset(range(SHARDS)), 10_000, 0)
        await self.notification.offer(found)
        return sum(len(unpack(message.payload)) for message in found)

    async def log(self, delivery_id: UUID, account_id: AccountId | None = None) -> WebhookDelivery:
        async with self.steps.database.connection() as connection:
            found = await webhook_log.find_delivery(connection, account_id or self.account_id, delivery_id)
        assert found is not None
        return found

    async def status_of(self, delivery_id: UUID, account_id: AccountId | None = None) -> DeliveryStatus:
        """Status, attempt, HTTP status and error."""
        found = await self.log(delivery_id, account_id)
        return found.status, found.attempt, found.http_status, found.error

    async def schedule(self) -> list[tuple[Any, ...]]:
        """What is pending: attempts, fence, and the seconds until it is due."""
        rows = await self.steps.fetch("SELECT attempt_count, fence, next_at FROM webhook_schedule ORDER BY next_at, id")
        return [(count, fence, (at - self.clock.now()).total_seconds()) for count, fence, at in rows]

    def requests_to(self, path: str) -> list[Request]:
        """Requests to this path."""
        return [request for request in self.webhook_receiver.requests if request.line.split(" ")[1] == path]


@dataclass
class PausingClient:
    """A client that pauses before the call, or before it returns the answer."""

    caller: WebhookClient
    sets_out: bool = True
    comes_back: bool = True
    begun: list[str] = field(default_factory=list)
    claimed: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> WebhookCallResult:
        self.begun.append(target.path_and_query)
        self.claimed.set()
        if not self.sets_out:
            await self.resume.wait()
        answer = await self.caller.call(target, body, headers)
        self.arrived.set()
        if not self.comes_back:
            await self.resume.wait()
        return answer


def is_signed(request: Request, secret: str, t: int) -> bool:
    """As a receiver checks it from the contract alone, including the HMAC (RFC 2104)."""
    key = secret.encode().ljust(64, b"\0")
    assert len(key) == 64
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + str(t).encode() + b"." + request.body).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).hexdigest()
    return request.headers["service-signature"] == f"t={t},v1={outer}"


@asynccontextmanager
async def open_webhook_flow(
    steps: DeliverySteps,
    *,
    stream: MemoryStream | None = None,
    may_connect: Callable[[Address], bool] = lambda address: address.is_loopback,
    seconds_max: float = PATIENCE_SECONDS,
    said: dict[str, bytes] | None = None,
    **given: Any,
) -> AsyncIterator[WebhookFlow]:
    """`said` adds closing answers to the receiver; `given` goes to every sender."""
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(Nameserver())
        nameserver.records[NAME, "A"] = ["127.0.0.1"]
        webhook_receiver = await stack.enter_async_context(WebhookReceiver(certificates().servers["sound"], said=said))
        clock = steps.clock
        caller = HttpWebhookClient(
            resolver=Resolver([nameserver.endpoint], lookup_seconds_max=seconds_max, monotonic=clock.monotonic),
            may_connect=may_connect,
            tls=trusting_webhooks(certificates().authority_pem),
            seconds_max=seconds_max,
        )
        stack.push_async_callback(caller.close)
        stream = stream or MemoryStream(StreamSettings(), monotonic=clock.monotonic)
        tickets = Tickets(stream, SHARDS)
        sealer = Sealer({"1": bytes(32)}, "1")
        ports = {443, webhook_receiver.port}
        randomness = SeededRandomness(SEED)
        workers: list[WebhookSender] = []

        def worker(**other: Any) -> WebhookSender:
            made: dict[str, Any] = {
                "database": steps.database,
                "clock": clock,
                "randomness": randomness,
                "client": caller,
                "sealer": sealer,
                "delays_batches": False,
                "target_of": lambda url: check_url(url, ports=ports),
            }
            made |= given | other
            policy = {name: made.pop(name) for name in WebhookPolicy.__dataclass_fields__ if name in made}
            own = context(made.pop("database"), made.pop("clock"), made.pop("randomness"), sealer=made.pop("sealer"))
            workers.append(WebhookSender(own, **made, policy=WebhookPolicy(**policy)))
            return workers[-1]

        sender = worker()
        dispatch = Dispatch(database=steps.database, clock=clock, tickets=tickets)
        yield WebhookFlow(
            steps, nameserver, webhook_receiver, ports, stream, tickets, dispatch, sender, caller, sealer, worker
        )
        for each in workers:
            await each.drain(3)
