"""Passwords are checked a few at a time: a network that sends many leaves turns to another."""

import asyncio
import threading
from typing import Literal

import pytest
from argon2 import PasswordHasher

from posthouse.flows.account.passwords import CONCURRENT_CHECKS_MAX
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.postgres import Database
from tests.flows.account.test_sessions import AWAY, HOME, SessionFlow
from tests.support.eventually import HANG_SECONDS, eventually


class HeldHasher(PasswordHasher):
    """Each password waits to be let through."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=64, parallelism=1)
        self.let_through = threading.Semaphore(0)

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 (the library's name)
        assert self.let_through.acquire(timeout=HANG_SECONDS)
        return super().verify(hash, password)


@pytest.mark.rule("LOGIN-08")
async def test_one_network_can_not_take_all_places_for_passwords(database: Database) -> None:
    hasher = HeldHasher()
    flow = SessionFlow(database, hasher=hasher)
    await flow.furnish()
    guesses = [
        asyncio.create_task(flow.passwords.recognised(f"unknown-{number}@example.com", "a wrong password", HOME))
        for number in range(120)
    ]
    # Those for which there is no place are refused at once; the others wait.
    await eventually(lambda: sum(guess.done() for guess in guesses) > 0)
    waiting = [guess for guess in guesses if not guess.done()]
    login = asyncio.create_task(flow.login(peer=AWAY))
    # All but the two whose passwords are being checked wait for their turn.
    await eventually(lambda: flow.passwords._turns._waiting_count == len(waiting) + 1 - CONCURRENT_CHECKS_MAX)
    hasher.let_through.release(CONCURRENT_CHECKS_MAX + 2)
    assert (await login).token
    assert sum(not guess.done() for guess in waiting) >= len(waiting) - 3 > 10
    hasher.let_through.release(len(guesses))
    ends = await asyncio.gather(*guesses, return_exceptions=True)
    assert {end.code for end in ends if isinstance(end, Refusal)} == {Code.TEMPORARY_FAILURE}
    assert sum(end is None for end in ends) == len(waiting)
