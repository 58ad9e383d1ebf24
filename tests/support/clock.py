"""Clocks that the test moves."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from posthouse.clock import Clock


class SettableClock:
    """Starts at the real time unless `at` is given; `advance` moves the day and the seconds together."""

    def __init__(self, at: datetime | None = None) -> None:
        self._now = at or datetime.now(UTC)
        self._seconds = 1_000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, step: timedelta = timedelta(), **parts: float) -> None:
        """Forward only, as a clock must: `advance(days=1, seconds=2)`."""
        step += timedelta(**parts)
        assert step >= timedelta(), "a clock never goes back"
        self._now += step
        self._seconds += step.total_seconds()


@dataclass(slots=True)
class OffsetClock:
    """Another process's clock, whose time of day or whose seconds have jumped."""

    clock: Clock
    offset: timedelta = timedelta(0)
    seconds: float = 0.0

    def now(self) -> datetime:
        return self.clock.now() + self.offset

    def monotonic(self) -> float:
        return self.clock.monotonic() + self.seconds
