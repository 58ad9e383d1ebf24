"""Notes when a mailbox provider takes mail much later than in the week before: in the log, and for the operator."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from posthouse.clock import Clock
from posthouse.rules import provider_delay as rules
from posthouse.rules.usage import Percentiles, percentiles
from posthouse.store import provider_delays
from posthouse.store.postgres import Database
from posthouse.store.provider_delays import KnownDelay as KnownDelay

log = structlog.get_logger(__name__)

ADVICE: Final = "posthouse lane explain PROVIDER shows what its lane has learnt, posthouse queue top what waits"


class DelayRun(NamedTuple):
    """What a run noted."""

    begun: int = 0
    ended: int = 0


class ProviderLatency(NamedTuple):
    """The time from acceptance to delivery."""

    provider: str
    delivered: int
    times: Percentiles


class ProviderDelays:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def known(self) -> Sequence[KnownDelay]:
        """The delays of now, the oldest first."""
        async with self._database.connection() as connection:
            return await provider_delays.known(connection)

    async def latency(self) -> Sequence[ProviderLatency]:
        """What was delivered in this hour and the one before, the slowest provider first."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            recent = await provider_delays.sums(connection, rules.recent_since(now), now)
        found = [(provider, sum(counts), percentiles(counts)) for provider, counts in recent.items()]
        rows = [ProviderLatency(provider, count, times) for provider, count, times in found if times is not None]
        return sorted(rows, key=lambda row: (-row.times.p95, row.provider))

    async def run(self) -> DelayRun:
        """Compare what was delivered lately with the week before."""
        now = self._clock.now()
        since = rules.recent_since(now)
        begun = ended = 0
        async with self._database.transaction() as tx:
            known = {found.provider for found in await provider_delays.known(tx)}
            recent = await provider_delays.sums(tx, since, now)
            asked = [provider for provider, counts in recent.items() if rules.may_be_delayed(counts)]
            week = await provider_delays.sums(tx, since - rules.WEEK, since, asked) if asked else {}
            for provider in sorted({*asked, *known}):
                delay = rules.delay_of(recent.get(provider, ()), week.get(provider, ()), is_delayed=provider in known)
                if delay is not None:
                    is_new = await provider_delays.put(tx, provider, delay, now)
                    begun += is_new
                    if is_new:
                        log.warning("provider_is_delayed", provider=provider, **delay._asdict(), advice=ADVICE)
                elif await provider_delays.remove(tx, provider):
                    ended += 1
                    log.info("provider_is_delayed_no_more", provider=provider)
            await provider_delays.forget(tx, since - rules.WEEK)
        return DelayRun(begun, ended)
