"""Reading the settings.

The file is the one that POSTHOUSE_CONFIG names, otherwise `./posthouse.toml`, otherwise that of `posthouse dev`
(`./.posthouse/posthouse.toml`), otherwise `/etc/posthouse/posthouse.toml`.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from posthouse.config.environment import FILE_VARIABLE, Variables, without_service_links
from posthouse.config.secret_files import with_secrets_read
from posthouse.config.section import ConfigError, Fault, did_you_mean
from posthouse.config.settings import Settings, section_types, variable

# The line of a setting in a TOML file, which the parser in the standard library doesn't tell.


SettingPath = tuple[str, ...]


def lines_of(text: str) -> Mapping[SettingPath, int]:
    """The line of each table and each key, counted from 1."""
    found: dict[SettingPath, int] = {}
    table: SettingPath = ()
    is_in_text = False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not is_in_text and words.startswith("["):
            table = _parts(words.lstrip("[").partition("]")[0])
            found.setdefault(table, number)
        elif not is_in_text and "=" in words and not words.startswith("#"):
            found.setdefault((*table, *_parts(words.partition("=")[0])), number)
        # A multi-line string begins or ends here.
        if (line.count('"""') + line.count("'''")) % 2:
            is_in_text = not is_in_text
    return found


def line_of(lines: Mapping[SettingPath, int], place: Sequence[str]) -> int | None:
    """The line of that setting, or of the table or value that contains it if it has no line of its own."""
    for length in range(len(place), 0, -1):
        if tuple(place[:length]) in lines:
            return lines[tuple(place[:length])]
    return None


def _parts(dotted: str) -> SettingPath:
    """The parts of a key; a dot in quotes doesn't separate parts."""
    parts, quote = [""], ""
    for character in dotted.strip():
        if character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and character == ".":
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts)


FILES: Final = (Path("posthouse.toml"), Path(".posthouse/posthouse.toml"), Path("/etc/posthouse/posthouse.toml"))

_SECRETS: Final = ("secrets.pepper", "secrets.jwt_secret", "secrets.seal_keys", "secrets.seal_key_active")


def config_file() -> Path | None:
    """The file that `load` reads; None if there is none, which is fine if the environment contains all settings."""
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
    """The settings, or a ConfigError with every fault."""
    source = file or config_file()
    text = "" if source is None else _read(source)
    in_file = {} if source is None else _parsed(source, text)
    environment = without_service_links(os.environ)
    places = _Places(source, text, Variables(environment))
    faults = list(places.variables.faults)
    from_file = with_secrets_read(in_file, places.in_file, faults)
    from_environment = with_secrets_read(places.variables.values, places.in_environment, faults)
    try:
        settings = Settings.model_validate(_merged(from_file, from_environment))
    except ValidationError as error:
        faults += _faults(error, places, {fault.setting for fault in faults})
    if not faults:
        return settings
    where = f"{source} and the environment" if source else "the environment (no configuration file was found)"
    raise ConfigError(f"the settings in {where} can't be used: {'; '.join(map(str, faults))}", faults)


class _Places:
    """Where a setting is given: in a variable, or in a line of the file."""

    def __init__(self, source: Path | None, text: str, variables: Variables) -> None:
        self._source = source
        self._lines = lines_of(text)
        self.variables = variables

    def of(self, path: Sequence[str]) -> str:
        for name in (path[1], f"{path[1]}_file") if len(path) > 1 else ():
            if (path[0], name) in self.variables.names:
                return self.in_environment(path[0], name)
        return self.in_file(*path)

    def in_file(self, *path: str) -> str:
        line = line_of(self._lines, path)
        return f"{self._source}, line {line}" if line else ""

    def in_environment(self, section: str, name: str) -> str:
        return self.variables.names[section, name]


def _read(source: Path) -> str:
    try:
        return source.read_text()
    except OSError as error:
        raise ConfigError(f"{source} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def _parsed(source: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    # The parser reports most faults with its own error, but not that a number is too long.
    except (ValueError, RecursionError) as error:
        fault = f"is not valid TOML: {error}"
        line = re.search(r"at line ([0-9]+)", str(error))
        where = f"{source}, line {line[1]}" if line else str(source)
        raise ConfigError(f"{source} {fault}", [Fault(where, fault)]) from None


def _merged(file: Mapping[str, object], environment: Mapping[str, object]) -> dict[str, object]:
    """The environment's settings over the file's."""
    merged = dict(file)
    for section, own in environment.items():
        below = merged.get(section, {})
        merged[section] = {**below, **own} if isinstance(below, Mapping) and isinstance(own, Mapping) else own
    return merged


def _faults(error: ValidationError, places: _Places, reported: set[str]) -> list[Fault]:
    """Every fault. Values are not repeated, because they may be secrets."""
    missing, faults = [], []
    for detail in error.errors(include_input=False, include_url=False):
        path = tuple(map(str, detail["loc"]))
        name = ".".join(path)
        where = places.of(path) if path else ""
        text = detail["msg"].removeprefix("Value error, ")
        match detail["type"]:
            case _ if name in reported:
                pass
            case "missing" if name == "database.url":
                advice = f"set url under [database], or {variable('database', 'url')}"
                faults.append(Fault("", f"database.url is missing: {advice}", name))
            case "missing":
                missing.append(name)
            case "extra_forbidden":
                kind = "neither a setting nor a section" if len(path) == 1 else "not a setting"
                advice = _meant(path) or "correct its name or remove it"
                faults.append(Fault(where, f"{name} is {kind}: {advice}", name))
            case "model_type" if name in Settings.model_fields:
                faults.append(Fault(where, f"{name} is a section: write its settings under [{name}]", name))
            case _ if name in Settings.model_fields:
                faults.append(Fault(where, f"[{name}] {text}", name))
            case _:
                faults.append(Fault(where, f"{name} {text[0].lower()}{text[1:]}" if name else text, name))
    if missing:
        faults.append(Fault("", f"missing are {', '.join(missing)}: {_how_to_get(missing)}"))
    return faults


def _how_to_get(missing: Sequence[str]) -> str:
    """New secrets are only for an installation that has none: next to others they would make its data unreadable."""
    if set(missing) >= set(_SECRETS):
        return "run `posthouse config init` to write a file with new secrets, or restore those of this installation"
    return "restore them from your copy of the settings: new ones would make stored data unreadable"


def _meant(path: Sequence[str]) -> str:
    """The setting that was probably meant."""
    sections = section_types()
    if path[0] not in sections:
        owners = [section for section, kind in sections.items() if path[0] in kind.model_fields]
        if owners:
            return f"write it under [{owners[0]}]"
        return did_you_mean(f"[{path[0]}]", [f"[{section}]" for section in sections])
    near = did_you_mean(path[-1], sections[path[0]].model_fields) if len(path) == 2 else ""
    owners = [section for section, kind in sections.items() if path[-1] in kind.model_fields and section != path[0]]
    return near or (f"it belongs under [{owners[0]}]" if owners and len(path) == 2 else "")
