"""Provider delays on a real database: what is delivered is counted by hour, and compared with the week before."""

from datetime import timedelta

from structlog.testing import capture_logs

from posthouse.flows.operate.usage_counter import DelayRun, ProviderDelays, UsageCounter
from posthouse.rules import usage
from posthouse.store import provider_delays
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps


async def deliver(steps: DeliverySteps, messages: int, seconds: float, mx_host: str = "mx.google.com") -> None:
    claimed: list[ClaimedRecipient] = []
    while len(claimed) < messages:
        claimed += await steps.claimed(min(50, messages - len(claimed)))
    steps.clock.advance(seconds=seconds)
    outcomes = [steps.outcome(claim, DeliveryResult.DELIVERED, mx_host=mx_host) for claim in claimed]
    await steps.record(*outcomes)
    steps.clock.advance(minutes=2)
    await UsageCounter(context(steps.database, steps.clock), window_longest=timedelta(hours=6)).run()


async def test_a_provider_that_accepts_mail_late_is_noted_until_it_recovers(steps: DeliverySteps) -> None:
    delays = ProviderDelays(context(steps.database, steps.clock))
    fast = [0] * usage.COUNTS
    fast[10] = 5_000
    async with steps.database.transaction() as tx:
        hour = usage.hour_of(steps.clock.now())
        await provider_delays.add(tx, hour - timedelta(days=2), {"google": fast})
        # Older than a week: neither compared nor kept.
        await provider_delays.add(tx, hour - timedelta(days=8), {"google": fast[::-1]})
    await UsageCounter(context(steps.database, steps.clock)).run()
    await deliver(steps, 100, 120.0)
    await deliver(steps, 100, 120.0, "mx.example.net")
    with capture_logs() as logs:
        assert await delays.run() == DelayRun(begun=1)
        assert await delays.run() == DelayRun()
    (noted,) = [entry for entry in logs if entry["event"] == "provider_is_delayed"]
    (known,) = await delays.known()
    assert known.provider == noted["provider"] == "google"
    assert known.delay.p95_seconds > 100 > known.delay.week_p95_seconds * 4
    assert await steps.fetch("SELECT count(*) FROM provider_hours WHERE hour < $1", hour - timedelta(days=7)) == [(0,)]
    steps.clock.advance(hours=3)
    with capture_logs() as logs:
        assert await delays.run() == DelayRun(ended=1)
    assert [entry["event"] for entry in logs] == ["provider_is_delayed_no_more"]
    assert await delays.known() == []
