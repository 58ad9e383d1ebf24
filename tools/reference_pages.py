"""Pages of the documentation site that are made from the rules: limits, and what each reason means."""

from collections.abc import Mapping
from typing import Final

from posthouse.rules import limits as numbers
from posthouse.rules.delivery_reason import DeliveryReason
from posthouse.rules.explanation import Cause, explain_reason

# Constants of rules/limits.py that a customer can meet, with their unit.
LIMITS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "A message": {
        "RECIPIENTS_MAX": ("Unique recipients over `to`, `cc` and `bcc`", ""),
        "RECIPIENTS_GIVEN_MAX": ("Addresses in a single field, duplicates included", ""),
        "SUBJECT_CHARACTERS_MAX": ("Subject", "characters"),
        "MIME_BYTES_MAX": ("Assembled message, attachments encoded", "bytes"),
        "HTTP_BODY_BYTES_MAX": ("Body of an HTTP request", "bytes"),
        "ATTACHMENTS_MAX": ("Attachments", ""),
        "FILENAME_CHARACTERS_MAX": ("File name of an attachment", "characters"),
        "CONTENT_TYPE_CHARACTERS_MAX": ("Content type of an attachment", "characters"),
        "CONTENT_ID_CHARACTERS_MAX": ("Content id of an inline image", "characters"),
        "TAGS_MAX": ("Tags", ""),
        "TAG_CHARACTERS_MAX": ("A tag", "characters"),
        "VARIABLES_MAX": ("Template variables", ""),
        "HEADERS_MAX": ("Custom headers", ""),
        "HEADER_NAME_CHARACTERS_MAX": ("Name of a custom header", "characters"),
        "HEADER_VALUE_BYTES_MAX": ("Value of a custom header", "bytes"),
        "HEADERS_BYTES_MAX": ("All custom headers", "bytes"),
        "ADDRESS_CHARACTERS_MAX": ("An address", "characters"),
        "IDEMPOTENCY_KEY_CHARACTERS_MAX": ("Idempotency-Key", "characters"),
        "IDEMPOTENCY_LIFETIME_SECONDS": ("Time that a key is remembered", "seconds"),
    },
    "Rates": {
        "RATE_PER_SECOND": ("Messages of an account in a second, by default", ""),
        "RATE_BURST": ("Messages of an account at once, by default", ""),
        "WRITES_PER_SECOND": ("Changes of an account under `/v1` in a second", ""),
        "WRITES_BURST": ("Changes of an account under `/v1` at once", ""),
        "WARMUP_RECIPIENTS_BY_DAY": ("Recipients on each day of a new account's warm-up", ""),
        "DOMAIN_KEYS_PER_MINUTE": ("Domains added and keys rotated in a minute", ""),
        "DOMAIN_ASKED_SECONDS": ("Time between two checks of a domain", "seconds"),
        "LOGIN_FAILURES_FREE": ("Failed logins in a row before there is a wait", ""),
        "LOGIN_WAIT_SECONDS_MAX": ("Longest wait after failed logins", "seconds"),
    },
    "An account": {
        "TEMPLATES_MAX": ("Templates", ""),
        "TEMPLATE_VERSIONS_MAX": ("Stored versions of a template", ""),
        "TEMPLATE_PART_CHARACTERS_MAX": ("Subject, text or HTML of a template", "characters"),
        "TEMPLATE_PLACEHOLDERS_MAX": ("Placeholders in a part of a template", ""),
        "TEMPLATES_BYTES_MAX": ("All templates", "bytes"),
        "DOMAINS_MAX": ("Domains", ""),
        "CREDENTIALS_MAX": ("SMTP credentials", ""),
        "KEYS_MAX": ("API keys", ""),
        "KEY_DAYS_MAX": ("Lifetime of an API key that expires", "days"),
        "KEYS_ENDED_DAYS": ("Time that ended keys stay in the list", "days"),
        "OVERLAP_SECONDS": ("Time that a rotated secret still works, by default", "seconds"),
        "OVERLAP_SECONDS_MAX": ("Time that a rotated secret still works, at most", "seconds"),
        "MEMBERS_MAX": ("Members", ""),
        "INVITATIONS_MAX": ("Open invitations", ""),
        "INVITATION_LIFETIME_SECONDS": ("Lifetime of an invitation", "seconds"),
        "PASSWORD_RESET_SECONDS": ("Lifetime of a password reset", "seconds"),
        "PASSWORD_CHARACTERS_MIN": ("Shortest password", "characters"),
        "PASSWORD_CHARACTERS_MAX": ("Longest password", "characters"),
        "JWT_LIFETIME_SECONDS": ("Lifetime of a login's token", "seconds"),
        "SESSIONS_PER_USER_MAX": ("Sessions of a user", ""),
        "AUDIT_LOG_DAYS": ("Time that the audit log is kept", "days"),
    },
}


def limits() -> str:
    lines = [
        "# Limits",
        "",
        "Every limit that a customer can meet, from `src/posthouse/rules/limits.py`. What exceeds a limit is",
        "refused with an error that names it. Limits of an SMTP session are in the [rules of mail over",
        "SMTP](submission.md#bounds), those of webhooks in [their rules](webhooks.md).",
    ]
    for title, rows in LIMITS.items():
        lines += ["", f"## {title}", "", "| What | At most |", "|---|---|"]
        lines += [f"| {text} | {_amount(getattr(numbers, name), unit)} |" for name, (text, unit) in rows.items()]
    return "\n".join([*lines, ""])


_CAUSES: Final[Mapping[Cause | None, str]] = {
    Cause.RECIPIENT: "The recipient",
    Cause.SENDER: "The sender",
    Cause.CONTENT: "The content",
    Cause.PROVIDER: "The recipient's mailbox provider",
    Cause.SERVICE: "This service",
    None: "Nothing is wrong",
}


def reasons() -> str:
    lines = [
        "# Why mail waits, bounces or fails",
        "",
        "A message's timeline names the `reason` of each result, with this explanation; so do events for",
        "[endpoints](../howto/receive-webhooks.md#endpoints), and the counts of `GET /v1/reasons`. They are grouped by",
        "who causes them.",
    ]
    explained = [explain_reason(reason) for reason in DeliveryReason]
    for cause, title in _CAUSES.items():
        lines += ["", f"## {title}"]
        for each in (found for found in explained if found.cause is cause):
            heading = each.reason.replace("_", " ").capitalize()
            lines += ["", f"### {heading}", "", f"`{each.reason}`: {each.headline} *What to do:* {each.what_to_do}"]
    return "\n".join([*lines, ""])


def _amount(value: float | tuple[int, ...], unit: str) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{day:,}" for day in value)
    sizes = {
        "bytes": ((numbers.MIB, "MiB"), (1024, "KiB")),
        "seconds": ((86_400, "days"), (3600, "hours"), (60, "minutes")),
    }
    for size, name in sizes.get(unit, ()):
        if value >= size and value % size == 0:
            count = int(value // size)
            return f"{count:,} {name.removesuffix('s') if count == 1 else name}"
    return f"{value:,} {unit}".strip()
