"""Commands about users of the dashboard: an account's members."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform, perform_for, service_url
from posthouse.cli.output import AccountGiven, AsJson, LimitGiven, Plain
from posthouse.rules.actor import OPERATOR
from posthouse.rules.credential import Role

if TYPE_CHECKING:
    from posthouse.compose.operator import OperatorServices
    from posthouse.flows.account.team import MemberRow
    from posthouse.rules.ids import AccountId

user = typer.Typer(no_args_is_help=True)


class OnOff(StrEnum):
    ON = "on"
    OFF = "off"


UserGiven = Annotated[str, typer.Argument(metavar="ADDRESS", help="The address that they log in with.")]
MemberGiven = Annotated[
    str, typer.Argument(metavar="USER", help="The address that they log in with, or the id (us_…).")
]
RoleGiven = Annotated[Role, typer.Option(help="What they may do.")]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input, not the keyboard.")
]


@user.command("list")
def list_(account: AccountGiven, limit: LimitGiven = 50, as_json: AsJson = False) -> None:
    """Show an account's users, newest first."""
    page = perform_for(account, lambda services, at: services.team.members(at, limit))
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
    account_id = perform_for(account, lambda services, at: services.team.check_new_user(at, email))
    password = _password(password_stdin)
    row = perform(lambda services: services.team.create_user(account_id, email, password, role, OPERATOR))
    if as_json:
        return output.write_json(output.member(row))
    return output.write_line(f"{row.email} may log in as {row.role}.")


@user.command("invite")
def invite(account: AccountGiven, email: UserGiven, role: RoleGiven = Role.OWNER, as_json: AsJson = False) -> None:
    """Invite a user to an account: they choose their own password, or prove the password that they have."""
    made = perform_for(account, lambda services, at: services.team.invite(at, email, role, OPERATOR))
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
        "\nThe token is shown this once: hand it to them now. They join with it and a password of their own"
    )
    output.write_line("choice; if their address is a user already, with the password that they have:\n")
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

    async def change(services: "OperatorServices", account_id: "AccountId") -> "MemberRow":
        found = await services.team.user_id(member)
        return await services.team.change_role(account_id, found, role, OPERATOR)

    row = perform_for(account, change)
    if as_json:
        return output.write_json(output.member(row))
    return output.write_line(f"{row.email} is {row.role} of the account now.")


@user.command("remove")
def remove(account: AccountGiven, member: MemberGiven, as_json: AsJson = False) -> None:
    """Remove a user from an account, within seconds; an account keeps an owner."""

    async def remove_member(services: "OperatorServices", account_id: "AccountId") -> None:
        await services.team.remove(account_id, await services.team.user_id(member), OPERATOR)

    perform_for(account, remove_member)
    if as_json:
        return output.write_json({"removed": member})
    return output.write_line(f"{member} is no longer a user of the account. Keys that they made go on working.")


@user.command("password")
def set_password(email: UserGiven, password_stdin: FromStdin = False, as_json: AsJson = False) -> None:
    """Set a user's password; all of their sessions end, within seconds."""
    perform(lambda services: services.sessions.check_user(email))
    password = _password(password_stdin)
    ended = perform(lambda services: services.sessions.reset_password(email, password))
    if as_json:
        return output.write_json({"email": email, "sessions_ended": ended})
    return output.write_line(f"The password of {email} is set; {ended} of their sessions ended.")


@user.command("totp-off")
def switch_off_totp(email: UserGiven, as_json: AsJson = False) -> None:
    """Remove a user's second factor, when they lost both the device and the recovery codes."""
    perform(lambda services: services.sessions.switch_off_totp(email))
    if as_json:
        return output.write_json({"email": email, "second_factor": False})
    return output.write_line(f"{email} logs in with the password alone again.")


@user.command("login-link")
def login_link(email: UserGiven, as_json: AsJson = False) -> None:
    """Make a link that logs a user in to the dashboard once, for 10 minutes; a second factor is still asked for."""
    url = service_url() + perform(lambda services: services.login_links.new_link(email))
    if as_json:
        return output.write_json({"email": email, "url": url})
    return output.write_line(url)


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
            {"email": address, "since": since} for address, since in perform(lambda services: services.operators.all())
        ]
        none = "There are none: `posthouse user operator ADDRESS on` makes one."
        return output.write_page(rows, ("email", "since"), as_json=as_json, empty=none)
    is_operator = state is OnOff.ON
    perform(lambda services: services.operators.set_operator(email, is_operator=is_operator))
    said = "is an operator. They need a second factor." if is_operator else "is no longer an operator."
    return output.write_done(f"{email} {said}", {"email": email, "operator": is_operator}, as_json=as_json)


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return typed
