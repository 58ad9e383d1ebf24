"""Alerts: what a member can be mailed about, and when an alert is raised and cleared.

An alert belongs to a member of an account, who sets its threshold. It is raised when its value reaches the
threshold, and cleared when the value is well away from it again, so that a value at the threshold doesn't cause a
stream of mail. Alerts about domains and keys are raised and cleared for each of them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, assert_never

from posthouse.rules import limits
from posthouse.rules.refusal import Refusal, invalid
from posthouse.rules.service_text import ServiceText

# Fewer results give no meaningful share: two bounces among ten are no problem.
RESULTS_MIN: Final = 100
COMPLAINTS_MIN: Final = 3
# How long credits last is estimated from the spending of this many days before today.
PACE_DAYS: Final = 7
# A value must be this part of the threshold away from it before the alert is cleared.
_MARGIN: Final = 0.2
# The subject of alerts about the account as a whole.
WHOLE_ACCOUNT: Final = ""
_DAY: Final = timedelta(days=1)
_FACT: Final = 1.0


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
    # Whether small values are the problem, such as few credits.
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
# Keys that end later than this raise no alert.
KEY_DAYS_READ: Final = SCALES[AlertKind.KEY_EXPIRING].highest * 2


class Reading(NamedTuple):
    """What was measured. Without a value it is unknown, and a raised alert stays so.

    An account without a reading has nothing to be alerted about: what was raised is cleared.
    """

    value: float | None
    subject: str = WHOLE_ACCOUNT
    # The subject as people read it.
    label: str = ""


class Change(NamedTuple):
    """An alert is raised, or cleared. A subject that no longer exists has no value."""

    is_raised: bool
    subject: str
    label: str
    value: float | None


class AlertNotice(NamedTuple):
    """The email about an alert that is raised or cleared."""

    kind: AlertKind
    is_raised: bool
    account: str
    label: str
    value: float | None
    threshold: float


class _Words(NamedTuple):
    raised: str
    cleared: str
    what_to_do: str


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
    """`spent` in the last PACE_DAYS days; an account that spends nothing never runs out of credits."""
    return [Reading(available * PACE_DAYS / spent)] if spent > 0 else []


def key_expiring(keys: Iterable[tuple[str, str, datetime]], now: datetime) -> Sequence[Reading]:
    """Of keys with their label and end."""
    return [Reading((ends_at - now) / _DAY, subject, label) for subject, label, ends_at in keys]


def records_missing(domains: Iterable[tuple[str, bool]]) -> Sequence[Reading]:
    """Of domains whose records are missing, or which are no longer verified: that is no recovery."""
    return [Reading(_FACT if is_missing else None, name, name) for name, is_missing in domains]


def webhook_failing() -> Sequence[Reading]:
    return [Reading(_FACT)]


def alert_text(notice: AlertNotice) -> ServiceText:
    words = _words(notice)
    what = words.raised if notice.is_raised else words.cleared
    state = "Alert" if notice.is_raised else "Cleared"
    advice = f"What to do: {words.what_to_do}\n\n" if notice.is_raised else ""
    next_mail = "when this is over" if notice.is_raised else "if it happens again"
    return ServiceText(
        f"{state}: {notice.account}: {what}"[: limits.SUBJECT_CHARACTERS_MAX],
        f"The account {notice.account}: {what}.\n\n{advice}"
        f"Another email follows {next_mail}. You chose this alert: PUT /v1/account/alerts changes that.\n",
    )


def _out_of_range(kind: AlertKind, scale: Scale) -> Refusal:
    return invalid(f"`threshold` of {kind} is {scale.lowest:g} to {scale.highest:g} {scale.unit}.")


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


def _words(notice: AlertNotice) -> _Words:
    value, threshold = _number(notice.value), _number(notice.threshold)
    match notice.kind:
        case AlertKind.BOUNCE_SHARE:
            return _Words(
                f"{value} % of the mail since yesterday bounced",
                _back(f"bounces are at {value} %", notice.value, f"fewer than {RESULTS_MIN} results since yesterday"),
                "GET /v1/reasons shows why. Send only to addresses whose owners asked for it, and take out those "
                "that bounced.",
            )
        case AlertKind.COMPLAINT_SHARE:
            return _Words(
                f"{value} % of the mail delivered since yesterday was complained about",
                _back(f"complaints are at {value} %", notice.value, "hardly any complaints since yesterday"),
                "look at what you sent, and to whom: people who complain did not expect it.",
            )
        case AlertKind.OLDEST_WAITING:
            return _Words(
                f"a message has waited for {value} minutes",
                _back(f"the oldest message has waited for {value} minutes", notice.value, "no mail is waiting"),
                "GET /v1/messages?status=queued lists the waiting messages, and each of them says why it waits.",
            )
        case AlertKind.CREDITS_LEFT:
            return _Words(
                f"{value} credits are left",
                f"{value} credits are available again",
                "ask the operator of the service for more: without credits, requests are refused.",
            )
        case AlertKind.DAYS_LEFT:
            return _Words(
                f"the credits last for {value} days",
                _back(f"the credits last for {value} days", notice.value, "no credits are being spent"),
                f"ask the operator of the service for more. The alert is set to {threshold} days.",
            )
        case AlertKind.RECORDS_MISSING:
            return _Words(
                f"DNS records of {notice.label} are missing",
                f"no DNS records of {notice.label} are missing any more",
                f"GET /v1/domains/{notice.label} lists the records. After {limits.DOMAIN_GRACE_SECONDS // 86_400} days "
                "without them, mail from the domain is refused.",
            )
        case AlertKind.WEBHOOK_FAILING:
            return _Words(
                "the webhook fails",
                "the webhook answers again",
                "GET /v1/webhook/deliveries shows the answers. Fix the endpoint, or save another URL with PUT "
                "/v1/webhook; after the first 2xx, all waiting events are sent.",
            )
        case AlertKind.KEY_EXPIRING:
            return _Words(
                f"the API key {notice.label} ends in {value} days",
                f"the API key {notice.label} is not about to end any more: it was replaced or revoked, or has ended",
                "replace it with POST /v1/keys/{id}/rotate, and use the new one before it ends.",
            )
        case _:
            assert_never(notice.kind)


def _back(measured: str, value: float | None, gone: str) -> str:
    return gone if value is None else measured


def _number(value: float | None) -> str:
    if value is None:
        return "no"
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:.0f}"
