"""How the recipients' results make the message's."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.message import BillingStatus, MessageStatus, RecipientStatus, Source, billing_of, message_state

OPEN = {RecipientStatus.QUEUED, RecipientStatus.DEFERRED}
# The credit of these is returned.
RETURNED = {RecipientStatus.BOUNCED, RecipientStatus.CANCELLED}


def folded(recipients: list[RecipientStatus]) -> tuple[MessageStatus, BillingStatus]:
    count = Counter(recipients)
    return message_state(
        open=sum(count[status] for status in OPEN),
        delivered=count[RecipientStatus.DELIVERED],
        released=sum(count[status] for status in RETURNED),
        total=len(recipients),
    )


@pytest.mark.parametrize(
    ("recipients", "status", "billing"),
    [
        ("queued", "queued", "reserved"),
        ("deferred", "queued", "reserved"),
        ("delivered", "delivered", "settled"),
        ("bounced", "failed", "released"),
        ("failed", "failed", "settled"),
        ("delivered delivered", "delivered", "settled"),
        ("bounced bounced", "failed", "released"),
        ("failed failed", "failed", "settled"),
        ("bounced failed", "failed", "settled"),
        ("delivered bounced", "partial", "settled"),
        ("delivered failed", "partial", "settled"),
        ("delivered bounced failed", "partial", "settled"),
        ("delivered bounced queued", "queued", "reserved"),
        ("delivered failed deferred", "queued", "reserved"),
        ("bounced queued", "queued", "reserved"),
        ("cancelled", "failed", "released"),
        ("cancelled bounced", "failed", "released"),
        ("delivered cancelled", "partial", "settled"),
    ],
)
def test_the_message_follows_its_recipients(recipients: str, status: str, billing: str) -> None:
    assert folded([RecipientStatus(word) for word in recipients.split()]) == (status, billing)


@given(some.lists(some.sampled_from(RecipientStatus), min_size=1, max_size=50))
def test_the_message_state_is_the_contracts(recipients: list[RecipientStatus]) -> None:
    status, billing = folded(recipients)
    present = set(recipients)
    still_open = bool(present & OPEN)
    assert (status is MessageStatus.QUEUED) == still_open
    assert (billing is BillingStatus.RESERVED) == still_open
    assert (status is MessageStatus.DELIVERED) == (present == {RecipientStatus.DELIVERED})
    assert (status is MessageStatus.FAILED) == (present <= RETURNED | {RecipientStatus.FAILED})
    assert (billing is BillingStatus.RELEASED) == (present <= RETURNED)


@pytest.mark.parametrize(
    ("open_count", "delivered", "released", "total"),
    [(0, 0, 0, 0), (-1, 1, 1, 1), (0, -1, 0, 1), (0, 0, -1, 1), (1, 1, 0, 1), (0, 2, 1, 2)],
)
def test_impossible_counts_raise(open_count: int, delivered: int, released: int, total: int) -> None:
    with pytest.raises(ValueError, match="impossible counts"):
        message_state(open_count, delivered, released, total)


@pytest.mark.parametrize(
    ("status", "billing"),
    [
        (RecipientStatus.QUEUED, BillingStatus.RESERVED),
        (RecipientStatus.DEFERRED, BillingStatus.RESERVED),
        (RecipientStatus.DELIVERED, BillingStatus.SETTLED),
        (RecipientStatus.FAILED, BillingStatus.SETTLED),
        (RecipientStatus.BOUNCED, BillingStatus.RELEASED),
    ],
)
def test_only_a_bounce_returns_the_credit(status: RecipientStatus, billing: BillingStatus) -> None:
    assert billing_of(status) is billing
    # Only what failed can be released without having bounced.
    may_be_released = BillingStatus.RELEASED if status is RecipientStatus.FAILED else billing
    assert billing_of(status, is_released=True) is may_be_released


def test_the_status_values_are_the_contracts() -> None:
    assert list(MessageStatus) == ["queued", "delivered", "partial", "failed"]
    assert list(BillingStatus) == ["reserved", "settled", "released"]
    assert list(Source) == ["smtp", "api", "test"]
