"""Commands about external relays: mail services of others that take mail where none of our addresses may send it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform
from posthouse.cli.output import AsJson, Plain

if TYPE_CHECKING:
    from posthouse.flows.operate.relays import RelayRow

relay = typer.Typer(no_args_is_help=True)

_COLUMNS: Final = ("name", "host", "port", "username", "per_second", "per_day", "pools")

NameGiven = Annotated[str, typer.Argument(help="Such as `ses`.")]


@relay.command("add")
def add(
    name: NameGiven,
    host: Annotated[str, typer.Argument(help="The name of its server, which its certificate must be valid for.")],
    username: Annotated[str, typer.Option(help="Our login there.")],
    port: Annotated[int, typer.Option(help="465: TLS from the first byte; any other: STARTTLS.")] = 587,
    per_second: Annotated[float, typer.Option(help="How many mails it takes per second, at most.")] = 10.0,
    per_day: Annotated[int | None, typer.Option(help="How many it takes per UTC day; the rest waits.")] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(help="Read the password from this file; without it, from standard input or the keyboard."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an external relay known; or change it. Its password is stored sealed."""
    password = _password(password_file)
    row = perform(
        lambda services: services.relays.add(
            name, host, port=port, username=username, password=password, per_second=per_second, per_day=per_day
        )
    )
    done = f"The relay {name} is {host}:{port}. Next: `posthouse pool relay POOL {name}` lets a pool use it."
    output.write_done(done, _plain(row), as_json=as_json)


@relay.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show all relays, and the pools that use them."""
    rows = [_plain(row) for row in perform(lambda services: services.relays.list_relays())]
    output.write_page(rows, _COLUMNS, as_json=as_json, empty="There are none: all mail leaves from here.")


@relay.command("remove")
def remove(name: NameGiven, as_json: AsJson = False) -> None:
    """Forget a relay that no pool uses, and its password."""
    perform(lambda services: services.relays.remove(name))
    output.write_done(f"The relay {name} is removed.", {"name": name}, as_json=as_json)


def _password(file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"the password can't be read from {file}: {error}")
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return typed


def _plain(row: "RelayRow") -> Plain:
    return {
        "name": row.name,
        "host": row.host,
        "port": row.port,
        "username": row.username,
        "per_second": row.per_second,
        "per_day": row.per_day,
        "pools": list(row.pools),
        "created_at": row.created_at,
    }
