"""Reading the settings.

The file is named by POSTHOUSE_CONFIG; else it is `./posthouse.toml`, else `/etc/posthouse/posthouse.toml`.
"""

import os
import tomllib
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from posthouse.config.errors import ConfigError
from posthouse.config.old_names import refuse_old_names
from posthouse.config.section import MAKE_SECRETS
from posthouse.config.settings import ENVIRONMENT_PREFIX, Settings, section_types, variable

FILE_VARIABLE: Final = "POSTHOUSE_CONFIG"
FILES: Final = (Path("posthouse.toml"), Path("/etc/posthouse/posthouse.toml"))


def config_file() -> Path | None:
    """The file that `load` reads; None when there is none, which is fine if the environment has it all."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ConfigError(
                f"{FILE_VARIABLE} names {named}, which is not a file: correct it, or write one with "
                f"`posthouse config init --file {named}`"
            )
        return Path(named)
    return next((path for path in FILES if path.is_file()), None)


def load(file: Path | None = None) -> Settings:
    """The settings, or a ConfigError that names every fault."""
    source = file or config_file()
    values = {} if source is None else _read(source)
    refuse_old_names(values, source, os.environ)
    _refuse_whole_sections()
    try:
        return Settings(**values)
    except ValidationError as error:
        where = f"{source} and the environment" if source else "the environment (no configuration file was found)"
        raise ConfigError(f"the settings in {where} can't be used: {_faults(error)}") from None


def _read(source: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(source.read_text())
    except OSError as error:
        raise ConfigError(f"{source} can't be read: {error.strerror}") from None
    # The parser reports most faults with an error of its own, but not that a number is too long.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def _refuse_whole_sections() -> None:
    """A variable that names a section only would be read as JSON."""
    sections = {f"{ENVIRONMENT_PREFIX}{name}".upper(): name for name in Settings.model_fields}
    found = [name for name in os.environ if name.upper() in sections]
    if found:
        section = sections[found[0].upper()]
        example = variable(section, next(iter(section_types()[section].model_fields)))
        raise ConfigError(f"{found[0]} names a section: set its settings one by one, such as {example}")


def _faults(error: ValidationError) -> str:
    """Every fault in one line. Values are not repeated: they may be secrets."""
    missing, faults = [], []
    for detail in error.errors(include_input=False, include_url=False):
        name = ".".join(map(str, detail["loc"]))
        text = detail["msg"].removeprefix("Value error, ")
        match detail["type"]:
            case "missing" if name == "database.url":
                faults.append(f"database.url is missing: set url under [database], or {variable('database', 'url')}")
            case "missing":
                missing.append(name)
            case "extra_forbidden":
                faults.append(f"{name} is not a setting: correct its name or remove it")
            case "model_type" if name in Settings.model_fields:
                faults.append(f"{name} is a section: write its settings under [{name}]")
            case _ if name in Settings.model_fields:
                faults.append(f"[{name}] {text}")
            case _:
                faults.append(f"{name} {text[0].lower()}{text[1:]}" if name else text)
    if missing:
        faults.append(f"missing are {', '.join(missing)}: {MAKE_SECRETS}")
    return "; ".join(faults)
