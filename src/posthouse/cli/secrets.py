"""Commands about the installation's own secrets."""

from datetime import datetime

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson, Plain
from posthouse.flows.operate.secrets import SecretUse

secret = typer.Typer(no_args_is_help=True)

_COLUMNS = ("secret", "id", "state", "may_be_removed", "used_by")


@secret.callback()
def family() -> None:
    """The installation's secrets: which are in use, which may be removed."""


@secret.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show peppers, JWT secrets and seal keys: what needs each of them, and whether it may be removed.

    Run it once on the new settings after a secret was replaced: it notes the time from which old tokens and links end.
    """
    found, now = perform(lambda services: services.secrets.all_now())
    output.write_page([_row(use, now) for use in found], _COLUMNS, as_json=as_json)


def _row(use: SecretUse, now: datetime) -> Plain:
    state = "missing in the settings" if not use.is_known else "active" if use.is_active else "not active"
    if use.is_active or not use.is_known:
        removable = "no"
    elif use.may_be_removed(now):
        removable = "yes"
    elif use.uses:
        removable = "not while it is used"
    else:
        removable = f"from {output.text(use.needed_until)}"
    used_by = ", ".join(f"{count} {what}" for what, count in use.uses.items())
    return {"secret": use.kind, "id": use.id, "state": state, "may_be_removed": removable, "used_by": used_by}
