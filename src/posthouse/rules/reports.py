"""Effects of a bounce or complaint report: which recipients it concerns, and whether they are suppressed.

The token identifies the message, and mostly the recipient. Without a position the report must name a recipient of
the message; a report about any other address is recorded and changes nothing.

A token shared by several recipients does not show who sent the report, so each could report for the others. With
such a token only a single recipient of the message can complain, and a bounce counts only if it comes from the server
that took the message, and for recipients that could have shared an envelope.

Every recipient of a message has its token and can write a report. So a complaint counts only if it comes from a
feedback loop: a provider on the list signed it (DKIM) and is its author, or it comes from a network that the operator
trusts. Any other is only recorded.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

from posthouse.mail.report import Bounce, Complaint, FailedRecipient
from posthouse.rules.outcome import SUPPRESSING

NOT_SPAM: Final = "not-spam"


@dataclass(frozen=True, slots=True)
class ReportNote:
    """An entry in a message's timeline; without a position it is about none of its recipients.

    `detail` is the address that a bounce names, or the kind of a complaint and who sent it unverified. `is_shared`:
    the token has no position and the message has several recipients. `is_believed`: it is about the recipient at
    this position, and no one else can have made it up.
    """

    kind: Literal["bounce", "complaint"]
    position: int | None
    detail: str
    status: str | None = None
    code: int | None = None
    response: str = ""
    suppress: bool = False
    is_shared: bool = False
    is_believed: bool = False

    @property
    def duplicate_key(self) -> tuple[object, ...]:
        """Two reports with the same key are duplicates."""
        if self.suppress:
            # The other fields don't matter: so a recipient has few of these, and they always fit.
            return self.kind, self.position, self.is_shared
        # A bounce may name the address that the message was forwarded to, which may vary.
        is_known_by_position = self.kind == "bounce" and self.position is not None
        return self.kind, self.position, self.is_shared, self.status, "" if is_known_by_position else self.detail


def report_notes(
    report: Bounce | Complaint,
    position: int | None,
    recipients: Mapping[int, str],
    complainer: int | None = None,
    unverified_peer: str | None = None,
    taken_by_peer: Collection[int] = (),
) -> list[ReportNote]:
    """The timeline entries for a message with these recipients, by position.

    `complainer` is the recipient who complained before with a shared token; `unverified_peer` sent a complaint that
    comes from no feedback loop; `taken_by_peer` are the recipients whose message was taken by the server that sent
    the report.
    """
    if position is not None and position not in recipients:
        return []
    match report:
        case Complaint():
            note = _complaint(report, position, recipients, complainer)
            return [note if unverified_peer is None else _unverified(note, unverified_peer)]
        case Bounce(failures):
            if position is None:
                return _failures_named(failures, recipients, taken_by_peer)
            return _failures_of(failures, position, recipients[position])
        case _:
            assert_never(report)


def _complaint(
    report: Complaint, position: int | None, recipients: Mapping[int, str], complainer: int | None
) -> ReportNote:
    is_shared = position is None and len(recipients) > 1
    if position is None:
        position = _named(report.recipient, recipients)
    is_believed = not is_shared or complainer in (None, position)
    suppress = is_believed and position is not None and report.kind != NOT_SPAM
    return ReportNote(
        "complaint",
        position,
        report.kind,
        response=report.text,
        suppress=suppress,
        is_shared=is_shared,
        is_believed=suppress,
    )


def _unverified(note: ReportNote, peer: str) -> ReportNote:
    return replace(note, detail=f"{note.detail}, unverified, from {peer}", suppress=False, is_believed=False)


def _failures_named(
    failures: Sequence[FailedRecipient], recipients: Mapping[int, str], taken_by_peer: Collection[int]
) -> list[ReportNote]:
    is_shared = len(recipients) > 1
    named = [_named(failed.recipient, recipients) for failed in failures]
    is_certain = not is_shared or _could_share({position for position in named if position is not None}, recipients)
    return [
        _failure(failed, position, is_certain and (not is_shared or position in taken_by_peer), is_shared)
        for failed, position in zip(failures, named, strict=True)
    ]


def _could_share(positions: Iterable[int], recipients: Mapping[int, str]) -> bool:
    """Whether they could share an envelope: same domain, and not its only recipient, whose token has a position."""
    domains = {position: email.rpartition("@")[2].lower() for position, email in recipients.items()}
    named = {domains[position] for position in positions}
    return len(named) == 1 and Counter(domains.values())[named.pop()] > 1


def _failures_of(failures: Sequence[FailedRecipient], position: int, email: str) -> list[ReportNote]:
    """Of several failures, those that name the recipient; if none does, the address was forwarded and isn't unknown."""
    named = [failed for failed in failures if failed.recipient == email.lower()]
    chosen = named[:1] or failures[:1]
    is_certain = bool(named) or len(failures) == 1
    return [_failure(failed, position, is_certain) for failed in chosen]


def _failure(failed: FailedRecipient, position: int | None, is_certain: bool, is_shared: bool = False) -> ReportNote:
    suppress = is_certain and position is not None and failed.is_permanent and failed.status in SUPPRESSING
    is_believed = position is not None and (is_certain or not is_shared)
    return ReportNote(
        "bounce",
        position,
        failed.recipient or "",
        failed.status,
        failed.code,
        failed.text,
        suppress,
        is_shared,
        is_believed,
    )


def _named(recipient: str | None, recipients: Mapping[int, str]) -> int | None:
    """The recipient that the report names; without a name, the message's only recipient, if there is only one."""
    if recipient is None:
        return next(iter(recipients)) if len(recipients) == 1 else None
    return next((position for position, email in recipients.items() if email.lower() == recipient), None)
