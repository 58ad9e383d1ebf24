"""The error that every fault in the settings becomes."""

from collections.abc import Sequence
from dataclasses import dataclass


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
