"""Commands about the settings."""

import os
from pathlib import Path
from typing import Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, settings
from posthouse.cli.output import AsJson

config = typer.Typer(no_args_is_help=True)


@config.command("init")
def init(
    file: Annotated[Path, typer.Option(help="Where to write it.")] = Path("posthouse.toml"),
    database_url: Annotated[
        str | None, typer.Option(envvar="POSTHOUSE_DATABASE__URL", help="postgresql://user@host:port/database")
    ] = None,
) -> None:
    """Write a configuration file with fresh secrets, every setting explained."""
    from posthouse.config.text import EXAMPLE_DATABASE_URL, commented_toml, generated

    text = commented_toml(generated(), database_url or EXAMPLE_DATABASE_URL)
    try:
        # Created readable by its owner alone; never over an existing file.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(
            f"{file} exists already, and without its secrets the stored keys are worthless: "
            "name another with --file, or move it to a safe place first"
        )
    except OSError as error:
        fail(f"{file} can't be written: {error.strerror}")
    with os.fdopen(descriptor, "w", encoding="utf-8") as written:
        written.write(text)
    output.write_line(f"{file} is written. It holds secrets: keep a copy of it in a safe place.")
    output.write_line("Next: set url under [database] in it, then run `posthouse migrate` and `posthouse doctor`.")


@config.command("show")
def show_(as_json: AsJson = False) -> None:
    """Show the settings in force, secrets hidden."""
    from posthouse.config import config_file
    from posthouse.config.text import shown

    values = shown(settings())
    if as_json:
        return output.write_json(values)
    output.write_line(f"# from {config_file() or 'the environment alone'}\n")
    for section, settings_of in values.items():
        for name, value in settings_of.items():
            output.write_line(f"{f'{section}.{name}':<34} {output.text(value)}")
    return None
