"""Commands about backups."""

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson

backup = typer.Typer(no_args_is_help=True)


@backup.callback()
def family() -> None:
    """Backups: note that one was made."""


@backup.command("noted")
def noted(as_json: AsJson = False) -> None:
    """Note that a backup was made just now: the last step of the script that makes it.

    `posthouse doctor` finds fault once the last is older than doctor.backup_hours_max.
    """
    at = perform(lambda services: services.backups.note())
    output.write_done(f"Noted: a backup was made {output.text(at)}.", {"at": at}, as_json=as_json)
