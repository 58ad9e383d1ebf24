"""The simulator: simulated delivery results, without DNS and without a connection.

At the simulator's domain the local part selects the result; a `+tag` distinguishes test runs
(`bounced+42@simulator.invalid`). Any other address at that domain and, with a test key, at any domain is delivered;
the reply lists the addresses with other results, which helps to find typing errors.

Simulated results are judged, retried, billed and reported like real ones.
"""

from typing import Final

from posthouse.mail.reply import reply_of
from posthouse.rules.outcome import AttemptResult, GivenUp, Replied, Stage

_TAKEN: Final = b"2.0.0 The simulator took the message; nothing was sent"
_HINT: Final = b" (addresses with other ends: bounced@, failed@, deferred@)"
_DELIVERED: Final = Replied(Stage.DOT, reply_of(250, [_TAKEN]))
_UNKNOWN: Final = Replied(Stage.DOT, reply_of(250, [_TAKEN + _HINT]))
_NAMED: Final[dict[str, AttemptResult]] = {
    "delivered": _DELIVERED,
    # A disabled mailbox, not an unknown one: 5.1.1 would suppress the address and end the tests.
    "bounced": Replied(Stage.RCPT, reply_of(550, [b"5.2.1 The simulator refused the recipient, as it was asked to"])),
    # The same every time, until no retries are left.
    "deferred": Replied(Stage.RCPT, reply_of(451, [b"4.7.1 The simulator asks to try again later, every time"])),
    "failed": GivenUp("the simulator gave up, as it was asked to"),
}


def simulate(email: str, simulator_domain: str) -> AttemptResult:
    local, _, domain = email.rpartition("@")
    if domain.lower() != simulator_domain.lower():
        return _DELIVERED
    return _NAMED.get(local.partition("+")[0].lower(), _UNKNOWN)
