"""A model of a mailbox provider that gets to know an address, and of plans that warm it up, a day at a time.

The provider takes a multiple of the best day that it has seen, and at least what it takes from anyone. Over it, it
refuses the rest of the day, and trusts less; after three such days in a row it blocks the address for three days.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from posthouse.rules import address_warm_up
from posthouse.rules.address_warm_up import AddressWarmUp, WarmUpDay

BAD_DAYS_MAX: Final = 3
BLOCKED_DAYS: Final = 3
# A sender retries no more than half of what it has on a day, and tries now and then when it is blocked.
REFUSED_SHARE_MAX: Final = 0.5
REFUSED_WHEN_BLOCKED_MAX: Final = 50


@dataclass(slots=True)
class WarmingProvider:
    """`from_anyone` messages a day, `growth` times the best day; `memory` of that is left after a bad day."""

    from_anyone: float
    growth: float
    memory: float
    best: float = field(init=False)
    bad_days: int = 0
    blocked_days: int = 0

    def __post_init__(self) -> None:
        self.best = self.from_anyone / self.growth

    def receive(self, messages: int) -> WarmUpDay:
        if self.blocked_days:
            self.blocked_days -= 1
            return WarmUpDay(0, min(messages, REFUSED_WHEN_BLOCKED_MAX), was_blocked=True)
        limit = int(max(self.from_anyone, self.best * self.growth))
        if messages <= limit:
            self.best = max(self.best, messages)
            self.bad_days = 0
            return WarmUpDay(messages)
        self.best *= self.memory
        self.bad_days += 1
        if self.bad_days == BAD_DAYS_MAX:
            self.bad_days, self.blocked_days = 0, BLOCKED_DAYS
        return WarmUpDay(limit, min(messages - limit, int(messages * REFUSED_SHARE_MAX)))


def drawn(random: Random) -> WarmingProvider:
    return WarmingProvider(random.uniform(100, 1_500), random.uniform(1.25, 2.2), random.uniform(0.6, 0.95))


Plan = Callable[[list[WarmUpDay]], int]
"""The quota of the day after these."""


def sendgrid(days: list[WarmUpDay]) -> int:
    """SendGrid's published schedule: 20 an hour on the first day, 1.4 times as much on each one after."""
    return int(24 * 20 * 1.4 ** len(days))


def ses(days: list[WarmUpDay]) -> int:
    """SES publishes the end, 50,000 a day after 45 days, and not the way there: here it is quadratic."""
    return int(50_000 * min(1.0, (len(days) + 1) / 45) ** 2)


def autopilot() -> Plan:
    state: list[AddressWarmUp] = [address_warm_up.begin("google")]

    def plan(days: list[WarmUpDay]) -> int:
        if days:
            state[0] = address_warm_up.next_day(state[0], days[-1])
        return state[0].quota

    return plan


@dataclass(frozen=True, slots=True)
class WarmingRun:
    """`full_on` is the first day on which all was taken that there was; the day after the last if none."""

    days: tuple[WarmUpDay, ...]
    full_on: int
    refused: int
    blocked_days: int


def run(provider: WarmingProvider, plan: Plan, *, messages_a_day: int, days: int) -> WarmingRun:
    done: list[WarmUpDay] = []
    for _ in range(days):
        done.append(provider.receive(min(plan(done), messages_a_day)))
    full = (number for number, day in enumerate(done, 1) if day.taken >= messages_a_day)
    return WarmingRun(
        tuple(done), next(full, days + 1), sum(day.slow for day in done), sum(day.was_blocked for day in done)
    )
