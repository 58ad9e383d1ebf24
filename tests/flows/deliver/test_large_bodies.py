"""Memory for large bodies: shared by accounts, and postponed mail in a queue instead of all at once."""

from itertools import pairwise
from uuid import UUID

from posthouse.flows.deliver.sending import WAIT_SECONDS_MAX, WAIT_SECONDS_MIN, LargeBodies
from posthouse.rules.ids import AccountId, MessageId

FIRST, SECOND = (AccountId(UUID(int=number)) for number in (1, 2))


def message(number: int) -> MessageId:
    return MessageId(UUID(int=number))


def test_an_account_leaves_memory_for_another() -> None:
    bodies = LargeBodies(100)
    taken = sum(bodies.reserve_body(FIRST, message(number), 10) for number in range(20))
    assert taken == 8
    assert bodies.reserve_body(SECOND, message(20), 10)


def test_free_memory_is_checked_before_the_claim_once_the_size_is_known() -> None:
    bodies = LargeBodies(100)
    assert not bodies.lacks_capacity(FIRST, message(1))
    assert bodies.reserve_body(SECOND, message(2), 95)
    assert not bodies.reserve_body(FIRST, message(1), 10)
    assert bodies.lacks_capacity(FIRST, message(1))
    bodies.release_body(SECOND, 95, seconds=1.0)
    assert not bodies.lacks_capacity(FIRST, message(1))


def test_postponed_mail_queues_at_the_recent_pace() -> None:
    bodies = LargeBodies(100)
    for number in range(50):
        bodies.reserve_body(FIRST, message(number), 10)
    waits = [bodies.wait_seconds(message(number), now=0.0) for number in range(50)]
    assert waits[0] == WAIT_SECONDS_MIN
    # A body is held for a second, and ten fit at a time.
    assert all(abs(later - wait - 0.1) < 1e-9 for wait, later in pairwise(waits))


def test_no_mail_is_postponed_for_longer_than_ten_minutes() -> None:
    bodies = LargeBodies(100)
    bodies.reserve_body(FIRST, message(1), 100)
    assert max(bodies.wait_seconds(message(1), now=0.0) for _ in range(2_000)) <= WAIT_SECONDS_MAX
