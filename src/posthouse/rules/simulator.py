"""The simulator: simulated delivery results, without DNS and without a connection.

At the simulator's domain the local part selects the result; a `+tag` distinguishes test runs
(`bounced+42@simulator.invalid`). Any other address at that domain and, with a test key, at any domain is delivered;
the reply lists the addresses with other results, which helps to find typing errors.

Simulated results are judged, retried, billed and reported like real ones. Some recipients do something after the
message was delivered: they complain, leave its list, or their server returns it.
"""

from typing import Final, NamedTuple

from posthouse.mail.reply import reply_of
from posthouse.rules.outcome import AttemptResult, GivenUp, Replied, Stage, Suppressed
from posthouse.rules.reports import ReportNote

_TAKEN: Final = b"2.0.0 The simulator took the message; nothing was sent"
_HINT: Final = b" (addresses with other results: bounced@, failed@, deferred@)"
_DELIVERED: Final = Replied(Stage.DOT, reply_of(250, [_TAKEN]))
_UNKNOWN: Final = Replied(Stage.DOT, reply_of(250, [_TAKEN + _HINT]))
_NAMED: Final[dict[str, AttemptResult]] = {
    "delivered": _DELIVERED,
    # A disabled mailbox, not an unknown one: 5.1.1 would suppress the address and end the tests.
    "bounced": Replied(Stage.RCPT, reply_of(550, [b"5.2.1 The simulator refused the recipient, as it was asked to"])),
    # The same every time, until no retries are left.
    "deferred": Replied(Stage.RCPT, reply_of(451, [b"4.7.1 The simulator asks to try again later, every time"])),
    "failed": GivenUp("the simulator gave up, as it was asked to"),
    # As if the account had suppressed the address before.
    "suppressed": Suppressed(),
    "complained": _DELIVERED,
    "returned": _DELIVERED,
    "unsubscribed": _DELIVERED,
}
_SLOW: Final = "slow"
_ONCE: Final = Replied(Stage.RCPT, reply_of(451, [b"4.7.1 The simulator asks to try again later, once"]))


class FollowUp(NamedTuple):
    """What happens after a simulated delivery: a report about the message, or the address leaves the list."""

    email: str
    report: ReportNote | None = None
    left_list: str | None = None


def simulate(email: str, simulator_domain: str, attempt_count: int = 1) -> AttemptResult:
    """The result of this attempt; the first is number 1."""
    name = _name(email, simulator_domain)
    if name is None:
        return _DELIVERED
    if name == _SLOW:
        return _ONCE if attempt_count <= 1 else _DELIVERED
    return _NAMED.get(name, _UNKNOWN)


def follow_up(email: str, position: int, mailing_list: str | None, simulator_domain: str) -> FollowUp | None:
    """What happens after the delivery to this recipient of a message."""
    match _name(email, simulator_domain):
        case "complained":
            text = "The simulator complained, as it was asked to"
            note = ReportNote("complaint", position, "abuse", response=text, suppress=True, is_believed=True)
            return FollowUp(email, note)
        case "returned":
            # Like `bounced`, it doesn't suppress the address.
            text = "5.2.1 The simulator returned the message, as it was asked to"
            note = ReportNote("bounce", position, email.lower(), "5.2.1", 550, text, is_believed=True)
            return FollowUp(email, note)
        case "unsubscribed" if mailing_list is not None:
            return FollowUp(email, left_list=mailing_list)
        case _:
            return None


def _name(email: str, simulator_domain: str) -> str | None:
    local, _, domain = email.rpartition("@")
    return local.partition("+")[0].lower() if domain.lower() == simulator_domain.lower() else None
