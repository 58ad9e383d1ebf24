"""Days of warm-up through the flows, according to the receiver's log; `make bench-warm-up-flows` runs all thirty."""

from datetime import timedelta

from tests.flows.deliver.warm_up_run import KNOWN, NEW, RELAY, run_warm_up

# A third of the steps of the benchmark: an hour has four in which its quota could be exceeded.
STEP = timedelta(minutes=15)


async def test_no_hour_or_day_is_above_its_quota_and_the_overflow_takes_the_rest_immediately(database_url: str) -> None:
    run = await run_warm_up(database_url, 1, days=3, messages_a_day=60, step=STEP)
    assert (run.days_over, run.hours_over, run.lost, run.open_at_end) == (0, 0, 0, 0)
    assert run.longest_wait <= STEP
    used = list(run.days(NEW).values())
    assert used[-1] > used[0]
    assert run.days(KNOWN)


async def test_while_the_relay_is_down_nothing_is_lost(database_url: str) -> None:
    run = await run_warm_up(
        database_url, 2, days=3, messages_a_day=48, has_overflow=False, has_relay=True, relay_down=(1, 2), step=STEP
    )
    assert (run.days_over, run.hours_over, run.lost) == (0, 0, 0)
    assert run.days(RELAY)
    # What was postponed while it was down has arrived.
    first_days = [name for name, at in run.sent.items() if at < min(run.sent.values()) + timedelta(days=2)]
    assert {arrival.recipient for arrival in run.arrivals} >= set(first_days)
