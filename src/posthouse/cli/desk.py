"""How a command reaches the flows: settings read, the desk opened, a no printed as one clear line."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from posthouse.compose.processes import Desk
    from posthouse.config import Settings
    from posthouse.rules.ids import AccountId
    from posthouse.rules.refusal import Refusal

Answer = TypeVar("Answer")


def settings() -> "Settings":
    from posthouse.config import ConfigError, load

    try:
        return load()
    except ConfigError as error:
        fail(str(error))


def perform(act: "Callable[[Desk], Awaitable[Answer]]", *, for_check_up: bool = False) -> Answer:
    """Runs one act at the operator's desk; an expected no ends the command."""
    from posthouse.compose import processes
    from posthouse.rules.refusal import Refusal

    given = settings()

    async def at_the_desk() -> Answer:
        async with processes.operator(given, for_check_up=for_check_up) as desk:
            return await act(desk)

    try:
        return asyncio.run(at_the_desk())
    except Refusal as refusal:
        fail(told(refusal))
    except processes.UnsafeDatabase as error:
        fail(str(error))


def perform_for(account: str, act: "Callable[[Desk, AccountId], Awaitable[Answer]]") -> Answer:
    """The same, for the account that is meant by a name or an id."""

    async def for_account(desk: "Desk") -> Answer:
        return await act(desk, await desk.accounts.account_id(account))

    return perform(for_account)


def told(refusal: "Refusal") -> str:
    """A refusal in one line; an operator is also told why storage can't be reached."""
    cause = str(refusal.__cause__ or "").strip().splitlines()
    if refusal.code == "service_unavailable" and cause:
        return f"PostgreSQL can't be used ({cause[0]}): run `posthouse doctor` to see what is wrong."
    return refusal.text


def fail(text: str) -> NoReturn:
    sys.stderr.write(f"posthouse: {text}\n")
    raise typer.Exit(1)
