"""Commands about SMTP credentials and API keys."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import moment, perform_for
from posthouse.cli.output import AccountGiven, AsJson, LimitGiven, Plain
from posthouse.rules.credential import OPERATOR, Mode, Scope, sender_domains
from posthouse.rules.limits import OVERLAP_SECONDS

credential = typer.Typer(no_args_is_help=True)
key = typer.Typer(no_args_is_help=True)

Overlap = Annotated[int, typer.Option(metavar="SECONDS", help="How long the old secret stays valid: 0 to 604800.")]
CredentialGiven = Annotated[str, typer.Argument(help="Its username or id (cr_…).")]
KeyGiven = Annotated[str, typer.Argument(help="Its id (ak_…).")]

_CREDENTIAL_COLUMNS = ("id", "username", "name", "state", "is_default", "allowed_networks", "last_used_at")
_KEY_COLUMNS = ("id", "hint", "name", "mode", "scopes", "state", "expires_at", "last_used_at")


@credential.command("list")
def list_credentials(account: AccountGiven, limit: LimitGiven = 50, as_json: AsJson = False) -> None:
    """Show an account's SMTP credentials, newest first; revoked ones too."""
    page = perform_for(account, lambda flows, at: flows.credentials.credentials(at, limit))
    rows = [output.credential(row) for row in page.items]
    hint = f"There are none: make one with `posthouse credential create {account!r} NAME`."
    output.write_page(rows, _CREDENTIAL_COLUMNS, as_json=as_json, is_more=page.next_cursor is not None, empty=hint)


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
    made = perform_for(account, lambda flows, at: flows.credentials.create_credential(at, name, allow or (), OPERATOR))
    row = made.credential
    shown = {"username": row.username, "password": made.password, "allowed_networks": row.allowed_networks}
    _write_secret("password", shown, {**output.credential(row), "password": made.password}, as_json=as_json)


@credential.command("revoke")
def revoke_credential(
    account: AccountGiven,
    credential: CredentialGiven,
    as_json: AsJson = False,
) -> None:
    """Revoke a credential and its API keys, within seconds; even the account's last credential."""
    row = perform_for(
        account,
        lambda flows, at: flows.credentials.revoke_credential(at, credential, OPERATOR, even_the_last=True),
    )
    done = f"{row.username} ({row.name}) is revoked, and its API keys with it."
    output.write_done(done, output.credential(row), as_json=as_json)


@credential.command("rotate")
def rotate_credential(
    account: AccountGiven,
    credential: CredentialGiven,
    overlap: Overlap = OVERLAP_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Give a credential a new password; the old password works until the overlap ends."""
    made = perform_for(
        account,
        lambda flows, at: flows.credentials.rotate_credential(at, credential, OPERATOR, overlap_seconds=overlap),
    )
    row = made.credential
    shown = {"username": row.username, "password": made.password, "old_one_until": row.previous_until}
    _write_secret("password", shown, {**output.credential(row), "password": made.password}, as_json=as_json)


@key.command("list")
def list_keys(account: AccountGiven, limit: LimitGiven = 50, as_json: AsJson = False) -> None:
    """Show an account's API keys, newest first; revoked and expired ones too."""
    page = perform_for(account, lambda flows, at: flows.credentials.keys(at, limit))
    rows = [output.key(row) for row in page.items]
    hint = f"There are none: make one with `posthouse key create {account!r}`."
    output.write_page(rows, _KEY_COLUMNS, as_json=as_json, is_more=page.next_cursor is not None, empty=hint)


@key.command("create")
def create_key(
    account: AccountGiven,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    test: Annotated[bool, typer.Option("--test", help="For tests: no mail is sent, no credit is used.")] = False,
    read: Annotated[bool, typer.Option("--read", help="May also read messages, not only send.")] = False,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="What it may do, and nothing else; may be repeated. Default: send."),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DOMAIN", help="May send only from this domain, and read only that mail; may be repeated."
        ),
    ] = None,
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
    scopes = [*(scope or [Scope.SEND]), *([Scope.READ] if read else [])]
    made = perform_for(
        account,
        lambda flows, at: flows.credentials.create_key(
            at,
            OPERATOR,
            name=name,
            mode=Mode.TEST if test else Mode.LIVE,
            scopes=[given for given in Scope if given in scopes],
            sender_domains=sender_domains(domain),
            given_credential=credential,
            allowed_networks=allow or (),
            expires_at=expires_at,
        ),
    )
    row = output.key(made.key)
    shown = {
        "id": row["id"],
        "key": made.secret,
        "scopes": ", ".join(made.key.scopes),
        "expires": made.key.expires_at,
    }
    _write_secret("key", shown, {**row, "secret": made.secret}, as_json=as_json)


@key.command("rotate")
def rotate_key(
    account: AccountGiven,
    key: KeyGiven,
    overlap: Overlap = OVERLAP_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Make a new key with the same rights; the old key stays valid until the overlap ends."""
    made = perform_for(
        account, lambda flows, at: flows.credentials.rotate_key(at, key, OPERATOR, overlap_seconds=overlap)
    )
    row = output.key(made.key)
    old = None if made.previous is None else made.previous.expires_at
    shown = {"id": row["id"], "key": made.secret, "old_one_until": old}
    _write_secret("key", shown, {**row, "secret": made.secret}, as_json=as_json)


@key.command("revoke")
def revoke_key(account: AccountGiven, key: KeyGiven, as_json: AsJson = False) -> None:
    """Revoke an API key, within seconds."""
    row = perform_for(account, lambda flows, at: flows.credentials.revoke_key(at, key, OPERATOR))
    output.write_done(f"{row.hint} ({row.name}) is revoked.", output.key(row), as_json=as_json)


def _write_secret(what: str, shown: Plain, values: Plain, *, as_json: bool) -> None:
    """Print a new secret, which can't be read again: `shown` for people, `values` as JSON."""
    if as_json:
        return output.write_json(values)
    output.write_values(shown)
    return output.write_line(f"\nThe {what} is shown this once: keep it now.")


def _expiry(given: str | None) -> datetime | None:
    if given is None:
        return None
    days = re.fullmatch(r"([0-9]{1,5})d", given)
    if days:
        return datetime.now(UTC) + timedelta(days=int(days[1]))
    return moment(given, "a number of days such as 90d, or a date such as 2027-01-31")
