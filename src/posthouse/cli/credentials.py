"""Commands about SMTP credentials, API keys and dashboard users."""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform, perform_for
from posthouse.cli.output import AccountGiven, AsJson
from posthouse.rules.actor import OPERATOR
from posthouse.rules.credential import Mode, Role, Scope
from posthouse.rules.limits import OVERLAP_SECONDS

if TYPE_CHECKING:
    from posthouse.compose.operator import OperatorServices
    from posthouse.flows.account.team import MemberRow, NewInvitation

credential = typer.Typer(no_args_is_help=True)
key = typer.Typer(no_args_is_help=True)
user = typer.Typer(no_args_is_help=True)

Overlap = Annotated[int, typer.Option(metavar="SECONDS", help="How long the old secret stays valid: 0 to 604800.")]
UserGiven = Annotated[str, typer.Argument(help="The address that they log in with.")]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input, not the keyboard.")
]


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
    made = perform_for(
        account, lambda services, at: services.credentials.create_credential(at, name, allow or (), OPERATOR)
    )
    if as_json:
        return output.write_json({**output.credential(made.credential), "password": made.password})
    row = made.credential
    output.write_values({"username": row.username, "password": made.password, "allowed_networks": row.allowed_networks})
    return output.write_line("\nThe password is shown this once: keep it now.")


@credential.command("revoke")
def revoke_credential(
    account: AccountGiven, credential: Annotated[str, typer.Argument(help="Its username or id (cr_…).")]
) -> None:
    """Revoke a credential and its API keys, within seconds; even the account's last credential."""
    row = perform_for(
        account,
        lambda services, at: services.credentials.revoke_credential(at, credential, OPERATOR, even_the_last=True),
    )
    output.write_line(f"{row.username} ({row.name}) is revoked, and its API keys with it.")


@credential.command("rotate")
def rotate_credential(
    account: AccountGiven,
    credential: Annotated[str, typer.Argument(help="Its username or id (cr_…).")],
    overlap: Overlap = OVERLAP_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Give a credential a new password; the old password works until the overlap ends."""
    made = perform_for(
        account,
        lambda services, at: services.credentials.rotate_credential(at, credential, OPERATOR, overlap_seconds=overlap),
    )
    if as_json:
        return output.write_json({**output.credential(made.credential), "password": made.password})
    row = made.credential
    output.write_values({"username": row.username, "password": made.password, "old_one_until": row.previous_until})
    return output.write_line("\nThe password is shown this once: keep it now.")


@key.command("create")
def create_key(
    account: AccountGiven,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    test: Annotated[bool, typer.Option("--test", help="For tests: no mail is sent, no credit is used.")] = False,
    read: Annotated[bool, typer.Option("--read", help="May also read messages, not only send.")] = False,
    credential: Annotated[
        str | None,
        typer.Option(help="The credential it belongs to: username or id. Default: the default credential."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Usable only from here, and where its credential is; may be repeated."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="90d|2027-01-31", help="When it ends: in days, or a date (UTC).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key."""
    expires_at = _expiry(expires)
    made = perform_for(
        account,
        lambda services, at: services.credentials.create_key(
            at,
            OPERATOR,
            name=name,
            mode=Mode.TEST if test else Mode.LIVE,
            scopes=[Scope.SEND, Scope.READ] if read else [Scope.SEND],
            given_credential=credential,
            allowed_networks=allow or (),
            expires_at=expires_at,
        ),
    )
    if as_json:
        return output.write_json({**output.key(made.key), "secret": made.secret})
    output.write_values(
        {
            "id": output.key(made.key)["id"],
            "key": made.secret,
            "may_read": made.key.may_read,
            "expires": made.key.expires_at,
        }
    )
    return output.write_line("\nThe key is shown this once: keep it now.")


@key.command("rotate")
def rotate_key(
    account: AccountGiven,
    key: Annotated[str, typer.Argument(help="Its id (ak_…).")],
    overlap: Overlap = OVERLAP_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Make a new key with the same rights; the old key stays valid until the overlap ends."""
    made = perform_for(
        account, lambda services, at: services.credentials.rotate_key(at, key, OPERATOR, overlap_seconds=overlap)
    )
    if as_json:
        return output.write_json({**output.key(made.key), "secret": made.secret})
    old = None if made.previous is None else made.previous.expires_at
    output.write_values({"id": output.key(made.key)["id"], "key": made.secret, "old_one_until": old})
    return output.write_line("\nThe key is shown this once: keep it now.")


@key.command("revoke")
def revoke_key(account: AccountGiven, key: Annotated[str, typer.Argument(help="Its id (ak_…).")]) -> None:
    """Revoke an API key, within seconds."""
    row = perform_for(account, lambda services, at: services.credentials.revoke_key(at, key, OPERATOR))
    output.write_line(f"{row.hint} ({row.name}) is revoked.")


@user.command("create")
def create_user(
    account: AccountGiven,
    email: Annotated[str, typer.Argument(help="The address to log in with.")],
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.OWNER,
    password_stdin: FromStdin = False,
    as_json: AsJson = False,
) -> None:
    """Make a user who may log in to an account's dashboard."""
    password = _password(password_stdin)

    async def create(services: "OperatorServices") -> "MemberRow":
        account_id = await services.accounts.account_id(account)
        return await services.team.create_user(account_id, email, password, role, OPERATOR)

    row = perform(create)
    if as_json:
        return output.write_json(output.member(row))
    return output.write_line(f"{row.email} may log in as {row.role}.")


@user.command("invite")
def invite_user(
    account: AccountGiven,
    email: Annotated[str, typer.Argument(help="The address to log in with.")],
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.OWNER,
    as_json: AsJson = False,
) -> None:
    """Invite a user to an account: they choose their own password, or prove the password that they have."""

    async def invite(services: "OperatorServices") -> "NewInvitation":
        account_id = await services.accounts.account_id(account)
        return await services.team.invite(account_id, email, role, OPERATOR)

    made = perform(invite)
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
    return output.write_line("\nIt is shown this once: hand it to them now.")


@user.command("password")
def set_password(email: UserGiven, password_stdin: FromStdin = False) -> None:
    """Set a user's password; all of their sessions end, within seconds."""
    password = _password(password_stdin)
    ended = perform(lambda services: services.sessions.reset_password(email, password))
    output.write_line(f"The password of {email} is set; {ended} of their sessions ended.")


@user.command("totp-off")
def switch_off_totp(email: UserGiven) -> None:
    """Remove a user's second factor, when they lost both the device and the recovery codes."""
    perform(lambda services: services.sessions.switch_off_totp(email))
    output.write_line(f"{email} logs in with the password alone again.")


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return typed


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
