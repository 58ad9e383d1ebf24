"""What all sections share: their base class, which settings are secret, and lists written in one variable."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.fields import FieldInfo


class Section(BaseModel):
    # Built only as a part of Settings: building each section separately as well takes twice the time.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


def is_secret(setting: FieldInfo) -> bool:
    """Whether it is a secret, which is never printed and can be given as a file that contains it (`…_file`)."""
    return not setting.repr


def _split(given: object) -> object:
    if not isinstance(given, str):
        return given
    if given.lstrip().startswith("["):
        return json.loads(given)
    return [part.strip() for part in given.split(",") if part.strip()]


Texts = Annotated[tuple[str, ...], BeforeValidator(_split)]
Integers = Annotated[tuple[int, ...], BeforeValidator(_split)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_split)]


# The errors for faults in the settings.


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a setting and what it should be; `where` is a line of the file, or a variable."""

    where: str
    text: str
    setting: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


class ConfigError(Exception):
    """The settings can't be used; the text names each setting and what to do."""

    def __init__(self, text: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(text)
        self.faults = faults or (Fault("", text),)


# Suggests the name that was probably meant.


CUTOFF: Final = 0.7


def did_you_mean(given: str, names: Iterable[str], *, prefix: str = "") -> str:
    """A question that names the closest one; empty if none is close. A prefix that all share doesn't count."""
    from difflib import get_close_matches  # only a fault needs it

    near = get_close_matches(given.removeprefix(prefix), [name.removeprefix(prefix) for name in names], 1, CUTOFF)
    return f"did you mean {prefix}{near[0]}?" if near else ""
