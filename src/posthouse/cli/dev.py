"""The command that runs the whole service on a developer's machine."""

import os
from pathlib import Path
from typing import Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, text_of


def dev(
    directory: Annotated[Path, typer.Option(help="Where the data, the settings and the log are.")] = Path(".posthouse"),
    host: Annotated[str, typer.Option(help="Listen here.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For HTTP; if it is taken, the next free port.")] = 8025,
    smtp_port: Annotated[
        int, typer.Option(min=1, max=65535, help="For SMTP; if it is taken, the next free port.")
    ] = 2587,
    reset: Annotated[bool, typer.Option("--reset", help="Delete all data first, and begin anew.")] = False,
) -> None:
    """Run everything on this machine, with a PostgreSQL and an account of its own; no mail leaves.

    PostgreSQL is that of the machine, or comes with `pip install 'posthouse[dev]'`. Ctrl-C stops everything; the next
    start continues with the same data and keys.
    """
    from posthouse.dev.errors import DevError
    from posthouse.dev.run import Options, run
    from posthouse.rules.refusal import Refusal

    # The service's parts print to a log; this is still the terminal.
    terminal = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def say(text: str) -> None:
        terminal.write(text + "\n")
        terminal.flush()

    try:
        run(Options(directory, host, port, smtp_port, reset), say)
    except DevError as error:
        fail(str(error))
    except Refusal as refusal:
        fail(text_of(refusal))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    output.write_line("Stopped.")
