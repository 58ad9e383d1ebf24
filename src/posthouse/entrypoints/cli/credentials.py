"""Commands about SMTP credentials, API keys and dashboard users."""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from posthouse.entrypoints.cli import show
from posthouse.entrypoints.cli.desk import fail, perform
from posthouse.entrypoints.cli.show import AccountGiven, AsJson
from posthouse.rules.credential import Mode, Role

credential = typer.Typer(no_args_is_help=True, help="SMTP credentials: a username and a password.")
key = typer.Typer(no_args_is_help=True, help="API keys; each belongs to an SMTP credential.")
user = typer.Typer(no_args_is_help=True, help="Users of the dashboard.")


@credential.command("create")
def create_credential(
    account: AccountGiven,
    name: Annotated[str, typer.Argument(help="What it is for.")],
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Usable only from here; may be repeated. Such as 192.0.2.0/24."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an SMTP credential."""
    made = perform(lambda desk: desk.administration.create_credential(account, name, allow or ()))
    if as_json:
        return show.write_json({**show.credential(made.credential), "password": made.password})
    row = made.credential
    show.write_values({"username": row.username, "password": made.password, "allowed_networks": row.allowed_networks})
    return show.write_line("\nThe password is shown this once: keep it now.")


@credential.command("revoke")
def revoke_credential(
    account: AccountGiven, credential: Annotated[str, typer.Argument(help="Its username or id (cr_…).")]
) -> None:
    """End a credential and the API keys that belong to it, within seconds."""
    row = perform(lambda desk: desk.administration.revoke_credential(account, credential))
    show.write_line(f"{row.username} ({row.name}) is revoked, and its API keys with it.")


@key.command("create")
def create_key(
    account: AccountGiven,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    test: Annotated[bool, typer.Option("--test", help="Rehearse: no mail leaves, no credit is used.")] = False,
    read: Annotated[bool, typer.Option("--read", help="May also read messages, not only send.")] = False,
    credential: Annotated[
        str | None,
        typer.Option(help="The credential it belongs to: username or id. Default: the default one."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="90d|2027-01-31", help="When it ends: in days, or a date (UTC).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key."""
    expires_at = _expiry(expires)
    made = perform(
        lambda desk: desk.administration.create_key(
            account,
            name=name,
            mode=Mode.TEST if test else Mode.LIVE,
            may_read=read,
            given_credential=credential,
            expires_at=expires_at,
        )
    )
    if as_json:
        return show.write_json({**show.key(made.key), "secret": made.secret})
    show.write_values(
        {
            "id": show.key(made.key)["id"],
            "key": made.secret,
            "may_read": made.key.may_read,
            "expires": made.key.expires_at,
        }
    )
    return show.write_line("\nThe key is shown this once: keep it now.")


@key.command("revoke")
def revoke_key(account: AccountGiven, key: Annotated[str, typer.Argument(help="Its id (ak_…).")]) -> None:
    """End an API key, within seconds."""
    row = perform(lambda desk: desk.administration.revoke_key(account, key))
    show.write_line(f"{row.hint} ({row.name}) is revoked.")


@user.command("create")
def create_user(
    account: AccountGiven,
    email: Annotated[str, typer.Argument(help="The address to log in with.")],
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.OWNER,
    password_stdin: Annotated[
        bool,
        typer.Option("--password-stdin", help="Read the password from standard input, not the keyboard."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a user who may log in to an account's dashboard."""
    if password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    row = perform(lambda desk: desk.administration.create_user(account, email, password, role))
    if as_json:
        return show.write_json(show.member(row))
    return show.write_line(f"{row.email} may log in as {row.role}.")


def _expiry(given: str | None) -> datetime | None:
    if given is None:
        return None
    days = re.fullmatch(r"([0-9]{1,5})d", given)
    if days:
        return datetime.now(UTC) + timedelta(days=int(days[1]))
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        fail(f"{given!r} is no time: write a number of days such as 90d, or a date such as 2027-01-31")
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
