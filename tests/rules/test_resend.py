"""Which recipients of old mail get it again."""

import pytest

from posthouse.rules.resend import Fate, fate


@pytest.mark.parametrize(
    ("status", "code", "response", "expected"),
    [
        # What failed is sent again.
        ("failed", 451, "4.3.0 Try again later", Fate.RESENT),
        ("failed", None, "no connection: connection refused", Fate.RESENT),
        ("failed", None, "it could not be delivered in the time that a message may take", Fate.RESENT),
        ("failed", None, "it was held for 7 days because the account was suspended", Fate.RESENT),
        # What bounced because of a policy, too.
        ("bounced", 550, "5.7.26 This mail is unauthenticated: SPF and DKIM did not pass", Fate.RESENT),
        ("bounced", 554, "5.7.1 Your IP is listed by a block list", Fate.RESENT),
        ("bounced", 550, "5.7.25 The sending address has no PTR record", Fate.RESENT),
        ("bounced", 550, "5.7.0 Local policy", Fate.RESENT),
        # Unknown addresses and those that want none get nothing, however it ended.
        ("bounced", 550, "5.1.1 User unknown", Fate.NEVER),
        ("failed", 450, "4.1.1 User unknown", Fate.NEVER),
        ("bounced", None, "the domain does not exist", Fate.NEVER),
        ("bounced", None, "the domain does not accept mail", Fate.NEVER),
        ("bounced", 550, "5.2.1 Mailbox disabled", Fate.NEVER),
        ("bounced", 550, "refused by recipient", Fate.NEVER),
        ("bounced", None, "the address is suppressed: earlier mail to it bounced", Fate.NEVER),
        ("bounced", None, "the address is unsubscribed from the list 'news'", Fate.NEVER),
        ("failed", None, "it was cancelled by an operator", Fate.NEVER),
        # The same message would be refused again, or there is no known reason.
        ("bounced", 554, "5.7.1 Message contains spam", Fate.NEVER),
        ("bounced", 552, "5.3.4 Message too large", Fate.NEVER),
        ("bounced", 550, "No", Fate.NEVER),
        ("bounced", 550, "5.2.1 The simulator refused the recipient, as it was asked to", Fate.NEVER),
        # The others have the mail, or will, or were cancelled.
        ("delivered", 250, "ok", Fate.LEFT),
        ("cancelled", None, None, Fate.LEFT),
        ("queued", None, None, Fate.LEFT),
        ("deferred", 451, "4.3.0 Try again later", Fate.LEFT),
    ],
)
def test_the_result_says_who_gets_it_again(status: str, code: int | None, response: str | None, expected: Fate) -> None:
    assert fate(status, code, response, is_suppressed=False) is expected


def test_an_address_that_is_suppressed_by_now_gets_nothing() -> None:
    assert fate("failed", 451, "4.3.0 Try again later", is_suppressed=True) is Fate.NEVER
    assert fate("delivered", 250, "ok", is_suppressed=True) is Fate.LEFT
