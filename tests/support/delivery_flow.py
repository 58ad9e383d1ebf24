"""Delivery end to end in one process: real PostgreSQL, DNS and SMTP, the in-process stream, a settable clock."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final

from posthouse.compose.connections import opportunistic_tls
from posthouse.flows.deliver.delivery import Delivery, DeliveryContext, DeliverySettings
from posthouse.flows.deliver.dispatch import DISPATCH_BATCH_MIN, Dispatch
from posthouse.flows.deliver.dkim_signing import DkimSigning
from posthouse.flows.deliver.lane_table import LaneSettings
from posthouse.flows.deliver.outgoing_mail import Identity, OutgoingMail
from posthouse.flows.shared.tickets import Tickets
from posthouse.randomness import SeededRandomness
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.public_address import Address
from posthouse.rules.ticket import unpack
from posthouse.store.seal import Sealer
from posthouse.wire.carrier import Carrier, CarrierRequest, CarrierResult, SmtpCarrier
from posthouse.wire.dns import Resolver
from posthouse.wire.smtp import ClientDeadlines
from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from posthouse.wire.tls import TlsPolicy, TlsUse
from tests.support.accept_flow import SIMULATOR
from tests.support.certificates import Certificates
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps
from tests.support.maintenance import new_maintenance
from tests.support.nameserver import Nameserver
from tests.support.service import service_settings
from tests.support.smtp_receiver import SmtpReceiver

SHARDS: Final = 4
SEED: Final = 2026
WIDE: Final = LaneLimits(Limits(per_second=1e6, burst=1_000_000, connections_start=20, connections_max=20))
IDENTITY: Final = Identity("out.posthouse.test", "bounces.posthouse.test", b"a key of the tests")


def deadlines(each: float, opening: float, transaction: float) -> ClientDeadlines:
    """The same number of seconds for every wait."""
    waits = ("connect", "greeting", "command", "handshake", "block", "dot")
    return ClientDeadlines(
        **{f"{name}_seconds": each for name in waits},
        opening_seconds_total=opening,
        transaction_seconds_total=transaction,
    )


DEADLINES: Final = deadlines(1, 3, 3)


@dataclass(slots=True)
class DeliveryFlow:
    """A delivery worker and its surroundings. `run_due` delivers all that is due at the clock's time.

    `another_worker` makes one more worker; its arguments override those of the first.
    """

    steps: DeliverySteps
    nameserver: Nameserver
    receiver: SmtpReceiver
    stream: MemoryStream
    tickets: Tickets
    dispatch: Dispatch
    delivery: Delivery
    carrier: SmtpCarrier
    sealer: Sealer
    another_worker: Callable[..., Delivery]

    @property
    def clock(self) -> SettableClock:
        return self.steps.clock

    def serve(self, *domains: str, host: str = "", address: str = "127.0.0.1") -> None:
        """These domains' mail goes to the receiver."""
        for domain in domains:
            mx_host = host or f"mx.{domain}"
            self.nameserver.records[domain, "MX"] = [f"10 {mx_host}."]
            self.nameserver.records[mx_host, "A"] = [address]

    async def pass_days(self, days: float) -> None:
        """This many days later, with the partitions of that day."""
        self.clock.advance(days=days)
        await new_maintenance(self.steps.database, self.clock).partitions.make()

    async def run_due(self) -> int:
        """Dispatches what is due and delivers it; returns how many tickets there were."""
        await self.steps.accept_flow.control_cache.forget_changes()
        await self.delivery.renew()
        while await self.dispatch.step() >= DISPATCH_BATCH_MIN:
            pass
        return await self.deliver_fetched()

    async def deliver_fetched(self) -> int:
        """Delivers what is in the stream."""
        found = await self.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10_000, 0)
        await self.delivery.offer(found)
        await self.delivery.settle()
        return sum(len(unpack(message.payload)) for message in found)

    async def recipients(self, message_id: Any) -> list[tuple[Any, ...]]:
        """Position, status, billing, attempts, code, response."""
        return await self.steps.fetch(
            "SELECT position, status, billing_status, attempt_count, last_smtp_code, last_smtp_response "
            "FROM recipients WHERE message_id = $1 ORDER BY position",
            message_id,
        )

    async def statuses(self, message_id: Any) -> list[str]:
        return [row[1] for row in await self.recipients(message_id)]

    async def message(self, message_id: Any) -> tuple[str, str]:
        """Its status and its billing."""
        rows = await self.steps.fetch("SELECT status, billing_status FROM messages WHERE id = $1", message_id)
        return rows[0][0], rows[0][1]


@dataclass
class PausingCarrier:
    """A carrier that pauses before it connects, or before it returns the result.

    `at_the_dot` is called when all is sent but the final dot.
    """

    carrier: Carrier
    sets_out: bool = True
    comes_back: bool = True
    at_the_dot: Callable[[], None] = lambda: None
    claimed: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)

    async def carry(self, destination: str, parcel: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        self.claimed.set()
        if not self.sets_out:
            await self.resume.wait()

        def asked() -> bool:
            self.at_the_dot()
            return before_dot()

        carriage = await self.carrier.carry(destination, parcel, asked)
        self.arrived.set()
        if not self.comes_back:
            await self.resume.wait()
        return carriage


def new_delivery(kind: type[Delivery] = Delivery, **given: Any) -> Delivery:
    """A delivery worker, from the parts of its context and its settings under their own names."""

    def made_of(cls: Any) -> Any:
        return cls(**{part.name: given.pop(part.name) for part in fields(cls) if part.name in given})

    given.setdefault("simulator_domain", SIMULATOR)
    given["lanes"] = made_of(LaneSettings)
    given["keys"] = context(given["database"], **given.pop("keys_derived", {})).keys
    return kind(made_of(DeliveryContext), made_of(DeliverySettings), **given)


@asynccontextmanager
async def open_delivery_flow(
    database_url: str,
    *,
    behaviour: str = "",
    behaviours: Mapping[str, str] | None = None,
    certificates: Certificates | None = None,
    may_connect: Callable[[Address], bool] = lambda address: address.is_loopback,
    deadlines: ClientDeadlines = DEADLINES,
    lookup_seconds_max: float = 4.0,
    seed: int = SEED,
    lane_limits: LaneLimits = WIDE,
    identity: Identity = IDENTITY,
    at: datetime | None = None,
    **delivery: Any,
) -> AsyncIterator[DeliveryFlow]:
    """`behaviours` are those of further addresses that the receiver listens on."""
    async with AsyncExitStack() as stack:
        steps = await stack.enter_async_context(open_delivery_steps(database_url, at))
        nameserver = await stack.enter_async_context(Nameserver())
        receiver = await stack.enter_async_context(
            SmtpReceiver(behaviour, behaviours=behaviours, certificates=certificates)
        )
        clock = steps.clock
        randomness = SeededRandomness(seed)
        resolver = Resolver([nameserver.endpoint], lookup_seconds_max=lookup_seconds_max, monotonic=clock.monotonic)
        carrier = SmtpCarrier(
            resolver=resolver,
            randomness=randomness,
            hostname="out.posthouse.test",
            tls=opportunistic_tls(),
            may_connect=may_connect,
            deadlines=deadlines,
            port=receiver.port,
            relay_tls=lambda: TlsPolicy(TlsUse.REQUIRED_VERIFIED, (certificates or Certificates.make()).trusting()),
        )
        settings = service_settings(database_url)
        sealer = Sealer(settings.secrets.seal_key_bytes, settings.secrets.seal_key_active)
        signing = DkimSigning(steps.accept_flow.control_cache, sealer)
        stack.callback(signing.close)
        stream = MemoryStream(StreamSettings(), monotonic=clock.monotonic)
        tickets = Tickets(stream, SHARDS)
        outgoing_mail = OutgoingMail(database=steps.database, clock=clock, signing=signing, identity=identity)
        workers: list[Delivery] = []

        def worker(**given: Any) -> Delivery:
            made: dict[str, Any] = {
                "database": steps.database,
                "control_cache": steps.accept_flow.control_cache,
                "clock": clock,
                "randomness": randomness,
                "resolver": resolver,
                "carrier": carrier,
                "outgoing_mail": outgoing_mail,
                "limits": lane_limits,
                "delays_batches": False,
                "keys_derived": {"sealer": sealer},
            }
            workers.append(new_delivery(**{**made, **delivery, **given}))
            return workers[-1]

        delivery_worker = worker()
        dispatch = Dispatch(database=steps.database, clock=clock, tickets=tickets)
        yield DeliveryFlow(
            steps, nameserver, receiver, stream, tickets, dispatch, delivery_worker, carrier, sealer, worker
        )
        for each in workers:
            await each.drain(3)
        carrier.close_idle(clock.monotonic(), all_of_them=True)
