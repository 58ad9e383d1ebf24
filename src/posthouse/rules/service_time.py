"""Service time: the database's time, as long as that can be trusted.

All processes share the database's time, so that they agree however wrong the clocks of their hosts are. But the
database's clock can be wrong too. When it steps, service time continues without the step, carried by the process's
steady clock, so that a wrong clock expires, charges and drops nothing. A step is believed when

- the host's clock shows the same time as the database, and has not itself been stepped since the process started,
- another process believes it, or
- an operator accepts it (`posthouse clock accept`).

Service time never goes back. Where it is ahead, it runs at half speed until it is right; only an operator's acceptance
sets it back.

`at` is always a reading of the steady clock, in seconds.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

# Seconds that two clocks drift apart in a second; ten times the drift of ordinary clocks.
DRIFT_MAX: Final = 0.0005
# A larger difference between the database's time and service time is a step.
STEP_MAX: Final = timedelta(seconds=5)
# Service time that is at most this far ahead of the true time is slowed down; an operator decides about more.
SLOWED_MAX: Final = timedelta(hours=1)
# A host whose clock moves by more than this against the steady clock was set, and is no evidence about the time.
HOST_STEP_SECONDS: Final = 1.0
# A process that starts believes a database whose time differs no more than this from that of its host.
START_DIFFERENCE_MAX: Final = timedelta(seconds=30)
# How old a note of service time may be to be continued, and to count as what other processes believe now.
NOTE_FRESH: Final = timedelta(seconds=60)
NOTE_CURRENT: Final = timedelta(seconds=10)

_ZERO: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class TimeNote:
    """What the processes last stored: the service time when the database's clock showed `noted_at`.

    `acceptances` counts how often an operator accepted the database's time.
    """

    service_time: datetime
    noted_at: datetime
    acceptances: int = 0

    def continued(self, database_time: datetime) -> datetime | None:
        """The service time now, if the note is fresh."""
        passed = database_time - self.noted_at
        return self.service_time + passed if -STEP_MAX <= passed <= NOTE_FRESH else None


@dataclass(frozen=True, slots=True)
class TimeSample:
    """The clocks at one moment; the database's time may be off by `doubt_seconds`."""

    at: float
    database_time: datetime
    host_time: datetime
    doubt_seconds: float = 0.0
    note: TimeNote | None = None

    def do_clocks_agree(self, difference_max: timedelta) -> bool:
        return abs(self.host_time - self.database_time) <= difference_max + timedelta(seconds=self.doubt_seconds)


class ServiceTime:
    """The service time of one process. Until the first sample, it is the host's time."""

    __slots__ = (
        "_anchor",
        "_anchored_at",
        "_doubt_seconds",
        "_host_offset",
        "_is_host_steady",
        "_is_started",
        "_latest",
        "_latest_at",
        "_may_be_ahead",
        "_started_at",
        "acceptances",
        "step",
    )

    def __init__(self, host_time: datetime, at: float) -> None:
        self._anchor = self._latest = host_time
        self._anchored_at = self._latest_at = self._started_at = at
        self._doubt_seconds = 0.0
        self._host_offset = host_time - timedelta(seconds=at)
        self._is_host_steady = True
        self._is_started = False
        self._may_be_ahead = False
        self.acceptances = 0
        # How far the database's clock is ahead of service time, while that step is not believed.
        self.step: timedelta | None = None

    def now(self, at: float) -> datetime:
        now = self._anchor + timedelta(seconds=at - self._anchored_at)
        if self._may_be_ahead:
            slowed = self._latest + timedelta(seconds=(at - self._latest_at) / 2)
            self._may_be_ahead = slowed > now
            now = max(now, slowed)
        self._latest, self._latest_at = now, at
        return now

    def learn(self, sample: TimeSample) -> None:
        """Follow the sample, or note a step."""
        self._watch_host(sample)
        if not self._is_started:
            self._start(sample)
        elif sample.note is not None and sample.note.acceptances > self.acceptances:
            self._set(sample, sample.database_time)
        else:
            self._follow(sample)
        if sample.note is not None:
            self.acceptances = sample.note.acceptances

    def _carried(self, at: float) -> datetime:
        return self._anchor + timedelta(seconds=at - self._anchored_at)

    def _watch_host(self, sample: TimeSample) -> None:
        moved = abs((sample.host_time - timedelta(seconds=sample.at) - self._host_offset).total_seconds())
        if moved > HOST_STEP_SECONDS + DRIFT_MAX * abs(sample.at - self._started_at):
            self._is_host_steady = False

    def _start(self, sample: TimeSample) -> None:
        """Continue the service time of the other processes; it begins no earlier than the newest stored time."""
        self._is_started = True
        database_time, note = sample.database_time, sample.note
        continued = None if note is None else note.continued(database_time)
        if continued is not None:
            self._set(sample, database_time if abs(database_time - continued) <= STEP_MAX else continued)
        elif sample.do_clocks_agree(START_DIFFERENCE_MAX):
            self._set(sample, database_time)
        else:
            # With the earlier of the two, nothing expires too soon.
            self._set(sample, min(database_time, sample.host_time))
        if note is not None and continued is None and self._anchor < note.service_time - STEP_MAX:
            self._set(sample, note.service_time)

    def _follow(self, sample: TimeSample) -> None:
        difference = sample.database_time - self._carried(sample.at)
        present_doubt = self._doubt_seconds + abs(sample.at - self._anchored_at) * DRIFT_MAX
        doubt = timedelta(seconds=sample.doubt_seconds + present_doubt)
        if abs(difference) <= STEP_MAX + doubt:
            self.step = None
            # A slow answer makes a sample doubtful: it counts only if the last is more doubtful, or is impossible.
            if sample.doubt_seconds <= present_doubt or abs(difference) > doubt:
                self._anchor_at(sample, sample.database_time)
        elif -difference <= SLOWED_MAX and (self._is_witnessed(sample) or _is_believed_elsewhere(sample)):
            self.step = None
            self._anchor_at(sample, sample.database_time)
        else:
            self.step = difference

    def _is_witnessed(self, sample: TimeSample) -> bool:
        return self._is_host_steady and sample.do_clocks_agree(STEP_MAX)

    def _set(self, sample: TimeSample, time: datetime) -> None:
        """Start again from this time, even if it is earlier."""
        self._anchor_at(sample, time)
        self._latest, self._latest_at = time, sample.at
        difference = sample.database_time - time
        self.step = difference if abs(difference) > STEP_MAX else None

    def _anchor_at(self, sample: TimeSample, time: datetime) -> None:
        self._anchor, self._anchored_at = time, sample.at
        self._may_be_ahead = True
        self._doubt_seconds = sample.doubt_seconds


def _is_believed_elsewhere(sample: TimeSample) -> bool:
    note = sample.note
    if note is None or abs(note.service_time - note.noted_at) > STEP_MAX:
        return False
    return _ZERO <= sample.database_time - note.noted_at <= NOTE_CURRENT


def explain(step: timedelta) -> str:
    """What an operator must know and do while a step is not believed."""
    side = "ahead of" if step > _ZERO else "behind"
    span = abs(timedelta(seconds=round(step.total_seconds())))
    return (
        f"The database's clock is {span} {side} service time, which continues without it; nothing is deleted. "
        "Correct the clock of the database's machine, or of this one; if the database's clock is right, run "
        "`posthouse clock accept`."
    )
