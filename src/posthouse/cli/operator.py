"""How a command reaches the flows: read the settings, open the operator's services, print a refusal as one line."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from posthouse.compose.operator import OperatorServices
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


def service_url() -> str:
    """Where the service is reached: its public URL, or else where it listens."""
    http = settings().http
    return http.public_url or f"http://{http.host if ':' not in http.host else f'[{http.host}]'}:{http.port}"


def perform(act: "Callable[[OperatorServices], Awaitable[Answer]]", *, even_if_unusable: bool = False) -> Answer:
    """Run `act` with the operator's services; a refusal ends the command."""
    from posthouse.compose.errors import UnsafeDatabase
    from posthouse.compose.operator import operator_services
    from posthouse.rules.refusal import Refusal

    given = settings()

    async def with_services() -> Answer:
        async with operator_services(given, even_if_unusable=even_if_unusable) as services:
            return await act(services)

    try:
        return asyncio.run(with_services())
    except Refusal as refusal:
        fail(text_of(refusal))
    except UnsafeDatabase as error:
        fail(str(error))


def perform_for(account: str, act: "Callable[[OperatorServices, AccountId], Awaitable[Answer]]") -> Answer:
    """The same, for the account with this name or id."""

    async def for_account(services: "OperatorServices") -> Answer:
        return await act(services, await services.accounts.account_id(account))

    return perform(for_account)


def text_of(refusal: "Refusal") -> str:
    """A refusal in one line; an operator also reads why PostgreSQL can't be used."""
    from posthouse.compose.errors import why_unavailable

    return why_unavailable(refusal) or refusal.text


def fail(text: str) -> NoReturn:
    sys.stderr.write(f"posthouse: {text}\n")
    raise typer.Exit(1)
