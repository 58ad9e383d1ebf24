"""What follows from a report that came back: which recipients it is about, and whether their addresses get more mail.

The token says which message it is, and mostly which recipient. Without a position the report has to name one of
the message's recipients: about anybody else it is written down and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from posthouse.mail.report import Bounce, Complaint, Failed
from posthouse.rules.outcome import SUPPRESSING

NOT_SPAM: Final = "not-spam"


@dataclass(frozen=True, slots=True)
class Note:
    """One line on a message's timeline; without a position it is about none of its recipients.

    `detail` is the address that a bounce names, or the kind of a complaint.
    """

    kind: Literal["bounce", "complaint"]
    position: int | None
    detail: str
    status: str | None = None
    code: int | None = None
    response: str = ""
    suppress: bool = False

    @property
    def likeness(self) -> tuple[object, ...]:
        """What makes two reports the same one."""
        # A bounce may name the address that a recipient's mail was forwarded to, this time or the next.
        is_told_by_position = self.kind == "bounce" and self.position is not None
        return self.kind, self.position, self.status, "" if is_told_by_position else self.detail


def notes(report: Bounce | Complaint, position: int | None, recipients: Mapping[int, str]) -> list[Note]:
    """What to write down about a message with these recipients, by their positions."""
    if position is not None and position not in recipients:
        return []
    match report:
        case Complaint():
            return [_complaint(report, position, recipients)]
        case Bounce(failures):
            if position is None:
                return [_failure(failed, _named(failed.recipient, recipients)) for failed in failures]
            return _failures_of(failures, position, recipients[position])
        case _:
            assert_never(report)


def _complaint(report: Complaint, position: int | None, recipients: Mapping[int, str]) -> Note:
    if position is None:
        position = _named(report.recipient, recipients)
    suppress = position is not None and report.kind != NOT_SPAM
    return Note("complaint", position, report.kind, response=report.text, suppress=suppress)


def _failures_of(failures: Sequence[Failed], position: int, email: str) -> list[Note]:
    """Of several, those that name the recipient; when none does, the address leads to others, and isn't unknown."""
    named = [failed for failed in failures if failed.recipient == email.lower()]
    chosen = named[:1] or failures[:1]
    is_certain = bool(named) or len(failures) == 1
    return [_failure(failed, position, is_certain) for failed in chosen]


def _failure(failed: Failed, position: int | None, is_certain: bool = True) -> Note:
    suppress = is_certain and position is not None and failed.is_permanent and failed.status in SUPPRESSING
    return Note("bounce", position, failed.recipient or "", failed.status, failed.code, failed.text, suppress)


def _named(recipient: str | None, recipients: Mapping[int, str]) -> int | None:
    """Whose report it is; one that names nobody is about the only recipient, if there is but one."""
    if recipient is None:
        return next(iter(recipients)) if len(recipients) == 1 else None
    return next((position for position, email in recipients.items() if email.lower() == recipient), None)
