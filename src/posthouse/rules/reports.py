"""What follows from a report that came back: which recipients it is about, and whether their addresses get more mail.

The token says which message it is, and mostly which recipient. Without a position the report has to name one of
the message's recipients: about anybody else it is written down and changes nothing.

A token that several recipients got doesn't say which of them speaks, and so each could speak for all the others. By
such a token only one of a message's recipients complains, and a bounce is about those whom one envelope could hold.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from posthouse.mail.report import Bounce, Complaint, FailedRecipient
from posthouse.rules.outcome import SUPPRESSING

NOT_SPAM: Final = "not-spam"


@dataclass(frozen=True, slots=True)
class ReportNote:
    """One line on a message's timeline; without a position it is about none of its recipients.

    `detail` is the address that a bounce names, or the kind of a complaint. It is shared when its token has no
    position and the message several recipients.
    """

    kind: Literal["bounce", "complaint"]
    position: int | None
    detail: str
    status: str | None = None
    code: int | None = None
    response: str = ""
    suppress: bool = False
    is_shared: bool = False

    @property
    def duplicate_key(self) -> tuple[object, ...]:
        """What makes two reports the same one."""
        if self.suppress:
            # Whatever else they say: a recipient has so few of these that there is always room for them.
            return self.kind, self.position, self.is_shared
        # A bounce may name the address that a recipient's mail was forwarded to, this time or the next.
        is_told_by_position = self.kind == "bounce" and self.position is not None
        return self.kind, self.position, self.is_shared, self.status, "" if is_told_by_position else self.detail


def report_notes(
    report: Bounce | Complaint, position: int | None, recipients: Mapping[int, str], complainer: int | None = None
) -> list[ReportNote]:
    """What to write down about a message with these recipients, by their positions.

    `complainer` is who complained about it before, by a token that others got as well.
    """
    if position is not None and position not in recipients:
        return []
    match report:
        case Complaint():
            return [_complaint(report, position, recipients, complainer)]
        case Bounce(failures):
            if position is None:
                return _failures_named(failures, recipients)
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
    return ReportNote("complaint", position, report.kind, response=report.text, suppress=suppress, is_shared=is_shared)


def _failures_named(failures: Sequence[FailedRecipient], recipients: Mapping[int, str]) -> list[ReportNote]:
    is_shared = len(recipients) > 1
    named = [_named(failed.recipient, recipients) for failed in failures]
    is_certain = not is_shared or _could_share({one for one in named if one is not None}, recipients)
    return [_failure(failed, position, is_certain, is_shared) for failed, position in zip(failures, named, strict=True)]


def _could_share(positions: Iterable[int], recipients: Mapping[int, str]) -> bool:
    """Whether one envelope could hold them: it goes to one domain, and a recipient alone has a position."""
    domains = {position: email.rpartition("@")[2].lower() for position, email in recipients.items()}
    named = {domains[position] for position in positions}
    return len(named) == 1 and Counter(domains.values())[named.pop()] > 1


def _failures_of(failures: Sequence[FailedRecipient], position: int, email: str) -> list[ReportNote]:
    """Of several, those that name the recipient; when none does, the address leads to others, and isn't unknown."""
    named = [failed for failed in failures if failed.recipient == email.lower()]
    chosen = named[:1] or failures[:1]
    is_certain = bool(named) or len(failures) == 1
    return [_failure(failed, position, is_certain) for failed in chosen]


def _failure(failed: FailedRecipient, position: int | None, is_certain: bool, is_shared: bool = False) -> ReportNote:
    suppress = is_certain and position is not None and failed.is_permanent and failed.status in SUPPRESSING
    return ReportNote(
        "bounce", position, failed.recipient or "", failed.status, failed.code, failed.text, suppress, is_shared
    )


def _named(recipient: str | None, recipients: Mapping[int, str]) -> int | None:
    """Whose report it is; one that names nobody is about the only recipient, if there is but one."""
    if recipient is None:
        return next(iter(recipients)) if len(recipients) == 1 else None
    return next((position for position, email in recipients.items() if email.lower() == recipient), None)
