"""The `posthouse` command: every family of commands under one name."""

from typing import Annotated

import typer

from posthouse.cli import (
    accounts,
    audit,
    clock,
    configuration,
    credentials,
    domains,
    inbox,
    messages,
    queue,
    service,
    suppressions,
    webhook,
)
from posthouse.cli.output import write_line

# Tracebacks with local variables would print secrets.
app = typer.Typer(name="posthouse", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        write_line(f"posthouse {version('posthouse')}")
        raise typer.Exit


@app.callback()
def posthouse(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Posthouse: a transactional email service."""


app.command("run")(service.run)
app.command("migrate")(service.migrate)
app.command("upkeep")(service.upkeep)
app.command("doctor")(service.doctor)
app.command("audit")(audit.audit)
app.add_typer(configuration.config, name="config")
app.add_typer(accounts.account, name="account")
app.add_typer(accounts.credits_, name="credits")
app.add_typer(domains.domain, name="domain")
app.add_typer(credentials.credential, name="credential")
app.add_typer(credentials.key, name="key")
app.add_typer(credentials.user, name="user")
app.add_typer(messages.message, name="message")
app.add_typer(queue.queue, name="queue")
app.add_typer(inbox.inbox, name="inbox")
app.add_typer(clock.clock, name="clock")
app.add_typer(suppressions.suppression, name="suppression")
app.add_typer(webhook.webhook, name="webhook")
