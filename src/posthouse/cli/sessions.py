"""Commands about logins to the dashboard."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson, Plain
from posthouse.mail.reply import printable
from posthouse.rules import ids

if TYPE_CHECKING:
    from posthouse.flows.account.sessions import SessionRow

session = typer.Typer(no_args_is_help=True)

_COLUMNS: Final = ("id", "created_at", "expires_at", "from", "program")

UserGiven = Annotated[str, typer.Argument(metavar="ADDRESS", help="The address that they log in with.")]


@session.command("list")
def list_(email: UserGiven, as_json: AsJson = False) -> None:
    """Show where a user is logged in, newest first."""
    rows = [_plain(row) for row in perform(lambda services: services.sessions.live_of(email))]
    output.write_page(rows, _COLUMNS, as_json=as_json, empty=f"{email} is logged in nowhere.")


@session.command("end")
def end(
    email: UserGiven,
    session_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Its id, as `session list` shows it.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="End all sessions of the user.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a session of a user, and every token of it; in force everywhere within seconds."""
    if (session_id is None) is not every:
        raise typer.BadParameter("give a session's id or --all, one of them.")
    count = perform(lambda services: services.sessions.end_of(email, session_id))
    done = f"{count} session{' is' if count == 1 else 's are'} ended; no token of theirs is taken any more."
    output.write_done(done, {"ended": count}, as_json=as_json)


def _plain(row: "SessionRow") -> Plain:
    return {
        "id": ids.text(ids.SESSION, row.id),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "from": row.peer,
        "program": printable(row.user_agent.encode("utf-8", "replace"))[:80],
    }
