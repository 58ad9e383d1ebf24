"""Reputation: whether an account's delivery results allow it to keep sending.

Unknown addresses and complaints are the first signs of a bought list or a stolen password. An account over the
limits is suspended before mailbox providers penalise all accounts.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

# Fewer results are not judged: a single mistyped address among ten is no bad list.
FINALS_MIN: Final = 200
# Only the latest recipients accepted within the window are judged.
RECIPIENTS_MAX: Final = 10_000
WINDOW: Final = timedelta(hours=24)

UNKNOWN_PERCENT_MAX: Final = 10.0
UNKNOWN_PERCENT_WARN: Final = 5.0
COMPLAINTS_PERCENT_MAX: Final = 0.5
COMPLAINTS_PERCENT_WARN: Final = 0.1
# Whatever the percentage: a few people who complain are no bad list.
COMPLAINTS_SUSPEND_MIN: Final = 10
COMPLAINTS_WARN_MIN: Final = 3


# Shown to the account.
WARNING: Final = (
    f"Of the latest mail, {UNKNOWN_PERCENT_WARN:g} % or more went to addresses that don't exist, or "
    f"{COMPLAINTS_PERCENT_WARN:g} % or more was complained about. Send only to people who asked for it: at "
    f"{UNKNOWN_PERCENT_MAX:g} % and {COMPLAINTS_PERCENT_MAX:g} % sending is suspended."
)


class ReputationVerdict(StrEnum):
    WELL = "well"
    WARN = "warn"
    SUSPEND = "suspend"


class ReputationFigures(NamedTuple):
    """Final results with a server's reply; how many of them were unknown addresses or complaints.

    An address is unknown if its server said so at RCPT, or in a bounce with our token. An address counts once as
    unknown and once as complaining, however many mails it got.
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
    if _reaches(unknown, finals, UNKNOWN_PERCENT_MAX) or (
        complaints >= COMPLAINTS_SUSPEND_MIN and _reaches(complaints, finals, COMPLAINTS_PERCENT_MAX)
    ):
        return ReputationVerdict.SUSPEND
    if _reaches(unknown, finals, UNKNOWN_PERCENT_WARN) or (
        complaints >= COMPLAINTS_WARN_MIN and _reaches(complaints, finals, COMPLAINTS_PERCENT_WARN)
    ):
        return ReputationVerdict.WARN
    return ReputationVerdict.WELL


def can_be_bad(unknown_addresses: int, complaints: int) -> bool:
    """Whether these counts could exceed the limits for the smallest judged number of results."""
    return complaints >= COMPLAINTS_WARN_MIN or _reaches(unknown_addresses, FINALS_MIN, UNKNOWN_PERCENT_WARN)


def counted_since(forgiven_at: datetime | None, now: datetime) -> datetime:
    """From when mail counts: lifting a suspension resets the count."""
    return now - WINDOW if forgiven_at is None else max(now - WINDOW, forgiven_at)


def is_warning(warned_at: datetime | None, forgiven_at: datetime | None, now: datetime) -> bool:
    """Whether the warned-about results still count."""
    return warned_at is not None and warned_at >= counted_since(forgiven_at, now)


def described(figures: ReputationFigures) -> str:
    """For the operator, and as the reason of a suspension."""
    return (
        f"of the latest {figures.finals} results {figures.unknown_percent:.1f} % were unknown addresses "
        f"({UNKNOWN_PERCENT_MAX:g} % suspend) and {figures.complaints_percent:.2f} % were complained about "
        f"({COMPLAINTS_PERCENT_MAX:g} %, and {COMPLAINTS_SUSPEND_MIN} recipients at least, suspend)"
    )


def _reaches(part: int, whole: int, percent: float) -> bool:
    # In thousandths: the bounds are exact, and so is the comparison.
    return part * 100_000 >= whole * round(percent * 1_000)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
