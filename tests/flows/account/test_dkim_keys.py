"""DKIM keys: made one at a time, accounts in turn, a few ahead once there was a request."""

import asyncio
import threading
from uuid import UUID

import pytest

from posthouse.flows.account.domains import DkimKeys
from posthouse.mail import dkim
from posthouse.mail.dkim import KeyPair
from posthouse.rules.ids import AccountId
from tests.support.eventually import HANG_SECONDS

ACME, OTHER = AccountId(UUID(int=1)), AccountId(UUID(int=2))


class Maker:
    """Makes keys as slowly as the test wants."""

    def __init__(self) -> None:
        self.made = 0
        self.may_make = threading.Semaphore(0)
        self._pair = dkim.new_ed25519_key_pair()

    def make(self) -> KeyPair:
        assert self.may_make.acquire(timeout=10)
        self.made += 1
        return self._pair


@pytest.fixture
def maker() -> Maker:
    return Maker()


async def made(maker: Maker, count: int) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while maker.made < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the maker is in a thread


async def test_keys_are_made_ahead_only_after_the_first_request(maker: Maker) -> None:
    keys = DkimKeys(ahead=2, make=maker.make)
    await asyncio.sleep(0)
    assert maker.made == 0
    for _ in range(3):
        maker.may_make.release()
    await keys.new_pairs(ACME)
    await made(maker, 3)
    # Both come without a key being made.
    await asyncio.wait_for(keys.new_pairs(OTHER), HANG_SECONDS)
    await asyncio.wait_for(keys.new_pairs(OTHER), HANG_SECONDS)
    for _ in range(2):
        maker.may_make.release()
    await made(maker, 5)


async def test_another_accounts_key_is_made_after_one_of_many(maker: Maker) -> None:
    keys = DkimKeys(make=maker.make)
    order: list[AccountId] = []

    async def get(account_id: AccountId) -> None:
        await keys.new_pairs(account_id)
        order.append(account_id)

    tasks = [asyncio.create_task(get(account_id)) for account_id in [ACME] * 12 + [OTHER]]
    await asyncio.sleep(0)
    for _ in tasks:
        maker.may_make.release()
    await asyncio.gather(*tasks)
    assert order.index(OTHER) <= 2
    assert len(order) == 13
