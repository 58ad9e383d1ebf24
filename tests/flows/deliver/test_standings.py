"""What lanes learn is kept, known to all workers, and undone."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest

from posthouse.cli.messages import timeline_lines
from posthouse.flows.deliver.standings import Standings
from posthouse.flows.operate.lanes import Lanes
from posthouse.flows.operate.monitor import Monitor
from posthouse.rules.ids import MESSAGE
from posthouse.rules.ids import text as id_text
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.refusal import Refusal
from posthouse.rules.standing import LaneState, Lesson, LessonKind, Place, Refused, Standing, slowed
from posthouse.store import standings as store
from posthouse.store.postgres import Database
from tests.support.clock import SettableClock
from tests.support.delivery_flow import open_delivery_flow
from tests.support.fresh_database import open_database
from tests.support.provider import Google, Microsoft, ProviderCarrier
from tests.support.provider_run import run_providers

GOOGLE: Final = Place("", "google")
REFUSED: Final = Refused("421 4.7.28", "421 4.7.28 too much", "address")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url) as database:
        yield database


class Worker:
    """A worker's standings, and what it adopted from others."""

    def __init__(self, database: Database, clock: SettableClock) -> None:
        self.adopted: dict[Place, Standing] = {}
        self.standings = Standings(database=database, clock=clock, adopt=self.adopted.__setitem__)
        self.clock = clock

    def refuse(self, place: Place = GOOGLE, *, seen: float = 10.0) -> Lesson:
        before = self.standings.of(place) or Standing(20.0)
        now = self.clock.now()
        change = slowed(before, place.lane, REFUSED, seen_per_second=seen, now=now, random=0.0)
        assert change is not None
        lesson = Lesson(now, place, change[0], before, change[1], REFUSED)
        self.standings.learn(lesson)
        return lesson


async def test_what_one_worker_learns_all_know_and_a_restart_forgets_nothing(database: Database) -> None:
    clock = SettableClock()
    one, other = Worker(database, clock), Worker(database, clock)
    await other.standings.synchronize()
    lesson = one.refuse()
    await one.standings.synchronize()
    await other.standings.synchronize()
    assert other.adopted == {GOOGLE: lesson.after}
    restarted = Worker(database, clock)
    await restarted.standings.synchronize()
    assert restarted.standings.of(GOOGLE) == lesson.after
    # What a worker wrote itself, or knows, is not adopted again.
    other.adopted.clear()
    await other.standings.synchronize()
    assert one.adopted == other.adopted == {}


async def test_of_two_lessons_at_once_the_stricter_parts_count_and_both_are_kept(database: Database) -> None:
    clock = SettableClock()
    one, other = Worker(database, clock), Worker(database, clock)
    first, second = one.refuse(seen=10.0), other.refuse(seen=6.0)
    await asyncio.gather(one.standings.synchronize(), other.standings.synchronize())
    for worker in (one, other):
        await worker.standings.synchronize()
        known = worker.standings.of(GOOGLE)
        assert known is not None
        assert (known.per_second, known.ceiling, known.state) == (3.0, 6.0, LaneState.RESTING)
    async with database.connection() as connection:
        log = await store.log(connection, "google", 10)
    assert {stored.lesson for stored in log} == {first, second}


async def test_an_undone_lesson_restores_the_standing_everywhere(database: Database) -> None:
    clock = SettableClock()
    worker, lanes = Worker(database, clock), Lanes(database=database, clock=clock, lane_limits=LaneLimits())
    lesson = worker.refuse()
    await worker.standings.synchronize()
    (stored,) = await lanes.log("google", 10)
    assert stored.lesson == lesson
    clock.advance(seconds=5)
    undone = await lanes.undo(stored.id)
    assert replace(undone.after, ignored=()) == lesson.before
    assert undone.after.ignored == ((REFUSED.cause, clock.now() + timedelta(hours=24)),)
    await worker.standings.synchronize()
    assert worker.adopted == {GOOGLE: undone.after}
    assert [entry.lesson.kind for entry in await lanes.log(None, 10)] == [LessonKind.UNDONE, LessonKind.SLOW]


async def test_a_lane_is_pinned_and_released(database: Database) -> None:
    clock = SettableClock()
    worker, lanes = Worker(database, clock), Lanes(database=database, clock=clock, lane_limits=LaneLimits())
    await lanes.pin("Google", 5.0)
    await worker.standings.synchronize()
    assert worker.adopted[GOOGLE] == Standing(5.0, is_pinned=True)
    await lanes.unpin("google")
    await worker.standings.synchronize()
    assert worker.adopted[GOOGLE] == Standing(5.0)


@pytest.mark.parametrize(("lane", "rate"), [("goggle", 5.0), ("google", 0.0), ("google", 101.0)])
async def test_an_unknown_lane_or_a_rate_beyond_the_limit_is_refused(
    database: Database, lane: str, rate: float
) -> None:
    with pytest.raises(Refusal):
        await Lanes(database=database, clock=SettableClock(), lane_limits=LaneLimits()).pin(lane, rate)


async def test_an_unknown_lesson_is_not_undone(database: Database) -> None:
    with pytest.raises(Refusal, match="lane log"):
        await Lanes(database=database, clock=SettableClock(), lane_limits=LaneLimits()).undo(7)


async def test_lessons_and_standings_are_forgotten_after_their_time_and_pins_are_not(database: Database) -> None:
    clock = SettableClock()
    worker, lanes = Worker(database, clock), Lanes(database=database, clock=clock, lane_limits=LaneLimits())
    worker.refuse()
    await worker.standings.synchronize()
    await lanes.pin("yahoo", 5.0)
    async with database.transaction() as tx:
        assert await store.forget_lessons(tx, clock.now(), 100) == 0
        assert await store.forget_lessons(tx, clock.now() + timedelta(seconds=1), 100) == 2
        assert await store.forget_standings(tx, clock.now() + timedelta(seconds=1), 100) == 1
    # A worker that still knows the forgotten one learns what comes after it.
    clock.advance(seconds=1)
    pinned = await lanes.pin("google", 5.0)
    await worker.standings.synchronize()
    assert worker.adopted[GOOGLE] == pinned.after


# Through the delivery flow


async def test_a_refusal_postpones_what_waits_without_an_attempt_and_goes_on_after_the_rest(database_url: str) -> None:
    google = Google(1)
    carrier = ProviderCarrier({"gmail.com": google}, lambda: flow.clock.monotonic())
    limits = LaneLimits(Limits(100.0, 100, connections_start=1, connections_max=1, per_second_start=20.0))
    async with open_delivery_flow(database_url, lane_limits=limits, carrier=carrier) as flow:
        bucket = google.bucket("192.0.2.1")
        bucket.tokens, bucket.per_second, bucket.at = 1.0, 0.5, flow.clock.monotonic()
        ids = [await flow.steps.accept([f"u{number}@gmail.com"]) for number in range(4)]
        await flow.run_due()
        assert (len(google.tally.taken), len(google.tally.refused)) == (1, 1)
        attempts = [row[3] for message_id in ids for row in await flow.recipients(message_id)]
        assert sorted(attempts) == [0, 0, 1, 1]
        (entry,) = await Lanes(database=flow.steps.database, clock=flow.clock, lane_limits=limits).log("google", 10)
        assert entry.lesson.kind is LessonKind.SLOW
        assert entry.lesson.refused.reply.startswith("421 4.7.28 Gmail has detected")
        assert entry.lesson.refused.message_id in ids
        assert entry.lesson.until is not None
        assert timedelta(seconds=600) <= entry.lesson.until - entry.lesson.at <= timedelta(seconds=660)
        monitor = Monitor(database=flow.steps.database, clock=flow.clock)
        for message_id in ids:
            timeline = await monitor.timeline(id_text(MESSAGE, message_id))
            shown = "\n".join(line.text for line in timeline_lines(timeline, await monitor.lessons(timeline)))
            is_final = timeline.recipients[0].final_at is not None
            assert ("The lane google rests until" in shown and f"(lesson {entry.id})" in shown) is not is_final
        flow.clock.advance(minutes=9)
        await flow.run_due()
        assert len(google.tally.refused) == 1
        for _ in range(30):
            flow.clock.advance(minutes=1)
            await flow.run_due()
        assert len(google.tally.taken) == 4
        assert len(google.tally.refused) == 1


async def test_hidden_limits_of_a_provider_are_learnt_within_hours(database_url: str) -> None:
    found = await run_providers(database_url, 3, hours=4.0, destinations={"outlook.com": Microsoft}, part=0.25)
    result = found["outlook.com"]
    assert result.delivered == result.sent > 80
    assert (result.punished, result.refused <= 4) == (0, True)
