"""Commands for the time after the database was restored."""

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson
from posthouse.cli.queue import command_for
from posthouse.rules import ids
from posthouse.rules.queue_change import QueueChange

restore = typer.Typer(no_args_is_help=True)

# In the order of `flows.operate.restore.AGES`.
_AGES = ("10 minutes", "1 hour", "6 hours", "1 day", "older")


@restore.command("show")
def show(as_json: AsJson = False) -> None:
    """How much is held since the restore: by account, destination and age."""
    held = perform(lambda services: services.restores.held())
    accounts = [
        {"id": ids.text(ids.ACCOUNT, account_id), "name": name, "recipients": count}
        for account_id, name, count in held.accounts
    ]
    destinations = [{"destination": destination, "recipients": count} for destination, count in held.destinations]
    ages = [{"accepted within": age, "recipients": count} for age, count in zip(_AGES, held.ages, strict=True)]
    totals = {
        "noticed_at": held.restored_at,
        "restored_to": held.restored_to,
        "recipients": held.recipients,
        "messages": held.messages,
        "tried_before": held.tried,
        "held_by_operators": held.operators,
    }
    if as_json:
        output.write_json({**totals, "accounts": accounts, "destinations": destinations, "ages": ages})
        return
    if held.restored_at is None:
        output.write_line("No restore was noticed.")
        return
    output.write_values(totals)
    for rows in (accounts, destinations, ages):
        if held.recipients:
            output.write_line()
            output.write_table(rows, list(rows[0]))


restore.command(
    "release",
    help="Let mail go on that is held since the restore: all of it, or a part. What was sent before comes twice.\n\n"
    "What is not to be sent again is ended with `posthouse queue cancel`.",
)(command_for(QueueChange.RELEASE_RESTORED))


@restore.command("begin")
def begin(as_json: AsJson = False) -> None:
    """Hold everything that was accepted before now, for a restore that the service can't notice by itself.

    That is a copy of the disk or of the machine (a snapshot): its timeline is the same as before. Run this while no
    process of the service runs.
    """
    count = perform(lambda services: services.restores.begin())
    text = f"{count:,} recipients are held: see `posthouse restore show`."
    output.write_done(text, {"recipients": count}, as_json=as_json)
