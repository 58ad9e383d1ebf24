"""Service time follows the database's clock, and no step of a single clock."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules.service_time import ServiceTime, TimeNote, TimeSample, explain

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
STEPS = [timedelta(minutes=1), HOUR, 4 * DAY, 40 * DAY]
ahead_and_back = pytest.mark.parametrize("step", [*STEPS, *[-step for step in STEPS]])


@dataclass
class Clocks:
    """A process's view: true time passes evenly, and each clock differs from it by what a test sets."""

    database: timedelta = timedelta()
    host: timedelta = timedelta()
    note: TimeNote | None = None
    at: float = 1_000.0
    truth: datetime = START
    time: ServiceTime = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.time = ServiceTime(self.truth + self.host, self.at)
        self.learn()

    def learn(self, doubt_seconds: float = 0.0) -> None:
        self.time.learn(
            TimeSample(self.at, self.truth + self.database, self.truth + self.host, doubt_seconds, self.note)
        )

    def write_note(self) -> None:
        acceptances = 0 if self.note is None else self.note.acceptances
        self.note = TimeNote(self.now(), self.truth + self.database, acceptances)

    def accept(self) -> None:
        there = self.truth + self.database
        self.note = TimeNote(there, there, 1 if self.note is None else self.note.acceptances + 1)

    def pass_seconds(self, seconds: float) -> None:
        self.at += seconds
        self.truth += timedelta(seconds=seconds)

    def now(self) -> datetime:
        return self.time.now(self.at)

    @property
    def error(self) -> timedelta:
        return self.now() - self.truth

    def stay_right(self) -> None:
        """For a hundred seconds."""
        for _ in range(20):
            self.pass_seconds(5)
            self.learn()
            assert abs(self.error) < SECOND


@ahead_and_back
def test_a_step_of_the_databases_clock_changes_nothing(step: timedelta) -> None:
    clocks = Clocks()
    clocks.database = step
    clocks.stay_right()
    assert clocks.time.step is not None
    assert abs(clocks.time.step - step) < SECOND
    clocks.database = timedelta()
    clocks.learn()
    assert clocks.time.step is None
    assert abs(clocks.error) < SECOND


@ahead_and_back
def test_a_step_of_the_hosts_clock_changes_nothing(step: timedelta) -> None:
    clocks = Clocks()
    clocks.host = step
    clocks.stay_right()
    assert clocks.time.step is None


@ahead_and_back
def test_when_both_clocks_step_only_the_operator_decides(step: timedelta) -> None:
    clocks = Clocks()
    clocks.pass_seconds(5)
    clocks.database = clocks.host = step
    clocks.stay_right()
    assert clocks.time.step is not None
    clocks.accept()
    clocks.learn()
    assert abs(clocks.error - step) < SECOND
    assert clocks.time.step is None


@pytest.mark.parametrize("seconds", [1, -1, 4, -4])
def test_a_small_step_is_followed_without_going_back(seconds: int) -> None:
    clocks = Clocks()
    clocks.database = timedelta(seconds=seconds)
    before = clocks.now()
    clocks.learn()
    assert clocks.now() >= before
    clocks.pass_seconds(2 * abs(seconds) + 0.1)
    assert abs(clocks.error - clocks.database) < SECOND / 10
    assert clocks.time.step is None


def test_time_that_is_ahead_goes_at_half_speed() -> None:
    clocks = Clocks()
    clocks.database = -4 * SECOND
    clocks.learn()
    before = clocks.now()
    clocks.pass_seconds(2)
    assert clocks.now() - before == SECOND


def test_a_correction_of_the_database_that_the_host_confirms_is_followed() -> None:
    # The database's clock was behind from the start, and the first process of a new service believed the earlier clock.
    clocks = Clocks(database=-4 * DAY)
    assert abs(clocks.error + 4 * DAY) < SECOND
    clocks.pass_seconds(5)
    clocks.database = timedelta()
    clocks.learn()
    assert abs(clocks.error) < SECOND
    assert clocks.time.step is None


def test_a_confirmed_correction_back_by_more_than_an_hour_is_for_the_operator() -> None:
    clocks = Clocks(database=2 * HOUR, note=TimeNote(START + 2 * HOUR, START + 2 * HOUR))
    assert abs(clocks.error - 2 * HOUR) < SECOND
    clocks.pass_seconds(5)
    clocks.database = timedelta()
    clocks.learn()
    assert abs(clocks.error - 2 * HOUR) < SECOND
    clocks.accept()
    clocks.learn()
    assert abs(clocks.error) < SECOND


@ahead_and_back
def test_a_process_that_starts_after_a_step_continues_the_service_time(step: timedelta) -> None:
    clocks = Clocks()
    clocks.write_note()
    clocks.database = step
    clocks.pass_seconds(5)
    clocks.learn()
    clocks.write_note()
    clocks.pass_seconds(5)
    clocks.start()
    assert abs(clocks.error) < SECOND
    assert clocks.time.step is not None


@pytest.mark.parametrize("step", STEPS)
def test_a_step_while_every_process_was_down_is_not_believed_against_the_host(step: timedelta) -> None:
    clocks = Clocks()
    clocks.write_note()
    clocks.pass_seconds(3_600)
    clocks.database = step
    clocks.start()
    assert abs(clocks.error) < SECOND
    assert clocks.time.step is not None


@pytest.mark.parametrize("step", STEPS)
def test_a_process_never_starts_before_the_newest_stored_time(step: timedelta) -> None:
    clocks = Clocks()
    clocks.write_note()
    assert clocks.note is not None
    clocks.pass_seconds(30)
    clocks.database = clocks.host = -step
    clocks.start()
    assert clocks.now() >= clocks.note.service_time - 5 * SECOND


def test_after_a_long_rest_the_clocks_are_believed_if_they_agree() -> None:
    clocks = Clocks()
    clocks.write_note()
    clocks.pass_seconds(7 * 86_400)
    clocks.start()
    assert abs(clocks.error) < SECOND
    assert clocks.time.step is None


def test_what_another_process_believes_is_believed() -> None:
    clocks = Clocks()
    clocks.host = HOUR  # it was set: this host's clock counts no more
    clocks.database = 4 * DAY
    clocks.pass_seconds(5)
    clocks.learn()
    assert clocks.time.step is not None
    there = clocks.truth + clocks.database
    clocks.note = TimeNote(there, there)
    clocks.learn()
    assert clocks.time.step is None
    assert abs(clocks.error - 4 * DAY) < SECOND


def test_a_slow_answer_does_not_replace_a_better_sample() -> None:
    clocks = Clocks()
    clocks.pass_seconds(1)
    clocks.database = SECOND
    clocks.learn(doubt_seconds=2.0)
    assert abs(clocks.error) < SECOND / 10


def test_the_explanation_says_what_to_do() -> None:
    assert "4 days, 0:00:00 ahead of" in explain(4 * DAY)
    assert "1:00:00 behind" in explain(-HOUR)
    assert "posthouse clock accept" in explain(HOUR)
