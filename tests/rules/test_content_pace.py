"""The rate at which content is read: shared by those who send it."""

import pytest

from posthouse.entrypoints.smtp.content import AHEAD_SECONDS, ContentPace

RATE = 1_000


def seconds_of(pace: ContentPace, holder: str, pieces: int, *, now: float = 0.0) -> float:
    """The pause after this many pieces of 100 bytes that came at once."""
    return max(pace.pause_seconds(holder, 100, now) for _ in range(pieces))


def test_a_single_holder_has_the_whole_rate() -> None:
    pace = ContentPace(RATE)
    assert seconds_of(pace, "a", 2) == 0
    assert seconds_of(pace, "a", 18) == pytest.approx(2 - AHEAD_SECONDS)
    assert seconds_of(pace, "a", 1, now=10) == 0


def test_holders_share_the_rate() -> None:
    pace = ContentPace(RATE)
    seconds_of(pace, "a", 10)
    assert seconds_of(pace, "b", 10) == pytest.approx(2 - AHEAD_SECONDS)


def test_a_holder_does_not_wait_for_another() -> None:
    pace = ContentPace(RATE)
    seconds_of(pace, "a", 1_000)
    assert seconds_of(pace, "b", 1) == 0
