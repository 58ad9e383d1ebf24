"""A sender's domain: the DNS records that verify it, the check of those records, and its result.

A domain is verified when two records exist: the ownership token shows that the domain's owner allows this account,
and the DKIM key lets receivers check our signatures. Tokens of other accounts may exist next to ours. A third
record, an Ed25519 key, is recommended: it proves nothing more, but mail is then signed twice, for receivers that
support the newer algorithm. The return path and DMARC are advice only.

Keys rotate without a gap: new keys wait until the record of the new RSA key is found and sign from then on; the
records of the old keys stay as long as mail may carry their signatures.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.mail.dkim import KeyType, record_text
from posthouse.rules.limits import DOMAIN_GRACE_SECONDS, DOMAIN_KEYS_RETIRED_SECONDS

OWNERSHIP_LABEL: Final = "_posthouse"
OWNERSHIP_TAG: Final = "posthouse-verification="
_DOMAIN_KEY_LABEL: Final = "_domainkey"
SELECTOR_PREFIX: Final = "ph"
_ED25519_SELECTOR_PREFIX: Final = "pe"
NAME_CHARACTERS_MAX: Final = 253
_DMARC_LABEL: Final = "_dmarc"
_DMARC_TAG: Final = "v=DMARC1"
_SPF_TAG: Final = "v=spf1"

# A name server's last labels, and the name that its customers know.
_DNS_HOSTS: Final = {
    "akam.net": "Akamai",
    "alidns.com": "Alibaba Cloud DNS",
    "anycast.me": "OVHcloud",
    "bluehost.com": "Bluehost",
    "bunny.net": "bunny.net",
    "cloudflare.com": "Cloudflare",
    "desec.io": "deSEC",
    "desec.org": "deSEC",
    "digitalocean.com": "DigitalOcean",
    "dns-parking.com": "Hostinger",
    "dnsimple.com": "DNSimple",
    "dnspod.net": "DNSPod",
    "domaincontrol.com": "GoDaddy",
    "dreamhost.com": "DreamHost",
    "dynect.net": "Oracle Dyn",
    "gandi.net": "Gandi",
    "googledomains.com": "Google Cloud DNS",
    "he.net": "Hurricane Electric",
    "hetzner.com": "Hetzner",
    "hetzner.de": "Hetzner",
    "hover.com": "Hover",
    "infomaniak.ch": "Infomaniak",
    "inwx.de": "INWX",
    "inwx.eu": "INWX",
    "linode.com": "Akamai (Linode)",
    "loopia.se": "Loopia",
    "name.com": "Name.com",
    "netcup.net": "netcup",
    "nsone.net": "NS1",
    "one.com": "one.com",
    "ovh.net": "OVHcloud",
    "porkbun.com": "Porkbun",
    "registrar-servers.com": "Namecheap",
    "rzone.de": "Strato",
    "scw.cloud": "Scaleway",
    "squarespacedns.com": "Squarespace",
    "transip.net": "TransIP",
    "transip.nl": "TransIP",
    "ui-dns.com": "IONOS",
    "vercel-dns.com": "Vercel",
    "vultr.com": "Vultr",
    "wixdns.net": "Wix",
}
# Hosts whose name servers are under many domains: the beginning of a label.
_DNS_HOST_LABELS: Final = {
    "awsdns-": "Amazon Route 53",
    "azure-dns": "Azure DNS",
    "ui-dns": "IONOS",
    "ultradns": "UltraDNS",
}
_SERVER_NAME: Final = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){1,9}")
# Parents of a domain that are asked for name servers: a subdomain seldom has its own.
ZONES_MAX: Final = 4


class RecordPurpose(StrEnum):
    OWNERSHIP = "ownership"
    DKIM_RSA = "dkim_rsa"
    DKIM_ED25519 = "dkim_ed25519"
    RETURN_PATH = "return_path"
    DMARC = "dmarc"


# Records that prove nothing.
ADVISED: Final = frozenset({RecordPurpose.RETURN_PATH, RecordPurpose.DMARC})


@dataclass(frozen=True, slots=True)
class TxtRecord:
    """A TXT record; an empty value means that the service publishes it, not the domain's owner."""

    purpose: RecordPurpose
    name: str
    value: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class DomainRecords:
    """`ed25519` is None if the domain has no such key yet."""

    ownership: TxtRecord
    dkim: TxtRecord
    ed25519: TxtRecord | None = None

    @property
    def all(self) -> tuple[TxtRecord, ...]:
        return (self.ownership, self.dkim) if self.ed25519 is None else (self.ownership, self.dkim, self.ed25519)


@dataclass(frozen=True, slots=True)
class TxtValues:
    """The TXT records of a name, the strings of each already joined."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoTxtRecord:
    """DNS says that the name does not exist, or has no TXT record."""


@dataclass(frozen=True, slots=True)
class TxtUnknown:
    """DNS gave no usable answer: the record may or may not exist."""

    reason: str


TxtAnswer = TxtValues | NoTxtRecord | TxtUnknown


class RecordResult(StrEnum):
    FOUND = "found"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """The check of a record; `advice` says what to do, and is empty if nothing is wrong."""

    record: TxtRecord
    result: RecordResult
    found: tuple[str, ...]
    advice: str


@dataclass(frozen=True, slots=True)
class RecordChecks:
    ownership: RecordCheck
    dkim: RecordCheck
    ed25519: RecordCheck | None = None

    @property
    def checks(self) -> tuple[RecordCheck, ...]:
        return (self.ownership, self.dkim) if self.ed25519 is None else (self.ownership, self.dkim, self.ed25519)

    @property
    def result(self) -> RecordResult:
        """Missing if a required record is certainly missing; unknown only if none is certainly missing."""
        results = {check.result for check in self.checks if check.record.is_required}
        for result in (RecordResult.MISSING, RecordResult.UNKNOWN):
            if result in results:
                return result
        return RecordResult.FOUND

    def is_ed25519_published(self, was_published: bool) -> bool:
        """An unusable answer changes nothing."""
        if self.ed25519 is None or self.ed25519.result is RecordResult.UNKNOWN:
            return was_published
        return self.ed25519.result is RecordResult.FOUND


def ed25519_selector(selector: str) -> str:
    """The Ed25519 key's selector, derived from the RSA key's and no longer."""
    return _ED25519_SELECTOR_PREFIX + selector.removeprefix(SELECTOR_PREFIX)


def records(
    domain: str,
    token: str,
    selector: str,
    dkim_public: str,
    ed25519_selector: str | None = None,
    ed25519_public: str | None = None,
) -> DomainRecords:
    ed25519 = None
    if ed25519_selector is not None and ed25519_public is not None:
        text = record_text(ed25519_public, KeyType.ED25519)
        name = f"{ed25519_selector}.{_DOMAIN_KEY_LABEL}.{domain}"
        ed25519 = TxtRecord(RecordPurpose.DKIM_ED25519, name, text, is_required=False)
    return DomainRecords(
        ownership=TxtRecord(RecordPurpose.OWNERSHIP, f"{OWNERSHIP_LABEL}.{domain}", OWNERSHIP_TAG + token),
        dkim=TxtRecord(RecordPurpose.DKIM_RSA, f"{selector}.{_DOMAIN_KEY_LABEL}.{domain}", record_text(dkim_public)),
        ed25519=ed25519,
    )


def advised_records(domain: str, return_path: str) -> tuple[TxtRecord, TxtRecord]:
    """Records that prove nothing but help: the return path's SPF, and DMARC."""
    return (
        TxtRecord(RecordPurpose.RETURN_PATH, return_path, "", is_required=False),
        TxtRecord(RecordPurpose.DMARC, f"{_DMARC_LABEL}.{domain}", f"{_DMARC_TAG}; p=none", is_required=False),
    )


def check_advised_records(
    records: tuple[TxtRecord, TxtRecord], return_path: TxtAnswer, dmarc: TxtAnswer
) -> tuple[RecordCheck, RecordCheck]:
    """The checks of the advised records."""
    return _check_return_path(records[0], return_path), _check_dmarc(records[1], dmarc)


def advice_before_check(record: TxtRecord) -> str:
    """The advice for a record before its first check."""
    match record.purpose:
        case RecordPurpose.OWNERSHIP:
            return "Publish it: it says that the owner of the domain wants this account to send from it."
        case RecordPurpose.DKIM_RSA:
            return "Publish it: receivers check the signatures of the domain's mail with it."
        case RecordPurpose.DKIM_ED25519:
            return "Recommended, not required: mail is signed with this key, too, once its record is found."
        case RecordPurpose.RETURN_PATH:
            return _bounces_go_to(record)
        case RecordPurpose.DMARC:
            return (
                "Recommended, not required: mailbox providers ask it of large senders. A policy that the domain "
                "or its parent has already may stay as it is."
            )


def records_kept_until(retired_at: datetime) -> datetime:
    """How long the records of keys that signed until then stay in DNS: delivery takes up to three days, and some
    receivers check signatures later."""
    return retired_at + timedelta(seconds=DOMAIN_KEYS_RETIRED_SECONDS)


def check_records(
    wanted: DomainRecords, ownership: TxtAnswer, dkim: TxtAnswer, ed25519: TxtAnswer | None = None
) -> RecordChecks:
    """The checks of the wanted records."""
    second = None
    if wanted.ed25519 is not None and ed25519 is not None:
        second = _check(wanted.ed25519, ed25519, _key_fault)
    return RecordChecks(
        ownership=_check(wanted.ownership, ownership, _token_fault),
        dkim=_check(wanted.dkim, dkim, _key_fault),
        ed25519=second,
    )


def after_check(
    verified_at: datetime | None, missing_since: datetime | None, result: RecordResult, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Verified since, and missing since, after a check.

    A verified domain survives a week of missing records, since DNS mistakes get repaired; an unusable answer changes
    nothing.
    """
    match result:
        case RecordResult.FOUND:
            return verified_at or now, None
        case RecordResult.UNKNOWN:
            return verified_at, missing_since
        case RecordResult.MISSING:
            if verified_at is None:
                return None, None
            if missing_since is None:
                return verified_at, now
            if now - missing_since >= timedelta(seconds=DOMAIN_GRACE_SECONDS):
                return None, None
            return verified_at, missing_since


def zones(domain: str) -> Iterator[str]:
    """The names at which the domain's zone may begin, the longest first."""
    labels = domain.split(".")
    for start in range(min(ZONES_MAX, len(labels) - 1)):
        yield ".".join(labels[start:])


def dns_host(name_servers: Sequence[str]) -> str | None:
    """Who hosts a domain's DNS: where its owner has to publish records. Of an unknown host, its servers' domain.

    The names are the domain owner's: they are shown, and nothing is done with them.
    """
    names = [name for name in (given.lower().rstrip(".") for given in name_servers) if _SERVER_NAME.fullmatch(name)]
    for name in names:
        labels = name.split(".")
        for start in range(len(labels)):
            if known := _DNS_HOSTS.get(".".join(labels[start:])):
                return known
        for beginning, known in _DNS_HOST_LABELS.items():
            if any(label.startswith(beginning) for label in labels):
                return known
    return names[0].partition(".")[2] if names else None


def _check(record: TxtRecord, answer: TxtAnswer, fault_of: Callable[[TxtRecord, tuple[str, ...]], str]) -> RecordCheck:
    match answer:
        case TxtValues(values):
            fault = fault_of(record, values)
            return RecordCheck(
                record, RecordResult.MISSING if fault else RecordResult.FOUND, values, _advice(record, fault)
            )
        case NoTxtRecord():
            return RecordCheck(record, RecordResult.MISSING, (), _advice(record, _publish(record)))
        case TxtUnknown(reason):
            advice = f"DNS gave no usable answer for {record.name} ({reason}): try again in a few minutes."
            return RecordCheck(record, RecordResult.UNKNOWN, (), _advice(record, advice))


def _check_return_path(record: TxtRecord, answer: TxtAnswer) -> RecordCheck:
    match answer:
        case TxtValues(values):
            policies = tuple([value for value in values if value.lower().startswith(_SPF_TAG)])
        case NoTxtRecord():
            policies = ()
        case TxtUnknown(reason):
            advice = f"DNS gave no usable answer for {record.name} ({reason}). {_bounces_go_to(record)}"
            return RecordCheck(record, RecordResult.UNKNOWN, (), advice)
    if len(policies) == 1:
        return RecordCheck(record, RecordResult.FOUND, policies, _bounces_go_to(record))
    state = "has several SPF records, which voids them" if policies else "has no SPF record"
    advice = f"{record.name} {state}: ask the operator of this service to fix it. {_bounces_go_to(record)}"
    return RecordCheck(record, RecordResult.MISSING, policies, advice)


def _bounces_go_to(record: TxtRecord) -> str:
    return (
        f"Nothing to publish: bounces go to {record.name}, whose SPF record this service maintains. The domain's "
        "own SPF record needs no change; DMARC is satisfied by the DKIM signatures."
    )


def _check_dmarc(record: TxtRecord, answer: TxtAnswer) -> RecordCheck:
    match answer:
        case TxtValues(values):
            policies = tuple([value for value in values if "".join(value.split()).startswith(_DMARC_TAG)])
        case NoTxtRecord():
            policies = ()
        case TxtUnknown(reason):
            return RecordCheck(
                record, RecordResult.UNKNOWN, (), f"DNS gave no usable answer for {record.name} ({reason})."
            )
    if len(policies) > 1:
        advice = f"There are several DMARC records at {record.name}, and receivers then ignore all of them: keep one."
        return RecordCheck(record, RecordResult.MISSING, policies, advice)
    if not policies:
        advice = (
            f"No DMARC record was found at {record.name}: one of a parent domain counts as well. "
            f"{advice_before_check(record)}"
        )
        return RecordCheck(record, RecordResult.MISSING, (), advice)
    return RecordCheck(record, RecordResult.FOUND, policies, "")


def _advice(record: TxtRecord, text: str) -> str:
    if not text or record.is_required:
        return text
    return f"{text} This record is recommended, not required: mail is signed with its key, too, once it is found."


def _publish(record: TxtRecord) -> str:
    return (
        f"No TXT record was found at {record.name}: publish it with the value shown. Many DNS panels add the "
        "domain to the name automatically; there, enter the name without it. A new record can take an hour "
        "to be seen."
    )


def _token_fault(record: TxtRecord, values: tuple[str, ...]) -> str:
    if any(value.strip() == record.value for value in values):
        return ""
    if any(value.strip().strip('"“”') == record.value for value in values):
        return f"The value at {record.name} has quotation marks in it: publish it without them."
    return (
        f"There is a TXT record at {record.name}, but with another value: add one with the value shown. "
        "Records for other accounts may stay next to it."
    )


def _key_fault(record: TxtRecord, values: tuple[str, ...]) -> str:
    expected = _tags(record.value)
    wanted = expected["p"]
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
    if not _is_sound(matching[0], expected):
        return (
            f"The key at {record.name} is right but the text around it is not: "
            "publish the value exactly as shown, without backslashes or quotation marks."
        )
    return ""


def _is_sound(tags: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    """Whether receivers can use the record; stray characters make it void."""
    return (
        tags["p"] == expected["p"]
        and tags.get("v", "DKIM1") == "DKIM1"
        and tags.get("k", KeyType.RSA) == expected["k"]
        and all(name.isidentifier() for name in tags)
    )


def _tags(text: str) -> dict[str, str]:
    """The tags of a DKIM record, without white space; the first tag of a name counts."""
    tags: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, value = part.partition("=")
        if equals:
            tags.setdefault("".join(name.split()), "".join(value.split()))
    return tags
