"""Days of mail from a new address through real flows and PostgreSQL, volumes 1 : 60, with a clock that leaps.

The provider is hidden behind a carrier: it takes a multiple of the best day that it has seen from an address, and
refuses the rest of the day. Its log says what came when, from which address or over which relay.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.mail.reply import Reply
from posthouse.rules.address_warm_up import VOLUMES, Volumes
from posthouse.rules.outcome import AttemptResult, NoReply, Replied, Stage
from posthouse.wire.carrier import CarrierRequest, CarrierResult
from tests.flows.deliver.pool_relay import use_relay
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.maintenance import new_maintenance

SCALE: Final = 60
SMALL: Final = Volumes(VOLUMES.first_of_providers // SCALE, VOLUMES.first // SCALE + 1, VOLUMES.warm // SCALE)
STEP: Final = timedelta(minutes=5)
DESTINATION: Final = "gmail.com"
LANE: Final = "google"
NEW, KNOWN = "127.0.0.7", "127.0.0.8"
RELAY: Final = "ses"
TAKEN: Final = Reply(250, "2.0.0", "2.0.0 taken")
SLOW: Final = Reply(
    421, "4.7.28", "4.7.28 Our system has detected an unusual rate of unsolicited mail from your IP address"
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that was accepted: from our address, or over the relay."""

    at: datetime
    recipient: str
    over: str


@dataclass(slots=True)
class TrustingProvider:
    """Accepts `from_anyone` a day, or `growth` times the best day; everything from an address that it knows."""

    from_anyone: float
    growth: float
    best: float = 0.0
    taken_by_day: Counter[date] = field(default_factory=Counter)
    refused: int = 0

    def offer(self, at: datetime) -> Reply:
        before = [count for day, count in self.taken_by_day.items() if day < at.date()]
        limit = max(self.from_anyone, self.growth * max(before, default=0))
        if self.taken_by_day[at.date()] >= limit:
            self.refused += 1
            return SLOW
        self.taken_by_day[at.date()] += 1
        return TAKEN


@dataclass(slots=True)
class LoggingCarrier:
    """Carries to the provider, or to a relay that is down between two days."""

    now: Callable[[], datetime]
    provider: TrustingProvider
    is_relay_down: Callable[[], bool] = lambda: False
    log: list[Arrival] = field(default_factory=list)

    async def carry(self, destination: str, request: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        relay = request.relay
        if relay is not None and self.is_relay_down():
            down = NoReply(Stage.CONNECT, "no connection")
            return CarrierResult((down,) * len(request.recipients), relay.host, relay=relay.name)
        if not before_dot():
            return CarrierResult((NoReply(Stage.DATA, "withdrawn"),) * len(request.recipients))
        source = str(request.routes[0].source) if request.routes else None
        over = relay.name if relay is not None else source or ""
        results: list[AttemptResult] = []
        for recipient in request.recipients:
            reply = self.provider.offer(self.now()) if over == NEW else TAKEN
            results.append(Replied(Stage.DOT if reply is TAKEN else Stage.MAIL, reply))
            if reply is TAKEN:
                self.log.append(Arrival(self.now(), recipient, over))
        host = relay.host if relay is not None else f"mx.{destination}"
        return CarrierResult(
            tuple(results), host, "192.0.2.25", source_ip=source, relay=None if relay is None else relay.name
        )


@dataclass(slots=True)
class WarmUpRun:
    """What was sent, what arrived, and each day's quota as it was in force."""

    sent: dict[str, datetime]
    arrivals: list[Arrival]
    address_quotas: dict[date, int]
    refused: int
    open_at_end: int

    def days(self, over: str) -> Counter[date]:
        return Counter(arrival.at.date() for arrival in self.arrivals if arrival.over == over)

    def hours(self, over: str) -> Counter[tuple[date, int]]:
        return Counter((arrival.at.date(), arrival.at.hour) for arrival in self.arrivals if arrival.over == over)

    @property
    def longest_wait(self) -> timedelta:
        return max(arrival.at - self.sent[arrival.recipient] for arrival in self.arrivals)

    @property
    def days_over(self) -> int:
        """Days on which more arrived from the new address than was allowed."""
        return sum(count > self.address_quotas[day] for day, count in self.days(NEW).items())

    @property
    def hours_over(self) -> int:
        return sum(count > -(-self.address_quotas[day] // 12) for (day, _), count in self.hours(NEW).items())

    @property
    def lost(self) -> int:
        """Messages that neither arrived nor wait."""
        return len(self.sent) - len({arrival.recipient for arrival in self.arrivals}) - self.open_at_end


async def run_warm_up(
    url: str,
    seed: int,
    *,
    days: int = 30,
    messages_a_day: int = 240,
    has_overflow: bool = True,
    has_relay: bool = False,
    relay_down: tuple[int, int] = (0, 0),
    step: timedelta = STEP,
) -> WarmUpRun:
    """From a new address, and over a known one in the overflow or a relay, which is down between two days.

    Mail arrives, and what is due is sent, once in each step.
    """
    randomness = random.Random(f"warm-up/{seed}")
    provider = TrustingProvider(randomness.uniform(100, 1_500) / SCALE, randomness.uniform(1.45, 2.2))
    began = datetime.min.replace(tzinfo=UTC)
    carrier = LoggingCarrier(
        lambda: flow.clock.now(),
        provider,
        lambda: timedelta(days=relay_down[0]) <= flow.clock.now() - began < timedelta(days=relay_down[1]),
    )
    async with open_delivery_flow(url, seed=seed, carrier=carrier, warm_up_volumes=SMALL) as flow:
        began = _to_midnight(flow)
        await _set_up(flow, has_overflow=has_overflow, has_relay=has_relay)
        sent: dict[str, datetime] = {}
        address_quotas: dict[date, int] = {}
        steps_a_day = timedelta(days=1) // step
        maintenance = new_maintenance(flow.steps.database, flow.clock)
        for number in range(days * steps_a_day):
            if number % steps_a_day == 0:
                await maintenance.partitions.make()
            expected = messages_a_day * (number + 1) // steps_a_day - messages_a_day * number // steps_a_day
            count = sum(randomness.random() < 0.5 for _ in range(2 * expected)) if expected else 0
            new = [f"u{len(sent) + place}@{DESTINATION}" for place in range(count)]
            sent |= dict.fromkeys(new, flow.clock.now())
            await asyncio.gather(*[flow.steps.accept([recipient]) for recipient in new])
            await flow.run_due()
            await flow.delivery.synchronize_learned_limits()
            if (allowed := await _quota(flow)) is not None:
                address_quotas[flow.clock.now().date()] = allowed
            flow.clock.advance(step)
        open_at_end = await flow.steps.value("SELECT count(*) FROM delivery_schedule")
    return WarmUpRun(sent, carrier.log, address_quotas, provider.refused, open_at_end)


def _to_midnight(flow: DeliveryFlow) -> datetime:
    now = flow.clock.now()
    midnight = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
    flow.clock.advance(seconds=(midnight - now).total_seconds())
    return midnight


async def _set_up(flow: DeliveryFlow, *, has_overflow: bool, has_relay: bool) -> None:
    addresses = SendingAddresses(context(flow.steps.database, flow.clock))
    await addresses.add_pool("known")
    await addresses.add_pool("default", overflow="known")
    await addresses.add(NEW, "mta7.example.com")
    if has_overflow:
        await addresses.add(KNOWN, "mta8.example.com", "known", is_warm=True)
    if has_relay:
        await use_relay(flow, 587)
    await flow.delivery.read_routes()


async def _quota(flow: DeliveryFlow) -> int | None:
    """Today's, if anything was sent today."""
    found: int | None = await flow.steps.value(
        "SELECT (warm_up ->> 'quota')::integer FROM address_quotas WHERE ip = $1 AND lane = $2 AND day = $3",
        NEW,
        LANE,
        flow.clock.now().date(),
    )
    return found
