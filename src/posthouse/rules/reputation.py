"""Conduct: whether what becomes of an account's mail lets it go on sending.

Addresses that nobody has and people who complain are how a bought list, or a stolen password, shows first. An
account that passes the bounds is suspended before mailbox providers judge all the others by it.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

# Fewer results than this say nothing: one mistyped address among ten is no bad list.
FINALS_MIN: Final = 200
# The latest recipients, accepted within these hours, are what is judged.
RECIPIENTS_MAX: Final = 10_000
WINDOW: Final = timedelta(hours=24)

UNKNOWN_PERCENT_MAX: Final = 10.0
UNKNOWN_PERCENT_WARN: Final = 5.0
COMPLAINTS_PERCENT_MAX: Final = 0.5
COMPLAINTS_PERCENT_WARN: Final = 0.1


# What the account itself is told.
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
    """Final results that a server had a say in; how many of them were unknown addresses, or complained about.

    An address that is unknown is one whose server said so at RCPT, or in a bounce that carried our token.
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
    if _reaches(unknown, finals, UNKNOWN_PERCENT_MAX) or _reaches(complaints, finals, COMPLAINTS_PERCENT_MAX):
        return ReputationVerdict.SUSPEND
    if _reaches(unknown, finals, UNKNOWN_PERCENT_WARN) or _reaches(complaints, finals, COMPLAINTS_PERCENT_WARN):
        return ReputationVerdict.WARN
    return ReputationVerdict.WELL


def can_be_bad(unknown_addresses: int, complaints: int) -> bool:
    """Whether so many addresses that were given up could be too many of the fewest results that are judged."""
    return complaints > 0 or _reaches(unknown_addresses, FINALS_MIN, UNKNOWN_PERCENT_WARN)


def counted_since(forgiven_at: datetime | None, now: datetime) -> datetime:
    """From when on mail counts: an operator who lets an account go on wipes the slate clean."""
    return now - WINDOW if forgiven_at is None else max(now - WINDOW, forgiven_at)


def is_warning(warned_at: datetime | None, forgiven_at: datetime | None, now: datetime) -> bool:
    """Whether what was warned about still counts."""
    return warned_at is not None and warned_at >= counted_since(forgiven_at, now)


def described(figures: ReputationFigures) -> str:
    """For the operator, and as the reason of a suspension."""
    return (
        f"of the latest {figures.finals} results {figures.unknown_percent:.1f} % were unknown addresses "
        f"({UNKNOWN_PERCENT_MAX:g} % suspend) and {figures.complaints_percent:.2f} % were complained about "
        f"({COMPLAINTS_PERCENT_MAX:g} % suspend)"
    )


def _reaches(part: int, whole: int, percent: float) -> bool:
    # In thousandths: the bounds are exact, and so is the comparison.
    return part * 100_000 >= whole * round(percent * 1_000)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
