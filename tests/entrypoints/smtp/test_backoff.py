"""Delays after failed logins: which logins wait, and how long."""

from posthouse.entrypoints.smtp import submission as subject
from posthouse.entrypoints.smtp.submission import Backoff
from posthouse.rules import limits

HERE, THERE = "192.0.2.1", "198.51.100.7"


def fail(backoff: Backoff, username: str, network: str, times: int, now: float = 0.0) -> float:
    """The wait before the last of `times` wrong passwords."""
    wait: float | None = 0.0
    for _ in range(times):
        wait = backoff.begin(username, network, now)
        assert wait is not None
        if wait:
            backoff.waited(network)
        backoff.wrong(username, network, now)
    assert wait is not None
    return wait


def wait_of(backoff: Backoff, username: str, network: str, now: float = 0.0) -> float | None:
    wait = backoff.begin(username, network, now)
    if wait is not None:
        if wait:
            backoff.waited(network)
        backoff.undecided(username, network, now)
    return wait


def test_a_few_failures_are_free_then_the_wait_doubles() -> None:
    backoff = Backoff()
    assert fail(backoff, "ada", HERE, limits.LOGIN_FAILURES_FREE) == 0
    assert [fail(backoff, "ada", HERE, 1) for _ in range(7)] == [0, 1, 2, 4, 8, 16, subject.WAIT_SECONDS_MAX]


def test_a_user_in_another_network_never_waits() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 50)
    assert wait_of(backoff, "ada", HERE) == subject.WAIT_SECONDS_MAX
    assert wait_of(backoff, "ada", THERE) == 0


def test_guesses_of_many_users_delay_the_whole_network() -> None:
    backoff = Backoff()
    for number in range(200):
        fail(backoff, f"user{number}", HERE, 1)
    assert wait_of(backoff, "ada", HERE) == subject.WAIT_SECONDS_MAX
    assert wait_of(backoff, "ada", THERE) == 0


def test_a_user_who_logged_in_does_not_wait_for_others() -> None:
    backoff = Backoff()
    assert backoff.begin("ada", HERE, 0.0) == 0
    backoff.right("ada", HERE, 0.0)
    for number in range(200):
        fail(backoff, f"user{number}", HERE, 1)
    assert wait_of(backoff, "ada", HERE) == 0
    fail(backoff, "ada", HERE, 10)
    assert wait_of(backoff, "ada", HERE) == subject.WAIT_SECONDS_MAX


def test_a_right_password_resets_the_failures() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 8)
    assert backoff.begin("ada", HERE, 0.0) != 0
    backoff.waited(HERE)
    backoff.right("ada", HERE, 0.0)
    assert wait_of(backoff, "ada", HERE) == 0


def test_simultaneous_logins_without_failures_do_not_wait() -> None:
    backoff = Backoff()
    assert [backoff.begin("ada", HERE, 0.0) for _ in range(100)] == [0] * 100


def test_parallel_guesses_wait_as_if_in_sequence() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 4)
    waits = [backoff.begin("ada", HERE, 0.0) for _ in range(6)]
    assert waits == [0, 1, 2, 4, 8, 16]


def test_delayed_logins_are_limited_per_network_and_in_total() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 20)
    for _ in range(subject.DELAYED_PER_NETWORK_MAX):
        assert backoff.begin("ada", HERE, 0.0)
    assert backoff.begin("ada", HERE, 0.0) is None
    delayed = subject.DELAYED_PER_NETWORK_MAX
    for number in range(subject.DELAYED_MAX):
        network = f"2001:db8:{number:x}::/64"
        fail(backoff, "ada", network, 5)
        if (wait := backoff.begin("ada", network, 0.0)) is not None:
            delayed += 1
            assert wait
    assert delayed == subject.DELAYED_MAX
    assert wait_of(backoff, "bob", THERE) == 0


def test_failures_are_forgotten_in_time() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 50)
    assert wait_of(backoff, "ada", HERE, now=subject.FORGET_SECONDS + 1) == 0


def test_the_number_of_records_is_bounded() -> None:
    backoff = Backoff()
    for number in range(subject.REMEMBERED_MAX + 100):
        fail(backoff, "x" * 100, str(number), 1)
    assert len(backoff._users) == len(backoff._networks) == subject.REMEMBERED_MAX


def test_occasional_mistakes_never_delay_a_network() -> None:
    backoff = Backoff()
    half_an_hour = 1_800.0
    for number in range(240):
        assert fail(backoff, f"user{number}", HERE, 1, number * half_an_hour) == 0
    assert wait_of(backoff, "ada", HERE, 240 * half_an_hour) == 0


def test_failures_are_forgotten_gradually() -> None:
    backoff = Backoff()
    fail(backoff, "ada", HERE, 10)
    waits = [wait_of(backoff, "ada", HERE, minutes * 60.0) or 0.0 for minutes in range(0, 31, 3)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == subject.WAIT_SECONDS_MAX
    assert waits[-1] == 0
