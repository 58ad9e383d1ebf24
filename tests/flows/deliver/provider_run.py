"""Hours of mail to providers with hidden limits: real flows and PostgreSQL, with a clock that leaps from work to work.

A carrier is in place of the network; `bench/provider_server.py` has the same on sockets.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from posthouse.mail.reply import Reply
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.outcome import AttemptResult, Replied
from posthouse.wire.carrier import CarrierRequest, CarrierResult
from tests.flows.deliver.provider import HOUR, Google, Microsoft, Polite, Provider, ProviderCarrier, Yahoo
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow

SCALE: Final = 60.0
HOURS: Final = 8.0
# Mail is sent on this grid, and arrives and falls due on the wider one: many providers' work shares a step.
GRID_SECONDS: Final = 2.0
DUE_SECONDS: Final = 10.0
# While mail waits in lanes, leases are renewed this often.
WAITING_SECONDS_MAX: Final = 20.0
DESTINATIONS: Final[Mapping[str, type[Provider]]] = {
    "gmail.com": Google,
    "outlook.com": Microsoft,
    "yahoo.com": Yahoo,
    "polite.example": Polite,
}
_NEXT: Final = "SELECT min(next_at) FROM delivery_schedule"


class Policy(StrEnum):
    LEARNING = "learning"
    # Only a 421 slows a lane down, as before lanes learned.
    BY_CODE = "by_code"
    # Nothing slows it down.
    FIXED = "fixed"


@dataclass(slots=True)
class WordlessCarrier:
    """A carrier whose refusals say nothing but their code; for lanes that obey nothing, no 421 either."""

    inner: ProviderCarrier
    has_push_back: bool

    async def carry(self, destination: str, request: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        carried = await self.inner.carry(destination, request, before_dot)
        return replace(carried, results=tuple([self._wordless(result) for result in carried.results]))

    def _wordless(self, result: AttemptResult) -> AttemptResult:
        if not isinstance(result, Replied) or result.reply.code < 400:
            return result
        code = result.reply.code if self.has_push_back or result.reply.code != 421 else 450
        return replace(result, reply=Reply(code, None, "refused"))


@dataclass(slots=True)
class ProviderResult:
    sent: int
    delivered: int
    refused: int
    punished: int
    waits: list[float] = field(default_factory=list)
    # When mail was accepted, and how much a second the provider accepts at most.
    taken_at: list[float] = field(default_factory=list)
    per_second: float = 0.0

    @property
    def delivered_part(self) -> float:
        return self.delivered / self.sent

    @property
    def refusals_per_message(self) -> float:
        return self.refused / self.sent

    def wait(self, part: float) -> float:
        return self.waits[int(part * (len(self.waits) - 1))] if self.waits else float("inf")


def limits(policy: Policy) -> LaneLimits:
    """The service's own defaults, a sixtieth of them."""
    per_second = Limits().per_second / SCALE
    start = 20.0 / SCALE if policy is Policy.LEARNING else None
    return LaneLimits(Limits(per_second, burst=2, connections_start=2, per_second_start=start))


# Messages a second before volumes are divided: from when on, and for how long. The most at any time is their sum.
ARRIVALS: Final = ((2.0, 0.0, 2 * HOUR), (12.0, HOUR / 2, HOUR / 4))
PEAK_PER_SECOND: Final = sum(per_second for per_second, *_ in ARRIVALS)


def arrivals(seed: int, destination: str) -> list[float]:
    """Two a second for two hours, and twelve for a quarter of an hour in between; a sixtieth of them."""
    randomness = random.Random(f"arrivals/{destination}/{seed}")
    times = []
    for per_second, begin, seconds in ARRIVALS:
        at = begin + randomness.expovariate(per_second / SCALE)
        while at < begin + seconds:
            times.append(at)
            at += randomness.expovariate(per_second / SCALE)
    return sorted(times)


async def run_providers(
    url: str,
    seed: int,
    policy: Policy = Policy.LEARNING,
    *,
    hours: float = HOURS,
    destinations: Mapping[str, type[Provider]] = DESTINATIONS,
    part: float = 1.0,
) -> dict[str, ProviderResult]:
    """What each provider accepted within the hours. `part` of the mail, from the beginning."""
    providers = {name: kind(seed, SCALE) for name, kind in destinations.items()}
    born = messages(seed, providers, part)
    began = 0.0
    carrier = ProviderCarrier(providers, lambda: flow.clock.monotonic() - began)
    used = carrier if policy is Policy.LEARNING else WordlessCarrier(carrier, policy is Policy.BY_CODE)
    async with open_delivery_flow(url, lane_limits=limits(policy), seed=seed, carrier=used) as flow:
        flow.serve(*[name for name in providers if name.endswith(".example")])
        began = flow.clock.monotonic()
        await _drive(flow, born, hours * HOUR, began)
    return {name: result_of(provider, born, name) for name, provider in providers.items()}


def messages(seed: int, destinations: Iterable[str], part: float) -> dict[str, float]:
    """Each recipient, and when its mail is sent."""
    born: dict[str, float] = {}
    for name in destinations:
        times = arrivals(seed, name)
        born |= {f"u{number}@{name}": at for number, at in enumerate(times[: int(len(times) * part)])}
    return born


async def _drive(flow: DeliveryFlow, born: Mapping[str, float], seconds: float, began: float) -> None:
    coming = deque(sorted(born, key=lambda to: born[to]))
    lanes = flow.delivery._lanes
    while (now := flow.clock.monotonic() - began) < seconds:
        await step(flow, due(coming, born, now))
        # Until there is something to fetch, only the lanes have to be asked.
        next_at = (await flow.steps.fetch(_NEXT))[0][0]
        ahead = seconds - now
        if next_at is not None:
            ahead = min(ahead, (next_at - flow.clock.now()).total_seconds())
        if coming:
            ahead = min(ahead, born[coming[0]] - now)
        ahead = max(DUE_SECONDS, ahead)
        while any(queue.waiting for queue in lanes.queues) and ahead > GRID_SECONDS:
            flow.clock.advance(seconds=GRID_SECONDS)
            ahead = min(ahead, WAITING_SECONDS_MAX) - GRID_SECONDS
            await _advance(flow)
        flow.clock.advance(seconds=ahead)


def due(coming: deque[str], born: Mapping[str, float], now: float) -> list[str]:
    found = []
    while coming and born[coming[0]] <= now:
        found.append(coming.popleft())
    return found


async def step(flow: DeliveryFlow, recipients: Iterable[str]) -> None:
    """Accepts these messages, and delivers what may be sent now."""
    await asyncio.gather(*[flow.steps.accept([to]) for to in recipients])
    await flow.run_due()
    await flow.delivery.synchronize_learned_limits()
    await _advance(flow)


async def _advance(flow: DeliveryFlow) -> None:
    delivery = flow.delivery
    for queue in list(delivery._lanes.queues):
        delivery._carry_out(delivery._lanes.advance(queue))
    await flow.delivery.settle()


def result_of(provider: Provider, born: Mapping[str, float], name: str) -> ProviderResult:
    taken: dict[str, float] = {}
    for at, to in provider.tally.taken:
        taken.setdefault(to, at)
    sent = sum(to.endswith(f"@{name}") for to in born)
    waits = sorted(at - born[to] for to, at in taken.items())
    return ProviderResult(
        sent,
        len(taken),
        len(provider.tally.refused),
        provider.tally.punished,
        waits,
        sorted(taken.values()),
        provider.per_second_max,
    )
