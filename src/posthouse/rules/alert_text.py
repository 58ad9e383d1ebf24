"""The mail about an alert that is raised or cleared."""

from typing import NamedTuple, assert_never

from posthouse.rules import limits
from posthouse.rules.alert import RESULTS_MIN, AlertKind
from posthouse.rules.service_text import ServiceText


class AlertNotice(NamedTuple):
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


def text_of(notice: AlertNotice) -> ServiceText:
    words = _words(notice)
    what = words.raised if notice.is_raised else words.cleared
    state = "Alert" if notice.is_raised else "Cleared"
    advice = f"What to do: {words.what_to_do}\n\n" if notice.is_raised else ""
    next_mail = "when this is over" if notice.is_raised else "if it happens again"
    return ServiceText(
        f"{state}: {notice.account}: {what}"[: limits.SUBJECT_CHARACTERS_MAX],
        f"The account {notice.account}: {what}.\n\n{advice}"
        f"Another mail follows {next_mail}. You chose this alert: PUT /v1/account/alerts changes that.\n",
    )


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
                f"a mail has waited for {value} minutes",
                _back(f"the oldest mail has waited for {value} minutes", notice.value, "no mail waits"),
                "GET /v1/messages?status=queued lists what waits, and each message says why.",
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
                "GET /v1/webhook/deliveries shows the answers. Mend the endpoint, or save another URL with PUT "
                "/v1/webhook; the first 2xx brings everything that waits.",
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
