"""Which lanes are tried when a session ends: however many wait, only those that it helps."""

from uuid import UUID

from posthouse.flows.deliver.lane_queue import LaneKey
from posthouse.flows.deliver.session_shares import SessionShares
from posthouse.rules.ids import AccountId


def lane(number: int) -> LaneKey:
    return f"customer{number}.example", 0, "", None


def account(number: int) -> AccountId:
    return AccountId(UUID(int=number))


class Waiting:
    """Lanes that haven't answered, each with mail of one account, and the sessions that they began."""

    def __init__(self, sessions_max: int, owners: dict[LaneKey, AccountId]) -> None:
        self.sessions = SessionShares(sessions_max)
        self.owners = owners
        self.begun = [lane for lane in owners if self.begins(lane)]

    def begins(self, lane: LaneKey) -> bool:
        if not self.sessions.is_free(lane, is_unproven=True):
            return False
        found = self.sessions.next_account(lane, [self.owners[lane]], is_unproven=True)
        if found is None:
            return False
        self.sessions.begin(found, is_unproven=True)
        return True

    def tried_after(self, ended: LaneKey) -> dict[LaneKey, bool]:
        """The lanes that are tried once this one's session ended, and whether they began one."""
        self.sessions.end(self.owners[ended], is_unproven=True)
        tried = {lane: self.begins(lane) for lane in self.sessions.starved()}
        return tried | {lane: self.begins(lane) for lane in self.sessions.over_share()}


def test_the_end_of_a_session_tries_one_of_a_thousand_accounts_that_wait() -> None:
    waiting = Waiting(20, {lane(number): account(number) for number in range(1_000)})
    assert waiting.begun == [lane(number) for number in range(10)]
    for number in range(10):
        assert waiting.tried_after(lane(number)) == {lane(10 + number): True}


def test_an_account_that_uses_its_share_is_not_tried_when_anothers_session_ends() -> None:
    waiting = Waiting(20, {lane(number): account(number % 2) for number in range(1_000)})
    assert waiting.begun == [lane(number) for number in range(8)]
    assert waiting.tried_after(lane(2)) == {lane(8): True}
    assert waiting.tried_after(lane(3)) == {lane(9): True}
    assert waiting.tried_after(lane(4)) == {lane(10): True}
