"""Learned limits are stored, known to all workers, and can be undone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest

from posthouse import metrics
from posthouse.cli.messages import timeline_lines
from posthouse.flows.deliver.learned_limits import LearnedLimitsSync
from posthouse.flows.operate.lanes import Lanes
from posthouse.flows.operate.monitor import Monitor
from posthouse.randomness import SeededRandomness
from posthouse.rules import learned_limits as rules
from posthouse.rules.ids import MESSAGE, AccountId
from posthouse.rules.ids import text as id_text
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.learned_limits import (
    Branch,
    LaneScope,
    LaneState,
    LearnedLimits,
    LimitChange,
    LimitChangeKind,
    Refused,
    lane_scope_of_domain,
    slowed,
)
from posthouse.rules.refusal import Refusal
from posthouse.store import lanes as lane_store
from posthouse.store import learned_limits as store
from posthouse.store.lanes import LanePause
from posthouse.store.postgres import Connection, Database
from tests.flows.deliver.provider import Google, Microsoft, ProviderCarrier
from tests.flows.deliver.provider_run import run_providers
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.delivery_flow import open_delivery_flow
from tests.support.fresh_database import open_database
from tests.support.locks import lock_waits

GOOGLE: Final = LaneScope("", "google")
OPEN: Final = LearnedLimits(20.0)
REFUSED: Final = Refused("421 4.7.28", "421 4.7.28 too much", "address")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url) as database:
        yield database


class Worker:
    """A worker's learned limits, and what it adopted from others."""

    def __init__(self, database: Database, clock: SettableClock) -> None:
        self.database = database
        self.adopted: dict[LaneScope, LearnedLimits] = {}
        self.learned_limits = LearnedLimitsSync(context(database, clock))
        self.clock = clock

    def another(self) -> "Worker":
        return Worker(self.database, self.clock)

    @property
    def google(self) -> LearnedLimits:
        known = self.learned_limits.limits_of(GOOGLE)
        assert known is not None
        return known

    async def synchronize(self) -> None:
        self.adopted |= await self.learned_limits.write()
        changed, _ = await self.learned_limits.read()
        self.adopted |= changed

    def refuse(self, *, seen: float = 10.0) -> LimitChange:
        before = self.learned_limits.limits_of(GOOGLE) or OPEN
        now = self.clock.now()
        change = slowed(before, "google", REFUSED, seen_per_second=seen, now=now, random=0.0)
        assert change is not None
        limit_change = LimitChange(now, GOOGLE, change[0], before, change[1], REFUSED)
        self.learned_limits.learn(limit_change)
        return limit_change


@pytest.fixture
def worker(database: Database) -> Worker:
    return Worker(database, SettableClock())


@pytest.fixture
def lanes(worker: Worker) -> Lanes:
    return lanes_of(worker.database, worker.clock)


def lanes_of(database: Database, clock: SettableClock, limits: LaneLimits | None = None) -> Lanes:
    return Lanes(context(database, clock, SeededRandomness(1)), lane_limits=limits or LaneLimits())


async def test_what_one_worker_learns_all_know_and_a_restart_forgets_nothing(worker: Worker) -> None:
    one, other = worker, worker.another()
    await other.synchronize()
    limit_change = one.refuse()
    await one.synchronize()
    await other.synchronize()
    assert other.adopted == {GOOGLE: limit_change.after}
    restarted = worker.another()
    await restarted.synchronize()
    assert restarted.google == limit_change.after
    # What a worker wrote itself, or knows, is not adopted again.
    other.adopted.clear()
    await other.synchronize()
    assert one.adopted == other.adopted == {}


async def test_of_two_simultaneous_limit_changes_the_stricter_parts_count_and_both_are_stored(
    worker: Worker, lanes: Lanes
) -> None:
    one, other = worker, worker.another()
    first, second = one.refuse(seen=10.0), other.refuse(seen=6.0)
    await asyncio.gather(one.synchronize(), other.synchronize())
    for each in (one, other):
        await each.synchronize()
        assert (each.google.per_second, each.google.ceiling, each.google.state) == (3.0, 6.0, LaneState.RESTING)
    assert {stored.change for stored in await lanes.log("google", 10)} == {first, second}


async def assert_pinned(worker: Worker) -> None:
    """At nine a second, and at rest, as the refusal asked for."""
    await worker.synchronize()
    known = worker.google
    assert (known.is_pinned, known.per_second, known.ceiling) == (True, 9.0, None)
    assert (known.state, known.paused_until is not None) == (LaneState.RESTING, True)
    restarted = worker.another()
    await restarted.synchronize()
    assert restarted.google == known


@pytest.mark.parametrize("pinned_before", [None, 8.0])
async def test_a_pin_holds_when_a_worker_learns_before_it_knows_of_it(
    worker: Worker, lanes: Lanes, pinned_before: float | None
) -> None:
    if pinned_before is not None:
        await lanes.pin("google", pinned_before)
    await worker.synchronize()
    worker.refuse()
    await lanes.pin("google", 9.0)
    await worker.synchronize()
    await assert_pinned(worker)


async def test_a_pin_holds_when_a_worker_learns_while_it_reads_it(
    worker: Worker, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lanes.pin("google", 9.0)
    pauses = lane_store.pauses

    async def pauses_after_a_refusal(connection: Connection) -> Sequence[LanePause]:
        """It is called after learned limits were read, and before they are compared with what was learned here."""
        worker.refuse()
        return await pauses(connection)

    with monkeypatch.context() as patch:
        patch.setattr(lane_store, "pauses", pauses_after_a_refusal)
        await worker.synchronize()
    await assert_pinned(worker)


async def test_a_pin_holds_when_a_worker_learns_while_it_writes(database: Database, worker: Worker) -> None:
    worker.refuse()
    await worker.synchronize()
    worker.clock.advance(minutes=11)
    worker.refuse()
    now = worker.clock.now()
    async with database.transaction() as tx:
        known = (await store.locked(tx, [GOOGLE], now))[GOOGLE]
        assert known is not None
        await store.change(tx, {GOOGLE: rules.pinned(known.limits, 9.0)[1]}, now)
        writing = asyncio.create_task(worker.synchronize())
        await lock_waits(tx)
        worker.refuse()
    await writing
    await assert_pinned(worker)


@pytest.mark.parametrize(("learns", "state"), [(True, LaneState.RESTING), (False, LaneState.OPEN)])
async def test_a_lane_that_is_no_longer_pinned_stays_so_also_when_a_worker_learns_at_once(
    worker: Worker, lanes: Lanes, learns: bool, state: LaneState
) -> None:
    await lanes.pin("Google", 9.0)
    await worker.synchronize()
    assert worker.adopted[GOOGLE] == LearnedLimits(9.0, is_pinned=True)
    if learns:
        worker.refuse()
    await lanes.unpin("google")
    await worker.synchronize()
    assert (worker.google.is_pinned, worker.google.per_second, worker.google.state) == (False, 9.0, state)


async def test_a_limit_change_stays_undone_when_a_worker_learns_at_once(worker: Worker, lanes: Lanes) -> None:
    worker.refuse()
    await worker.synchronize()
    (stored,) = await lanes.log("google", 10)
    worker.clock.advance(minutes=11)
    worker.refuse()
    undone = await lanes.undo(stored.id)
    await worker.synchronize()
    assert worker.google == worker.adopted[GOOGLE] == undone.after


async def test_an_undone_limit_change_restores_the_learned_limits_everywhere(worker: Worker, lanes: Lanes) -> None:
    limit_change = worker.refuse()
    await worker.synchronize()
    (stored,) = await lanes.log("google", 10)
    assert stored.change == limit_change
    worker.clock.advance(seconds=5)
    undone = await lanes.undo(stored.id)
    assert replace(undone.after, ignored=()) == limit_change.before
    assert undone.after.ignored == ((REFUSED.cause, worker.clock.now() + timedelta(hours=24)),)
    await worker.synchronize()
    assert worker.adopted == {GOOGLE: undone.after}
    assert [entry.change.kind for entry in await lanes.log(None, 10)] == [LimitChangeKind.UNDONE, LimitChangeKind.SLOW]


async def test_every_kind_of_limit_change_is_stored_and_can_be_undone_twice(worker: Worker, lanes: Lanes) -> None:
    clock, after = worker.clock, OPEN
    for number, kind in enumerate(LimitChangeKind, 1):
        before, after = after, LearnedLimits(float(number))
        worker.learned_limits.learn(LimitChange(clock.now(), GOOGLE, kind, before, after, REFUSED))
        await worker.synchronize()
        clock.advance(seconds=5)
    log = await lanes.log("google", 100)
    assert [entry.change.kind for entry in log] == [*reversed(LimitChangeKind)]
    undone = await lanes.undo(log[0].id)
    assert replace(undone.after, ignored=()) == before
    clock.advance(seconds=5)
    again = next(found for found in await lanes.log("google", 100) if found.change == undone)
    await lanes.undo(again.id)
    await worker.synchronize()
    assert replace(worker.adopted[GOOGLE], ignored=()) == after


@pytest.mark.parametrize(("lane", "rate"), [("goggle", 5.0), ("google", 0.0), ("google", 101.0)])
async def test_an_unknown_lane_or_a_rate_beyond_the_limit_is_refused(lanes: Lanes, lane: str, rate: float) -> None:
    with pytest.raises(Refusal):
        await lanes.pin(lane, rate)


async def test_limit_changes_and_learned_limits_are_forgotten_after_their_time_and_pins_are_not(
    database: Database, worker: Worker, lanes: Lanes
) -> None:
    now = worker.clock.now()
    worker.refuse()
    await worker.synchronize()
    await lanes.pin("yahoo", 5.0)
    async with database.transaction() as tx:
        assert await store.forget_limit_changes(tx, now, 100) == 0
        assert await store.forget_limit_changes(tx, now + timedelta(seconds=1), 100) == 2
        assert await store.forget_learned_limits(tx, now + timedelta(seconds=1), 100) == 1
    # A worker that still knows the forgotten one learns what comes after it.
    worker.clock.advance(seconds=1)
    pinned = await lanes.pin("google", 5.0)
    await worker.synchronize()
    assert worker.adopted[GOOGLE] == pinned.after


# Through the delivery flow


async def test_a_refusal_postpones_waiting_mail_without_an_attempt_and_it_continues_after_the_rest(
    database_url: str,
) -> None:
    google = Google(1)
    carrier = ProviderCarrier({"gmail.com": google}, lambda: flow.clock.monotonic())
    limits = LaneLimits(Limits(100.0, 100, connections_start=1, connections_max=1, per_second_start=20.0))
    async with open_delivery_flow(database_url, lane_limits=limits, carrier=carrier) as flow:
        bucket = google.bucket("192.0.2.1")
        bucket.tokens, bucket.per_second, bucket.at = 1.0, 0.5, flow.clock.monotonic()
        ids = [await flow.steps.accept([f"u{number}@gmail.com"]) for number in range(4)]
        counted = metrics.LIMIT_CHANGES.values.get(("google", "slow"), 0)
        await flow.run_due()
        assert metrics.LIMIT_CHANGES.values["google", "slow"] == counted + 1
        assert (len(google.tally.taken), len(google.tally.refused)) == (1, 1)
        attempts = [row[3] for message_id in ids for row in await flow.recipients(message_id)]
        assert sorted(attempts) == [0, 0, 1, 1]
        (entry,) = await lanes_of(flow.steps.database, flow.clock, limits).log("google", 10)
        assert entry.change.kind is LimitChangeKind.SLOW
        assert entry.change.refused.reply.startswith("421 4.7.28 Gmail has detected")
        assert entry.change.refused.message_id in ids
        assert entry.change.until is not None
        assert timedelta(seconds=600) <= entry.change.until - entry.change.at <= timedelta(seconds=660)
        monitor = Monitor(context(flow.steps.database, flow.clock))
        for message_id in ids:
            timeline = await monitor.timeline(id_text(MESSAGE, message_id))
            shown = "\n".join(line.text for line in timeline_lines(timeline, await monitor.limit_changes(timeline)))
            is_final = timeline.recipients[0].final_at is not None
            assert ("The lane google for this account's mail to gmail.com rests until" in shown) is not is_final
            assert (f"(limit change {entry.id})" in shown) is not is_final
        flow.clock.advance(minutes=9)
        await flow.run_due()
        assert len(google.tally.refused) == 1
        for _ in range(30):
            flow.clock.advance(minutes=1)
            await flow.run_due()
        assert len(google.tally.taken) == 4
        assert len(google.tally.refused) == 1


async def test_refusals_of_one_senders_domain_stop_only_that_domains_mail(database_url: str) -> None:
    google = Google(1)
    carrier = ProviderCarrier({"gmail.com": google}, lambda: flow.clock.monotonic())
    limits = LaneLimits(Limits(100.0, 100, connections_start=2, connections_max=2, per_second_start=20.0))
    async with open_delivery_flow(database_url, lane_limits=limits, carrier=carrier) as flow:
        flow.clock.advance(seconds=1)
        other = await flow.steps.another_sender("other")
        mine, theirs = flow.steps.sender.domain, other.domain
        bucket = google.bucket(f"@{mine}")
        bucket.tokens, bucket.per_second, bucket.at = 0.0, 0.001, flow.clock.monotonic()
        ids = [await flow.steps.accept([f"u{number}@gmail.com"]) for number in range(4)]
        await flow.run_due()
        # Two were under way; the others wait.
        assert (len(google.tally.taken), len(google.tally.refused)) == (0, 2)
        assert f"DKIM domain [{mine}]" in google.tally.refused[0][3]
        entry, of_branch = await lanes_of(flow.steps.database, flow.clock, limits).log("google", 10)
        assert (entry.change.scope, entry.change.kind) == (lane_scope_of_domain(mine, "google"), LimitChangeKind.SLOW)
        assert of_branch.change.scope.branch == Branch(AccountId(flow.steps.sender.account_id), "gmail.com")
        assert sorted([row[3] for message_id in ids for row in await flow.recipients(message_id)]) == [0, 0, 1, 1]
        # Another sender's mail continues, over as many connections as before.
        await flow.steps.accept(["v@gmail.com"], sender=other)
        await flow.run_due()
        assert [to for _, to in google.tally.taken] == ["v@gmail.com"]
        monitor = Monitor(context(flow.steps.database, flow.clock))
        timeline = await monitor.timeline(id_text(MESSAGE, ids[3]))
        shown = "\n".join(line.text for line in timeline_lines(timeline, await monitor.limit_changes(timeline)))
        assert f"The lane google for mail of {mine} rests until" in shown
        async with flow.steps.database.connection() as connection:
            elsewhere = Branch(AccountId(other.account_id), "gmail.com")
            assert await store.stopping(connection, ["google"], theirs, elsewhere, flow.clock.now()) is None
        # Another worker, or this one after a restart, knows it as well.
        worker = flow.another_worker()
        await worker.synchronize_learned_limits()
        assert worker._learned_limits.limits_of(lane_scope_of_domain(mine, "google")) == entry.change.after
        # After its rest one message probes, is accepted, and the others follow.
        bucket.per_second = 1.0
        for _ in range(40):
            flow.clock.advance(minutes=1)
            await flow.run_due()
        assert len(google.tally.taken) == 5
        assert len(google.tally.refused) == 2


async def test_hidden_limits_of_a_provider_are_learned_within_hours(database_url: str) -> None:
    found = await run_providers(database_url, 3, hours=4.0, destinations={"outlook.com": Microsoft}, part=0.25)
    result = found["outlook.com"]
    assert result.delivered == result.sent > 80
    assert (result.punished, result.refused <= 4) == (0, True)
