"""Commands about users of the dashboard, an account's members, and their logins."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform, perform_for, prompted_password, service_url
from posthouse.cli.output import AccountGiven, AsJson, LimitGiven, Plain
from posthouse.mail.reply import printable
from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR, Role

if TYPE_CHECKING:
    from posthouse.compose.flows import Flows
    from posthouse.flows.account.sessions import SessionRow
    from posthouse.flows.account.team import MemberRow
    from posthouse.rules.ids import AccountId

user = typer.Typer(no_args_is_help=True)
session = typer.Typer(no_args_is_help=True)

UserGiven = Annotated[str, typer.Argument(metavar="ADDRESS", help="The address that they log in with.")]
MemberGiven = Annotated[
    str, typer.Argument(metavar="USER", help="The address that they log in with, or the id (us_…).")
]
RoleGiven = Annotated[Role, typer.Option(help="What they may do.")]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input, not the keyboard.")
]

_COLUMNS: Final = ("id", "created_at", "expires_at", "from", "program")

UserAddress = Annotated[str, typer.Argument(metavar="ADDRESS", help="The address that they log in with.")]


class OnOff(StrEnum):
    ON = "on"
    OFF = "off"


@user.command("list")
def list_(account: AccountGiven, limit: LimitGiven = 50, as_json: AsJson = False) -> None:
    """Show an account's users, newest first."""
    page = perform_for(account, lambda flows, at: flows.team.members(at, limit))
    rows = [output.member(row) for row in page.items]
    hint = f"There are none: invite one with `posthouse user invite {account!r} ADDRESS`."
    columns = ("id", "email", "role", "created_at")
    output.write_page(rows, columns, as_json=as_json, is_more=page.next_cursor is not None, empty=hint)


@user.command("create")
def create(
    account: AccountGiven,
    email: UserGiven,
    role: RoleGiven = Role.OWNER,
    password_stdin: FromStdin = False,
    as_json: AsJson = False,
) -> None:
    """Make a user who may log in to an account's dashboard, with a password that you choose."""
    # Asked for once all else is right: a person must not type it twice in vain.
    account_id = perform_for(account, lambda flows, at: flows.team.check_new_user(at, email))
    password = _password(password_stdin)
    row = perform(lambda flows: flows.team.create_user(account_id, email, password, role, OPERATOR))
    output.write_done(f"{row.email} may log in as {row.role}.", output.member(row), as_json=as_json)


@user.command("invite")
def invite(account: AccountGiven, email: UserGiven, role: RoleGiven = Role.OWNER, as_json: AsJson = False) -> None:
    """Invite a user to an account: they choose their own password, or prove the password that they have."""
    made = perform_for(account, lambda flows, at: flows.team.invite(at, email, role, OPERATOR))
    row = made.invitation
    if as_json:
        return output.write_json({**output.invitation(row), "token": made.token, "link": made.link})
    output.write_values(
        {
            "email": row.email,
            "role": row.role,
            "expires": row.expires_at,
            "token": made.token,
            **({"link": made.link} if made.link else {}),
        }
    )
    output.write_line(
        "\nThe token is shown only now: give it to them. They join with it and a password that they choose;"
    )
    output.write_line("if their address is a user already, with the password that they have:\n")
    return output.write_line(
        f"  curl {service_url()}/v1/invitations/accept -H 'Content-Type: application/json' \\\n"
        f"""    -d '{{"token": "{made.token}", "password": "…"}}'"""
    )


@user.command("role")
def change_role(
    account: AccountGiven,
    member: MemberGiven,
    role: Annotated[Role, typer.Argument(help="What they may do from now on.")],
    as_json: AsJson = False,
) -> None:
    """Change what a user may do in an account; an account keeps an owner."""

    async def change(flows: "Flows", account_id: "AccountId") -> "MemberRow":
        found = await flows.team.user_id(member)
        return await flows.team.change_role(account_id, found, role, OPERATOR)

    row = perform_for(account, change)
    output.write_done(f"{row.email} is {row.role} of the account now.", output.member(row), as_json=as_json)


@user.command("remove")
def remove(account: AccountGiven, member: MemberGiven, as_json: AsJson = False) -> None:
    """Remove a user from an account, within seconds; an account keeps an owner."""

    async def remove_member(flows: "Flows", account_id: "AccountId") -> None:
        await flows.team.remove(account_id, await flows.team.user_id(member), OPERATOR)

    perform_for(account, remove_member)
    done = f"{member} is no longer a user of the account. Keys that they made still work."
    output.write_done(done, {"removed": member}, as_json=as_json)


@user.command("password")
def set_password(email: UserGiven, password_stdin: FromStdin = False, as_json: AsJson = False) -> None:
    """Set a user's password; all of their sessions end, within seconds."""
    # Refuses before it asks for a password.
    perform(lambda flows: flows.sessions.user(email))
    password = _password(password_stdin)
    ended = perform(lambda flows: flows.sessions.reset_password(email, password))
    done = f"The password of {email} is set; {ended} of their sessions ended."
    output.write_done(done, {"email": email, "sessions_ended": ended}, as_json=as_json)


@user.command("totp-off")
def switch_off_totp(email: UserGiven, as_json: AsJson = False) -> None:
    """Remove a user's second factor, when they lost both the device and the recovery codes."""
    perform(lambda flows: flows.sessions.switch_off_totp(email))
    done = f"{email} now logs in with only the password."
    output.write_done(done, {"email": email, "second_factor": False}, as_json=as_json)


@user.command("login-link")
def login_link(email: UserGiven, as_json: AsJson = False) -> None:
    """Make a link that logs a user in to the dashboard once, for 10 minutes; a second factor is still asked for."""
    url = service_url() + perform(lambda flows: flows.login_links.new_link(email))
    output.write_done(url, {"email": email, "url": url}, as_json=as_json)


@user.command("operator")
def set_operator(
    email: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help="The address that they log in with; none shows who is.")
    ] = None,
    state: Annotated[OnOff | None, typer.Argument(help="Whether they are an operator from now on.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let a user operate the service in the dashboard, or no longer; they need a second factor for it."""
    if email is None or state is None:
        rows: list[Plain] = [
            {"email": address, "since": since} for address, since in perform(lambda flows: flows.operators.all())
        ]
        none = "There are none: `posthouse user operator ADDRESS on` makes one."
        return output.write_page(rows, ("email", "since"), as_json=as_json, empty=none)
    is_operator = state is OnOff.ON
    perform(lambda flows: flows.operators.set_operator(email, is_operator=is_operator))
    said = "is an operator. They need a second factor." if is_operator else "is no longer an operator."
    return output.write_done(f"{email} {said}", {"email": email, "operator": is_operator}, as_json=as_json)


def _password(from_stdin: bool) -> str:
    return sys.stdin.readline().rstrip("\r\n") if from_stdin else prompted_password()


@session.command("list")
def list_sessions(email: UserAddress, as_json: AsJson = False) -> None:
    """Show where a user is logged in, newest first."""
    rows = [_plain(row) for row in perform(lambda flows: flows.sessions.live_of(email))]
    output.write_page(rows, _COLUMNS, as_json=as_json, empty=f"{email} is logged in nowhere.")


@session.command("end")
def end(
    email: UserAddress,
    session_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Its id, as `session list` shows it.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="End all sessions of the user.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a session of a user, and every token of it; in force everywhere within seconds."""
    if (session_id is None) is not every:
        raise typer.BadParameter("give a session's id or --all, one of them.")
    count = perform(lambda flows: flows.sessions.end_of(email, session_id))
    done = f"{count} session{' is' if count == 1 else 's are'} ended; no token of theirs is taken any more."
    output.write_done(done, {"ended": count}, as_json=as_json)


def _plain(row: "SessionRow") -> Plain:
    return {
        "id": ids.text(ids.SESSION, row.id),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "from": row.peer,
        "program": printable(row.user_agent)[:80],
    }
