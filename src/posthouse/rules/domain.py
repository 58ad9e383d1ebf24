"""A sender's domain: the DNS records that prove it, what was found of them, and what follows.

A domain is the account's when both records are there: the token shows that the owner of the domain
wants this account, the DKIM key lets receivers check what we sign. Other accounts' tokens may stand
beside ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.mail.dkim import record_text
from posthouse.rules.limits import DOMAIN_GRACE_SECONDS

OWNERSHIP_LABEL: Final = "_posthouse"
OWNERSHIP_TAG: Final = "posthouse-verification="
_DOMAIN_KEY_LABEL: Final = "_domainkey"
NAME_CHARACTERS_MAX: Final = 253


@dataclass(frozen=True, slots=True)
class Record:
    """A TXT record to publish."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Records:
    ownership: Record
    dkim: Record


@dataclass(frozen=True, slots=True)
class Texts:
    """The TXT records of a name, the strings of each already joined."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoTexts:
    """DNS says that the name does not exist, or has no TXT record."""


@dataclass(frozen=True, slots=True)
class UnknownTexts:
    """DNS gave no usable answer, which says nothing about the record."""

    reason: str


TextAnswer = Texts | NoTexts | UnknownTexts


class Result(StrEnum):
    FOUND = "found"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one record; `advice` says in plain words what to do, and is empty if all is well."""

    record: Record
    result: Result
    found: tuple[str, ...]
    advice: str


@dataclass(frozen=True, slots=True)
class Judgement:
    ownership: Finding
    dkim: Finding

    @property
    def findings(self) -> tuple[Finding, Finding]:
        return self.ownership, self.dkim

    @property
    def result(self) -> Result:
        """Missing as soon as one record surely is; unknown only when nothing is surely missing."""
        results = {finding.result for finding in self.findings}
        for result in (Result.MISSING, Result.UNKNOWN):
            if result in results:
                return result
        return Result.FOUND


def records(domain: str, token: str, selector: str, dkim_public: str) -> Records:
    return Records(
        ownership=Record(f"{OWNERSHIP_LABEL}.{domain}", OWNERSHIP_TAG + token),
        dkim=Record(f"{selector}.{_DOMAIN_KEY_LABEL}.{domain}", record_text(dkim_public)),
    )


def judge(wanted: Records, ownership: TextAnswer, dkim: TextAnswer) -> Judgement:
    return Judgement(
        ownership=_finding(wanted.ownership, ownership, _fault_of_token),
        dkim=_finding(wanted.dkim, dkim, _fault_of_key),
    )


def after_check(
    verified_at: datetime | None, missing_since: datetime | None, result: Result, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """When the domain counts as verified since, and since when its records are missing, after a check.

    A verified domain survives a week of missing records, since people break their DNS and mend it;
    an unusable answer changes nothing.
    """
    match result:
        case Result.FOUND:
            return verified_at or now, None
        case Result.UNKNOWN:
            return verified_at, missing_since
        case Result.MISSING:
            if verified_at is None:
                return None, None
            if missing_since is None:
                return verified_at, now
            if now - missing_since >= timedelta(seconds=DOMAIN_GRACE_SECONDS):
                return None, None
            return verified_at, missing_since


def _finding(record: Record, answer: TextAnswer, fault_of: Callable[[Record, tuple[str, ...]], str]) -> Finding:
    match answer:
        case Texts(values):
            fault = fault_of(record, values)
            return Finding(record, Result.MISSING if fault else Result.FOUND, values, fault)
        case NoTexts():
            return Finding(record, Result.MISSING, (), _publish(record))
        case UnknownTexts(reason):
            advice = f"DNS gave no usable answer for {record.name} ({reason}): try again in a few minutes."
            return Finding(record, Result.UNKNOWN, (), advice)


def _publish(record: Record) -> str:
    return (
        f"No TXT record was found at {record.name}: publish it with the value shown. Many DNS panels add the "
        "domain to the name by themselves; there, enter the name without it. A new record can take an hour "
        "to be seen."
    )


def _fault_of_token(record: Record, values: tuple[str, ...]) -> str:
    if any(value.strip() == record.value for value in values):
        return ""
    if any(value.strip().strip('"“”') == record.value for value in values):
        return f"The value at {record.name} has quotation marks in it: publish it without them."
    return (
        f"There is a TXT record at {record.name}, but with another value: add one with the value shown. "
        "Records for other accounts may stay beside it."
    )


def _fault_of_key(record: Record, values: tuple[str, ...]) -> str:
    wanted = _tags(record.value)["p"]
    keys = [tags for tags in map(_tags, values) if "p" in tags]
    matching = [tags for tags in keys if tags["p"].strip('"“”') == wanted]
    if not keys:
        return (
            f"There is a TXT record at {record.name}, but it is no DKIM key: "
            "replace it with the value shown, without quotation marks."
        )
    if not matching:
        if any(tags["p"] and wanted.startswith(tags["p"]) for tags in keys):
            return (
                f"The key at {record.name} is cut short: publish the whole value; if the DNS panel limits a "
                "string to 255 characters, split it into several strings of one record."
            )
        return f"There is a DKIM key at {record.name}, but not this one: replace it with the value shown."
    if len(keys) > 1:
        return f"There are several DKIM keys at {record.name}: remove all but the one with the value shown."
    if not _is_sound(matching[0], wanted):
        return (
            f"The key at {record.name} is right but what stands around it is not: "
            "publish the value exactly as shown, without backslashes or quotation marks."
        )
    return ""


def _is_sound(tags: Mapping[str, str], key: str) -> bool:
    """Whether a receiver would read the record as we mean it; stray characters make it void for them."""
    return (
        tags["p"] == key
        and tags.get("v", "DKIM1") == "DKIM1"
        and tags.get("k", "rsa") == "rsa"
        and all(name.isidentifier() for name in tags)
    )


def _tags(text: str) -> dict[str, str]:
    """The tags of a DKIM record; white space means nothing in them, and the first of a name counts."""
    tags: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, value = part.partition("=")
        if equals:
            tags.setdefault("".join(name.split()), "".join(value.split()))
    return tags
