"""Commands about the settings."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, settings
from posthouse.cli.output import AsJson

config = typer.Typer(no_args_is_help=True)


class InstallationKind(StrEnum):
    LAPTOP = "laptop"
    SERVER = "server"
    FLEET = "fleet"


@config.command("init")
def init(
    file: Annotated[Path, typer.Option(help="Where to write it.")] = Path("posthouse.toml"),
    database_url: Annotated[
        str | None, typer.Option(envvar="POSTHOUSE_DATABASE__URL", help="postgresql://user@host:port/database")
    ] = None,
    kind: Annotated[
        InstallationKind | None,
        typer.Option(
            "--for",
            help="Begin with the settings of a laptop (no mail leaves), of one server behind a proxy, or of several "
            "machines with NATS.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a configuration file with fresh secrets, every setting explained; never over an existing file."""
    from posthouse.config.text import EXAMPLE_DATABASE_URL, Purpose, commented_toml, generated

    purpose = None if kind is None else Purpose(kind.value)
    text = commented_toml(generated(), database_url or EXAMPLE_DATABASE_URL, purpose)
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
    if as_json:
        return output.write_json({"file": str(file)})
    output.write_line(f"{file} is written. It holds secrets: keep a copy of it in a safe place.")
    first = [] if database_url else ["set url under [database] in it"]
    first += ["look through the settings that its head names"] if kind in ("server", "fleet") else []
    then = "run `posthouse migrate` and `posthouse doctor`."
    return output.write_line(f"Next: {', '.join(first)}{', then ' if first else ''}{then}")


@config.command("check")
def check(
    file: Annotated[Path | None, typer.Option(help="The file, instead of the one that commands read.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the settings; names each wrong line or variable and what it should be. Ends with 1 when there is one."""
    from posthouse.config import ConfigError, config_file, load

    try:
        source = file or config_file()
        load(file)
    except ConfigError as error:
        faults = error.faults
    else:
        faults = ()
    if as_json:
        output.write_json([{"where": fault.where, "setting": fault.setting, "fault": fault.text} for fault in faults])
    elif faults:
        for fault in faults:
            output.write_line(str(fault))
    else:
        output.write_line(f"The settings can be used: {source or 'no file'}, and the environment.")
    if faults:
        raise typer.Exit(1)


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
