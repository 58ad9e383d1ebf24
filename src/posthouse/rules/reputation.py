"""Reputation: whether an account's delivery results allow it to keep sending.

Unknown addresses and complaints are the first signs of a bought list or a stolen password. An account over the
limits is suspended before mailbox providers penalise all accounts.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

# Fewer results are not judged: a single mistyped address among ten does not mean a bad list.
FINALS_MIN: Final = 200
# Only the latest recipients accepted within the window are judged.
RECIPIENTS_MAX: Final = 10_000
WINDOW: Final = timedelta(hours=24)
# An account's tier is `good` after this long, and this many deliveries, without a warning.
GOOD_AFTER: Final = timedelta(days=14)
GOOD_DELIVERED_MIN: Final = 1_000


class Mark(NamedTuple):
    """Reached by this share of the results, if the count is reached too: a few complaints don't mean a bad list."""

    percent: float
    count_min: int = 0

    def is_reached(self, part: int, whole: int) -> bool:
        # In thousandths, so that the bounds and the comparison are exact.
        return part >= self.count_min and part * 100_000 >= whole * round(self.percent * 1_000)


class Marks(NamedTuple):
    warn: Mark
    suspend: Mark


UNKNOWN_MARKS: Final = Marks(warn=Mark(5.0), suspend=Mark(10.0))
COMPLAINT_MARKS: Final = Marks(warn=Mark(0.1, 3), suspend=Mark(0.5, 10))
# For the invitations that an account sent, judged separately: at the second mark it may send no more for now.
INVITATION_MARKS: Final = Marks(warn=Mark(20.0, 3), suspend=Mark(20.0, 10))
WARN_AGAIN: Final = timedelta(days=1)

# Shown to the account.
WARNING: Final = (
    f"Of the latest mail, {UNKNOWN_MARKS.warn.percent:g} % or more went to addresses that don't exist, or "
    f"{COMPLAINT_MARKS.warn.percent:g} % or more was complained about. Send only to people who asked for it: at "
    f"{UNKNOWN_MARKS.suspend.percent:g} % and {COMPLAINT_MARKS.suspend.percent:g} % sending is suspended."
)


class ReputationVerdict(StrEnum):
    WELL = "well"
    WARN = "warn"
    SUSPEND = "suspend"


class ReputationFigures(NamedTuple):
    """Final results with a server's reply; how many of them were unknown addresses or complaints.

    An address is unknown if its server said so at RCPT, or in a bounce with our token. An address counts once as
    unknown and once as complaining, however many messages it got.
    """

    finals: int
    unknown: int
    complaints: int

    @property
    def unknown_percent(self) -> float:
        return _percent(self.unknown, self.finals)

    @property
    def complaints_percent(self) -> float:
        return _percent(self.complaints, self.finals)


def judge(finals: int, unknown: int, complaints: int) -> ReputationVerdict:
    if finals < FINALS_MIN:
        return ReputationVerdict.WELL
    if UNKNOWN_MARKS.suspend.is_reached(unknown, finals) or COMPLAINT_MARKS.suspend.is_reached(complaints, finals):
        return ReputationVerdict.SUSPEND
    if UNKNOWN_MARKS.warn.is_reached(unknown, finals) or COMPLAINT_MARKS.warn.is_reached(complaints, finals):
        return ReputationVerdict.WARN
    return ReputationVerdict.WELL


def judge_invitations(figures: ReputationFigures) -> ReputationVerdict:
    """Invitations are few, and are sent in the name of the service: fewer results are enough."""
    bad = figures.unknown + figures.complaints
    if INVITATION_MARKS.suspend.is_reached(bad, figures.finals):
        return ReputationVerdict.SUSPEND
    return ReputationVerdict.WARN if INVITATION_MARKS.warn.is_reached(bad, figures.finals) else ReputationVerdict.WELL


def can_be_bad(unknown_addresses: int, complaints: int) -> bool:
    """Whether these counts could exceed the limits for the smallest judged number of results."""
    return judge(FINALS_MIN, unknown_addresses, complaints) is not ReputationVerdict.WELL


def counted_since(forgiven_at: datetime | None, now: datetime) -> datetime:
    """From when mail counts: lifting a suspension resets the count."""
    return now - WINDOW if forgiven_at is None else max(now - WINDOW, forgiven_at)


def is_warning(warned_at: datetime | None, forgiven_at: datetime | None, now: datetime) -> bool:
    """Whether the warned-about results still count."""
    return warned_at is not None and warned_at >= counted_since(forgiven_at, now)


def described(figures: ReputationFigures) -> str:
    """The figures in words, for the operator and as the reason for a suspension."""
    return (
        f"of the latest {figures.finals} results {figures.unknown_percent:.1f} % were unknown addresses "
        f"({UNKNOWN_MARKS.suspend.percent:g} % suspend) and {figures.complaints_percent:.2f} % were complained about "
        f"({COMPLAINT_MARKS.suspend.percent:g} %, and {COMPLAINT_MARKS.suspend.count_min} recipients at least, suspend)"
    )


def invitations_described(figures: ReputationFigures) -> str:
    return (
        f"of {figures.finals} invitations of the last day {figures.unknown} went to addresses that don't exist and "
        f"{figures.complaints} were complained about ({INVITATION_MARKS.suspend.count_min} stop further ones)"
    )


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
