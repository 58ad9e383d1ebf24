"""Evidence: what a lane learns from one refusal, and from several."""

from typing import Final
from uuid import UUID

import pytest

from posthouse.rules.evidence import SENDS_SECONDS, TOGETHER_SECONDS, Evidence, Extent
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import DeliveryFeedback
from posthouse.rules.learned_limits import Branch

ALICE, BOB, CAROL = (AccountId(UUID(int=number)) for number in (1, 2, 3))
HOSTED: Final = ("one.example.net", "two.example.org", "three.example.com")

# Which account's which message to which domain was refused.
Refusal = tuple[AccountId, int, str]


def last_extent(lane: str, *refusals: Refusal, senders: tuple[AccountId, ...] = (), seconds: float = 1.0) -> Extent:
    """What the last of the refusals is about."""
    evidence = Evidence(lane)
    for sender in senders:
        evidence.sent(sender, 0.0)
    extents = []
    for number, (account_id, message, destination) in enumerate(refusals):
        branch, message_id = Branch(account_id, destination), MessageId(UUID(int=message))
        extents.append(evidence.refused(branch, message_id, DeliveryFeedback.SLOW, number * seconds))
    assert set(extents[:-1]) <= {Extent.BRANCH}
    return extents[-1]


SMALL, OWN = "shop.example", "gmail.com"


@pytest.mark.parametrize(
    ("lane", "refusals", "senders", "extent"),
    [
        # One message, however often.
        (SMALL, [(ALICE, 1, SMALL)], (), Extent.BRANCH),
        (SMALL, [(ALICE, 1, SMALL)] * 5, (), Extent.BRANCH),
        ("google", [(ALICE, 1, OWN)] * 5, (), Extent.BRANCH),
        # A single account still learns, for all of the lane.
        (SMALL, [(ALICE, 1, SMALL), (ALICE, 2, SMALL)], (ALICE,), Extent.LANE_OF_BRANCH),
        ("google", [(ALICE, 1, OWN), (ALICE, 2, OWN)], (ALICE,), Extent.LANE_OF_BRANCH),
        # If several send, several must have been refused.
        (SMALL, [(ALICE, 1, SMALL), (ALICE, 2, SMALL), (ALICE, 3, SMALL)], (BOB,), Extent.BRANCH),
        (SMALL, [(ALICE, 1, SMALL), (BOB, 2, SMALL)], (ALICE, BOB), Extent.LANE),
        ("google", [(ALICE, 1, OWN), (BOB, 2, OWN)], (CAROL,), Extent.LANE),
        # One hosted domain never speaks for its provider, nor do several names of one owner.
        ("google", [(ALICE, 1, HOSTED[0]), (BOB, 2, HOSTED[0]), (CAROL, 3, HOSTED[0])], (), Extent.BRANCH),
        ("google", [(ALICE, n, f"d{n}.example.net") for n in range(9)], (), Extent.BRANCH),
        ("google", [(ALICE, n, f"d{n}.example.co.uk") for n in range(9)], (), Extent.BRANCH),
        ("google", [(ALICE, 1, HOSTED[0]), (BOB, 2, HOSTED[1])], (), Extent.BRANCH),
        ("google", [(ALICE, 1, HOSTED[0]), (ALICE, 2, OWN)], (), Extent.BRANCH),
        # Unrelated ones do.
        ("google", [(ALICE, n, name) for n, name in enumerate(HOSTED)], (ALICE,), Extent.LANE),
        ("google", [(ALICE, n, name) for n, name in enumerate(HOSTED)], (BOB,), Extent.BRANCH),
        ("google", [(ALICE, 1, HOSTED[0]), (BOB, 2, HOSTED[1]), (ALICE, 3, HOSTED[2])], (CAROL,), Extent.LANE),
        ("google", [(ALICE, n, name) for n, name in enumerate(("a.co.uk", "b.co.uk", "c.co.uk"))], (), Extent.LANE),
    ],
)
def test_a_lane_believes_several_messages_accounts_and_domains(
    lane: str, refusals: list[Refusal], senders: tuple[AccountId, ...], extent: Extent
) -> None:
    assert last_extent(lane, *refusals, senders=senders) is extent


def test_refusals_far_apart_say_nothing_together() -> None:
    refusals = [(ALICE, 1, SMALL), (BOB, 2, SMALL)]
    assert last_extent(SMALL, *refusals, seconds=TOGETHER_SECONDS) is Extent.BRANCH
    assert last_extent(SMALL, *refusals, seconds=TOGETHER_SECONDS - 1) is Extent.LANE


def test_a_message_that_has_convinced_says_no_more() -> None:
    evidence, branch = Evidence(SMALL), Branch(ALICE, SMALL)
    first, second, third, fourth = (MessageId(UUID(int=number)) for number in range(4))
    assert evidence.refused(branch, first, DeliveryFeedback.SLOW, 0.0) is Extent.BRANCH
    assert evidence.refused(branch, second, DeliveryFeedback.SLOW, 1.0) is Extent.LANE_OF_BRANCH
    for again in (first, second, first, third):
        assert evidence.refused(branch, again, DeliveryFeedback.SLOW, 2.0) is Extent.BRANCH
    assert evidence.refused(branch, fourth, DeliveryFeedback.SLOW, 3.0) is Extent.LANE_OF_BRANCH


def test_refusals_of_different_kinds_are_no_evidence_of_each_other() -> None:
    evidence, branch = Evidence(SMALL), Branch(ALICE, SMALL)
    assert evidence.refused(branch, MessageId(UUID(int=1)), DeliveryFeedback.PUSHED_BACK, 0.0) is Extent.BRANCH
    assert evidence.refused(branch, MessageId(UUID(int=2)), DeliveryFeedback.BLOCKED, 1.0) is Extent.BRANCH


def test_an_account_that_has_not_sent_for_a_day_is_not_waited_for() -> None:
    evidence, branch = Evidence(SMALL), Branch(ALICE, SMALL)
    evidence.sent(BOB, 0.0)
    extents = [
        evidence.refused(branch, MessageId(UUID(int=number)), DeliveryFeedback.SLOW, SENDS_SECONDS) for number in (1, 2)
    ]
    assert extents == [Extent.BRANCH, Extent.LANE_OF_BRANCH]


def test_what_it_remembers_is_bounded() -> None:
    evidence = Evidence("google")
    for number in range(5_000):
        branch = Branch(ALICE, f"d{number}.example.net")
        assert evidence.refused(branch, MessageId(UUID(int=number)), DeliveryFeedback.SLOW, 0.0) is Extent.BRANCH
        evidence.sent(AccountId(UUID(int=number)), 0.0)
    assert sum(map(len, evidence._refusals.values())) <= 100
    assert len(evidence._senders) <= 2
