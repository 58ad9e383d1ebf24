"""The `posthouse` command: every family of commands under one name."""

from typing import Annotated

import typer

from posthouse.cli.families import LazyGroup
from posthouse.cli.output import write_line

# Tracebacks with local variables would print secrets. Help in plain text needs a third of the time of Rich's.
app = typer.Typer(
    name="posthouse",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)


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
