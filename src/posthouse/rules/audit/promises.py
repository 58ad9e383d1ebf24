"""The promises that an audit checks, and its findings about each."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

FINDINGS_SHOWN_MAX: Final = 20


class Promise(IntEnum):
    """The promises by their numbers in the list of promises."""

    DURABLE = 1
    IDEMPOTENT = 2
    TRUE = 3
    ONCE = 4
    LEDGER = 5
    EVENTS = 6
    WEBHOOKS = 7
    BLIND_COPIES = 8
    BYTES = 9
    TENANCY = 10
    REGISTERED = 11
    SUPPRESSED = 12


TITLES: Final = {
    Promise.DURABLE: "every accepted recipient gets one final result",
    Promise.IDEMPOTENT: "one key, one message",
    Promise.TRUE: "delivered and bounced are true",
    Promise.ONCE: "sent once, except where a crash left it open",
    Promise.LEDGER: "every credit is accounted for",
    Promise.EVENTS: "one event for each final result",
    Promise.WEBHOOKS: "webhooks are sent as scheduled",
    Promise.BLIND_COPIES: "blind copies stay blind",
    Promise.BYTES: "what was stored is what was sent",
    Promise.TENANCY: "nothing belongs to two accounts",
    Promise.REGISTERED: "senders are the account's own",
    Promise.SUPPRESSED: "suppressed addresses get nothing",
}


class FaultKind(StrEnum):
    """`UNKNOWN` is not a breach: the evidence is no longer stored, or was not given."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """`where` is an id, `what` a sentence."""

    promise: Promise
    fault: FaultKind
    where: str
    what: str


@dataclass(slots=True)
class PromiseCount:
    """How often a promise was checked, and its faults. A deviation with a recorded cause is ok, and counted as
    explained."""

    checked: int = 0
    explained: int = 0
    faults: dict[FaultKind, int] = field(default_factory=lambda: dict.fromkeys(FaultKind, 0))

    @property
    def ok(self) -> int:
        return self.checked - sum(self.faults.values())

    @property
    def is_broken(self) -> bool:
        return any(count for fault, count in self.faults.items() if fault is not FaultKind.UNKNOWN)


class AuditTally:
    """The findings so far; only the first findings of each promise are listed, but all are counted."""

    def __init__(self) -> None:
        self.counts: dict[Promise, PromiseCount] = {promise: PromiseCount() for promise in Promise}
        self.findings: list[AuditFinding] = []

    @property
    def is_broken(self) -> bool:
        return any(count.is_broken for count in self.counts.values())

    def check(self, promise: Promise, checked: int, findings: Iterable[AuditFinding] = (), explained: int = 0) -> None:
        count = self.counts[promise]
        count.checked += checked
        count.explained += explained
        for finding in findings:
            self.find(finding)

    def find(self, finding: AuditFinding) -> None:
        count = self.counts[finding.promise]
        count.faults[finding.fault] += 1
        if count.faults[finding.fault] <= FINDINGS_SHOWN_MAX:
            self.findings.append(finding)
