"""How a command reaches the flows: read the settings, open the operator's flows, print a refusal as one line."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TypeVar

import typer

from posthouse.cli import output
from posthouse.cli.output import Plain

if TYPE_CHECKING:
    from posthouse.compose.flows import Flows
    from posthouse.config import Settings
    from posthouse.rules.ids import AccountId
    from posthouse.rules.refusal import Refusal


Answer = TypeVar("Answer")

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_length: Final = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII).fullmatch

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be changed, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask: for programs.")]


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


def perform(act: "Callable[[Flows], Awaitable[Answer]]", *, even_if_unusable: bool = False) -> Answer:
    """Run `act` with the flows; a refusal ends the command."""
    from posthouse.compose.database import UnsafeDatabase
    from posthouse.compose.flows import open_flows
    from posthouse.rules.refusal import Refusal

    given = settings()

    async def with_flows() -> Answer:
        async with open_flows(given, even_if_unusable=even_if_unusable) as flows:
            return await act(flows)

    try:
        return asyncio.run(with_flows())
    except Refusal as refusal:
        fail(text_of(refusal))
    except UnsafeDatabase as error:
        fail(str(error))


def perform_for(account: str, act: "Callable[[Flows, AccountId], Awaitable[Answer]]") -> Answer:
    """The same, for the account with this name or id."""

    async def for_account(flows: "Flows") -> Answer:
        return await act(flows, await flows.accounts.account_id(account))

    return perform(for_account)


def text_of(refusal: "Refusal") -> str:
    """A refusal in one line; an operator also reads why PostgreSQL can't be used."""
    from posthouse.compose.database import why_unavailable

    return why_unavailable(refusal) or refusal.text


def fail(text: str) -> NoReturn:
    sys.stderr.write(f"posthouse: {text}\n")
    raise typer.Exit(1)


def length(option: str, given: str) -> timedelta:
    """A length of time such as 90s, 30m, 2h or 7d. Ends the command if it is none."""
    found = _length(given)
    if found is None:
        fail(f"{option} {given!r} is no length of time: write such as 90s, 30m, 2h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def is_length(given: str) -> bool:
    return _length(given) is not None


def moment(given: str, forms: str) -> datetime:
    """A date or a time, in UTC unless it says otherwise. Ends the command if it is none, and names the `forms`."""
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        fail(f"{given!r} is no time: write {forms}")
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def prompted_password() -> str:
    """A new password, typed twice."""
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


def confirm(text: str, count: int, values: Plain, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Whether the change is to be made. `text` says what it reaches; without --yes, a person types the count."""
    if dry_run or not count:
        output.write_done(text, values, as_json=as_json)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        fail(f"{text} Nothing was changed: confirm it with --yes.")
    sys.stderr.write(f"{text}\n")
    if typer.prompt("Type the count to continue", err=True, default="", show_default=False).strip() != str(count):
        fail("that is not the count: nothing was changed")
    return True
