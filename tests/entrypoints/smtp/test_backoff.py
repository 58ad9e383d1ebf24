"""Patience with failed logins: who waits, for how long, and who never does."""

from posthouse.entrypoints.smtp import backoff as subject
from posthouse.entrypoints.smtp.backoff import Backoff
from posthouse.rules import limits

HERE, THERE = "192.0.2.1", "198.51.100.7"


def fail(backoff: Backoff, username: str, place: str, times: int, now: float = 0.0) -> float:
    """The wait before the last of so many wrong passwords."""
    wait: float | None = 0.0
    for _ in range(times):
        wait = backoff.begin(username, place, now)
        assert wait is not None
        if wait:
            backoff.waited(place)
        backoff.wrong(username, place, now)
    assert wait is not None
    return wait


def wait_of(backoff: Backoff, username: str, place: str, now: float = 0.0) -> float | None:
    wait = backoff.begin(username, place, now)
    if wait is not None:
        if wait:
            backoff.waited(place)
        backoff.undecided(username, place, now)
    return wait


def test_typing_errors_cost_nothing_and_then_the_wait_doubles() -> None:
    backoff = Backoff()
    assert fail(backoff, "ada", HERE, limits.LOGIN_FAILURES_FREE) == 0
    assert [fail(backoff, "ada", HERE, 1) for _ in range(7)] == [0, 1, 2, 4, 8, 16, subject.WAIT_SECONDS_MAX]


def test_the_right_user_elsewhere_never_waits() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 50)
    assert wait_of(backoff, "ada", HERE) == subject.WAIT_SECONDS_MAX
    assert wait_of(backoff, "ada", THERE) == 0


def test_many_users_guessed_from_one_place_slow_that_place_down() -> None:
    backoff = Backoff()
    for number in range(200):
        fail(backoff, f"user{number}", HERE, 1)
    assert wait_of(backoff, "ada", HERE) == subject.WAIT_SECONDS_MAX
    assert wait_of(backoff, "ada", THERE) == 0


def test_a_user_who_was_right_there_does_not_wait_for_others() -> None:
    backoff = Backoff()
    assert backoff.begin("ada", HERE, 0.0) == 0
    backoff.right("ada", HERE, 0.0)
    for number in range(200):
        fail(backoff, f"user{number}", HERE, 1)
    assert wait_of(backoff, "ada", HERE) == 0
    fail(backoff, "ada", HERE, 10)
    assert wait_of(backoff, "ada", HERE) == subject.WAIT_SECONDS_MAX


def test_a_right_password_forgives_the_wrong_ones() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 8)
    assert backoff.begin("ada", HERE, 0.0) != 0
    backoff.waited(HERE)
    backoff.right("ada", HERE, 0.0)
    assert wait_of(backoff, "ada", HERE) == 0


def test_a_hundred_logins_at_once_are_a_busy_client() -> None:
    backoff = Backoff()
    assert [backoff.begin("ada", HERE, 0.0) for _ in range(100)] == [0] * 100


def test_guesses_made_in_parallel_wait_for_each_other() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 4)
    waits = [backoff.begin("ada", HERE, 0.0) for _ in range(6)]
    assert waits == [0, 1, 2, 4, 8, 16]


def test_what_is_held_back_is_bounded_per_place_and_in_all() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 20)
    for _ in range(subject.HELD_PER_PLACE_MAX):
        assert backoff.begin("ada", HERE, 0.0)
    assert backoff.begin("ada", HERE, 0.0) is None
    held = subject.HELD_PER_PLACE_MAX
    for number in range(subject.HELD_MAX):
        place = f"2001:db8:{number:x}::/64"
        fail(backoff, "ada", place, 5)
        if (wait := backoff.begin("ada", place, 0.0)) is not None:
            held += 1
            assert wait
    assert held == subject.HELD_MAX
    assert wait_of(backoff, "bob", THERE) == 0


def test_failures_are_forgotten_in_time() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 50)
    assert wait_of(backoff, "ada", HERE, now=subject.FORGET_SECONDS + 1) == 0


def test_what_is_remembered_is_bounded() -> None:
    backoff = Backoff()
    for number in range(subject.REMEMBERED_MAX + 100):
        fail(backoff, "x" * 100, str(number), 1)
    assert len(backoff._users) == len(backoff._places) == subject.REMEMBERED_MAX


def test_a_place_where_someone_mistypes_every_now_and_then_is_as_good_as_any() -> None:
    backoff = Backoff()
    half_an_hour = 1_800.0
    for number in range(240):
        assert fail(backoff, f"user{number}", HERE, 1, number * half_an_hour) == 0
    assert wait_of(backoff, "ada", HERE, 240 * half_an_hour) == 0


def test_guesses_are_forgotten_one_by_one() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 10)
    waits = [wait_of(backoff, "ada", HERE, minutes * 60.0) or 0.0 for minutes in range(0, 31, 3)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == subject.WAIT_SECONDS_MAX
    assert waits[-1] == 0
