"""When a provider takes mail much later than before."""

import pytest

from posthouse.rules import usage
from posthouse.rules.usage import delay_of


def taking(seconds: float, messages: int) -> list[int]:
    """A histogram in which all messages took about this long."""
    counts = [0] * usage.COUNTS
    counts[next(number for number, bound in enumerate(usage.BOUNDS_SECONDS) if bound >= seconds)] = messages
    return counts


@pytest.mark.parametrize(
    ("recent", "week", "was_delayed", "is_delayed"),
    [
        (taking(60, 100), taking(5, 1_000), False, True),
        (taking(60, 100), taking(20, 1_000), False, False),
        # Once it is delayed, it is over at twice the week's.
        (taking(60, 100), taking(20, 1_000), True, True),
        (taking(60, 100), taking(40, 1_000), True, False),
        # Too few to say.
        (taking(60, 99), taking(5, 1_000), False, False),
        (taking(60, 100), taking(5, 999), False, False),
        (taking(60, 100), [], True, False),
        ([], taking(5, 1_000), True, False),
        # Fast enough, however fast it was before.
        (taking(5, 100), taking(0.5, 1_000), False, False),
    ],
)
def test_a_provider_is_delayed_at_four_times_its_week(
    recent: list[int], week: list[int], was_delayed: bool, is_delayed: bool
) -> None:
    found = delay_of(recent, week, is_delayed=was_delayed)
    assert (found is not None) is is_delayed
    if found is not None:
        assert found.p95_seconds > usage.TIMES_OVER * found.week_p95_seconds
