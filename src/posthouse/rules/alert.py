"""Alerts: what a member can be mailed about, and when an alert is raised and cleared.

An alert belongs to a member of an account, with a threshold of their own. It is raised when its value reaches the
threshold, and cleared when the value is well away from it again, so that a value at the threshold makes no stream of
mail. Alerts about domains and keys are raised and cleared for each of them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from posthouse.rules.refusal import Refusal, invalid

# Fewer results make no share: two bounces among ten are no trouble.
RESULTS_MIN: Final = 100
COMPLAINTS_MIN: Final = 3
# Credits last as long as at the pace of so many days before today.
PACE_DAYS: Final = 7
# A value must be this part of the threshold away from it before the alert is cleared.
_MARGIN: Final = 0.2
# The subject of alerts about the account as a whole.
WHOLE_ACCOUNT: Final = ""
_DAY: Final = timedelta(days=1)


class AlertKind(StrEnum):
    BOUNCE_SHARE = "bounce_share"
    COMPLAINT_SHARE = "complaint_share"
    OLDEST_WAITING = "oldest_waiting"
    CREDITS_LEFT = "credits_left"
    DAYS_LEFT = "days_left"
    RECORDS_MISSING = "records_missing"
    WEBHOOK_FAILING = "webhook_failing"
    KEY_EXPIRING = "key_expiring"


@dataclass(frozen=True, slots=True)
class Scale:
    """What a kind measures, and which thresholds it takes."""

    unit: str
    default: float
    lowest: float
    highest: float
    # Whether small values are the trouble, such as few credits.
    is_low_trouble: bool = False


# Kinds without a scale are raised by a fact: their value is 1, and their threshold as well.
SCALES: Final[Mapping[AlertKind, Scale]] = MappingProxyType(
    {
        AlertKind.BOUNCE_SHARE: Scale("percent", 5, 0.1, 100),
        AlertKind.COMPLAINT_SHARE: Scale("percent", 0.1, 0.01, 100),
        AlertKind.OLDEST_WAITING: Scale("minutes", 240, 5, 4_320),
        AlertKind.CREDITS_LEFT: Scale("credits", 1_000, 1, 10**9, is_low_trouble=True),
        AlertKind.DAYS_LEFT: Scale("days", 7, 1, 365, is_low_trouble=True),
        AlertKind.KEY_EXPIRING: Scale("days", 14, 1, 90, is_low_trouble=True),
    }
)
_FACT: Final = 1.0
# Keys that end later than this are of no alert.
KEY_DAYS_READ: Final = SCALES[AlertKind.KEY_EXPIRING].highest * 2


class Reading(NamedTuple):
    """What was measured. Without a value it is unknown, and a raised alert stays so."""

    value: float | None
    subject: str = WHOLE_ACCOUNT
    # The subject for people.
    label: str = ""


class Change(NamedTuple):
    """An alert is raised, or cleared. What is gone has no value any more."""

    is_raised: bool
    subject: str
    label: str
    value: float | None


def threshold_of(kind: AlertKind, given: float | None) -> float:
    """The given threshold, or the default; refused where the kind doesn't take it."""
    scale = SCALES.get(kind)
    if scale is None:
        if given is not None:
            raise invalid(f"`threshold` of {kind} can't be chosen: leave it out.")
        return _FACT
    if given is None:
        return scale.default
    if not scale.lowest <= given <= scale.highest:
        raise _out_of_range(kind, scale)
    return given


def _out_of_range(kind: AlertKind, scale: Scale) -> Refusal:
    return invalid(f"`threshold` of {kind} is {scale.lowest:g} to {scale.highest:g} {scale.unit}.")


def parse_kind(given: str) -> AlertKind:
    if given not in list(AlertKind):
        raise invalid(f"`kind` is one of {', '.join(AlertKind)}.")
    return AlertKind(given)


def is_trouble(kind: AlertKind, threshold: float, value: float) -> bool:
    return value <= threshold if _is_low_trouble(kind) else value >= threshold


def changes(
    kind: AlertKind, threshold: float, raised: Mapping[str, str], readings: Sequence[Reading]
) -> Sequence[Change]:
    """What follows for an alert that is raised for these subjects, each with its label."""
    found = [change for reading in readings if (change := _change(kind, threshold, raised, reading)) is not None]
    seen = {reading.subject for reading in readings}
    return [*found, *(Change(False, subject, label, None) for subject, label in raised.items() if subject not in seen)]


def _change(kind: AlertKind, threshold: float, raised: Collection[str], reading: Reading) -> Change | None:
    value, subject, label = reading
    if value is None:
        return None
    if subject not in raised:
        return Change(True, subject, label, value) if is_trouble(kind, threshold, value) else None
    return Change(False, subject, label, value) if _is_well(kind, threshold, value) else None


def _is_well(kind: AlertKind, threshold: float, value: float) -> bool:
    return value > threshold * (1 + _MARGIN) if _is_low_trouble(kind) else value < threshold * (1 - _MARGIN)


def _is_low_trouble(kind: AlertKind) -> bool:
    scale = SCALES.get(kind)
    return scale is not None and scale.is_low_trouble


# What is measured. An account without a reading has nothing to be alerted about: what was raised is cleared.


def bounce_share(delivered: int, bounced: int, failed: int) -> Sequence[Reading]:
    results = delivered + bounced + failed
    return [Reading(100 * bounced / results)] if results >= RESULTS_MIN else []


def complaint_share(delivered: int, complaints: int) -> Sequence[Reading]:
    if delivered < RESULTS_MIN or complaints < COMPLAINTS_MIN:
        return []
    return [Reading(100 * complaints / delivered)]


def oldest_waiting(accepted_at: datetime, now: datetime) -> Sequence[Reading]:
    return [Reading(max(0.0, (now - accepted_at) / timedelta(minutes=1)))]


def days_left(available: int, spent: int) -> Sequence[Reading]:
    """`spent` in the last PACE_DAYS days; who spends nothing has credits for ever."""
    return [Reading(available * PACE_DAYS / spent)] if spent > 0 else []


def key_expiring(keys: Iterable[tuple[str, str, datetime]], now: datetime) -> Sequence[Reading]:
    """Of keys with their label and end."""
    return [Reading((ends_at - now) / _DAY, subject, label) for subject, label, ends_at in keys]


def records_missing(domains: Iterable[tuple[str, bool]]) -> Sequence[Reading]:
    """Of domains whose records are missing, or which are unverified by now: that is no recovery."""
    return [Reading(_FACT if is_missing else None, name, name) for name, is_missing in domains]


def webhook_failing() -> Sequence[Reading]:
    return [Reading(_FACT)]
